//! cuDNN's functions, of the library that was located.
//!
//! The bindings' functions of these names open a library by its bare name. In a process that has another
//! cuDNN already, as one with PyTorch does, that can be a second one, which refuses the parts of the first.

#![allow(non_snake_case, reason = "names of the C interface")]
#![allow(unsafe_code, reason = "cuDNN is a C library")]
#![allow(clippy::too_many_arguments, reason = "a C interface")]

use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

use cudarc::cudnn::sys::*;

use crate::{Component, GpuError, Libraries};

/// A table of functions, and a function that calls each entry of it.
macro_rules! functions {
    ($($name:ident($($arg:ident: $type:ty),* $(,)?) -> $result:ty;)*) => {
        /// Names of all.
        pub(super) const SYMBOLS: &[&str] = &[$(stringify!($name)),*];

        struct Functions {
            // SAFETY: types alone; whoever calls an entry gives the reason.
            $($name: unsafe extern "C" fn($($type),*) -> $result,)*
        }

        impl Functions {
            /// Looks all of them up.
            fn new() -> Result<Functions, GpuError> {
                let library = Libraries::get().require(Component::Cudnn)?;
                // SAFETY: the types are those of the bindings, which hold for every version 9.
                Ok(unsafe { Functions { $($name: library.function(stringify!($name))?,)* } })
            }
        }

        $(
            /// The library's function of this name; its conditions are the caller's. Before [`load`] it does
            /// nothing, and returns what [`Absent`] says.
            pub(super) unsafe fn $name($($arg: $type),*) -> $result {
                // SAFETY: as the caller promises.
                TABLE.get().map_or_else(Absent::absent, |table| unsafe { (table.$name)($($arg),*) })
            }
        )*
    };
}

static TABLE: OnceLock<Functions> = OnceLock::new();

/// Looks the functions up, once.
pub(super) fn load() -> Result<(), GpuError> {
    if TABLE.get().is_none() {
        let table = Functions::new()?;
        TABLE.get_or_init(|| table);
    }
    Ok(())
}

/// A result without a library.
trait Absent {
    fn absent() -> Self;
}

impl Absent for cudnnStatus_t {
    fn absent() -> cudnnStatus_t {
        cudnnStatus_t::CUDNN_STATUS_NOT_INITIALIZED
    }
}

impl Absent for *const c_char {
    fn absent() -> *const c_char {
        c"cuDNN is not open".as_ptr()
    }
}

impl Absent for () {
    fn absent() {}
}

