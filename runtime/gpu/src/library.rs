//! Calls of cuBLASLt and cuDNN: the algorithm to compute one is chosen when a program is opened, and then
//! only takes addresses.
//!
//! Contract:
//!
//! - **One algorithm for one call.** It is chosen by the library's own heuristic, from what the call is and
//!   the workspace that it may have, never from addresses, or it is a tuned one (see `tuning`): the same
//!   kernel of a program gives the same bits wherever and whenever it runs.
//! - **Deterministic, in full precision**, unless [`LibraryOptions`] says otherwise; `blas` and `dnn` say
//!   how.
//! - **No hidden memory.** Scratch is the workspace of the call. The handles take some memory of the device
//!   when they are made, on the first call planned: it belongs to what the context takes, like the libraries'
//!   code, and does not grow.
//! - **In order.** All work goes to the compute queue.

use std::ffi::c_void;

use memc_cuda::{LibraryCall, PLACE_ALIGN, WORKSPACE_ALIGN};

use crate::blas::{Blas, Matmul};
use crate::dnn::{Dnn, Filtering};
use crate::driver::check_region;
use crate::tuning::Wanted;
use crate::{Candidate, Component, GpuError, Libraries, LibraryAlgorithm, LibraryOp};

/// Rounding of `f32` operands that libraries may do before they multiply them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Rounding {
    /// Nothing.
    #[default]
    Exact,
    /// TF32, with 10 bits of mantissa.
    Tf32,
    /// BF16, with 7 bits, in matrix products; cuDNN has no such algorithm, and its products are exact.
    Bf16,
}

/// Which libraries' algorithms may be chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LibraryOptions {
    /// None: everything is generated.
    pub is_off: bool,
    /// Rounding of `f32`.
    pub rounding: Rounding,
    /// Also algorithms that may give other bits in every run.
    pub allow_nondeterminism: bool,
}

/// Reason for which no library computes a call.
pub(crate) enum Refusal {
    /// The library does not do this.
    Unsupported,
    /// It failed.
    Failed(GpuError),
}

impl From<GpuError> for Refusal {
    fn from(error: GpuError) -> Refusal {
        Refusal::Failed(error)
    }
}

/// A function that takes something back.
// SAFETY: to be called once, with what the same library made.
type Destroy<T, S> = unsafe fn(*mut T) -> S;

/// Something that a library made and takes back.
#[derive(Debug)]
pub(crate) struct Handle<T, S> {
    pub(crate) pointer: *mut T,
    destroy: Destroy<T, S>,
}

impl<T, S> Handle<T, S> {
    /// Takes what `create` writes; it is given to `destroy` at the end.
    pub(crate) fn new<E>(
        create: impl FnOnce(*mut *mut T) -> Result<(), E>,
        destroy: Destroy<T, S>,
    ) -> Result<Handle<T, S>, E> {
        let mut pointer = std::ptr::null_mut();
        create(&mut pointer)?;
        Ok(Handle { pointer, destroy })
    }
}

impl<T, S> Drop for Handle<T, S> {
    #[allow(unsafe_code, reason = "the libraries are written in C")]
    fn drop(&mut self) {
        // SAFETY: made by the library that takes it back, once. An error has nobody to go to.
        unsafe { (self.destroy)(self.pointer) };
    }
}

