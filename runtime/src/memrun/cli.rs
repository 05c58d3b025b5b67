//! The command line of `memrun`.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    DeviceName, DynamicOptions, Epochs, Error, EvaluationOptions, InputSource, MeasureOptions, Pad, Policy,
    ProfileOptions, Rate, RunOptions, Stages, TuneOptions, cpu,
    serve::{ServeOptions, ServedPlan},
};
use clap::{Args, Parser, Subcommand};
use memc_gpu::{LibraryOptions, Rounding};
use memc_support::{check_clash, is_same_file};

use crate::memrun::values::{NamedInput, epochs, host_memory, named_file, pad, rate};

const MORE: &str = "--help lists all options, examples and exit codes";

const EXAMPLES: &str = "\
Examples:
  memrun model.plan --plan-info         names of inputs and outputs, sizes
  memrun model.plan --steps 5 --synthetic
                                        made-up data, the plan's learning rate
  memrun model.plan --input input=@x.npy --input labels=@y.npy --epochs 10 --shuffle 0 \\
         --lr warmup=100,cosine=10000 --save s.safetensors --save-every 1000
  memrun model.plan --steps 100 --resume s.safetensors --save s.safetensors \\
         --input input=@x.npy --input labels=@y.npy
  memrun gpt.plan --input input_ids=@train.bin:u16 --input labels=@train.bin:u16+1 --epochs 1
  memrun model.plan --input input=@x.npy --output fc1.weight_grad=g.npy --synthetic
  memrun model.plan --synthetic --verify --check-memory --delay-seed 1
  memrun model.plan --synthetic --steps 5 --trace step.json
                                        timeline of the last step, for Perfetto
  memrun profile model.plan -o cpu.json kernel times, for memc --device cpu.json
  memrun profile model.plan --device cuda --keep        for memc on this machine
  memrun tune model.plan --device cuda  fastest algorithms of a GPU's libraries, kept in the plan
  memrun serve model.plan --http 127.0.0.1:8000
                                        outputs of an inference plan, over HTTP
  memrun devices                        CPU, GPUs, CUDA's libraries

Arrays from an .npz file, such as models/mlp_s/reference.npz of memc:
  python -c \"import numpy as n; z = n.load('reference.npz'); \\
             [n.save(k, z[k]) for k in 'xy']\"

An array has the input's shape, and feeds every step the same; or one axis
more in front, and feeds one slice to each step (to each micro-step, where
gradients accumulate); or more samples in the first axis, of which each step
takes a batch. A resumed run reads on where the saved one stopped. A loss that
is not a finite number is a warning, unless there is --stop-on-nan.

Exit codes:
  0 done                  2 usage                  3 bad data
  5 no memory             6 verify: different      7 bad plan
  8 device fails          9 loss not finite        70 internal error
  74 input or output      130 interrupted";

