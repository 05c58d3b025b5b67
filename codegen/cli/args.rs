//! The command line: commands and their options.

mod import;
mod jobs;
mod pictures;
mod search;
mod serve;
mod shell;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use glob::Pattern;
use memc::{JobFile, Size};
use memc_planner::Formulation;

pub(crate) use self::import::{ImportArgs, Source};
pub(crate) use self::pictures::{Diff, Dump, Report, Trace};
pub(crate) use self::search::{DecisionsFiles, Effort, Permissions, Search, Target};
pub(crate) use self::serve::{Ask, AskJob, JobCommand, ModelOptions, Serve, Submit};
pub(crate) use self::shell::{Completions, Man};
use crate::values::{self, Range};

/// Compiles ONNX training graphs into static schedules that fit a hard device-memory budget.
#[derive(Parser)]
#[command(name = "memc", version = memc_version::VERSION, arg_required_else_help = true)]
#[command(after_long_help = EXIT_CODES, after_help = MORE)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The command line's definition.
pub(crate) fn definition() -> clap::Command {
    let enlarged = |dims: clap::Arg| {
        dims.value_name("NAME[=N]")
            .value_parser(values::any_dim)
            .help("The symbolic dimension to enlarge, or the size of another one (repeatable)")
    };
    Cli::command().mut_subcommand("max-batch", |c| c.mut_arg("dims", enlarged))
}

/// The command of a command line, and whether it has `--json`; ends the process where the command line is
/// wrong.
pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> (Command, bool) {
    let command = definition();
    let split = jobs::split(&command, args.into_iter());
    let matches = command.get_matches_from(&split.rest);
    let flag = |(_, of): (&str, &clap::ArgMatches)| of.try_get_one("json").ok().flatten().copied();
    let json = matches.subcommand().and_then(flag).unwrap_or(false);
    let mut command = Cli::from_arg_matches(&matches).unwrap_or_else(|e| e.exit()).command;
    if let Command::Job(JobCommand::Submit(args)) = &mut command {
        args.options = split.words();
    }
    if let Some(source) = command.source_mut() {
        source.jobs = split.jobs();
    }
    (command, json)
}

const MORE: &str = "--help lists exit codes, and `memc COMMAND -h` the options of a command";