/// Opens a library of at least the version that is needed, with these functions.
pub(crate) fn require(component: Component, symbols: &[&'static str]) -> Result<(), GpuError> {
    let library = Libraries::get().require(component)?;
    let major = library.version.as_deref().and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    match (major, &library.version) {
        (Some(major), Some(version)) if major < component.oldest() => {
            Err(GpuError::Outdated { component, version: version.clone() })
        }
        _ => library.require(symbols),
    }
}

/// A call with the algorithm to compute it.
#[derive(Debug)]
struct Planned {
    /// Bytes of each operand and of each result.
    bytes: Vec<usize>,
    chosen: Chosen,
}

#[derive(Debug)]
enum Chosen {
    Matmul(Matmul),
    Filtering(Filtering),
}

/// The calls of a device; libraries are started when the first call of theirs is planned.
#[derive(Debug)]
pub(crate) struct Calls {
    pub(crate) options: LibraryOptions,
    planned: Vec<Planned>,
    blas: Option<Blas>,
    dnn: Option<Dnn>,
}

/// A library, started now or before.
fn started<T>(slot: &mut Option<T>, start: impl FnOnce() -> Result<T, GpuError>) -> Result<&T, GpuError> {
    Ok(match slot {
        Some(library) => library,
        None => slot.insert(start()?),
    })
}

impl Calls {
    pub(crate) fn new(options: LibraryOptions) -> Calls {
        Calls { options, planned: Vec::new(), blas: None, dnn: None }
    }

    /// Finds the best of the algorithms that are looked for.
    fn find(
        &mut self,
        call: &LibraryCall,
        workspace: usize,
        wanted: Wanted<'_>,
        stream: *mut c_void,
    ) -> Result<Option<Chosen>, GpuError> {
        if self.options.is_off {
            return Ok(None);
        }
        // However the workspace lies, this much of it is left when its start is aligned.
        let usable = workspace.saturating_sub((WORKSPACE_ALIGN - PLACE_ALIGN) as usize);
        let options = self.options;
        let chosen = match call {
            LibraryCall::Product(p) => {
                let blas = started(&mut self.blas, Blas::start)?;
                let mut product = blas.plan(p, usable, options);
                if let Wanted::Tuned(tuned) = wanted {
                    product = product.and_then(|mut product| match tuned {
                        LibraryAlgorithm::Product(tuned) => product.take(tuned).map(|()| product),
                        LibraryAlgorithm::Convolution { .. } => Err(Refusal::Unsupported),
                    });
                }
                product.map(Chosen::Matmul)
            }
            LibraryCall::Convolution(c) => {
                let dnn = started(&mut self.dnn, || Dnn::start(stream))?;
                dnn.plan(c, usable, options, wanted).map(Chosen::Filtering)
            }
        };
        match chosen {
            Ok(chosen) => Ok(Some(chosen)),
            Err(Refusal::Unsupported) => Ok(None),
            Err(Refusal::Failed(error)) => Err(error),
        }
    }

    /// The algorithms for a call; see
    /// [`LibraryAlgorithms::algorithms`](crate::LibraryAlgorithms::algorithms).
    pub(crate) fn algorithms(
        &mut self,
        call: &LibraryCall,
        workspace: usize,
        stream: *mut c_void,
    ) -> Result<Vec<Candidate>, GpuError> {
        Ok(match self.find(call, workspace, Wanted::All, stream)? {
            Some(Chosen::Matmul(product)) => product.candidates(),
            Some(Chosen::Filtering(convolution)) => convolution.candidates,
            None => Vec::new(),
        })
    }

    /// Chooses an algorithm, or takes a tuned one; see [`Driver::plan_library`](crate::Driver::plan_library).
    pub(crate) fn plan(
        &mut self,
        call: &LibraryCall,
        workspace: usize,
        tuned: Option<&LibraryAlgorithm>,
        stream: *mut c_void,
    ) -> Result<Option<LibraryOp>, GpuError> {
        let wanted = tuned.map_or(Wanted::Best, Wanted::Tuned);
        let Some(chosen) = self.find(call, workspace, wanted, stream)? else { return Ok(None) };
        let element = match call {
            LibraryCall::Product(p) => p.dtype.bytes(),
            LibraryCall::Convolution(c) => c.dtype.bytes(),
        };
        let (operands, results) = call.elements();
        let all = operands.into_iter().chain(results);
        let bytes = all.map(|n| usize::try_from(n * element).unwrap_or(usize::MAX));
        self.planned.push(Planned { bytes: bytes.collect(), chosen });
        Ok(Some(LibraryOp(self.planned.len() - 1)))
    }

    /// Makes a call whose operands and results, and workspace, are at these addresses, each with its bytes.
    pub(crate) fn run(
        &self,
        op: LibraryOp,
        places: impl Iterator<Item = (u64, usize)> + Clone,
        workspace: (u64, usize),
        stream: *mut c_void,
    ) -> Result<(), GpuError> {
        let unknown = GpuError::Bounds { start: op.0, len: 1, arena: self.planned.len() };
        let planned = self.planned.get(op.0).ok_or(unknown)?;
        let mut addresses = [0; 5];
        let given = places.clone().count();
        if given != planned.bytes.len() || given > addresses.len() {
            return Err(GpuError::Bounds { start: given, len: 0, arena: planned.bytes.len() });
        }
        for ((slot, (address, len)), &bytes) in addresses.iter_mut().zip(places).zip(&planned.bytes) {
            if len != bytes || !address.is_multiple_of(PLACE_ALIGN) {
                return Err(GpuError::Bounds { start: address as usize, len, arena: bytes });
            }
            *slot = address;
        }
        let needs = match &planned.chosen {
            Chosen::Matmul(product) => product.workspace,
            Chosen::Filtering(convolution) => convolution.workspace,
        };
        let start = workspace.0.next_multiple_of(WORKSPACE_ALIGN);
        if needs > 0 {
            check_region((start - workspace.0) as usize, needs, workspace.1)?;
        }
        let scratch = if needs == 0 { 0 } else { start };
        match (&planned.chosen, &self.blas, &self.dnn) {
            (Chosen::Matmul(product), Some(blas), _) => blas.run(product, addresses, scratch, stream),
            (Chosen::Filtering(convolution), _, Some(dnn)) => dnn.run(convolution, addresses, scratch),
            // Nothing is planned before its library is started.
            _ => Ok(()),
        }
    }

    /// Forgets all calls and stops the libraries, which must have run dry.
    pub(crate) fn close(&mut self) {
        self.planned.clear();
        (self.blas, self.dnn) = (None, None);
    }
}
