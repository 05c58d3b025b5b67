//! The controller: jobs that come and go on one device.
//!
//! One plan runs at a time, of all jobs that train. When a job comes or goes, or the budget changes, another
//! plan is made beside the run and proved; at the border of a round the run ends, and the next plan goes on
//! from its states, which stay in memory. So every job computes the bits that it computes alone, whatever
//! comes and goes beside it.
//!
//! Contract: a folder has the jobs and their last checkpoints. A controller that is killed at any point and
//! started again goes on from there. Requests are JSON lines on a local socket that its owner alone can open.

mod controller;
mod leg;
mod planning;
mod request;
mod socket;

use std::path::PathBuf;

use memc::{Error, Search, Target};
use memc_frontend::ImportOptions;

/// Devices to run on, and the memory of this machine.
pub use memc_runtime::{DeviceName, available, cpu};
pub use request::{Request, Submission};
pub use socket::ask;

/// Reads the options of a job's model, as a command line has them.
pub type ReadOptions = dyn Fn(&[String]) -> Result<ImportOptions, Error> + Send + Sync;

/// Options of [`serve`].
#[derive(Clone)]
pub struct Options {
    /// Path of the socket.
    pub socket: PathBuf,
    /// Folder of jobs, plans and checkpoints.
    pub folder: PathBuf,
    /// Device memory of all jobs together in bytes.
    pub budget: u64,
    /// Device that plans are for.
    pub target: Target,
    /// Device to run on.
    pub device: DeviceName,
    /// Planner, permissions and effort.
    pub search: Search,
    /// Rounds between checkpoints.
    pub save_every: u64,
    /// Options of the CPU device.
    pub cpu: cpu::Options,
    /// Plan again where measured times depart from those of the profile; one of so many rounds is measured.
    pub adapt: Option<u64>,
}

/// Runs jobs until `stop` says so; `tell` gets lines about what happens.
///
/// # Errors
///
/// [`Error::Io`] where the folder or the socket cannot be used, [`Error::Usage`] where another controller
/// uses them.
pub fn serve(
    options: Options,
    read: std::sync::Arc<ReadOptions>,
    stop: &dyn Fn() -> bool,
    tell: &dyn Fn(&str),
) -> Result<(), Error> {
    let messages = std::sync::mpsc::channel();
    let mut controller = controller::Controller::open(options, read, messages.0.clone())?;
    let listener = socket::listen(controller.socket(), messages.0)?;
    tell(&format!("listening on {}", controller.socket().display()));
    controller.run(&messages.1, stop, tell);
    drop(listener);
    Ok(())
}
