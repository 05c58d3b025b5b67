#![doc = include_str!("../README.md")]

mod clock;
pub mod cpu;
mod device;
mod error;
mod feed;
pub mod gpu;
mod init;
mod log;
mod memory;
mod output;
mod profile;
mod program;
mod progress;
mod run;
mod schedule;
mod session;
mod shadow;
mod stage;
mod state;
mod steps;
mod tune;
mod unplanned;
mod verify;

pub use device::{Device, Executor, HostSide};
pub use error::{Defect, Error, INTERRUPTED};
pub use feed::{FeedOptions, Feeder, InputSource, TokenType};
pub use init::Initial;
pub use memory::available;
pub use profile::{Machine, Profile, ProfileOptions, profile, profile_gpu};
pub use program::Program;
pub use run::{DeviceName, Report, RunOptions, Step, Watch, run, run_on};
pub use schedule::{Decay, Rate, Schedule};
pub use session::{Session, Sink};
pub use stage::{Stage, Stages};
pub use state::{Saved, StateFile, StateWriter};
pub use tune::{TuneOptions, Tuned, TunedCall, tune, tune_gpu};
