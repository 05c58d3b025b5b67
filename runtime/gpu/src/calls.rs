//! Calls of cuBLASLt and cuDNN. The algorithm of a call is chosen when a program is opened; a run passes
//! addresses alone.
//!
//! Contract:
//!
//! - **One algorithm for one call.** The library's own heuristic chooses it, from the call and the workspace
//!   that it may have, never from addresses; or it is the tuned one. So the same kernel of a program gives
//!   the same bits wherever and whenever it runs.
//! - **Deterministic, in full precision**, unless [`LibraryOptions`] says otherwise; `blas` and `dnn` say
//!   how.
//! - **No hidden memory.** Scratch is the workspace of the call. The handles take some memory of the device
//!   when they are made, on the first call planned: it belongs to what the context takes, like the libraries'
//!   code, and does not grow.
//! - **In order.** All work goes to the compute queue.

use std::ffi::c_void;

use memc_cuda::{LibraryCall, PLACE_ALIGN, WORKSPACE_ALIGN};

use crate::blas::{Blas, Matmul};
use crate::component::Component;
use crate::dnn::{Dnn, Filtering};
use crate::driver::{
    Answer, Candidate, LibraryAlgorithm, LibraryOp, LibraryOptions, Reason, Refused, check_region,
};
use crate::error::GpuError;
use crate::library::{Refusal, Wanted};

/// A call with its algorithm.
#[derive(Debug)]
struct Planned {
    /// Bytes of each operand and of each result.
    bytes: Vec<usize>,
    chosen: Chosen,
}

/// A call as its library takes it.
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
    blas: Started<Blas>,
    dnn: Started<Dnn>,
}

/// A library, or the reason why it did not start; none before it is asked for.
type Started<T> = Option<Result<T, GpuError>>;

/// A library, started now or before.
fn started<T>(slot: &mut Started<T>, start: impl FnOnce() -> Result<T, GpuError>) -> Result<&T, GpuError> {
    slot.get_or_insert_with(start).as_ref().map_err(Clone::clone)
}

/// The library that computes a call.
fn component(call: &LibraryCall) -> Component {
    match call {
        LibraryCall::Product(_) => Component::CublasLt,
        LibraryCall::Convolution(_) => Component::Cudnn,
    }
}

impl Calls {
    pub(crate) fn new(options: LibraryOptions) -> Calls {
        Calls { options, planned: Vec::new(), blas: None, dnn: None }
    }

    /// Finds the best algorithm among those that are wanted.
    fn find(
        &mut self,
        call: &LibraryCall,
        workspace: usize,
        wanted: Wanted<'_>,
        stream: *mut c_void,
    ) -> Result<Result<Chosen, Reason>, GpuError> {
        // However the workspace lies, this much of it is left when its start is aligned.
        let aligning = WORKSPACE_ALIGN - PLACE_ALIGN;
        let usable = workspace.saturating_sub(aligning as usize);
        let options = self.options;
        let chosen = match call {
            LibraryCall::Product(p) => {
                let blas = started(&mut self.blas, Blas::start)?;
                let mut matmul = blas.plan(p, usable, options);
                if let Wanted::Tuned(tuned) = wanted {
                    matmul = matmul.and_then(|mut matmul| match tuned {
                        LibraryAlgorithm::Product(bytes) => matmul.take(bytes).map(|()| matmul),
                        LibraryAlgorithm::Convolution { .. } => Err(Refusal::Unsupported(Reason::Nothing)),
                    });
                }
                matmul.map(Chosen::Matmul)
            }
            LibraryCall::Convolution(c) => {
                let dnn = started(&mut self.dnn, || Dnn::start(stream))?;
                dnn.plan(c, usable, options, wanted).map(Chosen::Filtering)
            }
        };
        match chosen {
            Ok(chosen) => Ok(Ok(chosen)),
            Err(Refusal::Unsupported(Reason::Workspace(bytes))) => {
                Ok(Err(Reason::Workspace(bytes.saturating_add(aligning))))
            }
            Err(Refusal::Unsupported(reason)) => Ok(Err(reason)),
            Err(Refusal::Failed(error)) => Err(error),
        }
    }

    /// Candidates for a call; see [`LibraryAlgorithms::algorithms`](crate::LibraryAlgorithms::algorithms).
    pub(crate) fn candidates(
        &mut self,
        call: &LibraryCall,
        workspace: usize,
        stream: *mut c_void,
    ) -> Result<Vec<Candidate>, GpuError> {
        if self.options.is_off {
            return Ok(Vec::new());
        }
        Ok(match self.find(call, workspace, Wanted::All, stream)? {
            Ok(Chosen::Matmul(matmul)) => matmul.candidates(),
            Ok(Chosen::Filtering(filtering)) => filtering.candidates,
            Err(_) => Vec::new(),
        })
    }

    /// Chooses an algorithm, or takes the tuned one; see
    /// [`Driver::plan_library`](crate::Driver::plan_library).
    pub(crate) fn plan(
        &mut self,
        call: &LibraryCall,
        workspace: usize,
        tuned: Option<&LibraryAlgorithm>,
        stream: *mut c_void,
    ) -> Result<Answer, GpuError> {
        if self.options.is_off {
            return Ok(Answer::NotAsked);
        }
        let wanted = tuned.map_or(Wanted::Best, Wanted::Tuned);
        let chosen = match self.find(call, workspace, wanted, stream)? {
            Ok(chosen) => chosen,
            Err(reason) => return Ok(Answer::Refused(Refused { component: component(call), reason })),
        };
        let element = call.dtype().bytes();
        let (operands, results) = call.elements();
        let all = operands.into_iter().chain(results);
        let bytes = all.map(|n| usize::try_from(n * element).unwrap_or(usize::MAX));
        self.planned.push(Planned { bytes: bytes.collect(), chosen });
        Ok(Answer::Taken(LibraryOp(self.planned.len() - 1)))
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
            Chosen::Matmul(matmul) => matmul.workspace,
            Chosen::Filtering(filtering) => filtering.workspace,
        };
        let start = workspace.0.next_multiple_of(WORKSPACE_ALIGN);
        if needs > 0 {
            check_region((start - workspace.0) as usize, needs, workspace.1)?;
        }
        let scratch = if needs == 0 { 0 } else { start };
        match (&planned.chosen, &self.blas, &self.dnn) {
            (Chosen::Matmul(matmul), Some(Ok(blas)), _) => blas.run(matmul, addresses, scratch, stream),
            (Chosen::Filtering(filtering), _, Some(Ok(dnn))) => dnn.run(filtering, addresses, scratch),
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
