//! Convolutions by cuDNN, with its functions of one convolution each.
//!
//! Only algorithms that cuDNN itself calls deterministic are taken (`cudnnDeterminism_t`; NVIDIA cuDNN
//! documentation, "Reproducibility (Determinism)": of the forward pass all, of the gradients not `ALGO_0` and
//! `ALGO_3`). Sums are kept in `f32`. The kind of arithmetic (`cudnnMathType_t`) is set, not left to the
//! library, whose default rounds products of `f32` to TF32:
//!
//! - `f32`: `CUDNN_FMA_MATH`, which uses no tensor core; with TF32 allowed `CUDNN_DEFAULT_MATH`;
//! - 16 bits: `CUDNN_TENSOR_OP_MATH`, whose products are exact. Algorithms by Fourier and Winograd transforms
//!   are left out, since what they transform is rounded to 16 bits on the way. `f32` has them.
//!
//! `CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION` is never taken: it rounds `f32` to 16 bits.

mod functions;
mod handles;
mod offers;

use std::cell::Cell;
use std::ffi::c_void;

use cudarc::cudnn::sys::{
    self, cudnnConvolutionBwdDataAlgo_t as DataAlgorithm, cudnnConvolutionBwdFilterAlgo_t as WeightAlgorithm,
    cudnnConvolutionFwdAlgo_t as ForwardAlgorithm, cudnnDataType_t as Type, cudnnMathType_t as Math,
    cudnnStatus_t as Status,
};
use memc_cuda::{Convolution, DType, Pass};

use crate::driver::{LibraryOptions, Reason, Rounding};
use crate::library::{Handle, Refusal, Wanted, require};
use crate::{Candidate, Component, GpuError, LibraryAlgorithm};
use handles::{
    Activation, Tensor, Weight, Window, done, is_refusal, planned, relu, set_math, started, tensor, weight,
    window,
};
use offers::{Offer, Rules};

/// Algorithms that the heuristic is asked for: more than there are.
const MOST: usize = 16;

/// Factors of a sum that cuDNN reads by address.
static ONE: f32 = 1.0;
static ZERO: f32 = 0.0;

/// The function to call, with its algorithm.
#[derive(Clone, Copy, Debug)]
enum PassAlgorithm {
    Forward(ForwardAlgorithm),
    GradInput(DataAlgorithm),
    GradWeight(WeightAlgorithm),
}

/// A convolution with the algorithm that computes it.
#[derive(Debug)]
pub(crate) struct Filtering {
    x: Tensor,
    w: Weight,
    y: Tensor,
    bias: Option<Tensor>,
    relu: Option<Activation>,
    window: Window,
    algorithm: PassAlgorithm,
    /// Whether the library refused to add the bias and apply ReLU with the convolution, so that these are
    /// calls of their own. Its answer depends on the call alone.
    is_apart: Cell<bool>,
    /// Bytes that it takes.
    pub(crate) workspace: usize,
    /// The algorithms that were asked for, the best first.
    pub(crate) candidates: Vec<Candidate>,
}

