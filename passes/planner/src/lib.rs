//! What to keep, swap and recompute, when and where: the planning problem in numbers and its solvers.
//!
//! Knows nothing of models or of the compiler's IR. A [`Problem`] goes in, [`Decisions`] come out, and one
//! evaluator ([`realise`]) judges every planner.

pub mod account;
mod awaits;
pub mod bound;
mod decisions;
mod default;
pub mod exact;
mod ids;
pub mod json;
mod keys;
mod pack;
mod place;
mod planner;
mod problem;
mod realise;
mod replay;
pub mod sample;
mod scheme;
pub mod search;
mod sequence;
mod simulate;
mod timing;
mod trace;

pub use awaits::{Access, Await, awaits};
pub use decisions::{Action, Decisions, Home, Order, Place, Run};
pub use default::{Starts, plan};
pub use ids::{CommandIx, GapIx, OpPos, SlotIx, StepPos, TensorId, Tick};
pub use place::{Command, Event, Site, Slot, Space, Stream, Trace, What};
pub use planner::{Allow, Found, NoPlan, Planner, Progress, Request, solve};
pub use problem::{ALIGN, Device, Kind, Malformed, Op, Problem, SLOWDOWN_UNIT, Tensor};
pub use realise::{Evaluation, Realised, lay_out, load, realise, realise_by, realise_with, schedule};
pub use replay::{read, replay};
pub use scheme::{Scheme, Swap};
pub use sequence::{Gap, Sequence, Step, Touch};
pub use simulate::{Deadlock, Job, Jobs, Span, Timeline, Waits, simulate, simulate_issued};
pub use timing::{Cause, Copies, Timing};
pub use trace::{Refused, trace};
