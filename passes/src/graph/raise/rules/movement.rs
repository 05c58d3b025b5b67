//! Shapes around matrix products and reductions.

use memc_ir::attr::F32;
use memc_ir::{OpKind, ValueId};

use crate::graph::raise::edit::Editor;
use crate::graph::raise::rule::{RaiseRule, ensure};

/// Whether one op reads `v`, and it is no output or next state.
pub(super) fn used_once(g: &Editor<'_>, v: ValueId) -> bool {
    g.users(v).count() == 1 && !g.is_root(v)
}

pub(super) const REDUCE_DROPS_AXES: RaiseRule = RaiseRule {
    name: "reduce-drops-axes",
    doc: "A reduction that keeps its axes, reshaped to the shape without them, is the reduction without \
          them, when nothing else reads it.",
    patterns: &[
        "(reshape (reduce_sum=?r ?x))",
        "(reshape (reduce_mean=?r ?x))",
        "(reshape (reduce_max=?r ?x))",
    ],
    apply: |g, m| {
        let (r, x) = (m.get("r")?, m.get("x")?);
        let mut kind = g.def(r)?.0.clone();
        let (OpKind::ReduceSum { keepdims, .. }
        | OpKind::ReduceMean { keepdims, .. }
        | OpKind::ReduceMax { keepdims, .. }) = &mut kind
        else {
            return None;
        };
        ensure(std::mem::replace(keepdims, false) && used_once(g, r))?;
        let small = kind.infer(&[g.ty(x)]).ok()?;
        ensure(small.first() == Some(g.ty(m.root)))?;
        let y = g.op1(kind, &[x])?;
        ensure(g.replace(m.root, y))
    },
};

pub(super) const MATMUL_OF_ROWS: RaiseRule = RaiseRule {
    name: "matmul-of-rows",
    doc: "A matrix product of a stack of matrices with one matrix is the product of all their rows with it.",
    patterns: &["(matmul ?a ?b)"],
    apply: |g, m| {
        let (a, b) = (m.get("a")?, m.get("b")?);
        let kind = g.def(m.root)?.0.clone();
        let OpKind::MatMul { trans_a: false, .. } = kind else { return None };
        ensure(g.ty(a).rank() > 2 && g.ty(b).rank() == 2)?;
        let (&width, lead) = g.shape(a).split_last()?;
        let rows: u64 = lead.iter().product();
        let shape = g.shape(m.root).to_vec();
        let flat = g.reshape(a, &[rows, width])?;
        let y = g.op1(kind, &[flat, b])?;
        let y = g.reshape(y, &shape)?;
        ensure(g.replace(m.root, y))
    },
};

pub(super) const MATMUL_OF_STACKS: RaiseRule = RaiseRule {
    name: "matmul-of-stacks",
    doc: "A product of two stacks of matrices whose leading axes were merged in the same way is the \
          reshaped product of the stacks as they were.",
    patterns: &["(matmul (reshape ?a) (reshape ?b))"],
    apply: |g, m| {
        let (a, b) = (m.get("a")?, m.get("b")?);
        let (kind, &[flat_a, flat_b]) = g.def(m.root)? else { return None };
        let kind = kind.clone();
        fn parts(s: &[u64]) -> Option<(&[u64], &[u64; 2])> {
            s.split_last_chunk::<2>()
        }
        let ((lead_a, mat_a), (lead_b, mat_b)) = (parts(g.shape(a))?, parts(g.shape(b))?);
        let ((flat_lead_a, flat_mat_a), (flat_lead_b, flat_mat_b)) =
            (parts(g.shape(flat_a))?, parts(g.shape(flat_b))?);
        ensure(lead_a == lead_b && flat_lead_a == flat_lead_b && flat_lead_a.len() < lead_a.len())?;
        ensure(mat_a == flat_mat_a && mat_b == flat_mat_b && !flat_lead_a.is_empty())?;
        let shape = g.shape(m.root).to_vec();
        let y = g.op1(kind, &[a, b])?;
        let y = g.reshape(y, &shape)?;
        ensure(g.replace(m.root, y))
    },
};

