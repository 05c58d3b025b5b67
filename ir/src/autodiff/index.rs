//! Gradient rules of gather and scatter. Indices carry no gradient.
//!
//! A scatter that replaces must name each position once, as ONNX requires; for positions named twice the
//! gradient reaches every update instead of the last one.

use super::rule::{Done, Rule};
use crate::attr::ScatterMode;
use crate::ops::OpKind;

pub(super) fn gather(r: &mut Rule<'_>, axis: i64) -> Done {
    let at = usize::try_from(axis).map_err(|_| "the axis is negative")?;
    let dim = i64::try_from(r.ty(r.x(0)).shape[at]).map_err(|_| "an extent is too large")?;
    let dx = r.op(OpKind::GatherGrad { axis, dim }, &[r.x(1), r.dy()?])?;
    r.give(0, dx)
}

pub(super) fn gather_grad(r: &mut Rule<'_>, axis: i64) -> Done {
    let ddy = r.op(OpKind::Gather { axis }, &[r.dy()?, r.x(0)])?;
    r.give(1, ddy)
}

pub(super) fn gather_elements(r: &mut Rule<'_>, axis: i64) -> Done {
    let zeros = r.filled(&r.ty(r.x(0)).clone(), 0.0)?;
    let kind = OpKind::ScatterElements { axis, mode: ScatterMode::Add };
    let dx = r.op(kind, &[zeros, r.x(1), r.dy()?])?;
    r.give(0, dx)
}

/// The gradient of the data a scatter starts from: that of its result, without the replaced positions.
fn scattered_data(r: &mut Rule<'_>, kind: OpKind, mode: ScatterMode) -> Done {
    let mut dx = r.dy()?;
    if mode == ScatterMode::Replace {
        let zeros = r.filled(&r.ty(r.x(2)).clone(), 0.0)?;
        dx = r.op(kind, &[dx, r.x(1), zeros])?;
    }
    r.give(0, dx)
}

/// Gradients of a scatter that takes an extreme: data and updates that are the result's element share its
/// gradient evenly, as in PyTorch.
fn extreme(r: &mut Rule<'_>, scatter: OpKind, gather: OpKind) -> Done {
    let (data, indices, updates, y) = (r.x(0), r.x(1), r.x(2), r.y(0));
    let ty = r.ty(data).clone();
    let taken = r.op(gather.clone(), &[y, indices])?;
    let (from_data, from_updates) =
        (r.op(OpKind::Equal {}, &[data, y])?, r.op(OpKind::Equal {}, &[updates, taken])?);
    let [first, rest] = [from_data, from_updates].map(|v| r.op(OpKind::Cast { to: ty.dtype }, &[v]));
    let count = r.op(scatter, &[first?, indices, rest?])?;
    // An element that neither has is NaN.
    let one = r.filled(&ty, 1.0)?;
    let count = r.op(OpKind::Max {}, &[count, one])?;
    let share = r.div(r.dy()?, count)?;
    if r.wants(0) {
        let zero = r.filled(&ty, 0.0)?;
        let dx = r.select(from_data, share, zero)?;
        r.give(0, dx)?;
    }
    if r.wants(2) {
        let share = r.op(gather, &[share, indices])?;
        let zero = r.filled(&r.ty(updates).clone(), 0.0)?;
        let dx = r.select(from_updates, share, zero)?;
        r.give(2, dx)?;
    }
    Ok(())
}

