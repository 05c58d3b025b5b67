//! Gradient rules of matrix products.
//!
//! With `A = op(a)`, `B = op(b)` and `Y = alpha A B`: `dA = alpha dY B'`, `dB = alpha A' dY`, and the
//! transposes go into the flags of the products. Leading axes along which an operand was broadcast are
//! summed; a matrix `b` under a batch of `a` gets one product over all rows of the batch instead.

use super::rule::{Done, Rule};
use crate::attr::F32;
use crate::entity::ValueId;
use crate::error::NoGradient;
use crate::ops::OpKind;

fn product(alpha: F32, trans_a: bool, trans_b: bool) -> OpKind {
    OpKind::MatMul { trans_a, trans_b, alpha }
}

/// The gradient of `a`, before broadcast axes are summed.
fn grad_a(r: &mut Rule<'_>, dy: ValueId, ta: bool, tb: bool, alpha: F32) -> Result<ValueId, NoGradient> {
    let b = r.x(1);
    if ta { r.op(product(alpha, tb, true), &[b, dy]) } else { r.op(product(alpha, false, !tb), &[dy, b]) }
}

/// The gradient of `b` from `a` and `dy`, before broadcast axes are summed.
fn grad_b(
    r: &mut Rule<'_>,
    a: ValueId,
    dy: ValueId,
    ta: bool,
    tb: bool,
    alpha: F32,
) -> Result<ValueId, NoGradient> {
    if tb { r.op(product(alpha, true, ta), &[dy, a]) } else { r.op(product(alpha, !ta, false), &[a, dy]) }
}

/// The elements of `v` as one matrix with all axes but the last as rows.
fn as_rows(r: &mut Rule<'_>, v: ValueId) -> Result<ValueId, NoGradient> {
    let shape = r.shape(v);
    let Some((&columns, rows)) = shape.split_last() else { return Ok(v) };
    let rows = rows.iter().try_fold(1u64, |n, &d| n.checked_mul(d)).ok_or("the row count overflows")?;
    r.reshaped(v, &[rows, columns])
}

pub(super) fn matmul(r: &mut Rule<'_>, ta: bool, tb: bool, alpha: F32) -> Done {
    let (dy, a, b) = (r.dy()?, r.x(0), r.x(1));
    let (a_shape, b_shape) = (r.shape(a), r.shape(b));
    if r.wants(0) {
        let da = grad_a(r, dy, ta, tb, alpha)?;
        let da = r.sum_to(da, &a_shape)?;
        r.give(0, da)?;
    }
    if r.wants(1) {
        let is_matrix = b_shape.iter().rev().skip(2).all(|&d| d == 1);
        let (mut rows_a, mut rows_dy) = (a, dy);
        // Of equal leading extents, since `b` adds none.
        if is_matrix && !ta && a_shape.len() > 2 && a_shape.len() >= b_shape.len() {
            (rows_a, rows_dy) = (as_rows(r, a)?, as_rows(r, dy)?);
        }
        let db = grad_b(r, rows_a, rows_dy, ta, tb, alpha)?;
        let db = if rows_a == a { r.sum_to(db, &b_shape)? } else { r.reshaped(db, &b_shape)? };
        r.give(1, db)?;
    }
    Ok(())
}

pub(super) fn gemm(r: &mut Rule<'_>, ta: bool, tb: bool, alpha: F32, beta: F32) -> Done {
    let (dy, a) = (r.dy()?, r.x(0));
    if r.wants(0) {
        let da = grad_a(r, dy, ta, tb, alpha)?;
        r.give(0, da)?;
    }
    if r.wants(1) {
        let db = grad_b(r, a, dy, ta, tb, alpha)?;
        r.give(1, db)?;
    }
    if r.wants(2) {
        let sum = r.sum_to(dy, &r.shape(r.x(2)))?;
        let dc = r.scaled(sum, beta.0)?;
        r.give(2, dc)?;
    }
    Ok(())
}
