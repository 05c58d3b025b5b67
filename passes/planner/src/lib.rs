//! What to keep, swap and recompute, when and where: the planning problem in numbers and its solvers.
//!
//! Knows nothing of models or of the compiler's IR. A [`Problem`] goes in, [`Decisions`] come out, and one evaluator
//! ([`realise`]) judges every planner.

mod awaits;
mod decisions;
pub mod json;
mod pack;
mod problem;
mod realise;
mod simulate;
mod trace;

pub use awaits::{Access, Await, Range, awaits};
pub use decisions::{Action, Decisions, Home, Order, Place, Run};
pub use problem::{ALIGN, Device, Kind, Malformed, Op, Problem, Tensor};
pub use realise::{Evaluation, Realised, load, realise};
pub use simulate::{Deadlock, Job, Span, Timeline, simulate};
pub use trace::{Command, Slot, Space, Stream, Trace, What, trace};
