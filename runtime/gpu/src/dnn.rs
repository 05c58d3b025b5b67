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

mod describe;
mod rules;

use std::ffi::{CStr, c_char, c_void};

use cudarc::cudnn::sys::{
    self, cudnnConvolutionBwdDataAlgo_t as DataWay, cudnnConvolutionBwdFilterAlgo_t as WeightWay,
    cudnnConvolutionFwdAlgo_t as ForwardWay, cudnnDataType_t as Type, cudnnMathType_t as Math,
    cudnnStatus_t as Status,
};
use describe::{relu, set_math, tensor, weight, window};
use memc_cuda::{Convolution, DType, Pass};

use rules::Rules;

use crate::library::{Handle, LibraryOptions, Refusal, Rounding, require};
use crate::tuning::Wanted;
use crate::{Candidate, Component, GpuError, LibraryAlgorithm};

/// Functions that are called.
const SYMBOLS: &[&str] = &[
    "cudnnAddTensor",
    "cudnnConvolutionBackwardData",
    "cudnnConvolutionBackwardFilter",
    "cudnnConvolutionBiasActivationForward",
    "cudnnConvolutionForward",
    "cudnnCreate",
    "cudnnCreateActivationDescriptor",
    "cudnnCreateConvolutionDescriptor",
    "cudnnCreateFilterDescriptor",
    "cudnnCreateTensorDescriptor",
    "cudnnDestroy",
    "cudnnDestroyActivationDescriptor",
    "cudnnDestroyConvolutionDescriptor",
    "cudnnDestroyFilterDescriptor",
    "cudnnDestroyTensorDescriptor",
    "cudnnGetConvolutionBackwardDataAlgorithm_v7",
    "cudnnGetConvolutionBackwardDataWorkspaceSize",
    "cudnnGetConvolutionBackwardFilterAlgorithm_v7",
    "cudnnGetConvolutionBackwardFilterWorkspaceSize",
    "cudnnGetConvolutionForwardAlgorithm_v7",
    "cudnnGetConvolutionForwardWorkspaceSize",
    "cudnnGetErrorString",
    "cudnnGetLastErrorString",
    "cudnnSetActivationDescriptor",
    "cudnnSetConvolution2dDescriptor",
    "cudnnSetConvolutionGroupCount",
    "cudnnSetConvolutionMathType",
    "cudnnSetFilter4dDescriptor",
    "cudnnSetStream",
    "cudnnSetTensor4dDescriptor",
];

/// Algorithms that the heuristic is asked for: more than there are.
const ALGORITHMS: usize = 16;

type Tensor = Handle<sys::cudnnTensorStruct, Status>;
type Weight = Handle<sys::cudnnFilterStruct, Status>;
type Window = Handle<sys::cudnnConvolutionStruct, Status>;
type Activation = Handle<sys::cudnnActivationStruct, Status>;

/// The library's texts for a status: its name, and what it says of the last failure, if anything.
#[allow(unsafe_code, reason = "cuDNN is a C library")]
fn text(status: Status) -> String {
    let mut last: [c_char; 512] = [0; 512];
    // SAFETY: the name is a constant text; of the other text the library writes as much as there is room for,
    // and ends it.
    let (name, last) = unsafe {
        sys::cudnnGetLastErrorString(last.as_mut_ptr(), last.len());
        (CStr::from_ptr(sys::cudnnGetErrorString(status)), CStr::from_ptr(last.as_ptr()))
    };
    let (name, last) = (name.to_string_lossy(), last.to_string_lossy());
    match last.lines().next() {
        Some(line) if !line.trim().is_empty() => format!("{name}, {}", line.trim()),
        _ => name.into_owned(),
    }
}

/// Result of a function.
fn done(function: &'static str, status: Status) -> Result<(), GpuError> {
    match status {
        Status::CUDNN_STATUS_SUCCESS => Ok(()),
        _ => Err(GpuError::Library { component: Component::Cudnn, function, error: text(status) }),
    }
}

/// [`done`], where a call that the library does not do is no failure.
fn planned(function: &'static str, status: Status) -> Result<(), Refusal> {
    // All statuses of this kind, whatever their reason.
    match status as u32 / 1000 {
        3 => Err(Refusal::Unsupported),
        _ => Ok(done(function, status)?),
    }
}

/// The function to call, with its algorithm.
#[derive(Clone, Copy, Debug)]
enum Call {
    Forward(ForwardWay),
    GradInput(DataWay),
    GradWeight(WeightWay),
}

