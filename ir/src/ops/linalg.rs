//! Matrix products.

use super::elementwise::want_float;
use super::shape::broadcast_shapes;
use super::{Cost, streaming};
use crate::types::TensorType;

type Types = Result<Vec<TensorType>, String>;

fn matrix(ty: &TensorType, trans: bool, name: &str) -> Result<(u64, u64), String> {
    want_float(ty, name)?;
    match ty.shape.as_slice() {
        [.., r, c] => Ok(if trans { (*c, *r) } else { (*r, *c) }),
        _ => Err(format!("{name} needs at least two axes, got {ty}")),
    }
}

pub(super) fn matmul(ops: &[&TensorType], trans_a: bool, trans_b: bool, _alpha: f32) -> Types {
    let (m, k) = matrix(ops[0], trans_a, "a")?;
    let (k2, n) = matrix(ops[1], trans_b, "b")?;
    if k != k2 {
        return Err(format!("inner extents differ: {k} (a = {}) and {k2} (b = {})", ops[0], ops[1]));
    }
    let lead = |t: &TensorType| t.shape[..t.shape.len() - 2].to_vec();
    let mut shape = broadcast_shapes(&lead(ops[0]), &lead(ops[1]))?;
    shape.extend([m, n]);
    Ok(vec![TensorType::new(ops[0].dtype, shape)])
}

fn inner(a: &TensorType, trans_a: bool) -> u64 {
    let r = a.shape.len();
    if r < 2 { 1 } else { a.shape[if trans_a { r - 2 } else { r - 1 }] }
}

pub(super) fn matmul_cost(ops: &[&TensorType], res: &[&TensorType], ta: bool) -> Cost {
    streaming(ops, res, inner(ops[0], ta).saturating_mul(2))
}

pub(super) fn gemm(ops: &[&TensorType], trans_a: bool, trans_b: bool, alpha: f32, _beta: f32) -> Types {
    if ops[0].rank() != 2 || ops[1].rank() != 2 {
        return Err(format!("a and b must be matrices, got {} and {}", ops[0], ops[1]));
    }
    let y = matmul(&ops[..2], trans_a, trans_b, alpha)?;
    want_float(ops[2], "c")?;
    if broadcast_shapes(&ops[2].shape, &y[0].shape)? != y[0].shape {
        return Err(format!("c = {} does not broadcast to {}", ops[2], y[0]));
    }
    Ok(y)
}

pub(super) fn gemm_cost(ops: &[&TensorType], res: &[&TensorType], ta: bool) -> Cost {
    streaming(ops, res, inner(ops[0], ta).saturating_mul(2).saturating_add(2))
}
