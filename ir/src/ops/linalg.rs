//! Matrix products.

use super::elementwise::want_float;
use super::shape::broadcast_shapes;
use super::{Cost, OpKind, TypeError, Types, streaming};
use crate::attr::F32;
use crate::types::TensorType;

fn matrix(ty: &TensorType, trans: bool, name: &str) -> Result<(u64, u64), TypeError> {
    want_float(ty, name)?;
    match ty.shape.as_slice() {
        [.., r, c] => Ok(if trans { (*c, *r) } else { (*r, *c) }),
        _ => Err(format!("{name} needs at least two axes, got {ty}").into()),
    }
}

pub(super) fn matmul(ops: &[&TensorType], trans_a: bool, trans_b: bool) -> Types {
    let (m, k) = matrix(ops[0], trans_a, "a")?;
    let (k2, n) = matrix(ops[1], trans_b, "b")?;
    if k != k2 {
        return Err(format!("inner extents differ: {k} (a = {}) and {k2} (b = {})", ops[0], ops[1]).into());
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

pub(super) fn gemm(ops: &[&TensorType], trans_a: bool, trans_b: bool) -> Types {
    if ops[0].rank() != 2 || ops[1].rank() != 2 {
        return Err(format!("a and b must be matrices, got {} and {}", ops[0], ops[1]).into());
    }
    let y = matmul(&ops[..2], trans_a, trans_b)?;
    want_float(ops[2], "c")?;
    if broadcast_shapes(&ops[2].shape, &y[0].shape)? != y[0].shape {
        return Err(format!("c = {} does not broadcast to {}", ops[2], y[0]).into());
    }
    Ok(y)
}

pub(super) fn gemm_cost(ops: &[&TensorType], res: &[&TensorType], ta: bool) -> Cost {
    streaming(ops, res, inner(ops[0], ta).saturating_mul(2).saturating_add(2))
}

/// A `matmul_bias_grad` as two ops, one after the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BiasGrad {
    /// The `matmul` of both operands, the first result.
    pub product: OpKind,
    /// The `reduce_sum` of one operand, the second.
    pub sum: OpKind,
    /// The operand that is summed.
    pub of: usize,
}

impl BiasGrad {
    /// From the attributes of the op.
    pub(super) fn new(trans_a: bool, trans_b: bool, alpha: F32, sum_b: bool) -> BiasGrad {
        // The axis of the sums of a product.
        let axis = if sum_b { u64::from(trans_b) } else { u64::from(!trans_a) };
        BiasGrad {
            product: OpKind::MatMul { trans_a, trans_b, alpha },
            sum: OpKind::ReduceSum { axes: vec![axis], keepdims: false },
            of: usize::from(sum_b),
        }
    }

    /// The two ops of a `matmul_bias_grad`; `None` for any other op.
    pub fn of(op: &OpKind) -> Option<BiasGrad> {
        match op {
            OpKind::MatMulBiasGrad { trans_a, trans_b, alpha, sum_b } => {
                Some(BiasGrad::new(*trans_a, *trans_b, *alpha, *sum_b))
            }
            _ => None,
        }
    }
}

pub(super) fn bias_grad(ops: &[&TensorType], trans_a: bool, trans_b: bool, sum_b: bool) -> Types {
    if ops[0].rank() != 2 || ops[1].rank() != 2 {
        return Err(format!("a and b must be matrices, got {} and {}", ops[0], ops[1]).into());
    }
    let mut results = matmul(ops, trans_a, trans_b)?;
    let BiasGrad { sum, of, .. } = BiasGrad::new(trans_a, trans_b, F32(1.0), sum_b);
    results.extend(sum.infer(&[ops[of]])?);
    Ok(results)
}

/// The arithmetic of both ops, the scratch of the larger, and the traffic of operands and results alone.
pub(super) fn bias_grad_cost(ops: &[&TensorType], res: &[&TensorType], parts: &BiasGrad) -> Cost {
    let (Some(&x), &[y, sum]) = (ops.get(parts.of), res) else { return streaming(ops, res, 0) };
    let (product, sum) = (parts.product.cost(ops, &[y]), parts.sum.cost(&[x], &[sum]));
    Cost {
        flops: product.flops.saturating_add(sum.flops),
        workspace: product.workspace.max(sum.workspace),
        ..streaming(ops, res, 0)
    }
}
