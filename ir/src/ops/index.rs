//! Gather and scatter. Index values are checked when the op runs; an index out of range is an error there.

use super::elementwise::{want_float, want_int};
use super::shape::resolve_axis;
use super::{Cost, TypeError, Types, streaming};
use crate::attr::ScatterMode;
use crate::types::{DType, TensorType};

pub(super) fn gather(ops: &[&TensorType], axis: i64) -> Types {
    let (data, indices) = (ops[0], ops[1]);
    want_int(indices, "indices")?;
    let axis = resolve_axis(axis, data.rank())?;
    let shape = [&data.shape[..axis], &indices.shape, &data.shape[axis + 1..]].concat();
    Ok(vec![TensorType::new(data.dtype, shape)])
}
pub(super) fn gather_cost(ops: &[&TensorType], res: &[&TensorType]) -> Cost {
    Cost { bytes_read: res[0].bytes() + ops[1].bytes(), ..streaming(ops, res, 0) }
}

pub(super) fn gather_grad(ops: &[&TensorType], axis: i64, dim: i64) -> Types {
    let (indices, dy) = (ops[0], ops[1]);
    want_int(indices, "indices")?;
    want_float(dy, "dy")?;
    let dim = u64::try_from(dim).map_err(|_| "dim must not be negative".to_string())?;
    let rank = (dy.rank() + 1).checked_sub(indices.rank()).ok_or("dy has fewer axes than indices")?;
    let axis = resolve_axis(axis, rank)?;
    let end = axis + indices.rank();
    if dy.shape.get(axis..end) != Some(indices.shape.as_slice()) {
        return Err(format!("dy = {dy} does not contain the axes of indices = {indices} at {axis}").into());
    }
    let shape = [&dy.shape[..axis], &[dim], &dy.shape[end..]].concat();
    Ok(vec![TensorType::new(dy.dtype, shape)])
}
pub(super) fn gather_grad_cost(ops: &[&TensorType], res: &[&TensorType]) -> Cost {
    Cost { flops: ops[1].numel(), ..streaming(ops, res, 0) }
}

fn along(data: &TensorType, indices: &TensorType, axis: i64) -> Result<usize, TypeError> {
    want_int(indices, "indices")?;
    let axis = resolve_axis(axis, data.rank())?;
    let fits = indices.rank() == data.rank()
        && (0..data.rank()).all(|i| i == axis || indices.shape[i] <= data.shape[i]);
    if fits {
        Ok(axis)
    } else {
        Err(format!("indices = {indices} do not fit data = {data} along axis {axis}").into())
    }
}

pub(super) fn gather_elements(ops: &[&TensorType], axis: i64) -> Types {
    along(ops[0], ops[1], axis)?;
    Ok(vec![TensorType::new(ops[0].dtype, ops[1].shape.clone())])
}

fn check_mode(data: &TensorType, mode: ScatterMode) -> Result<(), TypeError> {
    if mode != ScatterMode::Replace && data.dtype == DType::Bool {
        return Err("booleans have no arithmetic".into());
    }
    Ok(())
}

pub(super) fn scatter_elements(ops: &[&TensorType], axis: i64, mode: ScatterMode) -> Types {
    along(ops[0], ops[1], axis)?;
    check_mode(ops[0], mode)?;
    if ops[2].shape != ops[1].shape || ops[2].dtype != ops[0].dtype {
        return Err(
            format!("updates = {} must match indices = {} and data = {}", ops[2], ops[1], ops[0]).into()
        );
    }
    Ok(vec![ops[0].clone()])
}
pub(super) fn scatter_elements_cost(ops: &[&TensorType], res: &[&TensorType]) -> Cost {
    Cost { flops: ops[1].numel(), ..streaming(ops, res, 0) }
}

/// The shape of the slices of `data` that the tuples in the last axis of `indices` name, batch axes in front.
fn slices(data: &TensorType, indices: &TensorType, batch_dims: i64) -> Result<Vec<u64>, TypeError> {
    want_int(indices, "indices")?;
    let Some((&depth, outer)) = indices.shape.split_last() else {
        return Err("indices must have at least one axis".into());
    };
    let batch = usize::try_from(batch_dims).ok().filter(|&b| b <= outer.len() && b <= data.rank());
    let Some(batch) = batch.filter(|&b| data.shape[..b] == outer[..b]) else {
        return Err(
            format!("data = {data} and indices = {indices} do not share {batch_dims} batch axes").into()
        );
    };
    let addressed = usize::try_from(depth).ok().and_then(|d| d.checked_add(batch));
    let Some(addressed) = addressed.filter(|&a| a <= data.rank()) else {
        return Err(format!("index tuples of {indices} are longer than the rank of {data}").into());
    };
    Ok([outer, &data.shape[addressed..]].concat())
}

pub(super) fn top_k(ops: &[&TensorType], axis: i64, k: i64) -> Types {
    let k = u64::try_from(k).map_err(|_| format!("k = {k} is negative"))?;
    let axis = resolve_axis(axis, ops[0].rank())?;
    if ops[0].dtype == DType::Bool {
        return Err("booleans have no order".into());
    }
    let mut shape = ops[0].shape.clone();
    if k > shape[axis] {
        return Err(format!("{} has fewer than {k} elements along axis {axis}", ops[0]).into());
    }
    shape[axis] = k;
    Ok(vec![TensorType::new(DType::I64, shape)])
}
pub(super) fn top_k_cost(ops: &[&TensorType], res: &[&TensorType], axis: i64) -> Cost {
    let extent = usize::try_from(axis).ok().and_then(|a| ops[0].shape.get(a).copied()).unwrap_or(1);
    Cost { flops: ops[0].numel().saturating_mul(extent), ..streaming(ops, res, 0) }
}

pub(super) fn gather_nd(ops: &[&TensorType], batch_dims: i64) -> Types {
    Ok(vec![TensorType::new(ops[0].dtype, slices(ops[0], ops[1], batch_dims)?)])
}

pub(super) fn scatter_nd(ops: &[&TensorType], mode: ScatterMode, batch_dims: i64) -> Types {
    let (data, updates) = (ops[0], ops[2]);
    check_mode(data, mode)?;
    let want = TensorType::new(data.dtype, slices(data, ops[1], batch_dims)?);
    if *updates != want {
        return Err(format!("updates = {updates} must be {want}").into());
    }
    Ok(vec![data.clone()])
}
pub(super) fn scatter_nd_cost(ops: &[&TensorType], res: &[&TensorType]) -> Cost {
    Cost { flops: ops[2].numel(), ..streaming(ops, res, 0) }
}
