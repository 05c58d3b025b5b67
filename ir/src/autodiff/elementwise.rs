//! Gradient rules of element-wise ops.
//!
//! Activations use what costs least to keep: relu, tanh, sigmoid, exp, sqrt and reciprocal their result, the
//! others their operand. Where there is no derivative: `abs` has 0 at 0, `relu` 0 at 0. `min` and `max` give
//! the gradient of a tie to the first operand, or to the only one that wants it, so that `clip` passes it at
//! both bounds.

use std::f64::consts::FRAC_2_SQRT_PI;

use super::rule::{Done, Rule};
use crate::attr::Scalar;
use crate::entity::ValueId;
use crate::ops::OpKind;

/// `dx = kind(dy)`.
pub(super) fn linear(r: &mut Rule<'_>, kind: OpKind) -> Done {
    let dy = r.dy()?;
    let dx = r.op(kind, &[dy])?;
    r.give(0, dx)
}

/// `dx = kind(dy, y)`.
pub(super) fn from_result(r: &mut Rule<'_>, kind: OpKind) -> Done {
    let dx = r.op(kind, &[r.dy()?, r.y(0)])?;
    r.give(0, dx)
}

/// `dx = kind(dy, x)`.
pub(super) fn from_operand(r: &mut Rule<'_>, kind: OpKind) -> Done {
    let dx = r.op(kind, &[r.dy()?, r.x(0)])?;
    r.give(0, dx)
}

pub(super) fn neg(r: &mut Rule<'_>) -> Done {
    linear(r, OpKind::Neg {})
}

pub(super) fn abs(r: &mut Rule<'_>) -> Done {
    let sign = r.op(OpKind::Sign {}, &[r.x(0)])?;
    let dx = r.mul(r.dy()?, sign)?;
    r.give(0, dx)
}

pub(super) fn exp(r: &mut Rule<'_>) -> Done {
    let dx = r.mul(r.dy()?, r.y(0))?;
    r.give(0, dx)
}

pub(super) fn log(r: &mut Rule<'_>) -> Done {
    let dx = r.div(r.dy()?, r.x(0))?;
    r.give(0, dx)
}

pub(super) fn sqrt(r: &mut Rule<'_>) -> Done {
    let half = r.scaled(r.dy()?, 0.5)?;
    let dx = r.div(half, r.y(0))?;
    r.give(0, dx)
}

pub(super) fn atan(r: &mut Rule<'_>) -> Done {
    let square = r.mul(r.x(0), r.x(0))?;
    let one = r.scalar(r.ty(r.x(0)).dtype, 1.0);
    let bottom = r.add(square, one)?;
    let dx = r.div(r.dy()?, bottom)?;
    r.give(0, dx)
}

pub(super) fn sin(r: &mut Rule<'_>) -> Done {
    let slope = r.op(OpKind::Cos {}, &[r.x(0)])?;
    let dx = r.mul(r.dy()?, slope)?;
    r.give(0, dx)
}

pub(super) fn cos(r: &mut Rule<'_>) -> Done {
    let slope = r.op(OpKind::Sin {}, &[r.x(0)])?;
    let product = r.mul(r.dy()?, slope)?;
    let dx = r.neg(product)?;
    r.give(0, dx)
}

/// Mask_scale and dropout: their own op on the gradient, with the same mask or key.
pub(super) fn dropped(r: &mut Rule<'_>, kind: OpKind) -> Done {
    let dx = r.op(kind, &[r.dy()?, r.x(1)])?;
    r.give(0, dx)
}

/// `-dy * y^2`.
pub(super) fn reciprocal(r: &mut Rule<'_>) -> Done {
    let y = r.y(0);
    let product = r.mul(r.dy()?, y)?;
    let product = r.mul(product, y)?;
    let dx = r.neg(product)?;
    r.give(0, dx)
}