functions! {
    cudnnActivationForward(
        handle: cudnnHandle_t, activation_desc: cudnnActivationDescriptor_t, alpha: *const c_void,
        x_desc: cudnnTensorDescriptor_t, x: *const c_void, beta: *const c_void,
        y_desc: cudnnTensorDescriptor_t, y: *mut c_void,
    ) -> cudnnStatus_t;
    cudnnAddTensor(
        handle: cudnnHandle_t, alpha: *const c_void, a_desc: cudnnTensorDescriptor_t, a: *const c_void,
        beta: *const c_void, c_desc: cudnnTensorDescriptor_t, c: *mut c_void,
    ) -> cudnnStatus_t;
    cudnnConvolutionBackwardData(
        handle: cudnnHandle_t, alpha: *const c_void, w_desc: cudnnFilterDescriptor_t, w: *const c_void,
        dy_desc: cudnnTensorDescriptor_t, dy: *const c_void, conv_desc: cudnnConvolutionDescriptor_t,
        algo: cudnnConvolutionBwdDataAlgo_t, workspace: *mut c_void, bytes: usize, beta: *const c_void,
        dx_desc: cudnnTensorDescriptor_t, dx: *mut c_void,
    ) -> cudnnStatus_t;
    cudnnConvolutionBackwardFilter(
        handle: cudnnHandle_t, alpha: *const c_void, x_desc: cudnnTensorDescriptor_t, x: *const c_void,
        dy_desc: cudnnTensorDescriptor_t, dy: *const c_void, conv_desc: cudnnConvolutionDescriptor_t,
        algo: cudnnConvolutionBwdFilterAlgo_t, workspace: *mut c_void, bytes: usize, beta: *const c_void,
        dw_desc: cudnnFilterDescriptor_t, dw: *mut c_void,
    ) -> cudnnStatus_t;
    cudnnConvolutionBiasActivationForward(
        handle: cudnnHandle_t, alpha1: *const c_void, x_desc: cudnnTensorDescriptor_t, x: *const c_void,
        w_desc: cudnnFilterDescriptor_t, w: *const c_void, conv_desc: cudnnConvolutionDescriptor_t,
        algo: cudnnConvolutionFwdAlgo_t, workspace: *mut c_void, bytes: usize, alpha2: *const c_void,
        z_desc: cudnnTensorDescriptor_t, z: *const c_void, bias_desc: cudnnTensorDescriptor_t,
        bias: *const c_void, activation_desc: cudnnActivationDescriptor_t, y_desc: cudnnTensorDescriptor_t,
        y: *mut c_void,
    ) -> cudnnStatus_t;
    cudnnConvolutionForward(
        handle: cudnnHandle_t, alpha: *const c_void, x_desc: cudnnTensorDescriptor_t, x: *const c_void,
        w_desc: cudnnFilterDescriptor_t, w: *const c_void, conv_desc: cudnnConvolutionDescriptor_t,
        algo: cudnnConvolutionFwdAlgo_t, workspace: *mut c_void, bytes: usize, beta: *const c_void,
        y_desc: cudnnTensorDescriptor_t, y: *mut c_void,
    ) -> cudnnStatus_t;
    cudnnCreate(handle: *mut cudnnHandle_t) -> cudnnStatus_t;
    cudnnCreateActivationDescriptor(activation_desc: *mut cudnnActivationDescriptor_t) -> cudnnStatus_t;
    cudnnCreateConvolutionDescriptor(conv_desc: *mut cudnnConvolutionDescriptor_t) -> cudnnStatus_t;
    cudnnCreateFilterDescriptor(filter_desc: *mut cudnnFilterDescriptor_t) -> cudnnStatus_t;
    cudnnCreateTensorDescriptor(tensor_desc: *mut cudnnTensorDescriptor_t) -> cudnnStatus_t;
    cudnnDestroy(handle: cudnnHandle_t) -> cudnnStatus_t;
    cudnnDestroyActivationDescriptor(activation_desc: cudnnActivationDescriptor_t) -> cudnnStatus_t;
    cudnnDestroyConvolutionDescriptor(conv_desc: cudnnConvolutionDescriptor_t) -> cudnnStatus_t;
    cudnnDestroyFilterDescriptor(filter_desc: cudnnFilterDescriptor_t) -> cudnnStatus_t;
    cudnnDestroyTensorDescriptor(tensor_desc: cudnnTensorDescriptor_t) -> cudnnStatus_t;
    cudnnGetConvolutionBackwardDataAlgorithm_v7(
        handle: cudnnHandle_t, filter_desc: cudnnFilterDescriptor_t, diff_desc: cudnnTensorDescriptor_t,
        conv_desc: cudnnConvolutionDescriptor_t, grad_desc: cudnnTensorDescriptor_t,
        requested_algo_count: c_int, returned_algo_count: *mut c_int,
        perf_results: *mut cudnnConvolutionBwdDataAlgoPerf_t,
    ) -> cudnnStatus_t;
    cudnnGetConvolutionBackwardDataWorkspaceSize(
        handle: cudnnHandle_t, w_desc: cudnnFilterDescriptor_t, dy_desc: cudnnTensorDescriptor_t,
        conv_desc: cudnnConvolutionDescriptor_t, dx_desc: cudnnTensorDescriptor_t,
        algo: cudnnConvolutionBwdDataAlgo_t, size_in_bytes: *mut usize,
    ) -> cudnnStatus_t;
    cudnnGetConvolutionBackwardFilterAlgorithm_v7(
        handle: cudnnHandle_t, src_desc: cudnnTensorDescriptor_t, diff_desc: cudnnTensorDescriptor_t,
        conv_desc: cudnnConvolutionDescriptor_t, grad_desc: cudnnFilterDescriptor_t,
        requested_algo_count: c_int, returned_algo_count: *mut c_int,
        perf_results: *mut cudnnConvolutionBwdFilterAlgoPerf_t,
    ) -> cudnnStatus_t;
    cudnnGetConvolutionBackwardFilterWorkspaceSize(
        handle: cudnnHandle_t, x_desc: cudnnTensorDescriptor_t, dy_desc: cudnnTensorDescriptor_t,
        conv_desc: cudnnConvolutionDescriptor_t, grad_desc: cudnnFilterDescriptor_t,
        algo: cudnnConvolutionBwdFilterAlgo_t, size_in_bytes: *mut usize,
    ) -> cudnnStatus_t;
    cudnnGetConvolutionForwardAlgorithm_v7(
        handle: cudnnHandle_t, src_desc: cudnnTensorDescriptor_t, filter_desc: cudnnFilterDescriptor_t,
        conv_desc: cudnnConvolutionDescriptor_t, dest_desc: cudnnTensorDescriptor_t,
        requested_algo_count: c_int, returned_algo_count: *mut c_int,
        perf_results: *mut cudnnConvolutionFwdAlgoPerf_t,
    ) -> cudnnStatus_t;
    cudnnGetConvolutionForwardWorkspaceSize(
        handle: cudnnHandle_t, x_desc: cudnnTensorDescriptor_t, w_desc: cudnnFilterDescriptor_t,
        conv_desc: cudnnConvolutionDescriptor_t, y_desc: cudnnTensorDescriptor_t,
        algo: cudnnConvolutionFwdAlgo_t, size_in_bytes: *mut usize,
    ) -> cudnnStatus_t;
    cudnnGetErrorString(status: cudnnStatus_t) -> *const c_char;
    cudnnGetLastErrorString(message: *mut c_char, max_size: usize) -> ();
    cudnnSetActivationDescriptor(
        activation_desc: cudnnActivationDescriptor_t, mode: cudnnActivationMode_t,
        relu_nan_opt: cudnnNanPropagation_t, coef: f64,
    ) -> cudnnStatus_t;
    cudnnSetConvolution2dDescriptor(
        conv_desc: cudnnConvolutionDescriptor_t, pad_h: c_int, pad_w: c_int, u: c_int, v: c_int,
        dilation_h: c_int, dilation_w: c_int, mode: cudnnConvolutionMode_t, compute_type: cudnnDataType_t,
    ) -> cudnnStatus_t;
    cudnnSetConvolutionGroupCount(
        conv_desc: cudnnConvolutionDescriptor_t, group_count: c_int,
    ) -> cudnnStatus_t;
    cudnnSetConvolutionMathType(
        conv_desc: cudnnConvolutionDescriptor_t, math_type: cudnnMathType_t,
    ) -> cudnnStatus_t;
    cudnnSetFilter4dDescriptor(
        filter_desc: cudnnFilterDescriptor_t, data_type: cudnnDataType_t, format: cudnnTensorFormat_t,
        k: c_int, c: c_int, h: c_int, w: c_int,
    ) -> cudnnStatus_t;
    cudnnSetStream(handle: cudnnHandle_t, stream_id: cudaStream_t) -> cudnnStatus_t;
    cudnnSetTensor4dDescriptor(
        tensor_desc: cudnnTensorDescriptor_t, format: cudnnTensorFormat_t, data_type: cudnnDataType_t,
        n: c_int, c: c_int, h: c_int, w: c_int,
    ) -> cudnnStatus_t;
}