/// Gradients of a scatter that multiplies. Each factor's is the product of the others; where it is the only
/// zero, they are multiplied without it.
fn product(r: &mut Rule<'_>, scatter: &OpKind, add: OpKind, gather: &OpKind) -> Done {
    let (data, indices, updates, y) = (r.x(0), r.x(1), r.x(2), r.y(0));
    let (ty, rows) = (r.ty(data).clone(), r.ty(updates).clone());
    if r.wants(0) {
        let ones = r.filled(&ty, 1.0)?;
        let factor = r.op(scatter.clone(), &[ones, indices, updates])?;
        let dx = r.mul(r.dy()?, factor)?;
        r.give(0, dx)?;
    }
    if !r.wants(2) {
        return Ok(());
    }
    let (zero, one) = (r.filled(&rows, 0.0)?, r.filled(&rows, 1.0)?);
    let is_zero = r.op(OpKind::Equal {}, &[updates, zero])?;
    let zeros = r.op(OpKind::Cast { to: ty.dtype }, &[is_zero])?;
    let none = r.filled(&ty, 0.0)?;
    let count = r.op(add, &[none, indices, zeros])?;
    let count = r.op(gather.clone(), &[count, indices])?;
    let alone = r.op(OpKind::Equal {}, &[count, one])?;
    let alone = r.op(OpKind::And {}, &[alone, is_zero])?;
    let without = r.select(alone, one, updates)?;
    let rest = r.op(scatter.clone(), &[data, indices, without])?;
    let rest = r.mul(r.dy()?, rest)?;
    let rest = r.op(gather.clone(), &[rest, indices])?;
    let whole = r.mul(r.dy()?, y)?;
    let whole = r.op(gather.clone(), &[whole, indices])?;
    let divisor = r.select(is_zero, one, updates)?;
    let whole = r.div(whole, divisor)?;
    let dx = r.select(alone, rest, whole)?;
    r.give(2, dx)
}

pub(super) fn scatter_elements(r: &mut Rule<'_>, axis: i64, mode: ScatterMode) -> Done {
    match mode {
        ScatterMode::Replace | ScatterMode::Add => {}
        ScatterMode::Mul => {
            let add = OpKind::ScatterElements { axis, mode: ScatterMode::Add };
            return product(
                r,
                &OpKind::ScatterElements { axis, mode },
                add,
                &OpKind::GatherElements { axis },
            );
        }
        ScatterMode::Min | ScatterMode::Max => {
            let add = OpKind::ScatterElements { axis, mode: ScatterMode::Add };
            return extreme(r, add, OpKind::GatherElements { axis });
        }
    }
    if r.wants(0) {
        scattered_data(r, OpKind::ScatterElements { axis, mode }, mode)?;
    }
    if r.wants(2) {
        let updates = r.op(OpKind::GatherElements { axis }, &[r.dy()?, r.x(1)])?;
        r.give(2, updates)?;
    }
    Ok(())
}

pub(super) fn gather_nd(r: &mut Rule<'_>, batch_dims: i64) -> Done {
    let zeros = r.filled(&r.ty(r.x(0)).clone(), 0.0)?;
    let kind = OpKind::ScatterNd { mode: ScatterMode::Add, batch_dims };
    let dx = r.op(kind, &[zeros, r.x(1), r.dy()?])?;
    r.give(0, dx)
}

pub(super) fn scatter_nd(r: &mut Rule<'_>, mode: ScatterMode, batch_dims: i64) -> Done {
    match mode {
        ScatterMode::Replace | ScatterMode::Add => {}
        ScatterMode::Mul => {
            let add = OpKind::ScatterNd { mode: ScatterMode::Add, batch_dims };
            return product(
                r,
                &OpKind::ScatterNd { mode, batch_dims },
                add,
                &OpKind::GatherNd { batch_dims },
            );
        }
        ScatterMode::Min | ScatterMode::Max => {
            let add = OpKind::ScatterNd { mode: ScatterMode::Add, batch_dims };
            return extreme(r, add, OpKind::GatherNd { batch_dims });
        }
    }
    if r.wants(0) {
        scattered_data(r, OpKind::ScatterNd { mode, batch_dims }, mode)?;
    }
    if r.wants(2) {
        let updates = r.op(OpKind::GatherNd { batch_dims }, &[r.dy()?, r.x(1)])?;
        r.give(2, updates)?;
    }
    Ok(())
}