pub(super) const PAD_PAST_TRANSPOSE: RaiseRule = RaiseRule {
    name: "pad-past-transpose",
    doc: "A transposed tensor that is padded and transposed again is padded along the other axes, with one \
          transpose or none.",
    patterns: &["(transpose (pad=?p (transpose=?y ?x)))"],
    apply: |g, m| {
        let (p, y) = (m.get("p")?, m.get("y")?);
        let (OpKind::Transpose { perm }, OpKind::Pad { before, after, value }) =
            (g.def(m.root)?.0, g.def(p)?.0)
        else {
            return None;
        };
        ensure(used_once(g, p))?;
        let moved = |amounts: &[u64]| -> Option<Vec<u64>> {
            perm.iter().map(|&i| amounts.get(usize::try_from(i).ok()?).copied()).collect()
        };
        let kind = OpKind::Pad { before: moved(before)?, after: moved(after)?, value: *value };
        let perm = perm.clone();
        let x = g.op1(OpKind::Transpose { perm }, &[y])?;
        let y = g.op1(kind, &[x])?;
        ensure(g.replace(m.root, y))
    },
};

/// Whether `v` is a tensor times a constant.
fn is_scaled(g: &Editor<'_>, v: ValueId) -> bool {
    matches!(g.def(v), Some((OpKind::Mul {}, &[_, s])) if g.number(s).is_some())
}

pub(super) const GEMM: RaiseRule = RaiseRule {
    name: "gemm",
    doc: "A matrix product plus a vector added to every row, or plus a matrix that is no multiple of \
          another, as where products are summed up, is `gemm`, when the addend is there before the product \
          and nothing else reads that; the sum may be made under another shape with the same last axis.",
    patterns: &["(add (matmul=?y ?a ?b) ?c)", "(add (reshape=?r (matmul=?y ?a ?b)) ?c)"],
    apply: |g, m| {
        let (y, a, b, c) = (m.get("y")?, m.get("a")?, m.get("b")?, m.get("c")?);
        let &OpKind::MatMul { trans_a, trans_b, alpha } = g.def(y)?.0 else { return None };
        let shape = g.shape(m.root).to_vec();
        let &[rows, columns] = g.shape(y) else { return None };
        ensure(g.ty(a).rank() == 2 && g.ty(b).rank() == 2 && shape.last() == Some(&columns))?;
        let seen = m.get("r").unwrap_or(y);
        ensure(used_once(g, y) && used_once(g, seen) && g.shape(seen) == shape)?;
        // At the product's place: later, its operands would have to stay in memory instead of it.
        g.aim_at_first(&[y]);
        let c = if g.ty(c) == g.ty(m.root) {
            // A scaled tensor plus a gradient is the start of an optimizer's update.
            ensure(!is_scaled(g, c))?;
            g.reshape(c, &[rows, columns])?
        } else {
            ensure(g.ty(c).numel() == columns && g.shape(c).last() == Some(&columns))?;
            g.reshape(c, &[columns])?
        };
        let kind = OpKind::Gemm { trans_a, trans_b, alpha, beta: F32(1.0) };
        let y = g.op1(kind, &[a, b, c])?;
        let y = g.reshape(y, &shape)?;
        ensure(g.replace(m.root, y))
    },
};

pub(super) const SUM_OF_ONE: RaiseRule = RaiseRule {
    name: "sum-of-one",
    doc: "A sum over axes of extent 1 has the same elements, but for -0, which becomes 0.",
    patterns: &["(reduce_sum ?x)", "(reduce_mean ?x)"],
    apply: |g, m| {
        let x = m.get("x")?;
        ensure(g.ty(x).numel() == g.ty(m.root).numel())?;
        let shape = g.shape(m.root).to_vec();
        let y = g.reshape(x, &shape)?;
        ensure(g.replace(m.root, y))
    },
};