const EXIT_CODES: &str = "\
Exit codes:
  0 ok   1 plans differ (diff)   2 usage   3 bad or unsupported model   4 budget infeasible
  7 plan damaged or wrong   70 internal error   74 reading or writing failed   130 interrupted
  (5, 6, 8 and 9 are memrun's)";

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Plan a training step within a memory budget and write it
    #[command(after_help = "\
Examples:
  memc compile models/cnn_bn/training_model.onnx --device cpu --gpu-mem 1M
  memc compile models/cnn_bn/training_model.onnx --gpu-mem 90% --accumulate 4
  memc compile models/mlp_s_step/sgd.onnx --device cpu --gpu-mem 1M \\
    --carry m.fc1.weight=m.fc1.weight_new
  memc compile models/zoo/resnet50.onnx --loss cross-entropy \\
    --optimizer momentum:lr=0.1 --dim batch=32 --gpu-mem 1G")]
    Compile(Compile),
    /// Plan a problem or a model and say what the plan costs, without writing one
    #[command(after_help = "\
Examples:
  memc plan problem.json --gpu-mem 40G --planner swapadvisor
  memc plan models/cnn_bn/training_model.onnx --device cpu --gpu-mem 250K --json")]
    Plan(Plan),
    /// Plan a problem or a model with every planner, and tell what each costs
    #[command(after_help = "\
Plans are sorted by step time, the fastest marked *. A planner that finds no plan says why and does not end
the comparison; the exit code is 4 when none finds one.

Examples:
  memc compare problem.json --gpu-mem 40G --effort 1
  memc compare models/cnn_bn/training_model.onnx --device cpu --gpu-mem 300K \\
    --planners memc,swapadvisor,vdnn-all")]
    Compare(Compare),
    /// Plan a problem or a model for a range of budgets: what does memory buy?
    #[command(after_help = "\
Examples:
  memc sweep problem.json --gpu-mem 20G:80G:10G
  memc sweep models/cnn_bn/training_model.onnx --device cpu --gpu-mem 230K:470K:40K \\
    --planner swapadvisor --json")]
    Sweep(Sweep),
    /// Find the largest batch, or other symbolic dimension, whose step fits a budget, unplanned and planned
    #[command(after_help = "\
Doubles the dimension from 1 until there is no plan, then bisects. `unplanned` is what fits with everything on
the device.

Examples:
  memc max-batch models/zoo/resnet50.onnx --loss cross-entropy --optimizer momentum:lr=0.1 \\
    --dim batch --gpu-mem 11G --device gtx1080ti --effort 0
  memc max-batch model.onnx --dim batch --dim seq=128 --gpu-mem 16G --max-slowdown 1.3")]
    MaxBatch(MaxBatch),
    /// Divide a budget among jobs in processes of their own, so that a round of their steps is shortest
    #[command(after_help = "\
Kernels of different processes take turns, so that a round takes the steps of all jobs one after the other.
Their copies share the link: --link-share 1/2 where two swap at once. `memc compile --job` plans jobs as one
instead, which is faster: states of one move while the other computes.

Example:
  memc split --job a.onnx --dim batch=8 --job b.onnx:2 --dim batch=32 --device rtx4090 \\
    --gpu-mem 24G --link-share 1/2")]
    Split(Split),
    /// Train jobs that come and go on one device: the controller
    #[command(after_help = "\
One plan runs at a time, of all jobs. When one comes or goes, another is made beside the run, and goes on from
its states at the border of a round. Each job computes the bits that it computes alone.

Example:
  memc serve --socket jobs.sock --folder jobs --gpu-mem 80% --device h100")]
    Serve(Box<Serve>),
    /// Ask a controller: submit, status, stop, pause, resume, set-budget
    #[command(subcommand)]
    Job(JobCommand),
    /// Say what a plan does to each tensor and why, and what its kernels wait for
    #[command(after_help = "\
A tensor that is kept needs no row. `makes room for` is the op at which most is on the device while the tensor
is away, and how much that is; `hidden` is the part of the copies that no kernel waited for. A recomputed
op that waits is marked `(recomputed)`.

Examples:
  memc explain models/cnn_bn/training_model.onnx --device cpu --gpu-mem 300K
  memc explain problem.json --gpu-mem 40G --tensor '*weight*' --top 50
  memc plan problem.json --gpu-mem 40G --decisions best.txt
  memc explain problem.json --gpu-mem 40G --apply best.txt --json")]
    Explain(Explain),
    /// Say below what time no step of a model or a planning problem can be within a budget
    #[command(after_help = "Example:\n  memc bound problem.json --gpu-mem 40G")]
    Bound(Bound),
    /// Write a model's planning problem as JSON (memc-problem/1)
    #[command(after_help = "Example:
  memc export-problem models/cnn_bn/training_model.onnx --device v100-16g -o cnn_bn.json")]
    ExportProblem(ExportProblem),
    /// Say what a training step needs: no budget, no plan
    #[command(after_help = "Example:\n  memc estimate models/cnn_bn/training_model.onnx")]
    Estimate(Estimate),
    /// Give buffers with known live ranges offsets in one arena
    #[command(after_help = "\
The instance has a header id,lower,upper,size and a line for each buffer, which lives in [lower, upper). Sizes
and offsets are in the instance's own units. The allocation, id,lower,upper,size,offset, goes to stdout.

Examples:
  memc alloc passes/alloc/tests/data/C.csv
  memc alloc passes/alloc/tests/data/B.csv --capacity 1048576 -o B.allocation.csv
  memc alloc passes/alloc/tests/data/A.csv --algorithm smartpool --json")]
    #[command(alias = "layout")]
    Alloc(Alloc),
    /// Prove a plan against its source graph
    #[command(after_help = "Example:\n  memc check model.plan --source models/cnn_bn/training_model.onnx")]
    Check(Check),
    /// Say how well op times are predicted by what a measured profile teaches, and merge several
    #[command(after_help = "\
Examples:
  memrun profile model.plan -o cpu.json
  memc fit-profile cpu.json
  memc fit-profile a.json b.json -o both.json
  memc compile model.onnx --device both.json --gpu-mem 1G")]
    FitProfile(FitProfile),
    /// Write when every command of a plan runs by the cost model, as a trace for Perfetto or chrome://tracing
    #[command(after_help = "\
The tracks and slices are those of `memrun --trace`, so that both open side by side. What is drawn is one step
of many: it begins while the step before it ends, so that `step_ns`, the time from one step to the next, is
less than where the last slice ends.

Examples:
  memc trace model.plan -o planned.json
  memc trace model.plan -o planned.json --device measured.json")]
    Trace(Trace),
    /// Draw a plan as a web page: its budget, its arena and its step over time, and what was decided
    #[command(after_help = "\
The page is one file, which needs no network: the parts of the budget, live
bytes over time beside the unplanned step, each slot of the arena by address
and time, what each queue runs when, the tensors live at the peak, and which
leave the device. Its times are modelled.

Examples:
  memc report model.plan -o report.html
  memc report model.plan --snapshot memory.pickle
  memc report model.plan --source model.onnx --annotate annotated.onnx
  memc report lengths.plan --bucket seq=128 -o report.html")]
    Report(Report),
    /// Print a plan
    #[command(after_help = "Example:\n  memc dump model.plan | less")]
    Dump(Dump),
    /// Compare two plans
    #[command(after_help = "Example:\n  memc diff before.plan after.plan")]
    Diff(Diff),
    /// Run passes on a model or an IR file and print the IR
    #[command(after_help = "\
Examples:
  memc opt models/mlp_s_step/adamw.onnx --pass all --explain -o step.mir
  memc opt step.mir --pass \"cse,dce\"
  memc opt models/mlp_s/training_model.onnx \\
    --pass \"graph,bufferize,alloc{algo=best-fit},events\"
  memc opt model.onnx --pass all --stop-after raise --print-after fold,cse
  memc opt memc-bug-1.mir")]
    Opt(Opt),
    /// Check a model or an IR file against the verifier's rules
    #[command(after_help = "Example:\n  memc verify models/mlp_s_step/adamw.onnx")]
    Verify(Verify),
    /// List devices, losses, optimizers, ops, passes, their rewrites, planners, or the verifier's rules
    #[command(after_help = "Examples:\n  memc list devices\n  memc list rewrites")]
    List {
        /// Table to print
        #[arg(value_parser = LISTS)]
        what: String,
        /// Print an array of JSON objects, one per row, keyed by the columns' heads; of devices whole
        /// profiles, each of which may be a file for --device
        #[arg(long)]
        json: bool,
    },
    /// Print a shell's completions of memc's commands and options
    Completions(Completions),
    /// Write man pages
    Man(Man),
}

