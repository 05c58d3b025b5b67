//! Reductions, global pooling, and the positions of extremes.

use memc_ir::{DType, OpKind, ValueId};

use crate::context::{Done, Made, NodeCx};
use crate::error::{Fault, unsupported};

/// The axes of a reduction over input 0; `None` when it is the identity.
///
/// They are an attribute before opset `input_since` and an input from then on.
fn axes(n: &NodeCx<'_, '_>, input_since: i64) -> Result<Option<Vec<u64>>, Fault> {
    let rank = n.operand_type(0)?.rank();
    let axes = n.ints_since(input_since, 1, "axes")?;
    Ok(match axes.filter(|a| !a.is_empty()) {
        Some(axes) => Some(n.axes(&axes, rank)?),
        None if n.flag("noop_with_empty_axes", false)? => None,
        None => Some((0..rank as u64).collect()),
    })
}

/// A reduction that is an op; booleans are reduced as integers.
pub(crate) fn reduce(
    n: &mut NodeCx<'_, '_>,
    axes_input_since: i64,
    kind: impl FnOnce(Vec<u64>, bool) -> OpKind,
) -> Done {
    let Some(axes) = axes(n, axes_input_since)? else { return super::shape::identity(n) };
    let (x, keepdims) = (n.operand(0)?, n.flag("keepdims", true)?);
    if n.ty(x).dtype != DType::Bool {
        return n.finish(kind(axes, keepdims), &[x]);
    }
    let numbers = n.temp(OpKind::Cast { to: DType::I32 }, &[x])?;
    let reduced = n.temp(kind(axes, keepdims), &[numbers])?;
    n.finish(OpKind::Cast { to: DType::Bool }, &[reduced])
}

/// Reduces input 0 over the axes; extents stay one if the flag is set.
type Reduction = fn(&mut NodeCx<'_, '_>, ValueId, &[u64], bool) -> Made;

/// A reduction that is several ops. Without axes, only what it does to each element remains.
pub(crate) fn composed(n: &mut NodeCx<'_, '_>, reduction: Reduction) -> Done {
    let axes = axes(n, 18)?.unwrap_or_default();
    let (x, keepdims) = (n.operand(0)?, n.flag("keepdims", true)?);
    let y = reduction(n, x, &axes, keepdims)?;
    n.yields(0, y);
    Ok(())
}

/// `ReduceMin`: the opposite of the maximum of opposites. `-1 - x` is an integer's opposite without overflow.
pub(crate) fn min(n: &mut NodeCx<'_, '_>, x: ValueId, axes: &[u64], keepdims: bool) -> Made {
    let kind = OpKind::ReduceMax { axes: axes.to_vec(), keepdims };
    match n.ty(x).dtype {
        DType::Bool => {
            let x = n.cast_to(x, DType::I32)?;
            let y = min(n, x, axes, keepdims)?;
            n.cast_to(y, DType::Bool)
        }
        t if t.is_float() => {
            let back = n.temp(OpKind::Neg {}, &[x])?;
            let y = n.temp(kind, &[back])?;
            n.temp(OpKind::Neg {}, &[y])
        }
        _ => {
            let last = n.number(x, "minus_one", -1.0)?;
            let back = n.sub(last, x)?;
            let y = n.temp(kind, &[back])?;
            n.sub(last, y)
        }
    }
}

/// `ReduceProd`: halves along each axis are multiplied until one element is left.
pub(crate) fn product(n: &mut NodeCx<'_, '_>, mut x: ValueId, axes: &[u64], keepdims: bool) -> Made {
    let reduced = OpKind::ReduceSum { axes: axes.to_vec(), keepdims }.infer(&[n.ty(x)])?;
    for &axis in axes {
        let axis = axis as usize;
        let mut extent = n.ty(x).shape[axis];
        if extent == 0 {
            x = n.padded(x, axis, [1, 0], 1.0)?;
        }
        while extent > 1 {
            let half = extent / 2;
            let (a, b) = (n.cut(x, axis, 0, half, 1)?, n.cut(x, axis, half, 2 * half, 1)?);
            let pairs = n.mul(a, b)?;
            x = if extent.is_multiple_of(2) {
                pairs
            } else {
                let rest = n.cut(x, axis, 2 * half, extent, 1)?;
                n.temp(OpKind::Concat { axis: axis as i64 }, &[pairs, rest])?
            };
            extent -= half;
        }
    }
    let shape = reduced.first().map(|ty| ty.shape.clone()).unwrap_or_default();
    n.reshaped(x, &shape)
}

/// `ReduceL1`: the sum of absolute values.
pub(crate) fn l1(n: &mut NodeCx<'_, '_>, x: ValueId, axes: &[u64], keepdims: bool) -> Made {
    let size = n.temp(OpKind::Abs {}, &[x])?;
    if axes.is_empty() { Ok(size) } else { n.sum(size, axes, keepdims) }
}

/// `ReduceSumSquare`: the sum of squares.
pub(crate) fn sum_square(n: &mut NodeCx<'_, '_>, x: ValueId, axes: &[u64], keepdims: bool) -> Made {
    let square = n.mul(x, x)?;
    if axes.is_empty() { Ok(square) } else { n.sum(square, axes, keepdims) }
}

