//! Matrix products.

use memc_ir::OpKind;
use memc_ir::attr::F32;

use crate::context::{Done, NodeCx};
use crate::error::unsupported;

/// `MatMul`; a vector operand is a matrix with one row (left) or column (right) that disappears again.
pub(crate) fn matmul(n: &mut NodeCx<'_, '_>) -> Done {
    let kind = OpKind::MatMul { trans_a: false, trans_b: false, alpha: F32(1.0) };
    let (mut a, mut b) = (n.operand(0)?, n.operand(1)?);
    let (a_shape, b_shape) = (n.ty(a).shape.clone(), n.ty(b).shape.clone());
    if a_shape.len() > 1 && b_shape.len() > 1 {
        return n.finish(kind, &[a, b]);
    }
    if let [k] = a_shape[..] {
        a = n.reshaped(a, &[1, k])?;
    }
    if let [k] = b_shape[..] {
        b = n.reshaped(b, &[k, 1])?;
    }
    let y = n.temp(kind, &[a, b])?;
    let mut shape = n.ty(y).shape.clone();
    if b_shape.len() == 1 {
        shape.pop();
    }
    if a_shape.len() == 1 {
        shape.remove(shape.len() - if b_shape.len() == 1 { 1 } else { 2 });
    }
    n.finish(OpKind::Reshape { shape }, &[y])
}

/// `Gemm`; without a third operand, or with `beta` zero, it is a plain product.
pub(crate) fn gemm(n: &mut NodeCx<'_, '_>) -> Done {
    let (trans_a, trans_b) = (n.flag("transA", false)?, n.flag("transB", false)?);
    let (alpha, beta) = (F32(n.float("alpha", 1.0)?), F32(n.float("beta", 1.0)?));
    let (a, b, c) = (n.operand(0)?, n.operand(1)?, n.optional(2)?);
    if n.ty(a).rank() != 2 || n.ty(b).rank() != 2 {
        return Err(format!("operands must be matrices, not {} and {}", n.ty(a), n.ty(b)).into());
    }
    match c {
        Some(c) if beta.0 != 0.0 => n.finish(OpKind::Gemm { trans_a, trans_b, alpha, beta }, &[a, b, c]),
        _ => n.finish(OpKind::MatMul { trans_a, trans_b, alpha }, &[a, b]),
    }
}

/// Microsoft's `FusedMatMul`.
pub(crate) fn fused_matmul(n: &mut NodeCx<'_, '_>) -> Done {
    if n.flag("transBatchA", false)? || n.flag("transBatchB", false)? {
        return unsupported("transposed batch axes are not supported; only transA and transB are");
    }
    let (trans_a, trans_b) = (n.flag("transA", false)?, n.flag("transB", false)?);
    let alpha = F32(n.float("alpha", 1.0)?);
    let operands = [n.operand(0)?, n.operand(1)?];
    if operands.iter().any(|&v| n.ty(v).rank() < 2) {
        return unsupported("vector operands are not supported");
    }
    n.finish(OpKind::MatMul { trans_a, trans_b, alpha }, &operands)
}
