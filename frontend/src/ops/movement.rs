//! Operators that move elements: transpose, broadcast, slice, concatenate, pad.

use memc_ir::attr::Scalar;
use memc_ir::ops::broadcast_shapes;
use memc_ir::{DType, OpKind, TensorType, ValueId};

use crate::compose::Bounds;
use crate::constants;
use crate::context::{Done, Made, NodeCx};
use crate::error::{Fault, unsupported};
use crate::floats;
use crate::tensor::{Literal, tensor_type};

/// `Transpose`; without `perm` the axes are reversed.
pub(crate) fn transpose(n: &mut NodeCx<'_, '_>) -> Done {
    let rank = n.operand_type(0)?.rank() as u64;
    let perm = n.sizes("perm")?.unwrap_or_else(|| (0..rank).rev().collect());
    if let Some(y) = n.literal(0).and_then(|x| constants::transpose(&x, &perm)) {
        return n.fold(0, y);
    }
    let x = n.operand(0)?;
    n.finish(OpKind::Transpose { perm }, &[x])
}

/// `Expand`, which broadcasts both ways.
pub(crate) fn expand(n: &mut NodeCx<'_, '_>) -> Done {
    let ty = n.operand_type(0)?;
    let dims = n.const_ints(1, "shape")?.ok_or("input 1 is missing")?;
    let target = tensor_type(ty.dtype, &dims)?;
    let shape = broadcast_shapes(&ty.shape, &target.shape)?;
    if shape == ty.shape {
        return super::shape::identity(n);
    }
    let target = TensorType::new(ty.dtype, shape.clone());
    if target.checked_numel().is_none() {
        return Err(format!("the result {target} is too large").into());
    }
    if let Some(x) = n.literal(0) {
        if super::shape::filled_like(n, &x, target)? {
            return Ok(());
        }
        if let Some(y) = constants::expand(&x, &shape) {
            return n.fold(0, y);
        }
    }
    let x = n.operand(0)?;
    n.finish(OpKind::Broadcast { shape }, &[x])
}

/// `Concat` and Microsoft's `ConcatTraining`, which also returns the extent of every part.
pub(crate) fn concat(n: &mut NodeCx<'_, '_>) -> Done {
    let first = n.operand_type(0)?;
    let axis = n.axis(n.int("axis", 0)?, first.rank())?;
    if n.output(1).is_some() {
        let mut lengths = Vec::new();
        for i in 0..n.node.inputs.len() {
            lengths.push(n.operand_type(i)?.shape.get(axis).copied().unwrap_or(0) as i64);
        }
        n.fold(1, Literal::vector(&lengths))?;
    }
    let parts: Option<Vec<Literal>> = (0..n.node.inputs.len()).map(|i| n.literal(i)).collect();
    if let Some(y) = parts.as_ref().and_then(|parts| constants::concat(parts)) {
        return n.fold(0, y);
    }
    let operands = n.operands()?;
    n.finish_at(0, OpKind::Concat { axis: axis as i64 }, &operands)?;
    n.know(0, parts.and_then(|parts| floats::concat(&parts)));
    Ok(())
}