/// Runs a plan that memc compiled: steps of training, evaluation or inference within a fixed amount of device
/// memory.
#[derive(Debug, Parser)]
#[command(name = "memrun", version = memc_version::VERSION, after_long_help = EXAMPLES, after_help = MORE)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    /// Plan file that `memc compile` wrote
    #[arg(value_name = "model.plan", required = true)]
    plan: Option<PathBuf>,
    /// Steps to run [default: 1, or as many as --epochs have]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub(crate) steps: Option<u64>,
    /// Passes over the data, those of the resumed run included; of a plan of several jobs, of the data of one
    #[arg(long, value_name = "[JOB=]N", value_parser = epochs)]
    epochs: Option<Epochs>,
    /// Read the data in another order in each pass, which the seed and the number of the pass determine
    #[arg(long, value_name = "SEED")]
    shuffle: Option<u64>,
    /// Data of an input; may be repeated: a .npy array, a folder of them, a pipe, or a file of token numbers
    #[arg(long = "input", value_name = "NAME=@FILE.npy")]
    inputs: Vec<NamedInput>,
    /// Element that fills an input up to the size of a bucket, of a plan for several sizes, as input_ids=0 or
    /// labels=-100; its data is a folder of arrays, one for each step; may be repeated
    #[arg(long = "pad", value_name = "NAME=VALUE", allow_hyphen_values = true, value_parser = pad)]
    pads: Vec<(String, Pad)>,
    /// Make up data where an input has none
    #[arg(long)]
    synthetic: bool,
    /// Write an output of the last step, in numpy's format; may be repeated. Gradients are outputs of plans
    /// that were compiled with --no-optimizer
    #[arg(hide_short_help = true, long = "output", value_name = "NAME=FILE.npy", value_parser = named_file)]
    outputs: Vec<(String, PathBuf)>,
    /// Write an output of all steps, stacked; may be repeated
    #[arg(hide_short_help = true, long, value_name = "NAME=FILE.npy", value_parser = named_file)]
    collect: Vec<(String, PathBuf)>,
    /// Learning rate: a number, @FILE.npy with one for each step, or a schedule such as
    /// warmup=100,cosine=10000; of one of several jobs JOB/RATE (repeatable) [default: the plan's]
    #[arg(long, value_name = "[JOB/]RATE", allow_hyphen_values = true, value_parser = rate)]
    lr: Vec<(String, Rate)>,
    /// Seed of synthetic inputs
    #[arg(hide_short_help = true, long, default_value_t = 0)]
    seed: u64,
    /// Save the states at the end, as safetensors; with {job} in the name, those of each of several jobs in a
    /// file of its own
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Save also after every so many steps
    #[arg(long, value_name = "N", requires = "save",
        value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    save_every: Option<u64>,
    /// Keep the last of these saves, each in a file with its step's number in the name
    #[arg(hide_short_help = true, long, value_name = "K", requires = "save_every",
        value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    keep: Option<u64>,
    /// Evaluate the states between steps by this plan, which `memc compile --evaluation` made of the same
    /// model: after each pass over the data, and at the end
    #[arg(long, value_name = "EVAL.plan")]
    eval: Option<PathBuf>,
    /// Evaluate after every so many steps
    #[arg(hide_short_help = true, long, value_name = "N", requires = "eval",
        value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    eval_every: Option<u64>,
    /// Data of an input of the evaluation, as for --input; may be repeated
    #[arg(long = "eval-input", value_name = "NAME=@FILE.npy", requires = "eval")]
    eval_inputs: Vec<NamedInput>,
    /// End the run, with exit code 9, when the loss is no finite number
    #[arg(hide_short_help = true, long)]
    stop_on_nan: bool,
    /// Write a JSON object for each step while the run goes on
    #[arg(long, value_name = "FILE.jsonl")]
    pub(crate) metrics: Option<PathBuf>,
    /// Print every so many steps
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) log_every: u64,
    /// Go on from the states that a former run saved
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
    /// Set some of the states from a safetensors file, by name, such as a saved state
    #[arg(hide_short_help = true, long, value_name = "FILE")]
    init: Option<PathBuf>,
    /// Run the unplanned graph beside the plan, and compare every output and state bit for bit
    #[arg(hide_short_help = true, long)]
    verify: bool,
    /// Run the model without its plan: while it runs, decide which tensors are copied to host memory or
    /// computed again, as DELTA or DTR does. Nothing is proved ahead; on the CPU device alone
    #[arg(hide_short_help = true, long, value_name = "delta|delta-lru|delta-greedy|dtr")]
    dynamic: Option<Policy>,
    /// Device memory of a run with --dynamic, such as 4G [default: the plan's arena]
    #[arg(hide_short_help = true, long, value_name = "SIZE", requires = "dynamic")]
    #[arg(value_parser = host_memory)]
    gpu_mem: Option<u64>,
    /// Device to run on: cpu, cuda, or cuda:N for the GPU with a number of `memrun devices`
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: DeviceName,
    /// Threads for kernels [default: as many as the machine has]
    #[arg(hide_short_help = true, long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=4096))]
    threads: Option<u16>,
    /// Host memory that the host arena may take, such as 64G: a plan that takes more does not run. On a GPU
    /// one that takes less does, whatever the system says is available
    #[arg(hide_short_help = true, long, value_name = "SIZE", value_parser = host_memory)]
    host_mem: Option<u64>,
    /// Issue every command of every step, instead of capturing the step once as a CUDA graph and replaying
    /// that
    #[arg(hide_short_help = true, long)]
    no_graph: bool,
    /// Write when every command of the last step ran, and the memory in use, as a trace for Perfetto or
    /// chrome://tracing; `memc trace` writes the planned step alike
    #[arg(hide_short_help = true, long, value_name = "FILE.json")]
    trace: Option<PathBuf>,
    /// On the CPU device, measure the kernels of some steps while the run goes on, and write a profile at its
    /// end, which memc plans with: memc compile --device FILE.json
    #[arg(hide_short_help = true, long, value_name = "FILE.json")]
    measure: Option<PathBuf>,
    /// Measure one of so many steps
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = 16, requires = "measure",
        value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    measure_every: u64,
    /// Fill undefined memory with NaN, to show that nothing depends on it
    #[arg(hide_short_help = true, long)]
    check_memory: bool,
    /// Delay commands at random, to show that nothing depends on timing
    #[arg(hide_short_help = true, long, value_name = "SEED")]
    delay_seed: Option<u64>,
    /// Make the kernels of a family slower from a step on, to show what a run does about it
    #[arg(hide = true, long, value_name = "FAMILY=FACTOR@STEP")]
    slow: Option<cpu::Slow>,
    #[command(flatten)]
    libraries: Libraries,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Show no progress bar
    #[arg(hide_short_help = true, long)]
    pub(crate) no_progress: bool,
    /// Describe the plan instead of running it
    #[arg(long)]
    pub(crate) plan_info: bool,
    /// Bucket that --plan-info describes, such as seq=128 [default: the one that needs most memory unplanned]
    #[arg(hide_short_help = true, long, value_name = "NAME", requires = "plan_info")]
    pub(crate) bucket: Option<String>,
}

