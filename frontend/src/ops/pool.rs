//! Pooling over one to three spatial axes, and its gradients over two.

use memc_ir::attr::{F32, Scalar};
use memc_ir::{Code, Def, OpKind, ValueId};

use super::window::{Window, image, line, spatial};
use crate::context::{Done, Made, NodeCx};
use crate::error::{Fault, unsupported};
use crate::tensor::Literal;

/// The window of a pooling node over `axes` spatial axes of an input of shape `shape`, and whether its extent
/// rounds up.
fn read(n: &NodeCx<'_, '_>, axes: usize, shape: &[u64]) -> Result<(Window, bool), Fault> {
    let size = spatial(shape);
    let mut window = Window::read(n, axes, None)?;
    window.pad_automatically(n, size)?;
    let ceil = n.flag("ceil_mode", false)? && window.rounding_matters(size);
    Ok((window, ceil))
}

/// Pools by a window over two axes, or over three by two windows one after the other, which gives the same
/// result: the extreme of extremes, the sum of sums, and the mean of means, since what counts of a window is
/// a box.
fn by_parts(
    n: &mut NodeCx<'_, '_>,
    x: ValueId,
    window: &Window,
    pool: impl Fn(&mut NodeCx<'_, '_>, ValueId, Window) -> Made,
) -> Made {
    let &[batch, channels, depth, height, width] = n.ty(x).shape.as_slice() else {
        return pool(n, x, window.clone());
    };
    let x = n.reshaped(x, &[batch, channels.saturating_mul(depth), height, width])?;
    let flat = pool(n, x, window.over(1, Some(2)))?;
    let (height, width) = match n.ty(flat).shape.as_slice() {
        &[_, _, height, width] => (height, width),
        _ => return Err("pooling does not keep the number of axes".into()),
    };
    let columns = n.reshaped(flat, &[batch, channels, depth, height.saturating_mul(width)])?;
    let y = pool(n, columns, window.over(0, None))?;
    let depth = n.ty(y).shape.get(2).copied().unwrap_or(0);
    n.reshaped(y, &[batch, channels, depth, height, width])
}

/// `MaxPool`.
pub(crate) fn max_pool(n: &mut NodeCx<'_, '_>) -> Done {
    let x = n.operand(0)?;
    if !n.ty(x).dtype.is_float() {
        return unsupported(format!("pooling of {} is not supported", n.ty(x).dtype));
    }
    let (axes, x) = image(n, x, 3)?;
    let shape = n.ty(x).shape.clone();
    let (window, ceil) = read(n, axes, &shape)?;
    let kind = |Window { kernel, strides, pads, dilations }| OpKind::MaxPool {
        kernel,
        strides,
        pads,
        dilations,
        ceil,
    };
    if axes == 3 {
        if n.output(1).is_some() {
            return unsupported("the indices of pooling over three spatial axes are not supported");
        }
        let y = by_parts(n, x, &window, |n, x, window| n.temp(kind(window), &[x]))?;
        n.yields(0, y);
        return Ok(());
    }
    let by_columns = axes == 2 && n.flag("storage_order", false)? && n.output(1).is_some();
    if axes == 2 && !by_columns {
        return n.finish(kind(window), &[x]);
    }
    let base = n.output(0).unwrap_or_default();
    let names = [format!("{base}/max_pool"), format!("{base}/indices")];
    let results = n.cx.module.add_op(kind(window), &[x], &[&names[0], &names[1]], &n.node.name)?;
    let &[y, mut indices] = results.as_slice() else { return Err("the indices are missing".into()) };
    if by_columns {
        indices = column_major(n, indices, [shape[2], shape[3]])?;
    }
    for (i, value) in [y, indices].into_iter().enumerate() {
        if n.output(i).is_some() {
            let value = line(n, value, axes)?;
            n.yields(i, value);
        }
    }
    Ok(())
}

/// Flat positions in images of `[height, width]` pixels, counted down the columns instead of along the rows.
fn column_major(n: &mut NodeCx<'_, '_>, indices: ValueId, [height, width]: [u64; 2]) -> Made {
    let (h, w) = (n.integer("height", height as i64)?, n.integer("width", width as i64)?);
    let pixels = n.integer("pixels", (height * width) as i64)?;
    let rows = n.div(indices, w)?;
    let whole = n.mul(rows, w)?;
    let column = n.sub(indices, whole)?;
    let images = n.div(rows, h)?;
    let whole = n.mul(images, h)?;
    let row = n.sub(rows, whole)?;
    let (start, down) = (n.mul(images, pixels)?, n.mul(column, h)?);
    let at = n.add(start, down)?;
    n.add(at, row)
}

