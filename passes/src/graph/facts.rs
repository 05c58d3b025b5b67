//! Queries about values and ops that several graph passes share.

use memc_ir::attr::Scalar;
use memc_ir::{Code, DType, Def, Module, OpKind, TensorType, ValueId};

/// The op that computes `value`, with its operands, when it is the op's only result.
pub(super) fn sole_def(m: &Module, value: ValueId) -> Option<(&OpKind, &[ValueId])> {
    let op = &m.ops[m.def_op(value)?];
    match (&op.code, op.results.as_slice()) {
        (Code::Compute(kind), [_]) => Some((kind, &op.operands)),
        _ => None,
    }
}

/// Whether `value` is the same in every step and known to the compiler: a constant or a fill.
pub(super) fn is_constant(m: &Module, value: ValueId) -> bool {
    matches!(m.values[value].def, Def::Const(_))
        || matches!(sole_def(m, value), Some((OpKind::Fill { .. }, _)))
}

/// The element that `value` repeats everywhere, when it is a constant or fill that does.
pub(super) fn splat(m: &Module, value: ValueId) -> Option<Scalar> {
    match (m.const_data(value), sole_def(m, value)) {
        (Some(data), _) => uniform(m.values[value].ty.dtype, data),
        (None, Some((OpKind::Fill { value, .. }, _))) => Some(*value),
        _ => None,
    }
}

/// The element that a dense payload repeats; `None` when it is empty or elements differ in any bit.
pub(super) fn uniform(dtype: DType, data: &[u8]) -> Option<Scalar> {
    let width = dtype.bytes() as usize;
    let first = data.get(..width)?;
    data.chunks(width).all(|e| e == first).then(|| Scalar::from_bytes(first, dtype)).flatten()
}

/// The bytes of one element; none for a number that is not of the element type.
pub(super) fn scalar_bytes(value: Scalar, dtype: DType) -> Vec<u8> {
    value.to_bytes(dtype).unwrap_or_default()
}

/// Whether exchanging the two operands never changes a result that is not NaN.
///
/// `min` and `max` of floats are absent: of two zeros with different signs they take the second.
pub(super) fn commutes(kind: &OpKind, dtype: DType) -> bool {
    match kind {
        OpKind::Add {} | OpKind::Mul {} | OpKind::Equal {} | OpKind::And {} | OpKind::Or {} => true,
        OpKind::Min {} | OpKind::Max {} => dtype.is_int(),
        _ => false,
    }
}

/// Ops whose result at an index depends on the operands at that (broadcast) index only.
#[rustfmt::skip]
pub(super) const POINTWISE: &[&str] = &[
    "neg", "abs", "sign", "not", "exp", "log", "sqrt", "reciprocal", "tanh", "sigmoid", "erf",
    "relu", "gelu", "cast",
    "add", "sub", "mul", "div", "pow", "min", "max", "and", "or",
    "equal", "less", "less_equal", "greater", "greater_equal", "select",
    "relu_grad", "tanh_grad", "sigmoid_grad", "gelu_grad", "moving_average",
];

/// Whether the result holds elements of its one operand, each at least once, and nothing else.
pub(super) fn is_rearrangement(kind: &OpKind) -> bool {
    matches!(
        kind,
        OpKind::Reshape { .. } | OpKind::Transpose { .. } | OpKind::Broadcast { .. } | OpKind::Copy {}
    )
}

/// Whether a transpose by `perm` leaves every element where it is, since only axes of extent 1 move.
pub(super) fn keeps_places(ty: &TensorType, perm: &[u64]) -> bool {
    let extent = |p: &&u64| ty.shape.get(**p as usize).is_some_and(|&d| d != 1);
    perm.iter().filter(extent).is_sorted()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn point_wise_ops_are_ops() {
        for name in POINTWISE {
            assert!(memc_ir::ops::OP_DEFS.iter().any(|d| d.mnemonic == *name), "{name}");
        }
    }
}
