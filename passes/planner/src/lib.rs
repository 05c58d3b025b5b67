//! The planning problem in numbers and its solvers: tensors to keep, swap or recompute, with times and
//! places.
//!
//! Knows nothing of models or of the compiler's IR. A [`Problem`] goes in, [`Decisions`] come out, and one
//! evaluator ([`evaluate`]) judges every planner.

mod access_sequence;
pub mod attribution;
pub mod bound;
mod decisions;
mod default;
mod error;
mod evaluate;
pub mod exact;
mod genotype;
mod host;
mod ids;
pub mod json;
mod keys;
mod pack;
mod place;
mod planner;
mod problem;
mod replay;
pub mod sample;
pub mod search;
mod simulate;
mod timing;
mod trace;
mod waits;
mod widen;

pub use access_sequence::{AccessSequence, Gap, Step, Touch};
pub use decisions::{Action, Decisions, Formulation, Order, Place, Pose, Resident, Run};
pub use default::{MANY_OPS, Starts, plan};
pub use error::{At, DecisionsError};
pub use evaluate::{
    Evaluation, Schedule, evaluate, evaluate_by, evaluate_with, jobs_and_accesses, lay_out, load,
};
pub use genotype::{Genotype, Swap};
pub use host::{NotOnHost, Placed};
pub use ids::{CommandIx, GapIx, HostOpIx, OpPos, SlotIx, StepPos, TensorId, Tick};
pub use place::{Command, CommandKind, Event, Site, Slot, Space, Stream, Trace};
pub use planner::{Alive, Allow, Found, NoPlan, Planner, Progress, Request, solve};
pub use problem::{
    ALIGN, Device, Handling, HostOp, Malformed, Op, Problem, SLOWDOWN_UNIT, Tensor, TensorKind,
};
pub use replay::{read, replay};
pub use simulate::{Deadlock, Job, Jobs, Span, Timeline, Waits, simulate, simulate_issued};
pub use timing::{Cause, Copies, Timing};
pub use trace::trace;
pub use waits::{Access, Wait, waits};
pub use widen::{Wish, widen};
