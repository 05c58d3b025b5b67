#![doc = include_str!("../README.md")]

mod carried;
mod clock;
pub mod cpu;
mod device;
mod ends;
mod error;
mod evaluation;
mod feed;
pub mod gpu;
mod init;
mod jobs;
mod log;
mod memory;
mod output;
mod profile;
mod program;
mod progress;
mod run;
mod saves;
mod schedule;
pub mod serve;
mod session;
mod shadow;
mod stage;
mod state;
mod steps;
mod tune;
mod unplanned;
mod verify;

pub use carried::Carried;
pub use device::{Device, Executor, HostSide};
pub use error::{Defect, Error, INTERRUPTED};
pub use evaluation::EvaluationOptions;
pub use feed::{FeedOptions, Feeder, InputSource, TokenType};
pub use gpu::refused::RefusedCall;
pub use init::Initial;
pub use memory::available;
pub use profile::{Machine, Profile, ProfileOptions, profile, profile_gpu};
pub use program::Program;
pub use run::{
    DeviceName, Epochs, JobStep, Report, RunOptions, Silent, Step, Watch, run, run_carrying, run_on,
};
pub use schedule::{Decay, Rate, Schedule};
pub use session::{Session, Sink};
pub use stage::{Stage, Stages};
pub use state::{StateFile, StateWriter};
pub use tune::{TuneOptions, Tuned, TunedCall, tune, tune_gpu};