/// Commands other than running a plan.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure a plan's kernels and the machine, and write a profile that memc plans with
    Profile(Profile),
    /// Measure the algorithms that a GPU's libraries have for a plan's products and convolutions, and keep
    /// the fastest in the plan
    Tune(Tune),
    /// Answer requests for the outputs of inference plans over HTTP
    Serve(Serve),
    /// Show the devices and CUDA's libraries, and what is lost where one is missing
    Devices(Devices),
    /// Print a shell's completions of memrun's commands and options
    Completions(Completions),
    /// Write man pages
    Man(Man),
}

#[derive(Args, Debug)]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Args, Debug)]
pub(crate) struct Man {
    /// Folder to write to; made where it is not there
    #[arg(value_name = "FOLDER")]
    pub(crate) folder: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct Profile {
    /// Plan file that `memc compile` wrote
    #[arg(value_name = "model.plan")]
    pub(crate) plan: PathBuf,
    /// The profile to write
    #[arg(short, long, value_name = "FILE.json", required_unless_present = "keep")]
    pub(crate) output: Option<PathBuf>,
    /// Keep the profile where memc looks for that of this machine's GPU: memc/profiles in XDG_DATA_HOME, or
    /// in ~/.local/share
    #[arg(long)]
    pub(crate) keep: bool,
    /// Device to measure: cpu, cuda, or cuda:N for the GPU with a number of `memrun devices`
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: DeviceName,
    /// Steps to take the median of
    #[arg(long, value_name = "N", default_value_t = 11,
        value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    steps: u64,
    /// Seconds that a GPU is kept busy before it is measured, so that its clocks are those of a long run
    #[arg(hide_short_help = true, long, value_name = "SECONDS", default_value_t = 5,
        value_parser = clap::value_parser!(u64).range(..=3600))]
    warm_up: u64,
    /// Array for an input, in numpy's format; may be repeated. Other inputs are synthetic
    #[arg(long = "input", value_name = "NAME=@FILE.npy")]
    inputs: Vec<NamedInput>,
    /// Threads for kernels [default: as many as the machine has]
    #[arg(hide_short_help = true, long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=4096))]
    threads: Option<u16>,
    /// Host memory that the plan's host arena may take on a GPU, such as 64G, whatever the system says is
    /// available
    #[arg(hide_short_help = true, long, value_name = "SIZE", value_parser = host_memory)]
    host_mem: Option<u64>,
    #[command(flatten)]
    libraries: Libraries,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Tune {
    /// Plan file that `memc compile` wrote
    #[arg(value_name = "model.plan")]
    pub(crate) plan: PathBuf,
    /// The tuned plan to write [default: in place of the plan]
    #[arg(short, long, value_name = "FILE.plan")]
    output: Option<PathBuf>,
    /// GPU to measure: cuda, or cuda:N for the GPU with a number of `memrun devices`
    #[arg(long, value_name = "DEVICE", default_value = "cpu", hide_default_value = true)]
    device: DeviceName,
    /// Array for an input, in numpy's format; may be repeated. Other inputs are synthetic
    #[arg(long = "input", value_name = "NAME=@FILE.npy")]
    inputs: Vec<NamedInput>,
    /// Host memory that the plan's host arena may take on a GPU, such as 64G, whatever the system says is
    /// available
    #[arg(hide_short_help = true, long, value_name = "SIZE", value_parser = host_memory)]
    host_mem: Option<u64>,
    #[command(flatten)]
    libraries: Libraries,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
#[command(after_help = SERVE)]
pub(crate) struct Serve {
    /// Plans that `memc compile --inference` wrote, each of one model or of several jobs
    #[arg(value_name = "[NAME=]model.plan", required = true, value_parser = served)]
    plans: Vec<ServedPlan>,
    /// Address to listen on; port 0 lets the system choose one
    #[arg(long, value_name = "ADDRESS:PORT", required_unless_present = "socket")]
    http: Option<SocketAddr>,
    /// Let other machines connect: the server knows no passwords
    #[arg(long, requires = "http")]
    allow_remote: bool,
    /// Unix socket to listen on
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Weights of a plan, as safetensors; repeatable where plans have names
    #[arg(long, value_name = "[NAME=]FILE", value_parser = init)]
    init: Vec<(Option<String>, PathBuf)>,
    /// Milliseconds that a request waits for others to fill its batch
    #[arg(long, value_name = "MS", default_value_t = 2,
        value_parser = clap::value_parser!(u64).range(..=60_000))]
    max_delay: u64,
    /// Requests of a model that may wait; others get 429
    #[arg(long, value_name = "N", default_value_t = 256,
        value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    queue: u32,
    /// Largest body of a request; others get 413
    #[arg(long, value_name = "SIZE", default_value = "32M", value_parser = host_memory)]
    max_body: u64,
    /// Take requests of exactly the plan's shapes, one at a time
    #[arg(long)]
    no_batching: bool,
    /// Device memory that all plans may take together
    #[arg(long, value_name = "SIZE", value_parser = host_memory)]
    gpu_mem: Option<u64>,
    /// Host memory that the host arenas of all plans may take together
    #[arg(long, value_name = "SIZE", value_parser = host_memory)]
    host_mem: Option<u64>,
    /// Device of all plans: cpu, cuda, or cuda:N for the GPU with a number of `memrun devices`
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: DeviceName,
    /// Threads for kernels of each plan [default: as many as the machine has]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    threads: Option<u16>,
    #[command(flatten)]
    libraries: Libraries,
}

