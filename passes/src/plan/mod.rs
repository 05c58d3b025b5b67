//! Planning: what stays on the device, what is swapped, what is computed again, and where it all lies.

mod apply;
mod arena;
mod belady;
mod decisions;
mod evaluate;
mod infeasible;
pub mod layout;
mod prefetch;
mod problem;
mod residents;
pub(crate) mod rows;
mod select;
pub(crate) mod storage;
mod timepoints;

pub use apply::apply;
pub use decisions::{Action, Decisions, Home, Order, Place, Run};
pub use evaluate::{Evaluation, evaluate};
pub use infeasible::Infeasible;
pub use problem::{Breakdown, POp, Problem, Tensor};
pub use select::{PlanError, Planned, plan, realise, smallest_feasible};
pub use storage::Kind;
pub use timepoints::place_awaits;