/// ONNX Runtime's `MaxPoolGrad(dY, indices)`, whose result has the shape of the pooled tensor.
pub(crate) fn max_pool_grad(n: &mut NodeCx<'_, '_>) -> Done {
    let (dy, indices) = (n.operand(0)?, n.operand(1)?);
    let Some(x) = pooled(n, indices) else {
        return unsupported("its indices do not come from a MaxPool node of this graph");
    };
    let shape = n.ty(x).shape.clone();
    let ((axes, dy), (_, indices)) = (image(n, dy, 2)?, image(n, indices, 2)?);
    let kind = OpKind::MaxPoolGrad { shape };
    if axes == 2 {
        return n.finish(kind, &[dy, indices]);
    }
    let dx = n.temp(kind, &[dy, indices])?;
    let dx = line(n, dx, axes)?;
    n.yields(0, dx);
    Ok(())
}

/// The operand of the max pooling that computed `indices`, perhaps under another shape.
fn pooled(n: &NodeCx<'_, '_>, indices: ValueId) -> Option<ValueId> {
    let module = &n.cx.module;
    let source = |v: ValueId| match module.values[v].def {
        Def::Op(op, i) => Some((&module.ops[op], i)),
        _ => None,
    };
    let mut from = source(indices)?;
    if let Code::Compute(OpKind::Reshape { .. }) = from.0.code {
        from = source(*from.0.operands.first()?)?;
    }
    let (op, 1) = from else { return None };
    matches!(op.code, Code::Compute(OpKind::MaxPool { .. })).then(|| op.operands.first().copied()).flatten()
}

/// `MaxUnpool`: the elements at their indices in the tensor of zeros that the window implies, which then
/// grows to input 2, the output's shape.
pub(crate) fn max_unpool(n: &mut NodeCx<'_, '_>) -> Done {
    let (x, indices) = (n.operand(0)?, n.operand(1)?);
    let shape = n.ty(x).shape.clone();
    let window = Window::read(n, spatial(&shape).len(), None)?;
    let grown = |(i, &d): (usize, &u64)| {
        // A window over one axis has another before it.
        let Some(i) = (i + window.axes()).checked_sub(shape.len()).filter(|_| i >= 2) else {
            return Some(d);
        };
        let full = d.checked_sub(1)?.checked_mul(window.strides[i])?.checked_add(window.kernel[i])?;
        full.checked_sub(window.pads[i])?.checked_sub(window.pads[i + window.axes()])
    };
    let implied: Option<Vec<u64>> = shape.iter().enumerate().map(grown).collect();
    let mut y =
        n.temp(OpKind::MaxPoolGrad { shape: implied.ok_or("its output has no extent")? }, &[x, indices])?;
    for (axis, want) in n.const_ints(2, "output_shape")?.unwrap_or_default().into_iter().enumerate() {
        let have = n.ty(y).shape.get(axis).copied();
        match have.and_then(|have| u64::try_from(want).ok()?.checked_sub(have)) {
            Some(0) => {}
            Some(more) => y = n.padded(y, axis, [0, more], 0.0)?,
            None => return Err(format!("{} cannot grow to the output shape", n.ty(y)).into()),
        }
    }
    n.yields(0, y);
    Ok(())
}

/// `AveragePool`.
pub(crate) fn average_pool(n: &mut NodeCx<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let (axes, x) = image(n, x, 3)?;
    let (window, ceil) = read(n, axes, &n.ty(x).shape)?;
    let count_pad = n.flag("count_include_pad", false)?;
    let y = by_parts(n, x, &window, |n, x, window| {
        if window.dilations.iter().any(|&d| d != 1) {
            let sum = window_sum(n, x, &window, ceil)?;
            let shares = shares(n, spatial(&n.ty(x).shape).to_vec(), &window, ceil, count_pad)?;
            let shares = n.cast_to(shares, n.ty(x).dtype)?;
            return n.mul(sum, shares);
        }
        let Window { kernel, strides, pads, .. } = window;
        n.temp(OpKind::AveragePool { kernel, strides, pads, ceil, count_pad }, &[x])
    })?;
    let y = line(n, y, axes)?;
    n.yields(0, y);
    Ok(())
}

/// `LpPool`: the `p`-norm of every window.
pub(crate) fn lp_pool(n: &mut NodeCx<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let (axes, x) = image(n, x, 3)?;
    let (window, ceil) = read(n, axes, &n.ty(x).shape)?;
    let p = n.int("p", 2)?;
    let size = n.temp(OpKind::Abs {}, &[x])?;
    let power = n.number(x, "p", p as f32)?;
    let powers = n.temp(OpKind::Pow {}, &[size, power])?;
    let sum = by_parts(n, powers, &window, |n, x, window| window_sum(n, x, &window, ceil))?;
    let y = n.norm(sum, p)?;
    let y = line(n, y, axes)?;
    n.yields(0, y);
    Ok(())
}