/// `Split` and Microsoft's `SplitTraining`, as slices. Lengths are an attribute before opset 13.
pub(crate) fn split(n: &mut NodeCx<'_, '_>) -> Done {
    let (ty, literal) = (n.operand_type(0)?, n.literal(0));
    let axis = n.axis(n.int("axis", 0)?, ty.rank())?;
    let extent = ty.shape[axis];
    let attr = n.node.domain.is_empty() && n.version < 13;
    let lengths = if attr { n.ints("split")?.map(<[i64]>::to_vec) } else { n.const_ints(1, "lengths")? };
    let parts = n.node.outputs.len();
    let lengths = match lengths {
        Some(lengths) => lengths,
        None => equal_parts(extent, parts)?,
    };
    let total = lengths.iter().try_fold(0i64, |t, &l| if l < 0 { None } else { t.checked_add(l) });
    if lengths.len() != parts || total != i64::try_from(extent).ok() {
        return Err(format!("lengths {lengths:?} do not cut axis {axis} of {ty} into {parts} parts").into());
    }
    let mut at = 0;
    for (i, &length) in lengths.iter().enumerate() {
        let Bounds { mut starts, mut ends, steps } = Bounds::whole(&ty);
        starts[axis] = at;
        at += length;
        ends[axis] = at;
        if let Some(y) = literal.as_ref().and_then(|x| constants::slice(x, &starts, &ends, &steps)) {
            n.fold(i, y)?;
        } else if n.wants(i) {
            let x = n.operand(0)?;
            n.finish_at(i, OpKind::Slice { starts, ends, steps }, &[x])?;
        }
    }
    Ok(())
}

/// The lengths of `parts` equal parts, the last one smaller if need be.
fn equal_parts(extent: u64, parts: usize) -> Result<Vec<i64>, Fault> {
    let count = parts as u64;
    let size = if count == 0 { 0 } else { extent.div_ceil(count) };
    let lengths = (0..count).map(|i| (extent.min((i + 1) * size) - extent.min(i * size)) as i64).collect();
    if size.saturating_mul(count.saturating_sub(1)) > extent {
        return Err(format!("extent {extent} cannot be cut into {parts} equal parts").into());
    }
    Ok(lengths)
}

/// Elements `from..to` of `value` along `axis`; `value` itself when that is all.
pub(super) fn slice_along(n: &mut NodeCx<'_, '_>, value: ValueId, axis: usize, from: u64, to: u64) -> Made {
    if n.ty(value).shape.get(axis) == Some(&(to - from)) {
        return Ok(value);
    }
    n.cut(value, axis, from, to, 1)
}

/// Bounds of a slice of `ty`; `first` is the index of input `starts`, followed by ends, axes and steps.
fn bounds(n: &NodeCx<'_, '_>, ty: &TensorType, first: usize) -> Result<Bounds, Fault> {
    let attrs = n.node.domain.is_empty() && n.version < 10;
    let list = |name: &str, i: usize| {
        if attrs { Ok(n.ints(name)?.map(<[i64]>::to_vec)) } else { n.const_ints(first + i, name) }
    };
    let from = list("starts", 0)?.ok_or("its starts are missing")?;
    let to = list("ends", 1)?.ok_or("its ends are missing")?;
    let axes = list("axes", 2)?.unwrap_or_else(|| (0..from.len() as i64).collect());
    let by = if attrs { None } else { list("steps", 3)? }.unwrap_or_else(|| vec![1; from.len()]);
    if [to.len(), axes.len(), by.len()] != [from.len(); 3] {
        return Err("starts, ends, axes and steps differ in length".into());
    }
    n.axes(&axes, ty.rank())?;
    let Bounds { mut starts, mut ends, mut steps } = Bounds::whole(ty);
    for (i, &axis) in axes.iter().enumerate() {
        let axis = n.axis(axis, ty.rank())?;
        let (start, end) = clamped(from[i], to[i], by[i], ty.shape[axis] as i64)?;
        (starts[axis], ends[axis], steps[axis]) = (start, end, by[i]);
    }
    Ok(Bounds { starts, ends, steps })
}

/// Start and end of a slice along an axis of `d` elements, counted from the end when negative, clamped.
fn clamped(start: i64, end: i64, step: i64, d: i64) -> Result<(i64, i64), Fault> {
    let wrap = |v: i64| if v < 0 { v.saturating_add(d) } else { v };
    match step {
        0 | i64::MIN => Err(format!("step {step} is not possible").into()),
        1.. => Ok((wrap(start).clamp(0, d), wrap(end).clamp(0, d))),
        _ => Ok((wrap(start).clamp(0, (d - 1).max(0)), wrap(end).clamp(-1, (d - 1).max(-1)))),
    }
}

