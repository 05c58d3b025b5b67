//! Optimizer updates.

use super::elementwise::{want_float, want_int};
use super::{Cost, TypeError, Types, streaming};
use crate::types::{DType, TensorType};

fn same(ops: &[&TensorType], names: &[&str]) -> Result<(), TypeError> {
    want_float(ops[0], "w")?;
    for (ty, name) in ops[1..].iter().zip(names) {
        if *ty != ops[0] {
            return Err(format!("{name} = {ty} and w = {} differ", ops[0]).into());
        }
    }
    Ok(())
}

fn single(ty: &TensorType, name: &str) -> Result<(), TypeError> {
    if ty.numel() == 1 { Ok(()) } else { Err(format!("{name} must have one element, got {ty}").into()) }
}

fn rate(lr: &TensorType) -> Result<(), TypeError> {
    want_float(lr, "lr")?;
    single(lr, "lr")
}

fn step(ops: &[&TensorType], i: usize) -> Result<(), TypeError> {
    ops.get(i).map_or(Ok(()), |step| want_int(step, "step").and_then(|()| single(step, "step")))
}

pub(super) fn sgd(ops: &[&TensorType]) -> Types {
    same(&ops[..2], &["g"])?;
    rate(ops[2])?;
    Ok(vec![ops[0].clone()])
}
pub(super) fn momentum(ops: &[&TensorType]) -> Types {
    same(&ops[..3], &["g", "v"])?;
    rate(ops[3])?;
    step(ops, 4)?;
    Ok(vec![ops[0].clone(); 2])
}

pub(super) fn adagrad(ops: &[&TensorType]) -> Types {
    same(&ops[..3], &["g", "h"])?;
    rate(ops[3])?;
    step(ops, 4)?;
    Ok(vec![ops[0].clone(); 2])
}

pub(super) fn adamw(ops: &[&TensorType]) -> Types {
    same(&ops[..4], &["g", "m", "v"])?;
    rate(ops[4])?;
    step(ops, 5)?;
    Ok(vec![ops[0].clone(); 3])
}

pub(super) fn increment(ops: &[&TensorType], by: i64) -> Types {
    for (i, ty) in ops.iter().enumerate() {
        want_int(ty, &format!("x{i}"))?;
        if ty.dtype == DType::I32 && i32::try_from(by).is_err() {
            return Err(format!("x{i} = {ty} cannot hold by = {by}").into());
        }
    }
    Ok(ops.iter().map(|&ty| ty.clone()).collect())
}
pub(super) fn increment_cost(ops: &[&TensorType], res: &[&TensorType]) -> Cost {
    Cost { flops: ops.iter().map(|t| t.numel()).sum(), ..streaming(ops, res, 0) }
}

/// Sizes below which numbers of an update count as zero.
///
/// A CPU computes several times as long with subnormal numbers, and updates would meet them often: the first
/// moment of a gradient that stays zero shrinks until it is one. No parameter feels numbers of these sizes.
/// Kernels on every device use the same, and so give the same bits.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Negligible {
    /// Of gradients, and of states that are sums of them.
    pub first: f32,
    /// Of gradients whose squares are added up.
    pub squared: f32,
    /// Of states that are sums of squares.
    pub second: f32,
}

impl Negligible {
    /// Of updates that divide by nothing.
    pub const MOMENTUM: Negligible = Negligible { first: FIRST, squared: 0.0, second: 0.0 };

    /// Of Adam with this epsilon, which is added to a mean of squares' root.
    pub fn of_adam(epsilon: f32) -> Negligible {
        Negligible::beside(epsilon * ROUNDED)
    }

    /// Of Adagrad with this epsilon, which is added to the root of a sum of squares of up to 2^20 steps.
    pub fn of_adagrad(epsilon: f32) -> Negligible {
        Negligible::beside(epsilon * ROUNDED / 1024.0)
    }

    fn beside(squared: f32) -> Negligible {
        Negligible { first: FIRST.min(squared), squared, second: f32::MIN_POSITIVE.min(squared * squared) }
    }
}

/// 2^-100: products with rates are normal numbers still.
const FIRST: f32 = 1.0 / (1u128 << 100) as f32;
/// 2^-26: half of what rounding to `f32` keeps.
const ROUNDED: f32 = 1.0 / (1u32 << 26) as f32;
