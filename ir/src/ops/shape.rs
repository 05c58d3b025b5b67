//! Shape and data movement ops, and the broadcasting rule.

use super::{Cost, TypeError, Types, streaming};
use crate::attr::Scalar;
use crate::types::{DType, TensorType};

/// The shape two operands broadcast to (numpy rules), or why they do not.
pub fn broadcast_shapes(a: &[u64], b: &[u64]) -> Result<Vec<u64>, TypeError> {
    let rank = a.len().max(b.len());
    let at = |s: &[u64], i: usize| (i + s.len()).checked_sub(rank).map_or(1, |j| s[j]);
    (0..rank)
        .map(|i| match (at(a, i), at(b, i)) {
            (x, y) if x == y => Ok(x),
            (1, y) => Ok(y),
            (x, 1) => Ok(x),
            _ => Err(format!("shapes {a:?} and {b:?} do not broadcast").into()),
        })
        .collect()
}

pub(super) fn broadcast_all(ops: &[&TensorType]) -> Result<Vec<u64>, TypeError> {
    ops.iter().try_fold(Vec::new(), |s, t| broadcast_shapes(&s, &t.shape))
}

/// The non-negative axis that `axis` names in a tensor of `rank` axes.
pub(super) fn resolve_axis(axis: i64, rank: usize) -> Result<usize, TypeError> {
    usize::try_from(axis)
        .ok()
        .filter(|&a| a < rank)
        .ok_or_else(|| format!("axis {axis} is not within rank {rank}").into())
}

pub(super) fn copy(ops: &[&TensorType]) -> Types {
    Ok(vec![ops[0].clone()])
}

pub(super) fn reshape(ops: &[&TensorType], shape: &[u64]) -> Types {
    let y = TensorType::new(ops[0].dtype, shape);
    if y.checked_numel() != ops[0].checked_numel() {
        return Err(format!("{} and shape {shape:?} differ in element count", ops[0]).into());
    }
    Ok(vec![y])
}

/// Cost of a view, which never runs.
pub(super) fn no_cost(_ops: &[&TensorType], _res: &[&TensorType]) -> Cost {
    Cost::default()
}

pub(super) fn transpose(ops: &[&TensorType], perm: &[u64]) -> Types {
    let rank = ops[0].rank();
    let mut seen = vec![false; rank];
    for &p in perm {
        match usize::try_from(p).ok().and_then(|p| seen.get_mut(p)) {
            Some(s) if !*s => *s = true,
            _ => return Err(format!("perm {perm:?} is not a permutation of {rank} axes").into()),
        }
    }
    if perm.len() != rank {
        return Err(format!("perm {perm:?} is not a permutation of {rank} axes").into());
    }
    let shape: Vec<u64> = perm.iter().map(|&p| ops[0].shape[p as usize]).collect();
    Ok(vec![TensorType::new(ops[0].dtype, shape)])
}
pub(super) fn broadcast(ops: &[&TensorType], shape: &[u64]) -> Types {
    if broadcast_shapes(&ops[0].shape, shape)? != shape {
        return Err(format!("{} does not broadcast to {shape:?}", ops[0]).into());
    }
    Ok(vec![TensorType::new(ops[0].dtype, shape)])
}

pub(super) fn slice(ops: &[&TensorType], starts: &[i64], ends: &[i64], steps: &[i64]) -> Types {
    let x = ops[0];
    if [starts.len(), ends.len(), steps.len()] != [x.rank(); 3] {
        return Err(format!("starts, ends and steps must have one entry for each axis of {x}").into());
    }
    let mut shape = Vec::with_capacity(x.rank());
    for (i, &d) in x.shape.iter().enumerate() {
        let (start, end, step, d) = (starts[i], ends[i], steps[i], d as i64);
        let legal = if step > 0 {
            (0..=d).contains(&start) && (0..=d).contains(&end)
        } else {
            (0..d.max(1)).contains(&start) && (-1..d.max(1)).contains(&end)
        };
        if step == 0 || step == i64::MIN || !legal {
            return Err(format!("slice {start}..{end} by {step} does not fit axis {i} of {x}").into());
        }
        let span = if step > 0 { end - start } else { start - end };
        shape.push(if d == 0 { 0 } else { span.max(0).unsigned_abs().div_ceil(step.unsigned_abs()) });
    }
    Ok(vec![TensorType::new(x.dtype, shape)])
}
pub(super) fn slice_cost(ops: &[&TensorType], res: &[&TensorType]) -> Cost {
    Cost { bytes_read: res[0].bytes(), ..streaming(ops, res, 0) }
}

pub(super) fn concat(ops: &[&TensorType], axis: i64) -> Types {
    let mut y = ops[0].clone();
    let axis = resolve_axis(axis, y.rank())?;
    for x in &ops[1..] {
        let fits = x.dtype == y.dtype
            && x.rank() == y.rank()
            && (0..y.rank()).all(|i| i == axis || x.shape[i] == y.shape[i]);
        if !fits {
            return Err(format!("{x} cannot be concatenated to {y} along axis {axis}").into());
        }
        y.shape[axis] = y.shape[axis].checked_add(x.shape[axis]).ok_or("extent overflows")?;
    }
    Ok(vec![y])
}

fn check_value(value: Scalar, dtype: DType) -> Result<(), TypeError> {
    match value.to_bytes(dtype) {
        Some(_) => Ok(()),
        None => Err(format!("value {value:?} is not of element type {dtype}").into()),
    }
}

pub(super) fn pad(ops: &[&TensorType], before: &[u64], after: &[u64], value: Scalar) -> Types {
    let x = ops[0];
    if [before.len(), after.len()] != [x.rank(); 2] {
        return Err(format!("before and after must have one entry for each axis of {x}").into());
    }
    check_value(value, x.dtype)?;
    let sum = |i: usize| x.shape[i].checked_add(before[i])?.checked_add(after[i]);
    let shape: Option<Vec<u64>> = (0..x.rank()).map(sum).collect();
    Ok(vec![TensorType::new(x.dtype, shape.ok_or("padded extent overflows")?)])
}

pub(super) fn fill(_ops: &[&TensorType], dtype: DType, shape: &[u64], value: Scalar) -> Types {
    check_value(value, dtype)?;
    Ok(vec![TensorType::new(dtype, shape)])
}