/// `Slice`.
pub(crate) fn slice(n: &mut NodeCx<'_, '_>) -> Done {
    let ty = n.operand_type(0)?;
    let Bounds { starts, ends, steps } = bounds(n, &ty, 1)?;
    if let Some(y) = n.literal(0).and_then(|x| constants::slice(&x, &starts, &ends, &steps)) {
        return n.fold(0, y);
    }
    let x = n.operand(0)?;
    n.finish(OpKind::Slice { starts, ends, steps }, &[x])
}

/// Microsoft's `SliceGrad(dY, shape, starts, ends, axes, steps)` with unit steps: `dY` padded with zeros.
pub(crate) fn slice_grad(n: &mut NodeCx<'_, '_>) -> Done {
    let dy = n.operand(0)?;
    let dims = n.const_ints(1, "shape")?.ok_or("input 1 is missing")?;
    let ty = tensor_type(DType::F32, &dims)?;
    let Bounds { starts, ends, steps } = bounds(n, &ty, 2)?;
    if steps.iter().any(|&s| s != 1) {
        return unsupported("steps other than 1 are not supported");
    }
    let before: Vec<u64> = starts.iter().map(|&s| s.unsigned_abs()).collect();
    let after: Vec<u64> = ty
        .shape
        .iter()
        .zip(starts.iter().zip(&ends))
        .map(|(&d, (&s, &e))| d - e.max(s).unsigned_abs())
        .collect();
    let value = Scalar::Float(memc_ir::attr::F32(0.0));
    n.finish(OpKind::Pad { before, after, value }, &[dy])
}

/// `Pad`. Pads are an attribute before opset 11, an input from then on; negative ones cut.
pub(crate) fn pad(n: &mut NodeCx<'_, '_>) -> Done {
    let mode = n.text("mode", "constant")?;
    let ty = n.operand_type(0)?;
    let rank = ty.rank();
    let zero = if ty.dtype.is_float() { Scalar::Float(memc_ir::attr::F32(0.0)) } else { Scalar::Int(0) };
    let value = if n.version < 11 {
        Scalar::Float(memc_ir::attr::F32(n.float("value", 0.0)?))
    } else {
        match n.constant(2, "value")? {
            Some(l) => l.single().ok_or("its value must have one element")?,
            None => zero,
        }
    };
    let pads = n.ints_since(11, 1, "pads")?.ok_or("its pads are missing")?;
    let axes = match n.const_ints(3, "axes")? {
        Some(axes) => n.axes(&axes, rank).and(Ok(axes))?,
        None => (0..rank as i64).collect(),
    };
    if pads.len() != 2 * axes.len() {
        return Err(format!("{} pads do not fit {} axes", pads.len(), axes.len()).into());
    }
    if mode != "constant" {
        let mut x = n.operand(0)?;
        for (i, &axis) in axes.iter().enumerate() {
            x = repeated(n, x, n.axis(axis, rank)?, [pads[i], pads[i + axes.len()]], mode)?;
        }
        n.yields(0, x);
        return Ok(());
    }
    let Bounds { mut starts, mut ends, steps } = Bounds::whole(&ty);
    let (mut before, mut after) = (vec![0; rank], vec![0; rank]);
    for (i, &axis) in axes.iter().enumerate() {
        let axis = n.axis(axis, rank)?;
        let (low, high) = (pads[i], pads[i + axes.len()]);
        before[axis] = u64::try_from(low).unwrap_or(0);
        after[axis] = u64::try_from(high).unwrap_or(0);
        starts[axis] = low.min(0).saturating_neg();
        ends[axis] = ends[axis].saturating_add(high.min(0));
        if starts[axis] > ends[axis] {
            return Err(format!("pads {pads:?} cut more than axis {axis} of {ty} has").into());
        }
    }
    let mut x = n.operand(0)?;
    if pads.iter().any(|&p| p < 0) {
        x = n.temp(OpKind::Slice { starts, ends, steps }, &[x])?;
    }
    n.finish(OpKind::Pad { before, after, value }, &[x])
}

