//! Ways in which libraries compute a call: listed to be measured, kept, and taken again where they still hold.
//!
//! Contract: a way that was kept may come from anywhere. It is taken only where it is, bit for bit, one that the library's
//! heuristic offers now for the call, in the workspace that there is and within the rules of
//! [`LibraryOptions`](crate::LibraryOptions); a library is given nothing but what it offered itself.

use memc_cuda::LibraryCall;

use crate::{Arch, Component, Driver, GpuError, LibraryOp, LibraryOptions};

/// Most ways that are told of a call.
pub const MOST_WAYS: usize = 8;

/// A way to compute a call, in its library's terms.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LibraryWay {
    /// cuBLASLt's algorithm (`cublasLtMatmulAlgo_t`), which "can be serialized and later restored for use with the same
    /// version of the library" (cuBLAS documentation).
    Product(Box<[u8; 64]>),
    /// cuDNN's algorithm of the pass, and its kind of arithmetic (`cudnnMathType_t`).
    Convolution {
        /// Number of the algorithm.
        algorithm: u32,
        /// Number of the kind of arithmetic.
        math: u32,
    },
}

impl LibraryWay {
    /// The library whose way it is.
    pub fn component(&self) -> Component {
        match self {
            LibraryWay::Product(_) => Component::CublasLt,
            LibraryWay::Convolution { .. } => Component::Cudnn,
        }
    }
}

/// A way that a library offers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offer {
    /// The way.
    pub way: LibraryWay,
    /// Bytes of workspace that it takes, from an aligned place on.
    pub workspace: usize,
}

/// What ways depend on, besides the call and its workspace.
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

/// A driver whose libraries have several ways.
pub trait Ways: Driver {
    /// The ways that a library has for a call within so many bytes of workspace, at most [`MOST_WAYS`]: that of
    /// [`plan_library`](Driver::plan_library) first, none where this has none.
    ///
    /// # Errors
    /// Those of [`plan_library`](Driver::plan_library).
    fn ways(&mut self, call: &LibraryCall, workspace: usize) -> Result<Vec<Offer>, GpuError>;

    /// [`plan_library`](Driver::plan_library) with a way that was kept; none where the library does not offer it, or not in so
    /// little, or where it may not be taken.
    ///
    /// # Errors
    /// Those of [`plan_library`](Driver::plan_library).
    fn plan_way(
        &mut self,
        call: &LibraryCall,
        workspace: usize,
        way: &LibraryWay,
    ) -> Result<Option<LibraryOp>, GpuError>;

    /// What the ways of this device depend on.
    fn setting(&self) -> Setting;
}

/// Which ways are looked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wanted<'a> {
    /// The one that the library thinks best.
    Best,
    /// Several, the best first.
    All,
    /// This one alone.
    Kept(&'a LibraryWay),
}