impl Command {
    /// The models of a command that takes some.
    fn source_mut(&mut self) -> Option<&mut Source> {
        match self {
            Command::Compile(args) => Some(&mut args.source),
            Command::Plan(args) => Some(&mut args.question.source),
            Command::Compare(args) => Some(&mut args.question.source),
            Command::Sweep(args) => Some(&mut args.source),
            Command::MaxBatch(args) => Some(&mut args.question.source),
            Command::Explain(args) => Some(&mut args.question.source),
            Command::Split(args) => Some(&mut args.question.source),
            Command::Bound(args) => Some(&mut args.question.source),
            Command::ExportProblem(args) => Some(&mut args.source),
            Command::Estimate(args) => Some(&mut args.source),
            Command::Opt(args) => Some(&mut args.source),
            Command::Verify(args) => Some(&mut args.source),
            Command::Job(JobCommand::Submit(args)) => Some(&mut args.source),
            _ => None,
        }
    }
}

#[derive(Args)]
pub(crate) struct Compile {
    #[command(flatten)]
    pub(crate) source: Source,
    /// Device memory the step may take, with a binary suffix, as a share of the device or of the unplanned
    /// peak: 16G, 512MiB, 90%, peak*60%. Without it everything stays on the device
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub(crate) gpu_mem: Option<Size>,
    /// Host memory that the plan may take, such as 64G. Where swapping would take more, less is swapped
    #[arg(hide_short_help = true, long, value_name = "SIZE", value_parser = values::bytes)]
    pub(crate) host_mem: Option<u64>,
    /// Most workspace of a convolution on a GPU, 32M to 512M. A plan with more than 32M is taken where it is
    /// at most a tenth longer: cuDNN is faster with it, and plans of different budgets may differ in the last
    /// bits
    #[arg(hide_short_help = true, long, value_name = "SIZE", value_parser = values::conv_workspace)]
    #[arg(default_value = "32M")]
    pub(crate) conv_workspace: u64,
    /// The plan to write
    #[arg(short, long, value_name = "FILE", default_value = "model.plan")]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) target: Target,
    #[command(flatten)]
    pub(crate) search: Search,
    #[command(flatten)]
    pub(crate) files: DecisionsFiles,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

impl Compile {
    /// The options of the compiler.
    pub(crate) fn options<'w>(&self, watch: &'w dyn memc::Watch) -> Result<memc::Options<'w>, memc::Error> {
        Ok(memc::Options {
            budget: self.gpu_mem,
            host_memory: self.host_mem,
            conv_workspace: self.conv_workspace,
            search: self.search.search()?,
            decisions: self.files.apply_file()?,
            watch,
        })
    }
}

