//! Convolution, transposed convolution and the gradient of convolution.

use memc_ir::{OpKind, ValueId};

use super::window::{Window, spatial};
use crate::error::{Fault, unsupported};
use crate::node::NodeCx;

type Done = Result<(), Fault>;

/// `Conv`.
pub(crate) fn conv(n: &mut NodeCx<'_, '_>) -> Done {
    let (x, w, bias) = (n.operand(0)?, n.operand(1)?, n.optional(2)?);
    let (window, groups) = read(n, x, w)?;
    let Window { strides, pads, dilations, .. } = window;
    let mut operands = vec![x, w];
    operands.extend(bias);
    n.finish(OpKind::Conv { strides, pads, dilations, groups }, &operands)
}

/// The window and group count of a convolution of `x` with weight `w`.
fn read(n: &NodeCx<'_, '_>, x: ValueId, w: ValueId) -> Result<(Window, i64), Fault> {
    let (x, w) = (&n.ty(x).shape, &n.ty(w).shape);
    let mut window = Window::read(n, Some(spatial(w)?))?;
    window.pad_automatically(n, spatial(x)?)?;
    Ok((window, n.int("group", 1)?))
}

/// Microsoft's `ConvGrad(dY, X, W) -> (dX, dW, dB)`; results that nothing reads are left out.
pub(crate) fn conv_grad(n: &mut NodeCx<'_, '_>) -> Done {
    let (dy, x, w) = (n.operand(0)?, n.operand(1)?, n.operand(2)?);
    let (Window { kernel, strides, pads, dilations }, groups) = read(n, x, w)?;
    if n.wants(0) {
        let size = spatial(&n.ty(x).shape)?.to_vec();
        let (strides, pads, dilations) = (strides.clone(), pads.clone(), dilations.clone());
        n.finish_at(0, OpKind::ConvGradInput { strides, pads, dilations, groups, size }, &[dy, w])?;
    }
    if n.wants(1) {
        n.finish_at(1, OpKind::ConvGradWeight { strides, pads, dilations, groups, kernel }, &[dy, x])?;
    }
    if n.wants(2) {
        n.finish_at(2, OpKind::ReduceSum { axes: vec![0, 2, 3], keepdims: false }, &[dy])?;
    }
    Ok(())
}

/// `ConvTranspose`: the gradient of a convolution with respect to its input, of the size the node implies.
pub(crate) fn conv_transpose(n: &mut NodeCx<'_, '_>) -> Done {
    let (x, w, bias) = (n.operand(0)?, n.operand(1)?, n.optional(2)?);
    let (x_shape, w_shape) = (n.ty(x).shape.clone(), n.ty(w).shape.clone());
    let window = Window::read(n, Some(spatial(&w_shape)?))?;
    if n.ints("output_shape")?.is_some() || n.text("auto_pad", "NOTSET")? != "NOTSET" {
        return unsupported(
            "`output_shape` and `auto_pad` are not supported; give `pads` and `output_padding`",
        );
    }
    let extra = n.sizes("output_padding")?.unwrap_or_else(|| vec![0, 0]);
    if extra.len() != 2 {
        return Err(format!("attribute `output_padding` = {extra:?} must have two numbers").into());
    }
    let input = spatial(&x_shape)?;
    let mut size = Vec::new();
    for i in 0..2 {
        let extent = || {
            let span = input[i].checked_sub(1)?.checked_mul(window.strides[i])?;
            let kernel = window.kernel[i].checked_sub(1)?.checked_mul(window.dilations[i])?;
            let full = span.checked_add(kernel)?.checked_add(1)?.checked_add(extra[i])?;
            full.checked_sub(window.pads[i])?.checked_sub(window.pads[i + 2])
        };
        size.push(extent().ok_or_else(|| format!("the output has no extent along spatial axis {i}"))?);
    }
    let groups = n.int("group", 1)?;
    let Window { strides, pads, dilations, .. } = window;
    let kind = OpKind::ConvGradInput { strides, pads, dilations, groups, size };
    let Some(bias) = bias else { return n.finish(kind, &[x, w]) };
    let y = n.temp(kind, &[x, w])?;
    let channels = n.ty(bias).numel();
    let bias = n.reshaped(bias, &[1, channels, 1, 1])?;
    n.finish(OpKind::Add {}, &[y, bias])
}