/// `dy * 2 / sqrt(pi) * exp(-x^2)`.
pub(super) fn erf(r: &mut Rule<'_>) -> Done {
    let x = r.x(0);
    let square = r.mul(x, x)?;
    let square = r.neg(square)?;
    let slope = r.op(OpKind::Exp {}, &[square])?;
    let slope = r.scaled(slope, FRAC_2_SQRT_PI as f32)?;
    let dx = r.mul(r.dy()?, slope)?;
    r.give(0, dx)
}

/// Between floating-point types; others have no gradient.
pub(super) fn cast(r: &mut Rule<'_>) -> Done {
    let to = r.ty(r.x(0)).dtype;
    if to == r.ty(r.y(0)).dtype {
        return r.give(0, r.dy()?);
    }
    linear(r, OpKind::Cast { to })
}

/// Hands `grad`, of the result's shape, to operand `i`, summed over the axes along which that was broadcast.
fn give_summed(r: &mut Rule<'_>, i: usize, grad: ValueId) -> Done {
    let dx = r.sum_to(grad, &r.shape(r.x(i)))?;
    r.give(i, dx)
}

pub(super) fn add(r: &mut Rule<'_>) -> Done {
    let dy = r.dy()?;
    for i in 0..2 {
        if r.wants(i) {
            give_summed(r, i, dy)?;
        }
    }
    Ok(())
}

pub(super) fn sub(r: &mut Rule<'_>) -> Done {
    let dy = r.dy()?;
    if r.wants(0) {
        give_summed(r, 0, dy)?;
    }
    if r.wants(1) {
        let sum = r.sum_to(dy, &r.shape(r.x(1)))?;
        let db = r.neg(sum)?;
        r.give(1, db)?;
    }
    Ok(())
}

pub(super) fn mul(r: &mut Rule<'_>) -> Done {
    let dy = r.dy()?;
    for i in 0..2 {
        if r.wants(i) {
            let product = r.mul(dy, r.x(1 - i))?;
            give_summed(r, i, product)?;
        }
    }
    Ok(())
}

/// `da = dy / b`, `db = -(dy / b) * y`.
pub(super) fn div(r: &mut Rule<'_>) -> Done {
    let share = r.div(r.dy()?, r.x(1))?;
    if r.wants(0) {
        give_summed(r, 0, share)?;
    }
    if r.wants(1) {
        let product = r.mul(share, r.y(0))?;
        let sum = r.sum_to(product, &r.shape(r.x(1)))?;
        let db = r.neg(sum)?;
        r.give(1, db)?;
    }
    Ok(())
}

/// The value of a floating-point constant of one element.
fn constant(r: &Rule<'_>, v: ValueId) -> Option<f32> {
    match Scalar::from_bytes(r.module().const_data(v)?, r.ty(v).dtype)? {
        Scalar::Float(value) => Some(value.0),
        Scalar::Int(_) => None,
    }
}

/// `da = dy * b * a^(b - 1)`, `db = dy * y * ln a`.
///
/// Where `b` is 0, `da` is 0; where `a` is 0, `db` is 0. Both are limits that the formulas miss.
pub(super) fn pow(r: &mut Rule<'_>) -> Done {
    let (dy, a, b, y) = (r.dy()?, r.x(0), r.x(1), r.y(0));
    let dtype = r.ty(y).dtype;
    if r.wants(0) {
        let product = match constant(r, b) {
            Some(0.0) => r.filled(&r.ty(y).clone(), 0.0)?,
            Some(1.0) => dy,
            Some(0.5) => {
                let half = r.scaled(dy, 0.5)?;
                r.div(half, y)?
            }
            Some(2.0) => {
                let twice = r.scaled(a, 2.0)?;
                r.mul(dy, twice)?
            }
            Some(exponent) => {
                let less = r.scalar(dtype, exponent - 1.0);
                let power = r.op(OpKind::Pow {}, &[a, less])?;
                let slope = r.scaled(power, exponent)?;
                r.mul(dy, slope)?
            }
            None => {
                let (zero, one) = (r.scalar(dtype, 0.0), r.scalar(dtype, 1.0));
                let less = r.sub(b, one)?;
                let power = r.op(OpKind::Pow {}, &[a, less])?;
                let slope = r.mul(power, b)?;
                let flat = r.op(OpKind::Equal {}, &[b, zero])?;
                let slope = r.select(flat, zero, slope)?;
                r.mul(dy, slope)?
            }
        };
        give_summed(r, 0, product)?;
    }
    if r.wants(1) {
        let (zero, one) = (r.scalar(dtype, 0.0), r.scalar(dtype, 1.0));
        let vanishes = r.op(OpKind::Equal {}, &[a, zero])?;
        let safe = r.select(vanishes, one, a)?;
        let log = r.op(OpKind::Log {}, &[safe])?;
        let slope = r.mul(y, log)?;
        let product = r.mul(dy, slope)?;
        give_summed(r, 1, product)?;
    }
    Ok(())
}