/// The sum of every window of an image: the convolution of each channel with ones.
fn window_sum(n: &mut NodeCx<'_, '_>, x: ValueId, window: &Window, ceil: bool) -> Made {
    let ty = n.ty(x).clone();
    let &[batch, channels, height, width] = ty.shape.as_slice() else {
        return Err(format!("{ty} is no batch of images").into());
    };
    let Window { kernel, strides, mut pads, dilations } = window.clone();
    for (i, size) in [height, width].into_iter().enumerate() {
        // With rounding up, the last window may need more padding than there is.
        let reach = || {
            let last = window.pooled(i, size, ceil)?.checked_sub(1)?.checked_mul(strides[i])?;
            let end = last.checked_add((kernel[i] - 1).checked_mul(dilations[i])?)?.checked_add(1)?;
            Some(end.saturating_sub(size.checked_add(pads[i])?))
        };
        pads[i + 2] = pads[i + 2].max(reach().ok_or_else(|| format!("the window does not fit {ty}"))?);
    }
    let one = Scalar::Float(F32(1.0));
    let ones = OpKind::Fill { dtype: ty.dtype, shape: vec![1, 1, kernel[0], kernel[1]], value: one };
    let ones = n.temp(ones, &[])?;
    let x = n.reshaped(x, &[batch.saturating_mul(channels), 1, height, width])?;
    let y = n.temp(OpKind::Conv { strides, pads, dilations, groups: 1 }, &[x, ones])?;
    let (rows, columns) = (n.ty(y).shape[2], n.ty(y).shape[3]);
    n.reshaped(y, &[batch, channels, rows, columns])
}

/// For every window the reciprocal of the number of its elements: those within the image, or within its
/// padding too.
fn shares(n: &mut NodeCx<'_, '_>, size: Vec<u64>, window: &Window, ceil: bool, count_pad: bool) -> Made {
    let mut counts: [Vec<u64>; 2] = [Vec::new(), Vec::new()];
    for (i, (counts, &size)) in counts.iter_mut().zip(&size).enumerate() {
        let (before, after) = (window.pads[i], window.pads[i + 2]);
        let range = if count_pad { 0..before + size + after } else { before..before + size };
        let extent = window.pooled(i, size, ceil).ok_or("the window is out of range")?;
        n.small(extent.saturating_mul(window.kernel[i]))?;
        let counted = |at: &u64| range.contains(at);
        let inside = |o: u64| {
            (0..window.kernel[i])
                .map(|t| o * window.strides[i] + t * window.dilations[i])
                .filter(counted)
                .count()
        };
        *counts = (0..extent).map(|o| inside(o) as u64).collect();
    }
    let [rows, columns] = counts;
    n.small((rows.len() as u64).saturating_mul(columns.len() as u64))?;
    let shares: Vec<f32> =
        rows.iter().flat_map(|&r| columns.iter().map(move |&c| 1.0 / (r * c).max(1) as f32)).collect();
    let literal = Literal::from_floats(&[1, 1, rows.len() as u64, columns.len() as u64], &shares)?;
    n.constant_value("shares", &literal)
}

/// ONNX Runtime's `AveragePoolGrad(dY)`. The node does not tell the result's shape: it is that of the tensor
/// whose gradient the result's name says it is, or the declared one.
pub(crate) fn average_pool_grad(n: &mut NodeCx<'_, '_>) -> Done {
    let dy = n.operand(0)?;
    let Some(name) = n.output(0) else { return Ok(()) };
    let paired = gradient_of(name).and_then(|x| n.cx.type_of(x).ok().cloned());
    let Some(ty) = paired.or_else(|| n.cx.declared.get(name).cloned()) else {
        return unsupported(format!(
            "the shape of its result `{name}` is neither declared nor implied by its name"
        ));
    };
    if ty.rank() != 4 {
        return unsupported(format!(
            "pooling over {} spatial axes has no gradient here",
            spatial(&ty.shape).len()
        ));
    }
    let (Window { kernel, strides, pads, dilations }, ceil) = read(n, 2, &ty.shape)?;
    if dilations != [1, 1] {
        return unsupported("the gradient of dilated average pooling is not supported");
    }
    let count_pad = n.flag("count_include_pad", false)?;
    n.finish(OpKind::AveragePoolGrad { kernel, strides, pads, ceil, count_pad, shape: ty.shape }, &[dy])
}

/// `X` when `name` is `X_grad`, or `X_grad_N` as one of several summands is called.
fn gradient_of(name: &str) -> Option<&str> {
    let base = match name.rsplit_once('_') {
        Some((base, n)) if !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()) => base,
        _ => name,
    };
    base.strip_suffix("_grad").or_else(|| name.strip_suffix("_grad"))
}

#[cfg(test)]
mod tests {
    use super::gradient_of;

    /// Gradient names lead back to their tensor, whether or not they are numbered summands.
    #[test]
    fn gradients_name_their_tensor() {
        assert_eq!(gradient_of("/pool/Out_0_grad"), Some("/pool/Out_0"));
        assert_eq!(gradient_of("/pool/Out_0_grad_12"), Some("/pool/Out_0"));
        assert_eq!(gradient_of("/pool/Out_0"), None);
    }
}