/// `ReduceL2`: the square root of the sum of squares, with slope zero at zero.
pub(crate) fn l2(n: &mut NodeCx<'_, '_>, x: ValueId, axes: &[u64], keepdims: bool) -> Made {
    let sum = sum_square(n, x, axes, keepdims)?;
    n.norm(sum, 2)
}

/// `ReduceLogSum`: the logarithm of the sum.
pub(crate) fn log_sum(n: &mut NodeCx<'_, '_>, x: ValueId, axes: &[u64], keepdims: bool) -> Made {
    let sum = if axes.is_empty() { x } else { n.sum(x, axes, keepdims)? };
    n.temp(OpKind::Log {}, &[sum])
}

/// `ReduceLogSumExp`, with the largest element taken out, which is made finite so that it is no NaN.
pub(crate) fn log_sum_exp(n: &mut NodeCx<'_, '_>, x: ValueId, axes: &[u64], keepdims: bool) -> Made {
    if axes.is_empty() {
        let e = n.temp(OpKind::Exp {}, &[x])?;
        return n.temp(OpKind::Log {}, &[e]);
    }
    let top = n.temp(OpKind::ReduceMax { axes: axes.to_vec(), keepdims: true }, &[x])?;
    let (low, high) = (n.number(x, "lowest", f32::MIN)?, n.number(x, "highest", f32::MAX)?);
    let top = n.temp(OpKind::Max {}, &[top, low])?;
    let top = n.temp(OpKind::Min {}, &[top, high])?;
    let below = n.sub(x, top)?;
    let e = n.temp(OpKind::Exp {}, &[below])?;
    let sum = n.sum(e, axes, true)?;
    let log = n.temp(OpKind::Log {}, &[sum])?;
    let y = n.add(log, top)?;
    let shape = OpKind::ReduceSum { axes: axes.to_vec(), keepdims }.infer(&[n.ty(x)])?;
    let shape = shape.first().map(|ty| ty.shape.clone()).unwrap_or_default();
    n.reshaped(y, &shape)
}

/// `ArgMax`, or `ArgMin` if `least`: the first, or last, position of the extreme.
pub(crate) fn extreme(n: &mut NodeCx<'_, '_>, least: bool) -> Done {
    let x = n.operand(0)?;
    let axis = n.axis(n.int("axis", 0)?, n.ty(x).rank())?;
    let (keepdims, last) = (n.flag("keepdims", true)?, n.flag("select_last_index", false)?);
    let y = position(n, x, axis, least, last, keepdims)?;
    n.yields(0, y);
    Ok(())
}

/// Positions along `axis` of its extremes, as `i64`.
fn position(
    n: &mut NodeCx<'_, '_>,
    x: ValueId,
    axis: usize,
    least: bool,
    last: bool,
    keepdims: bool,
) -> Made {
    let ty = n.ty(x).clone();
    let extent = ty.shape[axis];
    if extent == 0 {
        return Err(format!("axis {axis} of {ty} has no extreme").into());
    }
    let axes = [axis as u64];
    let best = if least {
        min(n, x, &axes, true)?
    } else {
        n.temp(OpKind::ReduceMax { axes: axes.to_vec(), keepdims: true }, &[x])?
    };
    let is_best = n.temp(OpKind::Equal {}, &[x, best])?;
    let places = n.iota(extent, axis, ty.rank())?;
    let never = if last { -1 } else { extent as i64 };
    let never = n.integer("never", never)?;
    let found = n.pick(is_best, places, never)?;
    if last {
        n.temp(OpKind::ReduceMax { axes: axes.to_vec(), keepdims }, &[found])
    } else {
        min(n, found, &axes, keepdims)
    }
}

/// `Hardmax`: one at the first largest element along an axis, else zero; before opset 13 along all axes from
/// one on together.
pub(crate) fn hardmax(n: &mut NodeCx<'_, '_>) -> Done {
    let mut x = n.operand(0)?;
    let ty = n.ty(x).clone();
    let mut axis = n.axis(n.int("axis", if n.version < 13 { 1 } else { -1 })?, ty.rank())?;
    if n.version < 13 {
        x = n.matrix(x, axis)?;
        axis = 1;
    }
    let extent = n.ty(x).shape[axis];
    let first = position(n, x, axis, false, false, true)?;
    let places = n.iota(extent, axis, n.ty(x).rank())?;
    let chosen = n.temp(OpKind::Equal {}, &[first, places])?;
    let y = n.cast_to(chosen, ty.dtype)?;
    let y = n.reshaped(y, &ty.shape)?;
    n.yields(0, y);
    Ok(())
}

/// `GlobalAveragePool`.
pub(crate) fn global_average_pool(n: &mut NodeCx<'_, '_>) -> Done {
    global(n, |axes| OpKind::ReduceMean { axes, keepdims: true })
}

/// `GlobalMaxPool`. Elements that share the maximum share its gradient, where PyTorch gives it to one of
/// them; `MaxPool` gives it to the first.
pub(crate) fn global_max_pool(n: &mut NodeCx<'_, '_>) -> Done {
    global(n, |axes| OpKind::ReduceMax { axes, keepdims: true })
}

fn global(n: &mut NodeCx<'_, '_>, kind: impl FnOnce(Vec<u64>) -> OpKind) -> Done {
    let x = n.operand(0)?;
    let rank = n.ty(x).rank() as u64;
    if rank < 3 {
        return unsupported(format!("{} has no spatial axes", n.ty(x)));
    }
    n.finish(kind((2..rank).collect()), &[x])
}
