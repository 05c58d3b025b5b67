//! Training construction, graph rewrites, cost model, planning passes.

pub mod analysis;
mod device;
mod error;
pub mod graph;
pub mod jobs;
mod options;
mod pipeline;
pub mod plan;
mod reproducer;
pub mod training;

pub use device::{
    DeviceProfile, FOLDS, Family, Judgement, Kernels, Measured, PROFILES, Peaks, ProfileError, Quality,
    Sample,
};
pub use error::{Contradiction, PassError};
/// Limits of the workspace of a convolution on a GPU, in bytes.
pub use memc_cuda::CONV_WORKSPACE;
pub use options::{OptionDef, Options};
pub use pipeline::{Fired, PassCx, PassDef, Pipeline, Step};
pub use reproducer::header;

/// Every pass, sorted by name.
pub static PASSES: &[PassDef] = &[
    training::ADD_LOSS,
    training::ADD_OPTIMIZER,
    plan::rows::ALLOC,
    plan::rows::APPLY,
    plan::rows::BUFFERIZE,
    graph::canonicalise::PASS,
    graph::cse::PASS,
    graph::dce::PASS,
    training::DIFFERENTIATE,
    plan::rows::EVENTS,
    graph::fold::PASS,
    graph::fuse::PASS,
    graph::fuse_counters::PASS,
    graph::memory::PASS,
    plan::rows::PLAN,
    graph::raise::PASS,
    graph::schedule_ops::PASS,
    graph::simplify::PASS,
];

/// The graph passes, with `raise` as given.
macro_rules! graph_passes {
    ($raise:literal) => {
        concat!(
            "fold,canonicalise,cse,simplify,",
            $raise,
            ",fold,simplify,fold,canonicalise,cse,fuse-counters,dce"
        )
    };
}

/// The graph passes before planning. The checker holds a plan against their result.
///
/// Folding and merging come before rewriting because rules look at constants and at equal operands. Exact
/// rewriting comes before `raise` because that matches by spelling. The results of rules are brought to
/// canonical form once more. A second run of the whole list changes nothing.
pub const GRAPH_PIPELINE: &str = graph_passes!("raise");

/// [`GRAPH_PIPELINE`] for a forward model before gradients are taken.
pub const FORWARD_PIPELINE: &str = graph_passes!("raise{forward}");

/// Passes behind [`GRAPH_PIPELINE`] where few activations are to be saved: choosing formulations by them.
///
/// Nothing but `dce` may follow, since other passes would merge what this one computes twice.
pub const MEMORY_PIPELINE: &str = "memory-rewrite,dce";

/// As [`MEMORY_PIPELINE`], with formulations that save fewer activations for no more time.
pub const FAST_PIPELINE: &str = "memory-rewrite{exchange=0},dce";

/// As [`MEMORY_PIPELINE`], where saving an activation would take longer copies than computing it again.
pub const LEAN_PIPELINE: &str = "memory-rewrite{exchange=1},dce";

/// Last pass, unless the user declines, for devices whose kernels are a GPU's: a kernel for each chain of
/// element-wise ops.
///
/// The passes before match single ops, and a processor gains little from it.
pub const FUSE_PIPELINE: &str = "fuse";
