#![doc = include_str!("../README.md")]

pub mod cpu;
mod device;
mod error;
mod feed;
mod init;
mod output;
mod profile;
mod program;
mod reference;
mod run;
mod session;
mod state;
mod verify;

pub use device::{Device, Executor, HostSide};
pub use error::{Error, INTERRUPTED};
pub use feed::{FeedOptions, Feeder};
pub use init::Initial;
pub use profile::{Machine, Profile, ProfileOptions, profile};
pub use program::Program;
pub use reference::Reference;
pub use run::{Report, RunOptions, Watch, run};
pub use session::{Session, Sink};
pub use state::{StateFile, StateWriter};