/// A convolution with the algorithm to compute it.
#[derive(Debug)]
pub(crate) struct Filtering {
    x: Tensor,
    w: Weight,
    y: Tensor,
    bias: Option<Tensor>,
    relu: Option<Activation>,
    window: Window,
    call: Call,
    /// Bytes that it takes.
    pub(crate) workspace: usize,
    /// The algorithms that were looked for.
    pub(crate) candidates: Vec<Candidate>,
}

/// The heuristic's algorithms that the rules allow, the best first, with their arithmetic and the workspace
/// that they take: for one of the three passes the function with the heuristic, that which says how much
/// workspace an algorithm takes, and the algorithms that sum products as they are.
macro_rules! choose {
    ($Call:path, $window:expr, $rules:expr, $Candidate:ty, $direct:pat,
     $heuristic:ident($($asked:expr),*), $size:ident($($sized:expr),*)) => {{
        let (window, rules): (&Window, Rules<'_>) = ($window, $rules);
        let mut count = 0;
        // SAFETY: numbers, all of which may be zero; zero is a value of each of their enumerations.
        let mut candidates: [$Candidate; ALGORITHMS] = unsafe { std::mem::zeroed() };
        // SAFETY: everything that is passed exists; there is room for as many results as are asked for.
        let status = unsafe { sys::$heuristic($($asked),*, ALGORITHMS as i32, &mut count, candidates.as_mut_ptr()) };
        planned(stringify!($heuristic), status)?;
        let mut chosen = Vec::new();
        for candidate in candidates.iter().take(usize::try_from(count).unwrap_or(0)) {
            let is_direct = matches!(candidate.algo, $direct);
            if candidate.status != Status::CUDNN_STATUS_SUCCESS
                || !rules.allow(candidate.mathType, is_direct, candidate.determinism)
                || !rules.want(candidate.algo as u32, candidate.mathType)
            {
                continue;
            }
            // An algorithm is one with its arithmetic, also when it runs.
            set_math(window, candidate.mathType)?;
            let mut bytes = 0;
            // SAFETY: everything that is passed exists; a number to write.
            let status = unsafe { sys::$size($($sized),*, candidate.algo, &mut bytes) };
            match planned(stringify!($size), status) {
                Ok(()) if bytes <= rules.workspace => {
                    chosen.push(($Call(candidate.algo), candidate.algo as u32, candidate.mathType, bytes));
                    if rules.enough(chosen.len()) {
                        break;
                    }
                }
                Ok(()) | Err(Refusal::Unsupported) => {}
                Err(failed) => return Err(failed),
            }
        }
        chosen
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
        require(Component::Cudnn, SYMBOLS)?;
        // SAFETY: a handle to write; a context is current.
        let create = |handle| done("cudnnCreate", unsafe { sys::cudnnCreate(handle) });
        let handle = Handle::new(create, sys::cudnnDestroy)?;
        // SAFETY: both exist, and the stream outlives the library.
        done("cudnnSetStream", unsafe { sys::cudnnSetStream(handle.pointer, stream.cast()) })?;
        Ok(Dnn { handle })
    }

    /// Chooses an algorithm that takes no more than so many bytes of workspace.
    pub(crate) fn plan(
        &self,
        c: &Convolution,
        workspace: usize,
        options: LibraryOptions,
        wanted: Wanted<'_>,
    ) -> Result<Filtering, Refusal> {
        use DataWay::{
            CUDNN_CONVOLUTION_BWD_DATA_ALGO_0 as DATA_0, CUDNN_CONVOLUTION_BWD_DATA_ALGO_1 as DATA_1,
        };
        use ForwardWay::{
            CUDNN_CONVOLUTION_FWD_ALGO_GEMM as GEMM, CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM as IMPLICIT,
            CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM as PRECOMPUTED,
        };
        use WeightWay::{
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
            _ => return Err(Refusal::Unsupported),
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
        // The heuristic offers what this allows.
        set_math(&window, math)?;
        let any_order = options.allow_nondeterminism;
        let rules = Rules { math, transforms: c.dtype == DType::F32, any_order, workspace, wanted };
        let (lib, cd) = (self.handle.pointer, window.pointer);
        let (xd, wd, yd) = (x.pointer, w.pointer, y.pointer);
        let chosen = match c.pass {
            Pass::Forward { .. } => choose!(
                Call::Forward,
                &window,
                rules,
                sys::cudnnConvolutionFwdAlgoPerf_t,
                IMPLICIT | PRECOMPUTED | GEMM,
                cudnnGetConvolutionForwardAlgorithm_v7(lib, xd, wd, cd, yd),
                cudnnGetConvolutionForwardWorkspaceSize(lib, xd, wd, cd, yd)
            ),
            Pass::GradInput => choose!(
                Call::GradInput,
                &window,
                rules,
                sys::cudnnConvolutionBwdDataAlgoPerf_t,
                DATA_0 | DATA_1,
                cudnnGetConvolutionBackwardDataAlgorithm_v7(lib, wd, yd, cd, xd),
                cudnnGetConvolutionBackwardDataWorkspaceSize(lib, wd, yd, cd, xd)
            ),
            Pass::GradWeight => choose!(
                Call::GradWeight,
                &window,
                rules,
                sys::cudnnConvolutionBwdFilterAlgoPerf_t,
                WEIGHT_0 | WEIGHT_1 | WEIGHT_3,
                cudnnGetConvolutionBackwardFilterAlgorithm_v7(lib, xd, yd, cd, wd),
                cudnnGetConvolutionBackwardFilterWorkspaceSize(lib, xd, yd, cd, wd)
            ),
        };
        let &(call, _, math, workspace) = chosen.first().ok_or(Refusal::Unsupported)?;
        set_math(&window, math)?;
        let candidate = |&(_, algorithm, math, workspace): &(Call, u32, Math, usize)| Candidate {
            algorithm: LibraryAlgorithm::Convolution { algorithm, math: math as u32 },
            workspace,
        };
        let candidates = chosen.iter().map(candidate).collect();
        Ok(Filtering { x, w, y, bias, relu, window, call, workspace, candidates })
    }

    /// Convolves what is at these addresses: operands in the op's order, then the result.
    pub(crate) fn run(&self, f: &Filtering, addresses: [u64; 5], workspace: u64) -> Result<(), GpuError> {
        let [first, second, third, fourth, _] = addresses.map(|address| address as *mut c_void);
        let (lib, cd, scratch) = (self.handle.pointer, f.window.pointer, workspace as *mut c_void);
        let (xd, wd, yd) = (f.x.pointer, f.w.pointer, f.y.pointer);
        let (one, zero) = (1.0f32, 0.0f32);
        let (one, zero): (*const c_void, *const c_void) = ((&raw const one).cast(), (&raw const zero).cast());
        match f.call {
            Call::Forward(algorithm) => {
                let y = if f.bias.is_some() { fourth } else { third };
                if let (Some(bias), Some(relu)) = (&f.bias, &f.relu) {
                    // What is added besides the bias is nothing times `y`.
                    // SAFETY: the handles exist. The addresses are those of tensors as the descriptors say, in
                    // the device's arena, and of the workspace that the algorithm takes; they stay there until
                    // the stream has run dry.
                    let status = unsafe {
                        sys::cudnnConvolutionBiasActivationForward(
                            lib,
                            one,
                            xd,
                            first,
                            wd,
                            second,
                            cd,
                            algorithm,
                            scratch,
                            f.workspace,
                            zero,
                            yd,
                            y,
                            bias.pointer,
                            third,
                            relu.pointer,
                            yd,
                            y,
                        )
                    };
                    return done("cudnnConvolutionBiasActivationForward", status);
                }
                // SAFETY: as above.
                let status = unsafe {
                    sys::cudnnConvolutionForward(
                        lib,
                        one,
                        xd,
                        first,
                        wd,
                        second,
                        cd,
                        algorithm,
                        scratch,
                        f.workspace,
                        zero,
                        yd,
                        y,
                    )
                };
                done("cudnnConvolutionForward", status)?;
                let Some(bias) = &f.bias else { return Ok(()) };
                // SAFETY: as above.
                let status = unsafe { sys::cudnnAddTensor(lib, one, bias.pointer, third, one, yd, y) };
                done("cudnnAddTensor", status)
            }
            Call::GradInput(algorithm) => {
                // SAFETY: as above.
                let status = unsafe {
                    sys::cudnnConvolutionBackwardData(
                        lib,
                        one,
                        wd,
                        second,
                        yd,
                        first,
                        cd,
                        algorithm,
                        scratch,
                        f.workspace,
                        zero,
                        xd,
                        third,
                    )
                };
                done("cudnnConvolutionBackwardData", status)
            }
            Call::GradWeight(algorithm) => {
                // SAFETY: as above.
                let status = unsafe {
                    sys::cudnnConvolutionBackwardFilter(
                        lib,
                        one,
                        xd,
                        second,
                        yd,
                        first,
                        cd,
                        algorithm,
                        scratch,
                        f.workspace,
                        zero,
                        wd,
                        third,
                    )
                };
                done("cudnnConvolutionBackwardFilter", status)
            }
        }
    }
}
