//! Gradient rules of normalisation and the cross-entropy loss.
//!
//! A `batch_norm` whose mean and inverse standard deviation are the statistics of its own operand is
//! training-mode batch normalisation: one `batch_norm_grad` accounts for the statistics too, and no gradient
//! goes through them. With any other statistics it is an affine map. Statistics used elsewhere get their
//! gradient on top.

use super::rule::{Done, Rule};
use crate::attr::Reduction;
use crate::entity::ValueId;
use crate::error::NoGradient;
use crate::module::Def;
use crate::ops::OpKind;

/// Whether operands 3 and 4 are the statistics of operand 0.
fn has_own_statistics(r: &Rule<'_>) -> bool {
    let m = r.module();
    let (Def::Op(op, 0), Def::Op(other, 2)) = (m.values[r.x(3)].def, m.values[r.x(4)].def) else {
        return false;
    };
    op == other
        && matches!(m.ops[op].kind(), Some(OpKind::BatchNormStats { .. }))
        && m.ops[op].operands.first() == Some(&r.x(0))
}

/// A vector over channels as a tensor that broadcasts along axis 1 of `rank` axes.
fn per_channel(r: &mut Rule<'_>, v: ValueId, rank: usize) -> Result<ValueId, NoGradient> {
    let mut shape = vec![1; rank];
    shape[1] = r.ty(v).numel();
    r.reshaped(v, &shape)
}

/// All axes but the channels.
fn other_axes(rank: usize) -> Vec<u64> {
    (0..rank as u64).filter(|&a| a != 1).collect()
}

pub(super) fn batch_norm(r: &mut Rule<'_>) -> Done {
    let dy = r.dy()?;
    let (x, scale, mean, inv_std) = (r.x(0), r.x(1), r.x(3), r.x(4));
    if has_own_statistics(r) && (r.wants(0) || r.wants(1)) {
        let grads = r.ops(OpKind::BatchNormGrad {}, &[dy, x, scale, mean, inv_std])?;
        return grads.into_iter().enumerate().try_for_each(|(i, g)| r.give(i, g));
    }
    let rank = r.ty(x).rank();
    if r.wants(0) {
        let factor = r.mul(scale, inv_std)?;
        let factor = per_channel(r, factor, rank)?;
        let dx = r.mul(dy, factor)?;
        r.give(0, dx)?;
    }
    if r.wants(2) || r.wants(3) {
        let sum = r.sum(dy, &other_axes(rank), false)?;
        r.give(2, sum)?;
        if r.wants(3) {
            let factor = r.mul(scale, inv_std)?;
            let dmean = r.mul(sum, factor)?;
            let dmean = r.neg(dmean)?;
            r.give(3, dmean)?;
        }
    }
    if r.wants(1) || r.wants(4) {
        let centre = per_channel(r, mean, rank)?;
        let centred = r.sub(x, centre)?;
        let product = r.mul(dy, centred)?;
        let product = r.sum(product, &other_axes(rank), false)?;
        if r.wants(1) {
            let dscale = r.mul(product, inv_std)?;
            r.give(1, dscale)?;
        }
        if r.wants(4) {
            let dinv_std = r.mul(product, scale)?;
            r.give(4, dinv_std)?;
        }
    }
    Ok(())
}

/// The gradient that reaches `x` through its mean, variance and inverse standard deviation over `count`
/// elements.
///
/// `shape` is that of a statistic so that it broadcasts to `x`.
fn through_statistics(
    r: &mut Rule<'_>,
    [mean, inv_std]: [ValueId; 2],
    [dmean, dvar, dinv_std]: [Option<ValueId>; 3],
    shape: &[u64],
    count: u64,
) -> Result<Option<ValueId>, NoGradient> {
    let share = (1.0 / count as f64) as f32;
    let x = r.x(0);
    let mut dvar = dvar;
    if let Some(d) = dinv_std {
        let mut slope = r.mul(d, inv_std)?;
        for _ in 0..2 {
            slope = r.mul(slope, inv_std)?;
        }
        let slope = r.scaled(slope, -0.5)?;
        dvar = Some(match dvar {
            Some(other) => r.add(other, slope)?,
            None => slope,
        });
    }
    let mut dx = None;
    if let Some(d) = dvar {
        let slope = r.scaled(d, 2.0 * share)?;
        let (slope, centre) = (r.reshaped(slope, shape)?, r.reshaped(mean, shape)?);
        let centred = r.sub(x, centre)?;
        dx = Some(r.mul(centred, slope)?);
    }
    if let Some(d) = dmean {
        let part = r.scaled(d, share)?;
        let part = r.reshaped(part, shape)?;
        dx = Some(match dx {
            Some(other) => r.add(other, part)?,
            None => r.broadcast(part, &r.shape(x))?,
        });
    }
    Ok(dx)
}