const SERVE: &str = "\
Examples:
  memrun serve resnet.plan --http 127.0.0.1:8000
  memrun serve a=a.plan b=b.plan --http 127.0.0.1:8000 --gpu-mem 2G --queue 64
  curl 127.0.0.1:8000/v2/models/a
  curl 127.0.0.1:8000/v2/models/a/infer -d '{\"inputs\": [{\"name\": \"x\", \"datatype\": \"FP32\",
    \"shape\": [1, 2], \"data\": [0.5, 1]}]}'
The protocol is the Open Inference Protocol (KServe v2); /metrics has figures for Prometheus.";

/// Parses `[NAME=]PLAN`.
fn served(text: &str) -> Result<ServedPlan, &'static str> {
    let (name, path) = match text.split_once('=') {
        Some((name, path)) if !Path::new(text).exists() => (Some(name.to_owned()), path),
        _ => (None, text),
    };
    if path.is_empty() {
        Err("expected NAME=PLAN")
    } else {
        Ok(ServedPlan { name, path: path.into(), init: None })
    }
}

/// Parses `[NAME=]FILE`.
fn init(text: &str) -> Result<(Option<String>, PathBuf), &'static str> {
    served(text).map(|plan| (plan.name, plan.path))
}

impl Serve {
    /// The server that the command line asks for.
    pub(crate) fn options(&self) -> Result<ServeOptions, Error> {
        let mut plans = self.plans.clone();
        for (name, path) in &self.init {
            let is_meant = |plan: &&mut ServedPlan| plan.name == *name || name.is_none();
            let mut meant = plans.iter_mut().filter(is_meant);
            let (Some(plan), None) = (meant.next(), meant.next()) else {
                let text = "of several plans, name the one that it is for: NAME=PLAN and --init NAME=FILE";
                return Err(Error::Usage(format!("--init {}: {text}", path.display())));
            };
            plan.init = Some(path.clone());
        }
        Ok(ServeOptions {
            plans,
            http: self.http,
            allow_remote: self.allow_remote,
            socket: self.socket.clone(),
            max_delay: Duration::from_millis(self.max_delay),
            queue: self.queue as usize,
            max_body: usize::try_from(self.max_body).unwrap_or(usize::MAX),
            batches: !self.no_batching,
            gpu_mem: self.gpu_mem,
            host_mem: self.host_mem,
            device: self.device,
            cpu: cpu::Options { threads: self.threads.map_or(0, usize::from), ..cpu::Options::default() },
            libraries: self.libraries.options(),
        })
    }
}