/// `min` and `max`; `wins` says whether its first operand is the result, ties included.
pub(super) fn extremum(r: &mut Rule<'_>, wins: OpKind) -> Done {
    let dy = r.dy()?;
    let zero = r.scalar(r.ty(dy).dtype, 0.0);
    let (a, b) = (r.x(0), r.x(1));
    if r.wants(0) {
        let first = r.op(wins, &[a, b])?;
        let da = r.select(first, dy, zero)?;
        give_summed(r, 0, da)?;
        if r.wants(1) {
            let db = r.select(first, zero, dy)?;
            give_summed(r, 1, db)?;
        }
    } else {
        let second = r.op(wins, &[b, a])?;
        let db = r.select(second, dy, zero)?;
        give_summed(r, 1, db)?;
    }
    Ok(())
}

pub(super) fn select(r: &mut Rule<'_>) -> Done {
    let dy = r.dy()?;
    let zero = r.scalar(r.ty(dy).dtype, 0.0);
    let cond = r.x(0);
    if r.wants(1) {
        let da = r.select(cond, dy, zero)?;
        give_summed(r, 1, da)?;
    }
    if r.wants(2) {
        let db = r.select(cond, zero, dy)?;
        give_summed(r, 2, db)?;
    }
    Ok(())
}

/// Linear in `dy`; the step in `y` has no slope.
pub(super) fn relu_grad(r: &mut Rule<'_>) -> Done {
    if r.wants(0) {
        let ddy = r.op(OpKind::ReluGrad {}, &[r.dy()?, r.x(1)])?;
        r.give(0, ddy)?;
    }
    Ok(())
}

/// Of `dy * (1 - y^2)`.
pub(super) fn tanh_grad(r: &mut Rule<'_>) -> Done {
    let (g, dy, y) = (r.dy()?, r.x(0), r.x(1));
    if r.wants(0) {
        let ddy = r.op(OpKind::TanhGrad {}, &[g, y])?;
        r.give(0, ddy)?;
    }
    if r.wants(1) {
        let slope = r.mul(dy, y)?;
        let slope = r.scaled(slope, -2.0)?;
        let d = r.mul(g, slope)?;
        r.give(1, d)?;
    }
    Ok(())
}

/// Of `dy * y * (1 - y)`.
pub(super) fn sigmoid_grad(r: &mut Rule<'_>) -> Done {
    let (g, dy, y) = (r.dy()?, r.x(0), r.x(1));
    if r.wants(0) {
        let ddy = r.op(OpKind::SigmoidGrad {}, &[g, y])?;
        r.give(0, ddy)?;
    }
    if r.wants(1) {
        let twice = r.scaled(y, -2.0)?;
        let one = r.scalar(r.ty(y).dtype, 1.0);
        let slope = r.add(twice, one)?;
        let slope = r.mul(dy, slope)?;
        let d = r.mul(g, slope)?;
        r.give(1, d)?;
    }
    Ok(())
}