/// Algorithms of the heuristic that the rules allow, the best first, with their arithmetic and their
/// workspace; without one, the reason. The parameters name, for one of the three passes, the type of its
/// algorithms, those that sum products without a transform, the number of all, the function with the
/// heuristic, and the function that returns an algorithm's workspace.
macro_rules! choose {
    ($Algorithm:path, $window:expr, $rules:expr, $Number:ty, $direct:pat, $end:expr,
     $heuristic:ident($($asked:expr),*), $size:ident($($sized:expr),*)) => {{
        let (window, rules): (&Window, Rules<'_>) = ($window, $rules);
        let mut count = 0;
        // SAFETY: numbers, all of which may be zero.
        let mut found: [Offer; MOST] = unsafe { std::mem::zeroed() };
        // SAFETY: everything that is passed exists; there is room for as many results as are asked for, and
        // each is an `Offer` in numbers.
        let status = unsafe {
            functions::$heuristic($($asked),*, MOST as i32, &mut count, found.as_mut_ptr().cast())
        };
        planned(stringify!($heuristic), status)?;
        let (mut chosen, mut least, mut why) = (Vec::new(), None, Reason::Nothing);
        for offer in found.iter().take(usize::try_from(count).unwrap_or(0)) {
            if offer.status != Status::CUDNN_STATUS_SUCCESS as u32 || offer.algorithm >= $end as u32 {
                continue;
            }
            // SAFETY: the algorithms are the numbers below `$end`, without a gap.
            let algorithm: $Number = unsafe { std::mem::transmute(offer.algorithm) };
            let Some(math) = rules.take(offer, matches!(algorithm, $direct)) else { continue };
            let mut bytes = 0;
            // The arithmetic is part of the algorithm, also when it runs.
            let sized = set_math(window, math).and_then(|()| {
                // SAFETY: everything that is passed exists; a number to write.
                planned(stringify!($size), unsafe { functions::$size($($sized),*, algorithm, &mut bytes) })
            });
            match sized {
                Ok(()) if bytes <= rules.workspace => {
                    chosen.push(($Algorithm(algorithm), offer.algorithm, math, bytes));
                    if rules.enough(chosen.len()) {
                        break;
                    }
                }
                Ok(()) => least = Some(least.map_or(bytes, |least| bytes.min(least))),
                Err(Refusal::Unsupported(reason)) => why = reason,
                Err(failed) => return Err(failed),
            }
        }
        (chosen, least.map_or(why, |bytes| Reason::Workspace(bytes as u64)))
    }};
}

/// The library, on one stream.
#[derive(Debug)]
pub(crate) struct Dnn {
    handle: Handle<sys::cudnnContext, Status>,
}

#[allow(unsafe_code, reason = "cuDNN is a C library")]
impl Dnn {
    /// Starts it in the current context, on a stream.
    pub(crate) fn start(stream: *mut c_void) -> Result<Dnn, GpuError> {
        require(Component::Cudnn, functions::SYMBOLS)?;
        functions::load()?;
        // SAFETY: a handle to write; a context is current.
        let create = |handle| started("cudnnCreate", unsafe { functions::cudnnCreate(handle) });
        let handle = Handle::new(create, functions::cudnnDestroy)?;
        // SAFETY: both exist, and the stream outlives the library.
        started("cudnnSetStream", unsafe { functions::cudnnSetStream(handle.pointer, stream.cast()) })?;
        Ok(Dnn { handle })
    }

    /// Chooses an algorithm that takes at most so many bytes of workspace.
    pub(crate) fn plan(
        &self,
        c: &Convolution,
        workspace: usize,
        options: LibraryOptions,
        wanted: Wanted<'_>,
    ) -> Result<Filtering, Refusal> {
        use DataAlgorithm::{
            CUDNN_CONVOLUTION_BWD_DATA_ALGO_0 as DATA_0, CUDNN_CONVOLUTION_BWD_DATA_ALGO_1 as DATA_1,
        };
        use ForwardAlgorithm::{
            CUDNN_CONVOLUTION_FWD_ALGO_GEMM as GEMM, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM as IMPLICIT,
            CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM as PRECOMPUTED,
        };
        use WeightAlgorithm::{
            CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0 as WEIGHT_0, CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1 as WEIGHT_1,
            CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3 as WEIGHT_3,
        };
        let (element, math) = match c.dtype {
            DType::F32 if options.rounding == Rounding::Tf32 => {
                (Type::CUDNN_DATA_FLOAT, Math::CUDNN_DEFAULT_MATH)
            }
            DType::F32 => (Type::CUDNN_DATA_FLOAT, Math::CUDNN_FMA_MATH),
            DType::F16 => (Type::CUDNN_DATA_HALF, Math::CUDNN_TENSOR_OP_MATH),
            DType::BF16 => (Type::CUDNN_DATA_BFLOAT16, Math::CUDNN_TENSOR_OP_MATH),
            _ => return Err(Refusal::Unsupported(Reason::Nothing)),
        };
        let (x, w, y) = (tensor(element, c.x)?, weight(element, c.w)?, tensor(element, c.y)?);
        let bias = match c.pass {
            Pass::Forward { has_bias: true, .. } => Some(tensor(element, [1, c.y[1], 1, 1])?),
            _ => None,
        };
        let relu = match c.pass {
            Pass::Forward { is_rectified: true, .. } => Some(relu()?),
            _ => None,
        };
        let window = window(c)?;
        // The heuristic proposes what this allows.
        set_math(&window, math)?;
        let any_order = options.allow_nondeterminism;
        let rules = Rules { math, transforms: c.dtype == DType::F32, any_order, workspace, wanted };
        let (lib, cd) = (self.handle.pointer, window.pointer);
        let (xd, wd, yd) = (x.pointer, w.pointer, y.pointer);
        let (chosen, why) = match c.pass {
            Pass::Forward { .. } => choose!(
                PassAlgorithm::Forward,
                &window,
                rules,
                ForwardAlgorithm,
                IMPLICIT | PRECOMPUTED | GEMM,
                ForwardAlgorithm::CUDNN_CONVOLUTION_FWD_ALGO_COUNT,
                cudnnGetConvolutionForwardAlgorithm_v7(lib, xd, wd, cd, yd),
                cudnnGetConvolutionForwardWorkspaceSize(lib, xd, wd, cd, yd)
            ),
            Pass::GradInput => choose!(
                PassAlgorithm::GradInput,
                &window,
                rules,
                DataAlgorithm,
                DATA_0 | DATA_1,
                DataAlgorithm::CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT,
                cudnnGetConvolutionBackwardDataAlgorithm_v7(lib, wd, yd, cd, xd),
                cudnnGetConvolutionBackwardDataWorkspaceSize(lib, wd, yd, cd, xd)
            ),
            Pass::GradWeight => choose!(
                PassAlgorithm::GradWeight,
                &window,
                rules,
                WeightAlgorithm,
                WEIGHT_0 | WEIGHT_1 | WEIGHT_3,
                WeightAlgorithm::CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT,
                cudnnGetConvolutionBackwardFilterAlgorithm_v7(lib, xd, yd, cd, wd),
                cudnnGetConvolutionBackwardFilterWorkspaceSize(lib, xd, yd, cd, wd)
            ),
        };
        let &(algorithm, _, math, workspace) = chosen.first().ok_or(Refusal::Unsupported(why))?;
        set_math(&window, math)?;
        let candidate = |&(_, algorithm, math, workspace): &(PassAlgorithm, u32, Math, usize)| Candidate {
            algorithm: LibraryAlgorithm::Convolution { algorithm, math: math as u32 },
            workspace,
        };
        let candidates = chosen.iter().map(candidate).collect();
        let is_apart = Cell::new(false);
        Ok(Filtering { x, w, y, bias, relu, window, algorithm, is_apart, workspace, candidates })
    }

    /// Convolves what is at these addresses: operands in the op's order, then the result.
    pub(crate) fn run(&self, f: &Filtering, addresses: [u64; 5], workspace: u64) -> Result<(), GpuError> {
        let [first, second, third, fourth, _] = addresses.map(|address| address as *mut c_void);
        let scratch = workspace as *mut c_void;
        let (lib, cd, bytes) = (self.handle.pointer, f.window.pointer, f.workspace);
        let (xd, wd, yd) = (f.x.pointer, f.w.pointer, f.y.pointer);
        let (one, zero) = ((&raw const ONE).cast(), (&raw const ZERO).cast());
        match f.algorithm {
            PassAlgorithm::Forward(algorithm) => match &f.bias {
                None => self.forward(f, algorithm, [first, second, third], scratch),
                Some(bias) => {
                    self.forward_with_bias(f, algorithm, bias, [first, second, third, fourth], scratch)
                }
            },
            PassAlgorithm::GradInput(algorithm) => {
                // SAFETY: the handles exist. The addresses are those of tensors as the descriptors say, in
                // the device's arena, and of the workspace that the algorithm takes; they stay there until
                // the stream has run dry.
                #[rustfmt::skip]
                let status = unsafe {
                    functions::cudnnConvolutionBackwardData(
                        lib, one, wd, second, yd, first, cd, algorithm, scratch, bytes, zero, xd, third,
                    )
                };
                done("cudnnConvolutionBackwardData", status)
            }
            PassAlgorithm::GradWeight(algorithm) => {
                // SAFETY: as above.
                #[rustfmt::skip]
                let status = unsafe {
                    functions::cudnnConvolutionBackwardFilter(
                        lib, one, xd, second, yd, first, cd, algorithm, scratch, bytes, zero, wd, third,
                    )
                };
                done("cudnnConvolutionBackwardFilter", status)
            }
        }
    }

    fn forward(
        &self,
        f: &Filtering,
        algorithm: ForwardAlgorithm,
        [x, w, y]: [*mut c_void; 3],
        scratch: *mut c_void,
    ) -> Result<(), GpuError> {
        let (lib, cd) = (self.handle.pointer, f.window.pointer);
        let (xd, wd, yd) = (f.x.pointer, f.w.pointer, f.y.pointer);
        let (one, zero) = ((&raw const ONE).cast(), (&raw const ZERO).cast());
        // SAFETY: as in `run`.
        #[rustfmt::skip]
        let status = unsafe {
            functions::cudnnConvolutionForward(
                lib, one, xd, x, wd, w, cd, algorithm, scratch, f.workspace, zero, yd, y,
            )
        };
        done("cudnnConvolutionForward", status)
    }

    fn forward_with_bias(
        &self,
        f: &Filtering,
        algorithm: ForwardAlgorithm,
        bias: &Tensor,
        [x, w, b, y]: [*mut c_void; 4],
        scratch: *mut c_void,
    ) -> Result<(), GpuError> {
        let (lib, cd, bd) = (self.handle.pointer, f.window.pointer, bias.pointer);
        let (xd, wd, yd) = (f.x.pointer, f.w.pointer, f.y.pointer);
        let (one, zero) = ((&raw const ONE).cast(), (&raw const ZERO).cast());
        if let Some(relu) = f.relu.as_ref().filter(|_| !f.is_apart.get()) {
            // The function adds a further tensor times a factor: here `y` times zero.
            // SAFETY: as in `run`.
            #[rustfmt::skip]
            let status = unsafe {
                functions::cudnnConvolutionBiasActivationForward(
                    lib, one, xd, x, wd, w, cd, algorithm, scratch, f.workspace, zero,
                    yd, y, bd, b, relu.pointer, yd, y,
                )
            };
            if !is_refusal(status) {
                return done("cudnnConvolutionBiasActivationForward", status);
            }
            f.is_apart.set(true);
        }
        self.forward(f, algorithm, [x, w, y], scratch)?;
        // SAFETY: as in `run`.
        done("cudnnAddTensor", unsafe { functions::cudnnAddTensor(lib, one, bd, b, one, yd, y) })?;
        let Some(relu) = &f.relu else { return Ok(()) };
        // SAFETY: as in `run`; the result may lie where the operand is.
        done("cudnnActivationForward", unsafe {
            functions::cudnnActivationForward(lib, relu.pointer, one, yd, y, zero, yd, y)
        })
    }
}
