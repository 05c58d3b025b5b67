//! Element-wise ops: unary, broadcasting binary, select, and gradients of activations.

use super::shape::{broadcast_all, broadcast_shapes};
use super::{TypeError, Types};
use crate::types::{DType, TensorType};

pub(super) fn numeric_unary(ops: &[&TensorType]) -> Types {
    if ops[0].dtype == DType::Bool {
        return Err("operand must be numeric, got bool".into());
    }
    Ok(vec![ops[0].clone()])
}

pub(super) fn bool_unary(ops: &[&TensorType]) -> Types {
    want(ops[0], DType::Bool, "x")?;
    Ok(vec![ops[0].clone()])
}

pub(super) fn float_unary(ops: &[&TensorType]) -> Types {
    want_float(ops[0], "x")?;
    Ok(vec![ops[0].clone()])
}

pub(super) fn cast(ops: &[&TensorType], to: DType) -> Types {
    Ok(vec![TensorType::new(to, ops[0].shape.clone())])
}

fn broadcast_same(ops: &[&TensorType]) -> Result<TensorType, TypeError> {
    if ops[0].dtype != ops[1].dtype {
        return Err(format!("operands differ in element type: {} and {}", ops[0], ops[1]).into());
    }
    Ok(TensorType::new(ops[0].dtype, broadcast_shapes(&ops[0].shape, &ops[1].shape)?))
}

pub(super) fn numeric_binary(ops: &[&TensorType]) -> Types {
    if ops[0].dtype == DType::Bool {
        return Err("operands must be numeric, got bool".into());
    }
    Ok(vec![broadcast_same(ops)?])
}

pub(super) fn bool_binary(ops: &[&TensorType]) -> Types {
    want(ops[0], DType::Bool, "a")?;
    Ok(vec![broadcast_same(ops)?])
}

pub(super) fn compare(ops: &[&TensorType]) -> Types {
    Ok(vec![TensorType::new(DType::Bool, broadcast_same(ops)?.shape)])
}

pub(super) fn select(ops: &[&TensorType]) -> Types {
    want(ops[0], DType::Bool, "cond")?;
    if ops[1].dtype != ops[2].dtype {
        return Err(format!("a and b differ in element type: {} and {}", ops[1], ops[2]).into());
    }
    Ok(vec![TensorType::new(ops[1].dtype, broadcast_all(ops)?)])
}

pub(super) fn float_pair(ops: &[&TensorType]) -> Types {
    want_float(ops[0], "dy")?;
    if ops[0] != ops[1] {
        return Err(format!("operands must have one type, got {} and {}", ops[0], ops[1]).into());
    }
    Ok(vec![ops[0].clone()])
}

/// Requires element type `dtype` of the operand called `name`.
pub(super) fn want(ty: &TensorType, dtype: DType, name: &str) -> Result<(), TypeError> {
    if ty.dtype == dtype {
        Ok(())
    } else {
        Err(format!("{name} must have element type {dtype}, got {ty}").into())
    }
}

/// Requires a floating-point operand.
pub(super) fn want_float(ty: &TensorType, name: &str) -> Result<(), TypeError> {
    if ty.dtype.is_float() { Ok(()) } else { Err(format!("{name} must be floating point, got {ty}").into()) }
}

/// Requires an operand of integers wide enough to be positions or counts.
pub(super) fn want_int(ty: &TensorType, name: &str) -> Result<(), TypeError> {
    if ty.dtype.is_index() {
        Ok(())
    } else if ty.dtype.is_int() {
        Err(format!("{name} must be i32 or i64, got {ty}").into())
    } else {
        Err(format!("{name} must be an integer tensor, got {ty}").into())
    }
}

/// Requires the operand called `name` to have exactly `shape`.
pub(super) fn want_shape(ty: &TensorType, shape: &[u64], name: &str) -> Result<(), TypeError> {
    if ty.shape == shape { Ok(()) } else { Err(format!("{name} must have shape {shape:?}, got {ty}").into()) }
}
