//! Legal values of integer inputs.
//!
//! An input that ends up as an index or label must stay within what its consumers accept. The range is
//! followed from the input through ops that keep its values to every such consumer; synthetic data then is
//! legal.

use memc_ir::{Code, DType, Feed, Id, InputId, Module, Op, OpKind, ValueId};

/// Sets the range of every integer data input whose consumers imply one.
pub(crate) fn derive(module: &mut Module) {
    let users = module.users();
    let wanted: Vec<InputId> = module
        .inputs
        .iter()
        .filter(|(_, x)| matches!(x.feed, Feed::Data { .. }) && module.values[x.value].ty.dtype.is_int())
        .map(|(id, _)| id)
        .collect();
    for id in wanted {
        let start = module.inputs[id].value;
        let mut seen = vec![false; module.values.len()];
        let mut work = vec![start];
        let mut found: Option<(i64, i64)> = None;
        while let Some(v) = work.pop() {
            if std::mem::replace(&mut seen[v.index()], true) {
                continue;
            }
            for &op in &users[v.index()] {
                let op = &module.ops[op];
                let limit = op.operands.iter().enumerate().filter(|&(_, &x)| x == v);
                for end in limit.filter_map(|(i, _)| limit_of(module, op, i)) {
                    let (low, high) = found.unwrap_or((0, i64::MAX));
                    found = Some((low, high.min(end)));
                }
                if keeps_values(op, v) {
                    work.extend(&op.results);
                }
            }
        }
        if let Feed::Data { range, .. } = &mut module.inputs[id].feed {
            *range = found;
        }
    }
}

/// One more than the largest legal value of operand `i` of `op`, when it is an index or label.
fn limit_of(module: &Module, op: &Op, i: usize) -> Option<i64> {
    let Code::Compute(kind) = &op.code else { return None };
    let extent = |operand: usize, axis: i64| {
        let ty = &module.values[*op.operands.get(operand)?].ty;
        i64::try_from(*ty.shape.get(usize::try_from(axis).ok()?)?).ok()
    };
    match (kind, i) {
        (OpKind::Gather { axis } | OpKind::GatherElements { axis }, 1) => extent(0, *axis),
        (OpKind::ScatterElements { axis, .. }, 1) => extent(0, *axis),
        (OpKind::GatherGrad { dim, .. }, 0) => Some(*dim),
        (OpKind::CrossEntropy { .. }, 1) => extent(0, 1),
        (OpKind::CrossEntropyGrad { .. }, 2) => extent(1, 1),
        // One bound for all columns of the index tuples: the smallest indexed extent.
        (OpKind::ScatterNd { .. }, 1) => {
            let depth = module.values[*op.operands.get(1)?].ty.shape.last().copied()?;
            (0..i64::try_from(depth).ok()?).filter_map(|axis| extent(0, axis)).min()
        }
        _ => None,
    }
}

/// Whether the op's result holds values of `v` (perhaps among others).
fn keeps_values(op: &Op, v: ValueId) -> bool {
    let Code::Compute(kind) = &op.code else { return false };
    match kind {
        OpKind::Cast { to } => matches!(to, DType::I32 | DType::I64),
        OpKind::Copy {}
        | OpKind::Reshape { .. }
        | OpKind::Transpose { .. }
        | OpKind::Broadcast { .. }
        | OpKind::Slice { .. }
        | OpKind::Pad { .. }
        | OpKind::Concat { .. } => true,
        OpKind::Select {} => op.operands.get(1) == Some(&v) || op.operands.get(2) == Some(&v),
        OpKind::Gather { .. } | OpKind::GatherElements { .. } => op.operands.first() == Some(&v),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memc_ir::{Feed, Init, Role, TensorType};

    /// A label that is masked, reshaped and used as an index gets the indexed extent as its range.
    #[test]
    fn ranges_pass_through_views_and_selects() {
        let mut m = Module::new("m");
        let data = |s: &str| Feed::Data { source: s.into(), micro: 0, range: None };
        let y = m.add_input("y", TensorType::new(DType::I64, [4]), data("y"));
        m.add_input("unused", TensorType::new(DType::I64, [4]), data("unused"));
        let w = m.add_state("w", TensorType::new(DType::F32, [4, 10]), Role::Param, Init::Zeros);
        let w = m.states[w].value;
        let zero = m.add_const("zero", TensorType::scalar(DType::I64), 0i64.to_le_bytes());
        let mut op = |kind, operands: &[ValueId]| m.add_op(kind, operands, &[], "").expect("op")[0];
        let known = op(OpKind::Less {}, &[zero, y]);
        let masked = op(OpKind::Select {}, &[known, y, zero]);
        let column = op(OpKind::Reshape { shape: vec![4, 1] }, &[masked]);
        op(OpKind::GatherElements { axis: 1 }, &[w, column]);
        derive(&mut m);
        let ranges: Vec<_> = m
            .inputs
            .values()
            .map(|x| if let Feed::Data { range, .. } = x.feed { range } else { None })
            .collect();
        assert_eq!(ranges, [Some((0, 10)), None]);
    }
}
