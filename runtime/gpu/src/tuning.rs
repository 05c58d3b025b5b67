//! Algorithms by which libraries compute a call: listed to be measured, noted in a plan, and taken again
//! where they still hold.
//!
//! Contract: an tuned algorithm may come from anywhere. It is taken only where it is, bit for bit, one that
//! the library's heuristic offers now for the call, in the workspace that there is and within the rules of
//! [`LibraryOptions`](crate::LibraryOptions); a library is given nothing but what it offered itself.

use memc_cuda::LibraryCall;

use crate::{Arch, Component, Driver, GpuError, LibraryOp, LibraryOptions};

/// Most algorithms that are told of a call.
pub const MOST_ALGORITHMS: usize = 8;

/// An algorithm to compute a call, in its library's terms.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LibraryAlgorithm {
    /// cuBLASLt's algorithm (`cublasLtMatmulAlgo_t`), which "can be serialized and later restored for use
    /// with the same version of the library" (cuBLAS documentation).
    Product(Box<[u8; 64]>),
    /// cuDNN's algorithm of the pass, and its kind of arithmetic (`cudnnMathType_t`).
    Convolution {
        /// Number of the algorithm.
        algorithm: u32,
        /// Number of the kind of arithmetic.
        math: u32,
    },
}

impl LibraryAlgorithm {
    /// The library whose algorithm it is.
    pub fn component(&self) -> Component {
        match self {
            LibraryAlgorithm::Product(_) => Component::CublasLt,
            LibraryAlgorithm::Convolution { .. } => Component::Cudnn,
        }
    }
}

/// An algorithm that a library offers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// The algorithm.
    pub algorithm: LibraryAlgorithm,
    /// Bytes of workspace that it takes, from an aligned place on.
    pub workspace: usize,
}

/// What algorithms depend on, besides the call and its workspace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setting {
    /// The maker's name for the device.
    pub device: String,
    /// Its architecture.
    pub arch: Arch,
    /// Each library that can be used, with its version.
    pub libraries: Vec<(Component, String)>,
    /// What libraries may do.
    pub options: LibraryOptions,
}

/// A driver whose libraries have several algorithms.
pub trait LibraryAlgorithms: Driver {
    /// The algorithms that a library has for a call within so many bytes of workspace, at most
    /// [`MOST_ALGORITHMS`]: that of [`plan_library`](Driver::plan_library) first, none where this has none.
    ///
    /// # Errors
    /// Those of [`plan_library`](Driver::plan_library).
    fn algorithms(&mut self, call: &LibraryCall, workspace: usize) -> Result<Vec<Candidate>, GpuError>;

    /// [`plan_library`](Driver::plan_library) with a tuned algorithm; none where the library does not offer
    /// it, or not in so little, or where it may not be taken.
    ///
    /// # Errors
    /// Those of [`plan_library`](Driver::plan_library).
    fn plan_tuned(
        &mut self,
        call: &LibraryCall,
        workspace: usize,
        algorithm: &LibraryAlgorithm,
    ) -> Result<Option<LibraryOp>, GpuError>;

    /// What the algorithms of this device depend on.
    fn setting(&self) -> Setting;
}

/// Which algorithms are looked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wanted<'a> {
    /// The one that the library thinks best.
    Best,
    /// Several, the best first.
    All,
    /// This one alone.
    Tuned(&'a LibraryAlgorithm),
}
