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

pub(super) fn scatter_elements(r: &mut Rule<'_>, axis: i64, mode: ScatterMode) -> Done {
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
    if r.wants(0) {
        scattered_data(r, OpKind::ScatterNd { mode, batch_dims }, mode)?;
    }
    if r.wants(2) {
        let updates = r.op(OpKind::GatherNd { batch_dims }, &[r.dy()?, r.x(1)])?;
        r.give(2, updates)?;
    }
    Ok(())
}
