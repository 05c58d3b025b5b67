//! `memc serve` and `memc job`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use memc::Size;
use memc_ir::ParseError;
use memc_serve::{DeviceName, cpu::Slow};

use super::{ImportArgs, Search, Source, Target};
use crate::values;

#[derive(Args)]
pub(crate) struct Serve {
    /// Local socket that requests come through; its owner alone can open it
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: PathBuf,
    /// Folder of jobs, plans and checkpoints; a controller that is started again goes on from there
    #[arg(long, value_name = "FOLDER")]
    pub(crate) folder: PathBuf,
    /// Device memory of all jobs together, with a binary suffix or as a share of the device: 24G, 80%
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub(crate) gpu_mem: Size,
    #[command(flatten)]
    pub(crate) target: Target,
    /// Device to run on: cpu, or cuda:N [default: cuda:0 where plans are for a GPU]
    #[arg(long, value_name = "DEVICE", value_parser = device_name)]
    pub(crate) on: Option<DeviceName>,
    /// Rounds between checkpoints
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) save_every: u64,
    /// Threads for kernels on the CPU [default: as many as the machine has]
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = 0)]
    pub(crate) threads: u16,
    /// On the CPU device, measure kernels while jobs train, and plan again where they take other times than
    /// planned
    #[arg(long)]
    pub(crate) adapt: bool,
    /// Rounds of which one is measured
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = 16, requires = "adapt",
        value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub(crate) measure_every: u64,
    /// Make the kernels of a family slower from a round on, to show what the controller does about it
    #[arg(hide = true, long, value_name = "FAMILY=FACTOR@ROUND")]
    pub(crate) slow: Option<Slow>,
    #[command(flatten)]
    pub(crate) search: Search,
}

/// A request to a controller.
#[derive(Subcommand)]
pub(crate) enum JobCommand {
    /// Train another job beside those that train
    #[command(after_help = "\
Example:
  memc job submit --socket jobs.sock --job lm=gpt2.onnx:2 --loss cross-entropy:axis=-1 --optimizer adamw \\
    --input input_ids=@ids.npy --input labels=@labels.npy --steps 10000 --save lm.safetensors")]
    Submit(Box<Submit>),
    /// Tell about all jobs
    Status(Ask),
    /// End a job; its states are saved where it says
    Stop(AskJob),
    /// Take a job off the device until it is resumed
    Pause(AskJob),
    /// Go on with a job that is paused or has failed
    Resume(AskJob),
    /// Change the device memory of all jobs together
    SetBudget {
        #[command(flatten)]
        ask: Ask,
        /// The memory, such as 24G
        #[arg(value_name = "SIZE", value_parser = values::bytes)]
        bytes: u64,
    },
}

/// Where a controller is.
#[derive(Args)]
pub(crate) struct Ask {
    /// Socket of the controller
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// A request about a job.
#[derive(Args)]
pub(crate) struct AskJob {
    #[command(flatten)]
    pub(crate) ask: Ask,
    /// Name of the job
    pub(crate) job: String,
}

#[derive(Args)]
pub(crate) struct Submit {
    #[command(flatten)]
    pub(crate) ask: Ask,
    #[command(flatten)]
    pub(crate) source: Source,
    /// The options of the model as the command line has them.
    #[arg(skip)]
    pub(crate) options: Vec<String>,
    /// Data of an input (repeatable)
    #[arg(long = "input", value_name = "NAME=@FILE.npy")]
    pub(crate) inputs: Vec<String>,
    /// Train on made-up data where an input has none
    #[arg(long)]
    pub(crate) synthetic: bool,
    /// Learning rate, as memrun takes it
    #[arg(long, value_name = "RATE")]
    pub(crate) lr: Option<String>,
    /// Steps to train
    #[arg(long, value_name = "N")]
    pub(crate) steps: u64,
    /// Save the states at the end, as safetensors
    #[arg(long, value_name = "FILE")]
    pub(crate) save: Option<PathBuf>,
}

/// Options of a model on their own.
#[derive(clap::Parser)]
#[command(no_binary_name = true, args_override_self = true)]
pub(crate) struct ModelOptions {
    #[command(flatten)]
    pub(crate) import: ImportArgs,
}

/// Parses a device to run on: `cpu`, `cuda` or `cuda:N`.
fn device_name(text: &str) -> Result<DeviceName, ParseError> {
    match text.split_once(':') {
        None if text == "cpu" => Ok(DeviceName::Cpu),
        None if text == "cuda" => Ok(DeviceName::Cuda(0)),
        Some(("cuda", n)) => Ok(DeviceName::Cuda(n.parse().map_err(|_| "write a number after cuda:")?)),
        _ => Err("write cpu, cuda or cuda:N".into()),
    }
}
