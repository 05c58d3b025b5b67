//! One NVIDIA GPU, as far as a program that replays a schedule needs it: finding CUDA's libraries, compiling
//! kernel text, what devices there are, and a [`Driver`] with arenas, queues and events.
//!
//! Contract:
//!
//! - **Nothing is linked.** Libraries are opened when first asked for ([`Libraries::get`]), and stay open. A
//!   machine without any of them gives errors that name what is missing and what would bring it; nothing
//!   panics.
//! - **Checked before called.** The bindings (cudarc) panic where a library or a symbol is missing; every
//!   symbol that is used here is looked up first.
//!
//! - **One queue and one memory for all work.** Kernels and calls of cuBLASLt and cuDNN run in the compute
//!   queue, on the arenas, with no scratch but what the caller gives them there.
//!
//! This crate knows no plan, no op and no schedule.

mod api;
mod blas;
mod cache;
mod calls;
mod component;
mod cuda;
mod devices;
mod dnn;
mod driver;
mod error;
mod host;
mod library;
mod locate;
mod meter;
mod nvrtc;
mod search;
mod threads;

pub use component::Component;
pub use cuda::Cuda;
pub use devices::{DeviceInfo, devices};
pub use driver::{
    Answer, Candidate, Clock, Driver, Facts, Function, Graph, Graphs, HostCall, HostWork, LibraryAlgorithm,
    LibraryAlgorithms, LibraryOp, LibraryOptions, MOST_ALGORITHMS, Reason, Refused, Region, Rounding,
    Setting, Sizes, Word, check_region,
};
pub use error::GpuError;
pub use locate::{Libraries, Library, NotFound, Search, Status, VARIABLE};
pub use memc_cuda::{Addend, Convolution, Epilogue, LibraryCall, Pass, Product};
pub use memc_ir::{Space, Stream};
pub use nvrtc::{Arch, Inspection, Nvrtc, Target};
pub use threads::side_by_side;
