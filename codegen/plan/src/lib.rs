#![doc = include_str!("../README.md")]

mod buckets;
mod data;
mod diff;
mod error;
mod file;
mod live;
mod model;
mod query;
mod role;
pub mod text;
mod trace;
mod tuning;
mod validate;
mod wire;
mod write;

pub use diff::{Differences, diff};
pub use error::{NoBucket, PlanError};
pub use file::{PAGE, PlanFile};
pub use memc_ir::{Slice, Space, Stream};
pub use model::{
    Action, Claims, Command, DATA_ALIGN, EVALUATION, Feed, INFERENCE, Init, Input, JOB, Kernel, MAX_BUCKETS,
    Meta, Output, Plan, Queue, State, StateRole, jobs,
};
pub use query::{Counts, Section};
pub use role::{UnknownRole, output_role};
pub use trace::{Span, Trace};
pub use tuning::{PRODUCT_BYTES, TunedAlgorithm, TunedKernel, Tuning};
pub use write::{InitialData, NoData, write};

/// Version of the file format and of the text form, of a plan with neither a tuning section
/// nor buckets.
pub const FORMAT_VERSION: u32 = 1;

/// Version of those of a plan with a tuning section.
pub const TUNED_VERSION: u32 = 2;

/// Version of those of a plan with buckets, and the newest that this crate reads.
pub const BUCKETS_VERSION: u32 = 3;

/// blake3 of `bytes`: the hash of a plan's source text and of its states' initial bytes.
pub fn hash(bytes: &[u8]) -> [u8; 32] {
    *blake3::hash(bytes).as_bytes()
}
