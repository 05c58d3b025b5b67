//! Pure functions of a module that passes and reports share.

mod graph;
mod liveness;

pub use graph::{Cycle, Dependences, REDUCTION_LIMIT};
pub use liveness::{Peak, peak_live_bytes};
