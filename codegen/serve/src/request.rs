//! Requests to a controller, one JSON object a line.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Trains another job.
    Submit(Box<Submission>),
    /// Tells about all jobs.
    Status,
    /// Ends a job; its states are saved where it says.
    Stop {
        /// Name of the job.
        job: String,
    },
    /// Takes a job off the device until it is resumed.
    Pause {
        /// Name of the job.
        job: String,
    },
    /// Goes on with a job that is paused or has failed.
    Resume {
        /// Name of the job.
        job: String,
    },
    /// Changes the device memory of all jobs together.
    SetBudget {
        /// Bytes.
        bytes: u64,
    },
}

/// A job to train.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Submission {
    /// Name of the job: letters, digits, `-`, `_` and `.`.
    pub job: String,
    /// The model, an absolute path.
    pub model: PathBuf,
    /// Options of the model, as a command line has them.
    #[serde(default)]
    pub options: Vec<String>,
    /// Folder that paths in the options and inputs are relative to.
    pub folder: PathBuf,
    /// Steps in a round: the job's priority.
    #[serde(default = "one")]
    pub steps_in_round: u32,
    /// Most of its tensors that may be swapped, in thousandths of their bytes.
    #[serde(default)]
    pub swap_limit: Option<u32>,
    /// Data of the inputs, `NAME=@FILE`.
    #[serde(default)]
    pub inputs: Vec<String>,
    /// Whether inputs without data get synthetic data.
    #[serde(default)]
    pub synthetic: bool,
    /// Learning rate, as memrun's `--lr`.
    #[serde(default)]
    pub lr: Option<String>,
    /// Steps to train; a multiple of those in a round.
    pub steps: u64,
    /// File for the states at the end, an absolute path.
    #[serde(default)]
    pub save: Option<PathBuf>,
}

fn one() -> u32 {
    1
}
