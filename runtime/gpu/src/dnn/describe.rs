//! Descriptors of what cuDNN works on.

use cudarc::cudnn::sys;

use super::{Activation, Convolution, Handle, Math, Refusal, Tensor, Type, Weight, Window, planned};

/// A dense tensor.
#[allow(unsafe_code, reason = "cuDNN is a C library")]
pub(super) fn tensor(element: Type, [n, c, h, w]: [i32; 4]) -> Result<Tensor, Refusal> {
    // SAFETY: a handle to write.
    let create =
        |desc| planned("cudnnCreateTensorDescriptor", unsafe { sys::cudnnCreateTensorDescriptor(desc) });
    let tensor = Handle::new(create, sys::cudnnDestroyTensorDescriptor)?;
    let order = sys::cudnnTensorFormat_t::CUDNN_TENSOR_NCHW;
    // SAFETY: the descriptor exists.
    let status = unsafe { sys::cudnnSetTensor4dDescriptor(tensor.pointer, order, element, n, c, h, w) };
    planned("cudnnSetTensor4dDescriptor", status)?;
    Ok(tensor)
}

/// Dense weights.
#[allow(unsafe_code, reason = "cuDNN is a C library")]
pub(super) fn weight(element: Type, [k, c, h, w]: [i32; 4]) -> Result<Weight, Refusal> {
    // SAFETY: a handle to write.
    let create =
        |desc| planned("cudnnCreateFilterDescriptor", unsafe { sys::cudnnCreateFilterDescriptor(desc) });
    let weight = Handle::new(create, sys::cudnnDestroyFilterDescriptor)?;
    let order = sys::cudnnTensorFormat_t::CUDNN_TENSOR_NCHW;
    // SAFETY: the descriptor exists.
    let status = unsafe { sys::cudnnSetFilter4dDescriptor(weight.pointer, element, order, k, c, h, w) };
    planned("cudnnSetFilter4dDescriptor", status)?;
    Ok(weight)
}

/// Descriptor of the window's movement. The kind of arithmetic is still to be set.
#[allow(unsafe_code, reason = "cuDNN is a C library")]
pub(super) fn window(c: &Convolution) -> Result<Window, Refusal> {
    let create = |desc| {
        // SAFETY: a handle to write.
        planned("cudnnCreateConvolutionDescriptor", unsafe { sys::cudnnCreateConvolutionDescriptor(desc) })
    };
    let window = Handle::new(create, sys::cudnnDestroyConvolutionDescriptor)?;
    let ([top, left], [down, across], [dh, dw]) = (c.pads, c.strides, c.dilations);
    let (mode, sums) = (sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION, Type::CUDNN_DATA_FLOAT);
    // SAFETY: the descriptor exists.
    let status = unsafe {
        sys::cudnnSetConvolution2dDescriptor(window.pointer, top, left, down, across, dh, dw, mode, sums)
    };
    planned("cudnnSetConvolution2dDescriptor", status)?;
    // SAFETY: as above.
    let status = unsafe { sys::cudnnSetConvolutionGroupCount(window.pointer, c.groups) };
    planned("cudnnSetConvolutionGroupCount", status)?;
    Ok(window)
}

/// `max(0, .)`, which keeps what is no number.
#[allow(unsafe_code, reason = "cuDNN is a C library")]
pub(super) fn relu() -> Result<Activation, Refusal> {
    let create = |desc| {
        // SAFETY: a handle to write.
        planned("cudnnCreateActivationDescriptor", unsafe { sys::cudnnCreateActivationDescriptor(desc) })
    };
    let relu = Handle::new(create, sys::cudnnDestroyActivationDescriptor)?;
    let mode = sys::cudnnActivationMode_t::CUDNN_ACTIVATION_RELU;
    let nan = sys::cudnnNanPropagation_t::CUDNN_PROPAGATE_NAN;
    // SAFETY: the descriptor exists.
    let status = unsafe { sys::cudnnSetActivationDescriptor(relu.pointer, mode, nan, 0.0) };
    planned("cudnnSetActivationDescriptor", status)?;
    Ok(relu)
}

/// The kind of arithmetic.
#[allow(unsafe_code, reason = "cuDNN is a C library")]
pub(super) fn set_math(window: &Window, math: Math) -> Result<(), Refusal> {
    // SAFETY: the descriptor exists.
    let status = unsafe { sys::cudnnSetConvolutionMathType(window.pointer, math) };
    planned("cudnnSetConvolutionMathType", status)
}
