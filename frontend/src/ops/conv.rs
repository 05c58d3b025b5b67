//! Convolution and transposed convolution over one to three spatial axes, and the gradient of convolution
//! over one or two.

use memc_ir::{OpKind, ValueId};

use super::volume;
use super::window::{Window, image, line, spatial};
use crate::context::{Done, NodeCx};
use crate::error::Fault;

/// `Conv`.
pub(crate) fn conv(n: &mut NodeCx<'_, '_>) -> Done {
    let (x, w, bias) = (n.operand(0)?, n.operand(1)?, n.optional(2)?);
    if n.ty(x).rank() == 5 {
        return volume::conv(n, x, w, bias);
    }
    let Read { axes, x, w, window, groups } = read(n, x, w)?;
    let Window { strides, pads, dilations, .. } = window;
    let mut operands = vec![x, w];
    operands.extend(bias);
    let kind = OpKind::Conv { strides, pads, dilations, groups };
    if axes == 2 {
        return n.finish(kind, &operands);
    }
    let y = n.temp(kind, &operands)?;
    let y = line(n, y, axes)?;
    n.yields(0, y);
    Ok(())
}

/// A convolution's operands as images, and its attributes.
struct Read {
    axes: usize,
    x: ValueId,
    w: ValueId,
    window: Window,
    groups: i64,
}

/// A convolution of `x` with weight `w`.
fn read(n: &mut NodeCx<'_, '_>, x: ValueId, w: ValueId) -> Result<Read, Fault> {
    let kernel = spatial(&n.ty(w).shape).to_vec();
    let (axes, x) = image(n, x, 2)?;
    let mut window = Window::read(n, axes, Some(&kernel))?;
    window.pad_automatically(n, spatial(&n.ty(x).shape))?;
    let (_, w) = image(n, w, 2)?;
    Ok(Read { axes, x, w, window, groups: n.int("group", 1)? })
}

/// Microsoft's `ConvGrad(dY, X, W) -> (dX, dW, dB)`; results that nothing reads are left out.
pub(crate) fn conv_grad(n: &mut NodeCx<'_, '_>) -> Done {
    let (dy, x, w) = (n.operand(0)?, n.operand(1)?, n.operand(2)?);
    let Read { axes, x, w, window, groups } = read(n, x, w)?;
    let (_, dy) = image(n, dy, 2)?;
    let Window { kernel, strides, pads, dilations } = window;
    if n.wants(0) {
        let size = spatial(&n.ty(x).shape).to_vec();
        let (strides, pads, dilations) = (strides.clone(), pads.clone(), dilations.clone());
        let kind = OpKind::ConvGradInput { strides, pads, dilations, groups, size };
        result(n, 0, kind, &[dy, w], axes)?;
    }
    if n.wants(1) {
        let kind = OpKind::ConvGradWeight { strides, pads, dilations, groups, kernel };
        result(n, 1, kind, &[dy, x], axes)?;
    }
    if n.wants(2) {
        n.finish_at(2, OpKind::ReduceSum { axes: vec![0, 2, 3], keepdims: false }, &[dy])?;
    }
    Ok(())
}

/// Appends an op whose result is output `i`, with as many spatial axes as the node's operands.
fn result(n: &mut NodeCx<'_, '_>, i: usize, kind: OpKind, operands: &[ValueId], axes: usize) -> Done {
    if axes == 2 {
        return n.finish_at(i, kind, operands);
    }
    let y = n.temp(kind, operands)?;
    let y = line(n, y, axes)?;
    n.yields(i, y);
    Ok(())
}

/// `ConvTranspose`: the gradient of a convolution with respect to its input, of the size the node implies.
pub(crate) fn conv_transpose(n: &mut NodeCx<'_, '_>) -> Done {
    let (x, w, bias) = (n.operand(0)?, n.operand(1)?, n.optional(2)?);
    let kernel = spatial(&n.ty(w).shape).to_vec();
    let (axes, x) = image(n, x, 3)?;
    let mut window = Window::read(n, axes, Some(&kernel))?;
    let (_, w) = image(n, w, 3)?;
    let size = transposed_size(n, &mut window, axes, spatial(&n.ty(x).shape))?;
    let y = if axes == 3 {
        volume::conv_transpose(n, x, w, &window, &size)?
    } else {
        let groups = n.int("group", 1)?;
        let Window { strides, pads, dilations, .. } = window;
        let kind = OpKind::ConvGradInput { strides, pads, dilations, groups, size };
        if bias.is_none() {
            return result(n, 0, kind, &[x, w], axes);
        }
        let y = n.temp(kind, &[x, w])?;
        line(n, y, axes)?
    };
    let Some(bias) = bias else {
        n.yields(0, y);
        return Ok(());
    };
    let mut column = vec![1; n.ty(y).rank()];
    column[1] = n.ty(bias).numel();
    let bias = n.reshaped(bias, &column)?;
    n.finish(OpKind::Add {}, &[y, bias])
}

/// The spatial extent of a transposed convolution's result, for an input of spatial extent `input`; completes
/// the window's pads.
fn transposed_size(
    n: &NodeCx<'_, '_>,
    window: &mut Window,
    axes: usize,
    input: &[u64],
) -> Result<Vec<u64>, Fault> {
    let mut size = Vec::new();
    let extra = lifted(n, "output_padding", axes, 0)?.unwrap_or_else(|| vec![0; input.len()]);
    let wanted = lifted(n, "output_shape", axes, 1)?;
    let auto = n.text("auto_pad", "NOTSET")?;
    for i in 0..input.len() {
        let full = || {
            let span = input[i].checked_sub(1)?.checked_mul(window.strides[i])?;
            let kernel = window.kernel[i].checked_sub(1)?.checked_mul(window.dilations[i])?;
            span.checked_add(kernel)?.checked_add(1)?.checked_add(extra[i])
        };
        let extent = || format!("the output has no extent along spatial axis {i}");
        let full = full().ok_or_else(extent)?;
        let wanted = match (&wanted, auto) {
            (Some(wanted), _) => Some(wanted[i]),
            (None, "SAME_UPPER" | "SAME_LOWER") => {
                Some(input[i].checked_mul(window.strides[i]).ok_or_else(extent)?)
            }
            (None, "VALID") => Some(full),
            _ => None,
        };
        // By the standard's formula. An output that is larger than all windows reach is zero there.
        if let Some(wanted) = wanted {
            window.pad(i, full.saturating_sub(wanted), auto == "SAME_UPPER");
        }
        let pads = [window.pads[i], window.pads[i + window.axes()]];
        let implied = full.checked_sub(pads[0]).and_then(|v| v.checked_sub(pads[1]));
        size.push(wanted.or(implied).ok_or_else(extent)?);
    }
    Ok(size)
}

/// An attribute with one number for each spatial axis, as two numbers; `default` is that of an added axis.
fn lifted(n: &NodeCx<'_, '_>, name: &str, axes: usize, default: u64) -> Result<Option<Vec<u64>>, Fault> {
    let Some(mut list) = n.sizes(name)? else { return Ok(None) };
    if list.len() != axes {
        return Err(format!("attribute `{name}` = {list:?} must have {axes} numbers").into());
    }
    if axes == 1 {
        list.insert(0, default);
    }
    Ok(Some(list))
}
