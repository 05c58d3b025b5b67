//! The compiler as a library: from a training step and a memory budget to a plan that the checker has
//! accepted.
//!
//! ```text
//! Source ─ Model::read ─► Model ─ Instance::of_model ─► Instance ─ Instance::plan ─► Outcome
//! Model ─ compile ─► Compiled ─ Compiled::write ─► model.plan
//! ```
//!
//! Nothing here prints, ends the process or keeps global state. Progress goes to a [`Watch`], which also says
//! when to stop; errors are of one type, whose kind decides a command's exit code. [`Instance`] remembers
//! bounds, so that many plans may be asked of one problem, at many budgets.

mod adapt;
mod alloc;
mod anytime;
mod bound;
mod buckets;
mod candidate;
mod check;
mod compare;
mod compile;
pub mod device;
mod error;
mod estimate;
mod explain;
mod host_memory;
mod instance;
mod machine;
mod max_batch;
mod memory;
mod page;
mod pins;
mod plan;
mod plot;
mod race;
mod relocate;
mod report;
mod source;
mod split;
mod sweep;
mod trace;
mod watch;
mod workload;

pub use adapt::{KernelTime, corrected, departure};
pub use alloc::{AllocOptions, Allocation, End, allocate};
pub use bound::{BoundReport, BoundRow, bounds};
pub use buckets::{BucketModel, Buckets, compile_buckets};
pub use candidate::{Candidate, HostOps, Poses, SwapLimit};
pub use check::{Against, Rejection, check, open};
pub use compare::{Comparison, compare};
pub use compile::{Compiled, Options, compile};
pub use error::{Error, NoFit};
pub use estimate::{Estimate, estimate};
pub use explain::{Does, Explanation, Gap, Stall, TensorFate, explain};
pub use instance::{Bounds, Instance, Size, and_reserve};
pub use machine::read_text;
pub use max_batch::{MaxBatch, MaxBatchOptions, Probe, max_batch};
/// Limits of [`Options::conv_workspace`].
pub use memc_passes::CONV_WORKSPACE;
pub use memory::{Sample, memory_over_time};
pub use page::{annotate, page, snapshot};
pub use plan::{DecisionsFile, Outcome, Search, Solved, planner};
pub use plot::plot;
pub use report::{Report, over};
pub use source::{Graph, Imported, Model, Rewrites, SavedActivations, Source, Target, Work, context, import};
pub use split::{Part, Split, SplitOptions, split};
pub use sweep::{Point, Sweep, sweep};
pub use trace::{step_ns, trace};
pub use watch::{Event, Found, Generation, Hold, Silent, Watch};
pub use workload::{Job, JobFile, MAX_STEPS, Workload, is_job_name};
