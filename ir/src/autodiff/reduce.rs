//! Gradient rules of reductions. A maximum shares its gradient evenly between the elements that attain it.

use super::rule::{Done, Rule};
use crate::entity::ValueId;
use crate::error::NoGradient;
use crate::ops::OpKind;

/// `v`, reduced over `axes` of the operand, with those axes put back at extent 1.
fn kept(r: &mut Rule<'_>, v: ValueId, axes: &[u64]) -> Result<ValueId, NoGradient> {
    let mut shape = r.shape(r.x(0));
    for &a in axes {
        shape[a as usize] = 1;
    }
    r.reshaped(v, &shape)
}

/// Hands on `v`, reduced over `axes`, to every element that went into it.
fn spread(r: &mut Rule<'_>, v: ValueId, axes: &[u64]) -> Done {
    let v = kept(r, v, axes)?;
    let dx = r.broadcast(v, &r.shape(r.x(0)))?;
    r.give(0, dx)
}

pub(super) fn sum(r: &mut Rule<'_>, axes: &[u64]) -> Done {
    spread(r, r.dy()?, axes)
}

pub(super) fn mean(r: &mut Rule<'_>, axes: &[u64]) -> Done {
    let shape = &r.ty(r.x(0)).shape;
    let count: u64 = axes.iter().map(|&a| shape[a as usize]).product();
    let share = r.scaled(r.dy()?, (1.0 / count as f64) as f32)?;
    spread(r, share, axes)
}

pub(super) fn max(r: &mut Rule<'_>, axes: &[u64]) -> Done {
    let (x, dtype) = (r.x(0), r.ty(r.x(0)).dtype);
    let top = kept(r, r.y(0), axes)?;
    let attains = r.op(OpKind::Equal {}, &[x, top])?;
    let ones = r.op(OpKind::Cast { to: dtype }, &[attains])?;
    let count = r.sum(ones, axes, true)?;
    let dy = kept(r, r.dy()?, axes)?;
    let share = r.div(dy, count)?;
    let zero = r.scalar(dtype, 0.0);
    let dx = r.select(attains, share, zero)?;
    r.give(0, dx)
}

/// `2 * dy * x`.
pub(super) fn sum_squares(r: &mut Rule<'_>) -> Done {
    let twice = r.scaled(r.dy()?, 2.0)?;
    let dx = r.mul(r.x(0), twice)?;
    r.give(0, dx)
}
