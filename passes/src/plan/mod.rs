//! Planning a module: its problem in numbers, a planner's decisions, and the memory IR that carries them out.

mod bufferize;
mod infeasible;
pub mod layout;
mod problem;
pub(crate) mod rows;
pub(crate) mod storage;
mod timepoints;

pub use bufferize::{apply, bufferize};
pub use infeasible::Infeasible;
pub use problem::{Breakdown, Problem, device};
pub use storage::Kind;
pub use timepoints::place_awaits;
