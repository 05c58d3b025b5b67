//! Passes from graph phase to graph phase.
//!
//! Every pass keeps the module's meaning *exactly*: an element of an output or next state that is not NaN
//! keeps its bits, and a NaN stays a NaN. (Payloads of NaN are left open, because the machine takes them from
//! either operand of an addition.) "Exactly" is measured against `memc-kernels`, which define the ops in
//! numbers. The one exception is `raise`, whose rewrites hold for real numbers and may round otherwise.
//!
//! No pass here plans memory. Common subexpressions are merged even when that makes a live range longer,
//! since the planner may recompute a value where that pays.

pub(crate) mod canonicalise;
mod compact;
pub(crate) mod cse;
pub(crate) mod dce;
mod facts;
pub(crate) mod fold;
pub(crate) mod fuse;
pub(crate) mod fuse_counters;
pub mod memory;
pub(crate) mod raise;
pub(crate) mod schedule_ops;
pub(crate) mod simplify;

pub use compact::compact;
pub use raise::{RAISE_RULES, RaiseRule};
pub use simplify::{RULES, RuleDef};