/// `x` padded along `axis` with its own elements, gathered.
fn repeated(n: &mut NodeCx<'_, '_>, x: ValueId, axis: usize, [before, after]: [i64; 2], mode: &str) -> Made {
    if [before, after] == [0, 0] {
        return Ok(x);
    }
    let ty = n.ty(x).clone();
    let extent = ty.shape[axis] as i64;
    let wide = extent.checked_add(before).and_then(|v| v.checked_add(after)).filter(|&v| v >= 0);
    let Some(wide) = wide.filter(|_| extent > 0) else {
        return Err(format!("pads [{before}, {after}] do not fit axis {axis} of {ty}").into());
    };
    n.small(wide.unsigned_abs())?;
    let period = (2 * (extent - 1)).max(1);
    let at = |i: i64| match mode {
        "edge" => Some(i.clamp(0, extent - 1)),
        "wrap" => Some(i.rem_euclid(extent)),
        "reflect" => Some(i.rem_euclid(period)).map(|i| i.min(period - i).min(extent - 1)),
        _ => None,
    };
    let places: Option<Vec<i64>> = (0..wide).map(|i| at(i - before)).collect();
    let places = places.ok_or_else(|| format!("there is no mode `{mode}`"))?;
    let places = n.constant_value("places", &Literal::vector(&places))?;
    n.temp(OpKind::Gather { axis: axis as i64 }, &[x, places])
}

/// `CenterCropPad`: cut or padded with zeros on both sides to a shape; the odd element goes to the end.
pub(crate) fn center_crop_pad(n: &mut NodeCx<'_, '_>) -> Done {
    let mut x = n.operand(0)?;
    let rank = n.ty(x).rank();
    let target = n.const_ints(1, "shape")?.ok_or("input 1 is missing")?;
    let axes = n.ints("axes")?.map_or_else(|| (0..rank as i64).collect(), <[i64]>::to_vec);
    if target.len() != axes.len() {
        return Err(format!("shape {target:?} does not fit {} axes", axes.len()).into());
    }
    for (&axis, &want) in axes.iter().zip(&target) {
        let axis = n.axis(axis, rank)?;
        let have = n.ty(x).shape[axis];
        let Ok(want) = u64::try_from(want) else {
            return Err(format!("shape {target:?} is negative").into());
        };
        if want < have {
            let start = (have - want) / 2;
            x = n.cut(x, axis, start, start + want, 1)?;
        } else if want > have {
            let missing = want - have;
            x = n.padded(x, axis, [missing / 2, missing - missing / 2], 0.0)?;
        }
    }
    n.yields(0, x);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slice bounds wrap and clamp as numpy's do, in both directions and for extreme numbers.
    #[test]
    fn slice_bounds() {
        assert_eq!(clamped(1, i64::MAX, 1, 5), Ok((1, 5)));
        assert_eq!(clamped(-2, -1, 1, 5), Ok((3, 4)));
        assert_eq!(clamped(-1, i64::MIN, -1, 5), Ok((4, -1)));
        assert_eq!(clamped(9, 0, -2, 5), Ok((4, 0)));
        assert_eq!(clamped(0, 0, -1, 0), Ok((0, -1)));
        assert!(clamped(0, 1, 0, 5).is_err());
    }

    /// Equal parts may end with a smaller one, but none may be negative.
    #[test]
    fn parts_are_equal() {
        assert_eq!(equal_parts(7, 3), Ok(vec![3, 3, 1]));
        assert_eq!(equal_parts(6, 2), Ok(vec![3, 3]));
        assert!(equal_parts(2, 5).is_err());
        assert_eq!(equal_parts(0, 2), Ok(vec![0, 0]));
    }
}
