//! Random tensors and dropout. The generator is a function of attributes, the step's number and an element's
//! index. So these ops are as pure as any other.

use super::elementwise::{want, want_float, want_int, want_shape};
use super::{TypeError, Types};
use crate::types::{DType, TensorType};

/// Checks the step operand and the number of the stream.
fn key(step: &TensorType, stream: i64) -> Result<(), TypeError> {
    want_int(step, "step")?;
    if step.numel() != 1 {
        return Err(format!("step must have one element, got {step}").into());
    }
    if u32::try_from(stream).is_err() {
        return Err(format!("stream {stream} must be in 0..{}", 1u64 << 32).into());
    }
    Ok(())
}

fn drop_ratio(ratio: f32) -> Result<(), TypeError> {
    if (0.0..1.0).contains(&ratio) { Ok(()) } else { Err(format!("ratio {ratio} must be in [0, 1)").into()) }
}

fn finite(names: [&str; 2], values: [f32; 2]) -> Result<(), TypeError> {
    match names.iter().zip(values).find(|(_, v)| !v.is_finite()) {
        Some((name, v)) => Err(format!("{name} must be finite, got {v}").into()),
        None => Ok(()),
    }
}

pub(super) fn mask(ops: &[&TensorType], ratio: f32, stream: i64, shape: &[u64]) -> Types {
    drop_ratio(ratio)?;
    key(ops[0], stream)?;
    Ok(vec![TensorType::new(DType::Bool, shape)])
}

pub(super) fn mask_scale(ops: &[&TensorType]) -> Types {
    want_float(ops[0], "x")?;
    want(ops[1], DType::Bool, "mask")?;
    want_shape(ops[1], &ops[0].shape, "mask")?;
    Ok(vec![ops[0].clone()])
}

pub(super) fn dropout(ops: &[&TensorType], ratio: f32, stream: i64) -> Types {
    drop_ratio(ratio)?;
    want_float(ops[0], "x")?;
    key(ops[1], stream)?;
    Ok(vec![ops[0].clone()])
}

pub(super) fn uniform(ops: &[&TensorType], stream: i64, shape: &[u64], low: f32, high: f32) -> Types {
    finite(["low", "high"], [low, high])?;
    if low > high {
        return Err(format!("low {low} is above high {high}").into());
    }
    key(ops[0], stream)?;
    Ok(vec![TensorType::new(DType::F32, shape)])
}

pub(super) fn normal(ops: &[&TensorType], stream: i64, shape: &[u64], mean: f32, scale: f32) -> Types {
    finite(["mean", "scale"], [mean, scale])?;
    if scale < 0.0 {
        return Err(format!("scale {scale} is negative").into());
    }
    key(ops[0], stream)?;
    Ok(vec![TensorType::new(DType::F32, shape)])
}
