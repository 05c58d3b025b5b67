//! Ops that move elements without computing.

use egg::Id;
use memc_ir::{OpKind, TensorType, ops::broadcast_shapes};

use crate::graph::facts::POINTWISE;
use crate::graph::simplify::lang::result_type;
use crate::graph::simplify::rule::{Found, RuleDef, Term};

/// The (permutation, operand) pairs of transposes among the terms of a class.
fn transposes<'a>(f: &Found<'a>, id: Id) -> impl Iterator<Item = (&'a [u64], Id)> + use<'a> {
    f.defs(id).filter_map(|(kind, x)| match kind {
        OpKind::Transpose { perm } => Some((perm.as_slice(), x[0])),
        _ => None,
    })
}

/// Whether a permutation exchanges the two innermost axes and leaves the others.
fn swaps_innermost(perm: &[u64]) -> bool {
    let Some((lead, [a, b])) = perm.split_last_chunk::<2>() else { return false };
    let r = lead.len() as u64;
    lead.iter().copied().eq(0..r) && (*a, *b) == (r + 1, r)
}

/// The permutation that exchanges the two innermost of `rank` axes.
fn swap_innermost(rank: usize) -> Vec<u64> {
    let mut perm: Vec<u64> = (0..rank as u64).collect();
    if rank >= 2 {
        perm.swap(rank - 2, rank - 1);
    }
    perm
}

pub(super) const TRANSPOSE_OF_TRANSPOSE: RuleDef = RuleDef {
    name: "transpose-of-transpose",
    doc: "Two transposes in a row are one, or none. Exact: elements are only moved.",
    on: &["transpose"],
    rewrite: |f, offers| {
        let (OpKind::Transpose { perm: outer }, &[t]) = (f.kind, f.operands) else { return };
        for (inner, x) in transposes(f, t) {
            let perm: Vec<u64> = outer.iter().map(|&i| inner[i as usize]).collect();
            let same = perm.is_sorted();
            offers.push(if same { Term::Class(x) } else { Term::op(OpKind::Transpose { perm }, &[x]) });
        }
    },
};

pub(super) const RESHAPE_OF_RESHAPE: RuleDef = RuleDef {
    name: "reshape-of-reshape",
    doc: "Two reshapes in a row are one, or none. Exact: no element moves.",
    on: &["reshape"],
    rewrite: |f, offers| {
        for (kind, inner) in f.operands.iter().flat_map(|&x| f.defs(x)) {
            if matches!(kind, OpKind::Reshape { .. }) {
                let same = f.type_of(inner[0]) == f.ty;
                offers.push(if same { Term::Class(inner[0]) } else { Term::op(f.kind.clone(), inner) });
            }
        }
    },
};

pub(super) const RESHAPE_PAST_TRANSPOSE: RuleDef = RuleDef {
    name: "reshape-past-transpose",
    doc: "Regrouping the leading axes of a tensor whose two innermost axes were exchanged is exchanging \
          them after regrouping, which lets a matrix product take the transpose. Exact: elements are only \
          moved.",
    on: &["reshape"],
    rewrite: |f, offers| {
        let &[t] = f.operands else { return };
        let from = &f.type_of(t).shape;
        let (Some((lead, [r, c])), Some((_, last))) =
            (f.ty.shape.split_last_chunk::<2>(), from.split_last_chunk::<2>())
        else {
            return;
        };
        if [*r, *c] != *last {
            return;
        }
        for (_, x) in transposes(f, t).filter(|(perm, _)| swaps_innermost(perm)) {
            let regrouped = OpKind::Reshape { shape: [lead, &[*c, *r]].concat() };
            let perm = swap_innermost(f.ty.rank());
            offers.push(Term::Op(OpKind::Transpose { perm }, vec![Term::op(regrouped, &[x])]));
        }
    },
};

pub(super) const TRANSPOSE_PAST_POINTWISE: RuleDef = RuleDef {
    name: "transpose-past-pointwise",
    doc: "An element-wise op on operands that are all transposed alike, or have one element, may come \
          before the transpose, where it meets other transposes or a matrix product. Exact: every element \
          is computed from the same elements.",
    on: POINTWISE,
    rewrite: |f, offers| {
        for (perm, _) in f.operands.iter().flat_map(|&id| transposes(f, id)) {
            let before = |&id: &Id| {
                let ty = f.type_of(id);
                if ty.numel() == 1 && ty.rank() <= f.ty.rank() && f.ty.numel() != 1 {
                    return Some(id);
                }
                let alike = |(p, _): &(&[u64], Id)| *p == perm && ty.shape == f.ty.shape;
                transposes(f, id).find(alike).map(|(_, x)| x)
            };
            if let Some(operands) = f.operands.iter().map(before).collect::<Option<Vec<Id>>>() {
                let inner = Term::op(f.kind.clone(), &operands);
                offers.push(Term::Op(OpKind::Transpose { perm: perm.to_vec() }, vec![inner]));
            }
        }
    },
};

pub(super) const BROADCAST_IN_POINTWISE: RuleDef = RuleDef {
    name: "broadcast-in-pointwise",
    doc: "An element-wise op broadcasts its operands itself, or comes before the broadcast when no other \
          operand needs the larger shape. Exact: every element is computed from the same elements.",
    on: POINTWISE,
    rewrite: |f, offers| {
        for (i, &id) in f.operands.iter().enumerate() {
            for (kind, inner) in f.defs(id) {
                if !matches!(kind, OpKind::Broadcast { .. }) {
                    continue;
                }
                let mut operands = f.operands.to_vec();
                operands[i] = inner[0];
                let types: Vec<&TensorType> = operands.iter().map(|&o| f.type_of(o)).collect();
                let Some(ty) = result_type(f.kind, &types) else { continue };
                let small = Term::op(f.kind.clone(), &operands);
                let shape = f.ty.shape.clone();
                if ty == *f.ty {
                    offers.push(small);
                } else if broadcast_shapes(&ty.shape, &shape).as_ref() == Ok(&shape) {
                    offers.push(Term::Op(OpKind::Broadcast { shape }, vec![small]));
                }
            }
        }
    },
};

/// Product of all extents but the two innermost.
fn lead(f: &Found<'_>, id: Id) -> u64 {
    let shape = &f.type_of(id).shape;
    shape[..shape.len().saturating_sub(2)].iter().product()
}

pub(super) const TRANSPOSE_OF_MATMUL: RuleDef = RuleDef {
    name: "transpose-of-matmul",
    doc: "A matrix product whose two innermost axes are exchanged is the product of the exchanged operands \
          the other way round. Exact: the kernels promise the same order of summation for both where the \
          leading axes are equal.",
    on: &["transpose"],
    rewrite: |f, offers| {
        let (OpKind::Transpose { perm }, &[y]) = (f.kind, f.operands) else { return };
        if !swaps_innermost(perm) {
            return;
        }
        for (kind, operands) in f.defs(y) {
            let (OpKind::MatMul { trans_a, trans_b, alpha }, &[a, b]) = (kind, operands) else { continue };
            let [x, z] = [a, b].map(|id| f.type_of(id).shape.split_last_chunk::<2>().map(|(lead, _)| lead));
            if x == z {
                let kind = OpKind::MatMul { trans_a: !trans_b, trans_b: !trans_a, alpha: *alpha };
                offers.push(Term::op(kind, &[b, a]));
            }
        }
    },
};

pub(super) const MATMUL_TAKES_TRANSPOSE: RuleDef = RuleDef {
    name: "matmul-takes-transpose",
    doc: "A matrix product reads an operand whose two innermost axes are exchanged through its `trans_a` or \
          `trans_b`. Exact: the kernels promise the same order of summation for both, but for an `a` with \
          leading axes on a `b` without, which is left alone.",
    on: &["matmul", "gemm"],
    rewrite: |f, offers| {
        for (i, &id) in f.operands.iter().enumerate().take(2) {
            for (_, x) in transposes(f, id).filter(|(perm, _)| swaps_innermost(perm)) {
                if i == 0 && lead(f, f.operands[1]) == 1 && lead(f, id) > 1 {
                    continue;
                }
                let mut kind = f.kind.clone();
                if let OpKind::MatMul { trans_a, trans_b, .. } | OpKind::Gemm { trans_a, trans_b, .. } =
                    &mut kind
                {
                    let flag = if i == 0 { trans_a } else { trans_b };
                    *flag = !*flag;
                }
                let mut operands = f.operands.to_vec();
                operands[i] = x;
                offers.push(Term::op(kind, &operands));
            }
        }
    },
};

pub(super) const SLICE_OF_CONCAT: RuleDef = RuleDef {
    name: "slice-of-concat",
    doc: "A slice that takes elements of one operand of a concatenation only is a slice of that operand, or \
          the operand. Exact: elements are only moved.",
    on: &["slice"],
    rewrite: |f, offers| {
        let (OpKind::Slice { starts, ends, steps }, &[joined]) = (f.kind, f.operands) else { return };
        for (kind, parts) in f.defs(joined) {
            let OpKind::Concat { axis } = kind else { continue };
            let axis = *axis as usize;
            let mut from = 0;
            for &part in parts {
                let ty = f.type_of(part);
                let to = from + ty.shape[axis] as i64;
                if steps[axis] > 0 && from <= starts[axis] && ends[axis] <= to && f.ty.numel() > 0 {
                    let (mut starts, mut ends) = (starts.clone(), ends.clone());
                    starts[axis] -= from;
                    ends[axis] -= from;
                    let whole = ty == f.ty && steps.iter().all(|&s| s == 1);
                    let kind = OpKind::Slice { starts, ends, steps: steps.clone() };
                    offers.push(if whole { Term::Class(part) } else { Term::op(kind, &[part]) });
                }
                from = to;
            }
        }
    },
};
