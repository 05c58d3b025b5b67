//! cuDNN's descriptors, and what its statuses mean.

use std::ffi::{CStr, c_char};

use cudarc::cudnn::sys::{self, cudnnDataType_t as Type, cudnnMathType_t as Math, cudnnStatus_t as Status};
use memc_cuda::Convolution;

use super::functions;
use crate::library::{Handle, Refusal, failed, unusable};
use crate::{Component, GpuError};

pub(super) type Tensor = Handle<sys::cudnnTensorStruct, Status>;
pub(super) type Weight = Handle<sys::cudnnFilterStruct, Status>;
pub(super) type Window = Handle<sys::cudnnConvolutionStruct, Status>;
pub(super) type Activation = Handle<sys::cudnnActivationStruct, Status>;

/// The library's texts for a status: its name, and what it says of the last failure, if anything.
#[allow(unsafe_code, reason = "cuDNN is a C library")]
fn text(status: Status) -> String {
    let mut last: [c_char; 512] = [0; 512];
    // SAFETY: the name is a constant text; of the other text the library writes as much as there is room for,
    // and ends it.
    let (name, last) = unsafe {
        functions::cudnnGetLastErrorString(last.as_mut_ptr(), last.len());
        (CStr::from_ptr(functions::cudnnGetErrorString(status)), CStr::from_ptr(last.as_ptr()))
    };
    let (name, last) = (name.to_string_lossy(), last.to_string_lossy());
    match last.lines().next() {
        Some(line) if !line.trim().is_empty() => format!("{name}, {}", line.trim()),
        _ => name.into_owned(),
    }
}

/// Whether there was no memory, of the device or of the host.
fn is_full(status: Status) -> bool {
    matches!(
        status,
        Status::CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED
            | Status::CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED
    )
}

/// Result of a function that runs a convolution.
pub(super) fn done(function: &'static str, status: Status) -> Result<(), GpuError> {
    match status {
        Status::CUDNN_STATUS_SUCCESS => Ok(()),
        _ => Err(failed(Component::Cudnn, function, text(status), is_full(status))),
    }
}

/// Result of a function that plans one.
pub(super) fn planned(function: &'static str, status: Status) -> Result<(), Refusal> {
    match status {
        Status::CUDNN_STATUS_SUCCESS => Ok(()),
        _ => Err(Refusal::of_status(function, text(status))),
    }
}

/// Result of a function that starts the library.
pub(super) fn started(function: &'static str, status: Status) -> Result<(), GpuError> {
    match status {
        Status::CUDNN_STATUS_SUCCESS => Ok(()),
        _ => Err(unusable(Component::Cudnn, function, text(status), is_full(status))),
    }
}

/// Whether a status says that the library does not do a call, and nothing about how it went.
pub(super) fn is_refusal(status: Status) -> bool {
    // `CUDNN_STATUS_BAD_PARAM` and `CUDNN_STATUS_NOT_SUPPORTED`, whatever the details.
    matches!(status as u32 / 1000, 2 | 3)
}

/// A dense tensor.
#[allow(unsafe_code, reason = "cuDNN is a C library")]
pub(super) fn tensor(element: Type, [n, c, h, w]: [i32; 4]) -> Result<Tensor, Refusal> {
    let create = |desc| {
        // SAFETY: a handle to write.
        planned("cudnnCreateTensorDescriptor", unsafe { functions::cudnnCreateTensorDescriptor(desc) })
    };
    let tensor = Handle::new(create, functions::cudnnDestroyTensorDescriptor)?;
    let order = sys::cudnnTensorFormat_t::CUDNN_TENSOR_NCHW;
    // SAFETY: the descriptor exists.
    let status = unsafe { functions::cudnnSetTensor4dDescriptor(tensor.pointer, order, element, n, c, h, w) };
    planned("cudnnSetTensor4dDescriptor", status)?;
    Ok(tensor)
}

/// Dense weights.
#[allow(unsafe_code, reason = "cuDNN is a C library")]
pub(super) fn weight(element: Type, [k, c, h, w]: [i32; 4]) -> Result<Weight, Refusal> {
    let create = |desc| {
        // SAFETY: a handle to write.
        planned("cudnnCreateFilterDescriptor", unsafe { functions::cudnnCreateFilterDescriptor(desc) })
    };
    let weight = Handle::new(create, functions::cudnnDestroyFilterDescriptor)?;
    let order = sys::cudnnTensorFormat_t::CUDNN_TENSOR_NCHW;
    // SAFETY: the descriptor exists.
    let status = unsafe { functions::cudnnSetFilter4dDescriptor(weight.pointer, element, order, k, c, h, w) };
    planned("cudnnSetFilter4dDescriptor", status)?;
    Ok(weight)
}

/// Descriptor of the window's movement. The kind of arithmetic is still to be set.
#[allow(unsafe_code, reason = "cuDNN is a C library")]
pub(super) fn window(c: &Convolution) -> Result<Window, Refusal> {
    let create = |desc| {
        // SAFETY: a handle to write.
        planned("cudnnCreateConvolutionDescriptor", unsafe {
            functions::cudnnCreateConvolutionDescriptor(desc)
        })
    };
    let window = Handle::new(create, functions::cudnnDestroyConvolutionDescriptor)?;
    let ([top, left], [down, across], [dh, dw]) = (c.pads, c.strides, c.dilations);
    let (mode, sums) = (sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION, Type::CUDNN_DATA_FLOAT);
    // SAFETY: the descriptor exists.
    let status = unsafe {
        functions::cudnnSetConvolution2dDescriptor(
            window.pointer,
            top,
            left,
            down,
            across,
            dh,
            dw,
            mode,
            sums,
        )
    };
    planned("cudnnSetConvolution2dDescriptor", status)?;
    // SAFETY: as above.
    let status = unsafe { functions::cudnnSetConvolutionGroupCount(window.pointer, c.groups) };
    planned("cudnnSetConvolutionGroupCount", status)?;
    Ok(window)
}

/// `max(0, .)`, which keeps what is no number.
#[allow(unsafe_code, reason = "cuDNN is a C library")]
pub(super) fn relu() -> Result<Activation, Refusal> {
    let create = |desc| {
        // SAFETY: a handle to write.
        planned("cudnnCreateActivationDescriptor", unsafe {
            functions::cudnnCreateActivationDescriptor(desc)
        })
    };
    let relu = Handle::new(create, functions::cudnnDestroyActivationDescriptor)?;
    let mode = sys::cudnnActivationMode_t::CUDNN_ACTIVATION_RELU;
    let nan = sys::cudnnNanPropagation_t::CUDNN_PROPAGATE_NAN;
    // SAFETY: the descriptor exists.
    let status = unsafe { functions::cudnnSetActivationDescriptor(relu.pointer, mode, nan, 0.0) };
    planned("cudnnSetActivationDescriptor", status)?;
    Ok(relu)
}

/// The kind of arithmetic.
#[allow(unsafe_code, reason = "cuDNN is a C library")]
pub(super) fn set_math(window: &Window, math: Math) -> Result<(), Refusal> {
    // SAFETY: the descriptor exists.
    let status = unsafe { functions::cudnnSetConvolutionMathType(window.pointer, math) };
    planned("cudnnSetConvolutionMathType", status)
}