pub(super) fn batch_norm_stats(r: &mut Rule<'_>) -> Done {
    let x = r.shape(r.x(0));
    let mut shape = vec![1; x.len()];
    shape[1] = x[1];
    let count = r.ty(r.x(0)).numel() / x[1].max(1);
    let statistics = [r.y(0), r.y(2)];
    let slopes = [r.dy_of(0), r.dy_of(1), r.dy_of(2)];
    match through_statistics(r, statistics, slopes, &shape, count)? {
        Some(dx) => r.give(0, dx),
        None => Ok(()),
    }
}

pub(super) fn moving_average(r: &mut Rule<'_>, momentum: f32, scale: f32) -> Done {
    let dy = r.dy()?;
    for (i, weight) in [(0, momentum), (1, (1.0 - momentum) * scale)] {
        if r.wants(i) {
            let grad = r.scaled(dy, weight)?;
            r.give(i, grad)?;
        }
    }
    Ok(())
}

pub(super) fn layer_norm(r: &mut Rule<'_>, axis: i64) -> Done {
    let (x, scale, mean, inv_std) = (r.x(0), r.x(1), r.y(1), r.y(2));
    let mut dx = None;
    if let Some(dy) = r.dy_of(0) {
        if r.wants(0) || r.wants(1) {
            let grads = r.ops(OpKind::LayerNormGrad { axis }, &[dy, x, scale, mean, inv_std])?;
            dx = Some(grads[0]);
            r.give(1, grads[1])?;
            r.give(2, grads[2])?;
        } else if r.wants(2) {
            let dbias = r.sum_to(dy, &r.shape(r.x(2)))?;
            r.give(2, dbias)?;
        }
    }
    if !r.wants(0) {
        return Ok(());
    }
    let count = r.ty(x).numel() / r.ty(mean).numel().max(1);
    let slopes = [r.dy_of(1), None, r.dy_of(2)];
    let shape = r.shape(mean);
    let rest = through_statistics(r, [mean, inv_std], slopes, &shape, count)?;
    let dx = match (dx, rest) {
        (Some(a), Some(b)) => Some(r.add(a, b)?),
        (a, b) => a.or(b),
    };
    dx.map_or(Ok(()), |dx| r.give(0, dx))
}

/// `dy - exp(y) * sum(dy)` along `axis`, for `y` the logarithm of a softmax.
fn of_log_softmax(r: &mut Rule<'_>, dy: ValueId, y: ValueId, axis: i64) -> Result<ValueId, NoGradient> {
    let axis = u64::try_from(axis).map_err(|_| "the axis is negative")?;
    let sum = r.sum(dy, &[axis], true)?;
    let softmax = r.op(OpKind::Exp {}, &[y])?;
    let back = r.mul(softmax, sum)?;
    r.sub(dy, back)
}

pub(super) fn log_softmax(r: &mut Rule<'_>, axis: i64) -> Done {
    let dx = of_log_softmax(r, r.dy()?, r.y(0), axis)?;
    r.give(0, dx)
}

pub(super) fn cross_entropy(r: &mut Rule<'_>, reduction: Reduction, ignore_index: i64) -> Done {
    let (labels, log_prob) = (r.x(1), r.y(1));
    let mut dx = None;
    if let Some(dloss) = r.dy_of(0) {
        let kind = OpKind::CrossEntropyGrad { reduction, ignore_index };
        dx = Some(r.op(kind, &[dloss, log_prob, labels])?);
    }
    if let Some(dlog_prob) = r.dy_of(1) {
        let part = of_log_softmax(r, dlog_prob, log_prob, 1)?;
        dx = Some(match dx {
            Some(other) => r.add(other, part)?,
            None => part,
        });
    }
    dx.map_or(Ok(()), |dx| r.give(0, dx))
}
