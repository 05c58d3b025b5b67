//! Reductions.

use super::elementwise::want_float;
use super::{Cost, Types, streaming};
use crate::types::{DType, TensorType};

pub(super) fn reduce(ops: &[&TensorType], axes: &[u64], keepdims: bool) -> Types {
    let x = ops[0];
    if x.dtype == DType::Bool {
        return Err(format!("x must be numeric, got {x}").into());
    }
    if axes.windows(2).any(|w| w[0] >= w[1]) || axes.last().is_some_and(|&a| a >= x.rank() as u64) {
        return Err(format!("axes {axes:?} must ascend and be below the rank of {x}").into());
    }
    let mut shape = Vec::new();
    for (i, &d) in x.shape.iter().enumerate() {
        match (axes.contains(&(i as u64)), keepdims) {
            (false, _) => shape.push(d),
            (true, true) => shape.push(1),
            (true, false) => {}
        }
    }
    Ok(vec![TensorType::new(x.dtype, shape)])
}
pub(super) fn cost(ops: &[&TensorType], res: &[&TensorType]) -> Cost {
    Cost { flops: ops[0].numel(), ..streaming(ops, res, 0) }
}

pub(super) fn sum_squares(ops: &[&TensorType]) -> Types {
    want_float(ops[0], "x")?;
    Ok(vec![TensorType::scalar(DType::F32)])
}
pub(super) fn sum_squares_cost(ops: &[&TensorType], res: &[&TensorType]) -> Cost {
    Cost { flops: ops[0].numel().saturating_mul(2), ..streaming(ops, res, 0) }
}