/// Tables of `memc list`.
const LISTS: [&str; 8] =
    ["devices", "losses", "optimizers", "ops", "passes", "planners", "rewrites", "rules"];

#[derive(Args)]
pub(crate) struct ExportProblem {
    #[command(flatten)]
    pub(crate) source: Source,
    #[command(flatten)]
    pub(crate) target: Target,
    /// Formulation of the model's gradients: own, fast, lean or small
    #[arg(long, value_name = "NAME", default_value = "own", value_parser = values::formulation)]
    pub(crate) formulation: Formulation,
    /// Write the problem here instead of to stdout
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// A step and its memory budget.
#[derive(Args, Clone)]
pub(crate) struct Question {
    #[command(flatten)]
    pub(crate) source: Source,
    /// Device memory the step may take, with a binary suffix, as a share of the device or of the unplanned
    /// peak: 16G, 512MiB, 90%, peak*60%. Without it, that of the device
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub(crate) gpu_mem: Option<Size>,
    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Args)]
pub(crate) struct Estimate {
    #[command(flatten)]
    pub(crate) source: Source,
    #[command(flatten)]
    pub(crate) target: Target,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Check {
    /// The plan
    pub(crate) plan: PathBuf,
    /// Model or IR file to check against, of a plan of several jobs one for each (repeatable) [default: the
    /// source graph stored in the plan]
    #[arg(long, value_name = "[JOB=]FILE", value_parser = jobs::job_file)]
    pub(crate) source: Vec<JobFile>,
    /// Optimizer model, where the plan was not compiled with the one beside the source (repeatable)
    #[arg(hide_short_help = true, long, value_name = "[JOB=]FILE", requires = "source")]
    #[arg(value_parser = jobs::job_file)]
    pub(crate) optimizer_model: Vec<JobFile>,
    /// Initial values, where the plan was not compiled with the ones beside the source (repeatable)
    #[arg(long, value_name = "[JOB=]FILE", requires = "source", value_parser = jobs::job_file)]
    pub(crate) checkpoint: Vec<JobFile>,
    /// Profile file of the plan's device, where that is a measured one
    #[arg(long, visible_alias = "profile", value_name = "PROFILE", requires = "source")]
    pub(crate) device: Option<String>,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct FitProfile {
    /// Measured profiles; device figures are those of the first
    #[arg(required = true, value_name = "FILE.json")]
    pub(crate) profiles: Vec<PathBuf>,
    /// Write one profile with the measured ops of all
    #[arg(short, long, value_name = "FILE.json")]
    pub(crate) output: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Opt {
    #[command(flatten)]
    pub(crate) source: Source,
    /// Passes to run, as a,b{option=value}; graph gives the canonical form, all adds memory-rewrite,dce as
    /// compile does, which for GPUs goes on with fuse [default: those of the header `;! pass` of an IR file]
    #[arg(long, value_name = "PIPELINE")]
    pub(crate) pass: Option<String>,
    /// Device whose costs passes see: one of `memc list devices` or a profile file (.json) [default: that of
    /// the header `;! device` of an IR file, or cpu]
    #[arg(long, visible_alias = "profile", value_name = "PROFILE")]
    pub(crate) device: Option<String>,
    /// Print the IR after these passes, or after all, to stderr (repeatable)
    #[arg(long, value_name = "PASS", value_delimiter = ',')]
    pub(crate) print_after: Vec<String>,
    /// Run nothing after the last pass of this name
    #[arg(long, value_name = "PASS")]
    pub(crate) stop_after: Option<String>,
    /// Print what the passes counted, to stderr
    #[arg(long)]
    pub(crate) stats: bool,
    /// Print which rules rewrote which values, to stderr
    #[arg(long)]
    pub(crate) explain: bool,
    /// Print one JSON object: what the passes counted, which rules rewrote which values, and the IR where no
    /// file takes it
    #[arg(long, conflicts_with_all = ["stats", "explain"])]
    pub(crate) json: bool,
    /// Write the IR here instead of to stdout
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct Verify {
    #[command(flatten)]
    pub(crate) source: Source,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Plan {
    #[command(flatten)]
    pub(crate) question: Question,
    #[command(flatten)]
    pub(crate) search: Search,
    #[command(flatten)]
    pub(crate) files: DecisionsFiles,
    /// Write when the search found which plan, and what its generations were, as JSON
    #[arg(hide_short_help = true, long, value_name = "FILE", conflicts_with = "apply")]
    pub(crate) curve: Option<PathBuf>,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Compare {
    #[command(flatten)]
    pub(crate) question: Question,
    /// Planners to compare, separated by commas [default: all of `memc list planners`]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) planners: Vec<String>,
    #[command(flatten)]
    pub(crate) effort: Effort,
    /// Print a JSON list with an object for each planner, as `memc plan --json` prints it
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Sweep {
    /// A planning problem (.json, memc-problem/1) or a model
    #[command(flatten)]
    pub(crate) source: Source,
    /// Budgets as FROM:TO:STEP, with binary suffixes or as shares: 6G:24G:2G, 40%:100%:10%,
    /// peak*40%:peak*100%:peak*10%
    #[arg(long, value_name = "FROM:TO:STEP", value_parser = values::range)]
    pub(crate) gpu_mem: Range,
    #[command(flatten)]
    pub(crate) target: Target,
    #[command(flatten)]
    pub(crate) search: Search,
    /// Draw the times by budget, with the bound, and write the picture here
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
    /// Print a JSON list with an object for each budget, as `memc plan --json` prints it
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Split {
    #[command(flatten)]
    pub(crate) question: Question,
    /// Share of the link's throughput that each job has
    #[arg(long, value_name = "SHARE", default_value = "1", value_parser = values::share)]
    pub(crate) link_share: f64,
    /// Parts of the budget that are given out; each job is planned at so many budgets
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = 8)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=64))]
    pub(crate) parts: u64,
    #[command(flatten)]
    pub(crate) search: Search,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Explain {
    #[command(flatten)]
    pub(crate) question: Question,
    /// Only tensors whose names match, those that stay on the device included; * stands for any characters
    #[arg(long, value_name = "GLOB", value_parser = Pattern::new)]
    pub(crate) tensor: Option<Pattern>,
    /// Rows of each table, the most expensive first
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) top: usize,
    #[command(flatten)]
    pub(crate) search: Search,
    #[command(flatten)]
    pub(crate) files: DecisionsFiles,
    /// Print one JSON object instead of text, with all tensors and stalls
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct MaxBatch {
    #[command(flatten)]
    pub(crate) question: Question,
    /// Only plans whose step takes at most this many times the ideal one, as 1.3; what fits unplanned counts
    /// in any case
    #[arg(long, value_name = "RATIO", value_parser = values::ratio)]
    pub(crate) max_slowdown: Option<f64>,
    /// The largest size to try
    #[arg(long, value_name = "N", default_value_t = 65536)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub(crate) up_to: u64,
    #[command(flatten)]
    pub(crate) search: Search,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Bound {
    #[command(flatten)]
    pub(crate) question: Question,
    #[command(flatten)]
    pub(crate) permissions: Permissions,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct Alloc {
    /// Buffers as comma-separated values; an offset in a column of that name is kept
    pub(crate) instance: PathBuf,
    /// Largest height, in the instance's units; without it, the lowest allocation is looked for
    #[arg(long, value_name = "N", value_parser = values::height)]
    pub(crate) capacity: Option<u64>,
    /// One algorithm instead of the search with all of them
    #[arg(long, value_name = "NAME", default_value = SEARCH, value_parser = algorithms())]
    pub(crate) algorithm: String,
    /// Search effort: 0 quick algorithms alone, 1 a moment, 2 about a second, 3 to 5 ten times as long
    /// each [default: 2, or 5 with a time limit]
    #[arg(long, value_name = "0..5")]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=i64::from(memc_alloc::MAX_EFFORT)))]
    pub(crate) effort: Option<u8>,
    /// Stop with the best so far after this time, as 10s or 500ms; results then depend on the machine
    #[arg(hide_short_help = true, long, value_name = "TIME", value_parser = values::duration)]
    pub(crate) time_limit: Option<Duration>,
    /// Seed of choices by chance
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Print one JSON object instead of the allocation
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the allocation here instead of to stdout
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// The algorithm that is none of the named ones, but all of them and a search.
pub(crate) const SEARCH: &str = "search";

/// Values of `--algorithm`.
fn algorithms() -> Vec<&'static str> {
    [SEARCH].into_iter().chain(memc_alloc::Algorithm::ALL.map(memc_alloc::Algorithm::name)).collect()
}
