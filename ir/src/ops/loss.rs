//! Losses.

use super::elementwise::{want_float, want_int, want_shape};
use super::{Cost, TypeError, Types, streaming};
use crate::attr::Reduction;
use crate::types::TensorType;

fn label_shape(logits: &TensorType) -> Result<Vec<u64>, TypeError> {
    want_float(logits, "logits")?;
    match logits.shape.as_slice() {
        [n, c, rest @ ..] if *c > 0 => Ok([&[*n], rest].concat()),
        _ => Err(format!("logits need a batch and a non-empty class axis, got {logits}").into()),
    }
}

fn loss_shape(labels: &TensorType, reduction: Reduction) -> Vec<u64> {
    if reduction == Reduction::None { labels.shape.clone() } else { Vec::new() }
}

pub(super) fn cross_entropy(ops: &[&TensorType], reduction: Reduction) -> Types {
    want_int(ops[1], "labels")?;
    want_shape(ops[1], &label_shape(ops[0])?, "labels")?;
    Ok(vec![TensorType::new(ops[0].dtype, loss_shape(ops[1], reduction)), ops[0].clone()])
}

pub(super) fn cross_entropy_grad(ops: &[&TensorType], reduction: Reduction) -> Types {
    want_int(ops[2], "labels")?;
    want_shape(ops[2], &label_shape(ops[1])?, "labels")?;
    want_float(ops[0], "dloss")?;
    want_shape(ops[0], &loss_shape(ops[2], reduction), "dloss")?;
    Ok(vec![ops[1].clone()])
}

pub(super) fn cost(ops: &[&TensorType], res: &[&TensorType]) -> Cost {
    let elements = ops[..2].iter().map(|t| t.numel()).max().unwrap_or(0);
    Cost { flops: elements.saturating_mul(12), ..streaming(ops, res, 0) }
}
