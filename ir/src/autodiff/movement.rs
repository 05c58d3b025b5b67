//! Gradient rules of ops that move or repeat elements.

use super::rule::{Done, Rule};
use crate::attr::{F32, Scalar};
use crate::entity::ValueId;
use crate::error::NoGradient;
use crate::ops::OpKind;

const ZERO: Scalar = Scalar::Float(F32(0.0));

pub(super) fn copy(r: &mut Rule<'_>) -> Done {
    r.give(0, r.dy()?)
}

pub(super) fn reshape(r: &mut Rule<'_>) -> Done {
    let dx = r.reshaped(r.dy()?, &r.shape(r.x(0)))?;
    r.give(0, dx)
}

pub(super) fn broadcast(r: &mut Rule<'_>) -> Done {
    let dx = r.sum_to(r.dy()?, &r.shape(r.x(0)))?;
    r.give(0, dx)
}

pub(super) fn transpose(r: &mut Rule<'_>, perm: &[u64]) -> Done {
    let mut inverse = vec![0; perm.len()];
    for (i, &p) in perm.iter().enumerate() {
        inverse[p as usize] = i as u64;
    }
    let dx = r.op(OpKind::Transpose { perm: inverse }, &[r.dy()?])?;
    r.give(0, dx)
}

/// The elements of every axis from `starts` to `ends`.
fn cut(r: &mut Rule<'_>, v: ValueId, starts: &[u64], ends: &[u64]) -> Result<ValueId, NoGradient> {
    let signed = |xs: &[u64]| xs.iter().map(|&x| i64::try_from(x)).collect::<Result<Vec<i64>, _>>();
    let (Ok(starts), Ok(ends)) = (signed(starts), signed(ends)) else {
        return Err("an extent is too large".into());
    };
    let steps = vec![1; starts.len()];
    r.op(OpKind::Slice { starts, ends, steps }, &[v])
}

pub(super) fn concat(r: &mut Rule<'_>, axis: i64) -> Done {
    let dy = r.dy()?;
    let axis = usize::try_from(axis).map_err(|_| "the axis is negative")?;
    let mut at = 0;
    for i in 0..r.arity() {
        let extent = r.ty(r.x(i)).shape[axis];
        if r.wants(i) {
            let (mut starts, mut ends) = (vec![0; r.ty(dy).rank()], r.shape(dy));
            (starts[axis], ends[axis]) = (at, at + extent);
            let dx = if starts[axis] == 0 && ends == r.shape(dy) { dy } else { cut(r, dy, &starts, &ends)? };
            r.give(i, dx)?;
        }
        at += extent;
    }
    Ok(())
}

pub(super) fn pad(r: &mut Rule<'_>, before: &[u64]) -> Done {
    let ends: Vec<u64> = r.ty(r.x(0)).shape.iter().zip(before).map(|(d, b)| d + b).collect();
    let dx = cut(r, r.dy()?, before, &ends)?;
    r.give(0, dx)
}

/// `v` with `before[i]` and `after[i]` zeros around axis `i`.
fn padded(r: &mut Rule<'_>, v: ValueId, before: Vec<u64>, after: Vec<u64>) -> Result<ValueId, NoGradient> {
    if before.iter().chain(&after).all(|&n| n == 0) {
        return Ok(v);
    }
    r.op(OpKind::Pad { before, after, value: ZERO }, &[v])
}

/// Undoes a step other than 1 along `axis`: reverses for a negative one, and puts zeros between the elements.
fn dilated(r: &mut Rule<'_>, mut v: ValueId, axis: usize, step: i64) -> Result<ValueId, NoGradient> {
    let shape = r.shape(v);
    let (n, rank) = (shape[axis], shape.len());
    if step < 0 {
        let mut starts = vec![0; rank];
        let mut ends = Vec::with_capacity(rank);
        for &d in &shape {
            ends.push(i64::try_from(d).map_err(|_| "an extent is too large")?);
        }
        let mut steps = vec![1; rank];
        (starts[axis], ends[axis], steps[axis]) = (ends[axis] - 1, -1, -1);
        v = r.op(OpKind::Slice { starts, ends, steps }, &[v])?;
    }
    let stride = step.unsigned_abs();
    if stride == 1 {
        return Ok(v);
    }
    let spread = n.checked_mul(stride).ok_or("an extent overflows")?;
    let mut split = shape.clone();
    split.insert(axis + 1, 1);
    v = r.reshaped(v, &split)?;
    let mut after = vec![0; rank + 1];
    after[axis + 1] = stride - 1;
    v = padded(r, v, vec![0; rank + 1], after)?;
    let mut joined = shape;
    joined[axis] = spread;
    v = r.reshaped(v, &joined)?;
    joined[axis] = spread - (stride - 1);
    cut(r, v, &vec![0; rank], &joined)
}

pub(super) fn slice(r: &mut Rule<'_>, starts: &[i64], steps: &[i64]) -> Done {
    let x_shape = r.shape(r.x(0));
    let mut dx = r.dy()?;
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for axis in 0..x_shape.len() {
        let (n, step) = (r.ty(r.y(0)).shape[axis], steps[axis]);
        let mut first = starts[axis].unsigned_abs();
        if n > 1 && step != 1 {
            dx = dilated(r, dx, axis, step)?;
            if step < 0 {
                first -= (n - 1) * step.unsigned_abs();
            }
        }
        let covered = r.ty(dx).shape[axis];
        before.push(first);
        after.push(x_shape[axis] - first - covered);
    }
    let mut short = (0..x_shape.len()).filter(|&a| before[a] + after[a] > 0);
    match (short.next(), short.next()) {
        (Some(axis), None) => r.give_part(0, dx, axis, before[axis]),
        _ => {
            let dx = padded(r, dx, before, after)?;
            r.give(0, dx)
        }
    }
}