/// Permissions of the libraries.
#[derive(Args, Debug)]
struct Libraries {
    /// On a GPU, let libraries round products of f32 to TF32: faster, with 10 bits of mantissa instead of 23
    #[arg(hide_short_help = true, long)]
    tf32: bool,
    /// On a GPU, let matrix products of f32 round their operands to BF16: faster still, with 7 bits of
    /// mantissa
    #[arg(hide_short_help = true, long, conflicts_with = "tf32")]
    bf16: bool,
    /// On a GPU, let libraries take algorithms that may give other bits in every run
    #[arg(hide_short_help = true, long)]
    allow_nondeterminism: bool,
    /// On a GPU, use generated kernels also where cuBLASLt or cuDNN is there: to compare numbers, or where
    /// one fails
    #[arg(hide_short_help = true, long, conflicts_with_all = ["tf32", "bf16", "allow_nondeterminism"])]
    no_libraries: bool,
}

impl Libraries {
    fn options(&self) -> LibraryOptions {
        LibraryOptions {
            is_off: self.no_libraries,
            rounding: match (self.tf32, self.bf16) {
                (true, _) => Rounding::Tf32,
                (_, true) => Rounding::Bf16,
                _ => Rounding::Exact,
            },
            allow_nondeterminism: self.allow_nondeterminism,
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct Devices {
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

impl Profile {
    /// Refuses a profile in the place of what is read.
    pub(crate) fn check_files(&self) -> Result<(), Error> {
        no_clash(paths(&self.inputs).chain([self.plan.as_path()]), self.output.as_deref())
    }

    /// The measurement that the command line asks for.
    pub(crate) fn options(&self, stages: Stages) -> ProfileOptions {
        ProfileOptions {
            steps: self.steps,
            device: self.device,
            threads: self.threads.map_or(0, usize::from),
            libraries: self.libraries.options(),
            warm_up: Duration::from_secs(self.warm_up),
            host_mem: self.host_mem,
            inputs: sources(&self.inputs),
            stages,
        }
    }
}

impl Tune {
    /// The plan to write.
    pub(crate) fn output(&self) -> &Path {
        self.output.as_ref().unwrap_or(&self.plan)
    }

    /// Refuses a tuned plan in the place of what is read, but for the plan where no other is named.
    pub(crate) fn check_files(&self) -> Result<(), Error> {
        let plan = self.output.as_ref().map(|_| self.plan.as_path());
        no_clash(paths(&self.inputs).chain(plan), [self.output()])
    }

    /// The measurement that the command line asks for.
    pub(crate) fn options(&self, stages: Stages) -> TuneOptions {
        let (device, libraries) = (self.device, self.libraries.options());
        TuneOptions { device, libraries, host_mem: self.host_mem, inputs: sources(&self.inputs), stages }
    }
}

fn sources(inputs: &[NamedInput]) -> Vec<(String, InputSource)> {
    inputs.iter().map(|i| (i.name.clone(), i.source.clone())).collect()
}

fn paths(inputs: &[NamedInput]) -> impl Iterator<Item = &Path> {
    inputs.iter().filter_map(|input| input.source.path())
}

impl Cli {
    /// The plan to run.
    pub(crate) fn plan(&self) -> &Path {
        self.plan.as_deref().unwrap_or(Path::new(""))
    }

    /// Whether the run goes on from another.
    pub(crate) fn resumes(&self) -> bool {
        self.resume.is_some()
    }

    /// Where the states are to be saved.
    pub(crate) fn save(&self) -> Option<&Path> {
        self.save.as_deref()
    }

    /// Where the measured profile is to be written.
    pub(crate) fn measure(&self) -> Option<&Path> {
        self.measure.as_deref()
    }

    /// Refuses outputs in the place of what is read or of each other; a state may be saved over the one that
    /// is resumed.
    pub(crate) fn check_files(&self) -> Result<(), Error> {
        let is_saved_over = |resume: &&PathBuf| self.save.iter().any(|save| is_same_file(save, resume));
        let resume = self.resume.iter().filter(|resume| !is_saved_over(resume));
        let read = self.init.iter().chain(&self.eval).chain(resume).map(PathBuf::as_path);
        let read = read.chain(paths(&self.eval_inputs));
        let written = self.outputs.iter().chain(&self.collect).map(|(_, path)| path);
        let outputs = written.chain(&self.save).chain(&self.trace).chain(&self.measure).chain(&self.metrics);
        let rates = self.lr.iter().filter_map(|(_, rate)| match rate {
            Rate::File(path) => Some(path.as_path()),
            _ => None,
        });
        let inputs = paths(&self.inputs).chain(read).chain(rates).chain([self.plan()]);
        no_clash(inputs, outputs.map(PathBuf::as_path))
    }

    /// The run that the command line asks for.
    pub(crate) fn options(&self) -> RunOptions {
        let common = self.lr.iter().rev().find(|(job, _)| job.is_empty());
        RunOptions {
            steps: self.steps,
            epochs: self.epochs.clone(),
            repeats: false,
            shuffle: self.shuffle,
            inputs: sources(&self.inputs),
            pads: self.pads.clone(),
            synthetic: self.synthetic,
            outputs: self.outputs.clone(),
            collect: self.collect.clone(),
            lr: common.map(|(_, rate)| rate.clone()).unwrap_or_default(),
            job_lr: self.lr.iter().filter(|(job, _)| !job.is_empty()).cloned().collect(),
            evaluation: self.eval.clone().map(|plan| EvaluationOptions {
                plan,
                inputs: sources(&self.eval_inputs),
                every: self.eval_every,
            }),
            save_every: self.save_every,
            keep: self.keep,
            stop_on_nan: self.stop_on_nan,
            seed: self.seed,
            save: self.save.clone(),
            resume: self.resume.clone(),
            init: self.init.clone(),
            verify: self.verify,
            host_mem: self.host_mem,
            trace: self.trace.clone(),
            measure: self
                .measure
                .clone()
                .map(|profile| MeasureOptions { every: self.measure_every, profile: Some(profile) }),
            dynamic: self.dynamic.map(|policy| DynamicOptions { policy, gpu_mem: self.gpu_mem }),
            device: self.device,
            no_graph: self.no_graph,
            cpu: cpu::Options {
                threads: self.threads.map_or(0, usize::from),
                check_memory: self.check_memory,
                delay_seed: self.delay_seed,
                slow: self.slow,
            },
            libraries: self.libraries.options(),
        }
    }
}

/// Refuses outputs that are inputs or other outputs.
fn no_clash<'a>(
    inputs: impl IntoIterator<Item = &'a Path>,
    outputs: impl IntoIterator<Item = &'a Path>,
) -> Result<(), Error> {
    check_clash(inputs, outputs).map_err(|clash| Error::Usage(clash.to_string()))
}
