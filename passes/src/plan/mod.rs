//! Planning a module: its problem in numbers, a planner's decisions, and the memory IR that carries them out.

pub mod alloc;
mod bufferize;
mod events;
mod infeasible;
mod problem;
pub(crate) mod rows;
pub(crate) mod storage;

pub use crate::error::Infeasible;
pub use bufferize::{apply, bufferize};
pub use problem::{Breakdown, Problem, device};
pub use storage::TensorKind;
