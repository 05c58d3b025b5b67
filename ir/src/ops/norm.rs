//! Normalisation: batch norm split into statistics, application and running average, layer norm, softmax.

use super::elementwise::{want, want_float, want_shape};
use super::shape::resolve_axis;
use super::{Cost, TypeError, Types, streaming};
use crate::types::{DType, TensorType};

fn channels(x: &TensorType) -> Result<u64, TypeError> {
    want_float(x, "x")?;
    match x.shape.as_slice() {
        [_, c, ..] => Ok(*c),
        _ => Err(format!("x needs a batch and a channel axis, got {x}").into()),
    }
}

/// Requires factors of `x`, which have its element type or f32, and one shape.
fn affine(x: &TensorType, ops: &[&TensorType], shape: &[u64]) -> Result<(), TypeError> {
    for (ty, name) in ops.iter().zip(["scale", "bias"]) {
        want_float(ty, name)?;
        if ty.dtype != DType::F32 && ty.dtype != x.dtype {
            return Err(format!("{name} must have element type f32 or {}, got {ty}", x.dtype).into());
        }
        want_shape(ty, shape, name)?;
    }
    match ops {
        [scale, bias] if scale.dtype != bias.dtype => {
            Err(format!("scale = {scale} and bias = {bias} differ in element type").into())
        }
        _ => Ok(()),
    }
}

/// Requires statistics, which are f32 for every element type.
fn statistics(ops: &[&TensorType], shape: &[u64]) -> Result<(), TypeError> {
    for (ty, name) in ops.iter().zip(["mean", "inv_std"]) {
        want(ty, DType::F32, name)?;
        want_shape(ty, shape, name)?;
    }
    Ok(())
}

pub(super) fn batch_norm_stats(ops: &[&TensorType]) -> Types {
    let c = channels(ops[0])?;
    if ops[0].numel() == 0 {
        return Err(format!("statistics of an empty batch {}", ops[0]).into());
    }
    Ok(vec![TensorType::new(DType::F32, [c]); 3])
}
pub(super) fn batch_norm_stats_cost(ops: &[&TensorType], res: &[&TensorType]) -> Cost {
    Cost { flops: ops[0].numel().saturating_mul(4), ..streaming(ops, res, 0) }
}

pub(super) fn batch_norm(ops: &[&TensorType]) -> Types {
    let c = channels(ops[0])?;
    affine(ops[0], &ops[1..3], &[c])?;
    statistics(&ops[3..], &[c])?;
    Ok(vec![ops[0].clone()])
}

pub(super) fn batch_norm_grad(ops: &[&TensorType]) -> Types {
    let c = channels(ops[1])?;
    if ops[0] != ops[1] {
        return Err(format!("dy = {} and x = {} differ", ops[0], ops[1]).into());
    }
    affine(ops[1], &ops[2..3], &[c])?;
    statistics(&ops[3..], &[c])?;
    let vector = TensorType::new(ops[2].dtype, [c]);
    Ok(vec![ops[1].clone(), vector.clone(), vector])
}
pub(super) fn moving_average(ops: &[&TensorType]) -> Types {
    want_float(ops[0], "running")?;
    want_float(ops[1], "batch")?;
    want_shape(ops[1], &ops[0].shape, "batch")?;
    Ok(vec![ops[0].clone()])
}

/// The shapes (rows, normalised) that `axis` splits `x` into.
fn split(x: &TensorType, axis: i64) -> Result<(Vec<u64>, Vec<u64>), TypeError> {
    want_float(x, "x")?;
    let axis = resolve_axis(axis, x.rank())?;
    let (rows, inner) = x.shape.split_at(axis);
    let keep: Vec<u64> = rows.iter().copied().chain(inner.iter().map(|_| 1)).collect();
    Ok((keep, inner.to_vec()))
}

pub(super) fn layer_norm(ops: &[&TensorType], axis: i64) -> Types {
    let (stats, inner) = split(ops[0], axis)?;
    if inner.contains(&0) {
        return Err(format!("normalisation over an empty axis of {}", ops[0]).into());
    }
    affine(ops[0], &ops[1..], &inner)?;
    let stats = TensorType::new(DType::F32, stats);
    Ok(vec![ops[0].clone(), stats.clone(), stats])
}

pub(super) fn layer_norm_grad(ops: &[&TensorType], axis: i64) -> Types {
    let (stats, inner) = split(ops[1], axis)?;
    if ops[0] != ops[1] {
        return Err(format!("dy = {} and x = {} differ", ops[0], ops[1]).into());
    }
    affine(ops[1], &ops[2..3], &inner)?;
    statistics(&ops[3..], &stats)?;
    let scale = TensorType::new(ops[2].dtype, inner);
    Ok(vec![ops[1].clone(), scale.clone(), scale])
}

pub(super) fn softmax(ops: &[&TensorType], axis: i64) -> Types {
    want_float(ops[0], "x")?;
    resolve_axis(axis, ops[0].rank())?;
    Ok(vec![ops[0].clone()])
}
pub(super) fn softmax_grad(ops: &[&TensorType], axis: i64) -> Types {
    if ops[0] != ops[1] {
        return Err(format!("dy = {} and y = {} differ", ops[0], ops[1]).into());
    }
    softmax(ops, axis)
}
