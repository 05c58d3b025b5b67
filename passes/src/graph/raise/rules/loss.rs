//! Softmax cross-entropy as PyTorch decomposes it.

use memc_ir::attr::{Reduction, ScatterMode};
use memc_ir::{OpKind, ValueId};

use crate::graph::raise::edit::Editor;
use crate::graph::raise::rule::{RaiseRule, ensure};

/// The labels `[n, ...]` for `log_prob` `[n, c, ...]`, where `labels` are all of them under any shape.
///
/// Views between labels and their uses cannot have reordered them, nor repeated any when the numbers agree.
fn labelled(g: &mut Editor<'_>, log_prob: ValueId, labels: ValueId) -> Option<ValueId> {
    let mut shape = g.shape(log_prob).to_vec();
    ensure(shape.len() > 1)?;
    shape.remove(1);
    ensure(g.ty(labels).numel() == shape.iter().product::<u64>())?;
    g.reshape(labels, &shape)
}

/// Whether `v` has the shape of `log_prob` with one class.
fn one_class(g: &Editor<'_>, log_prob: ValueId, v: ValueId) -> bool {
    let (shape, one) = (g.shape(log_prob), g.shape(v));
    one.len() == shape.len() && (0..shape.len()).all(|i| one[i] == if i == 1 { 1 } else { shape[i] })
}

/// Whether `v` adds up all elements of what it reads, which has one for each of `labels`.
///
/// Views never drop elements, so that operands which broadcast against each other are seen by their product's
/// count.
fn adds_all(g: &Editor<'_>, v: ValueId, labels: ValueId) -> bool {
    let Some((OpKind::ReduceSum { axes, .. }, &[x])) = g.def(v) else { return false };
    axes.len() == g.ty(x).rank() && g.ty(x).numel() == g.ty(labels).numel()
}

/// The label that counts nothing, when all of `values` are that number.
fn ignored(g: &Editor<'_>, value: ValueId) -> Option<i64> {
    g.number(value).map(|v| v as i64).filter(|_| g.ty(value).dtype.is_int())
}

pub(super) const CROSS_ENTROPY: RaiseRule = RaiseRule {
    name: "cross-entropy",
    doc: "The mean of -log_softmax at the labels over those labels that are not the ignored one is \
          `cross_entropy`, and the log_softmax its second result. Where every label is ignored the loss is \
          0 instead of NaN.",
    patterns: &["(div (reduce_sum=?total (select (equal ~?labels #ignore) 0 (neg ~(gather_elements=?picked \
         (log_softmax=?lp ?x) ~(select (equal ~?labels #ignore) 0 ~?labels))))) ~(cast ~(reduce_sum=?count \
         (cast (not (equal ~?labels #ignore))))))"],
    apply: |g, m| {
        let (x, lp, labels) = (m.get("x")?, m.get("lp")?, m.get("labels")?);
        let picked = m.get("picked")?;
        ensure(matches!(g.def(lp), Some((OpKind::LogSoftmax { axis: 1 }, _))))?;
        ensure(matches!(g.def(picked), Some((OpKind::GatherElements { axis: 1 }, _))))?;
        ensure(one_class(g, lp, picked) && g.ty(m.root).rank() == 0)?;
        ensure(adds_all(g, m.get("total")?, labels) && adds_all(g, m.get("count")?, labels))?;
        let kind =
            OpKind::CrossEntropy { reduction: Reduction::Mean, ignore_index: ignored(g, m.get("ignore")?)? };
        g.aim_at_first(&[lp]);
        let labels = labelled(g, lp, labels)?;
        let &[loss, log_prob] = g.op(kind, &[x, labels])?.as_slice() else { return None };
        ensure(g.replace(m.root, loss))?;
        g.replace(lp, log_prob);
        Some(())
    },
};

pub(super) const CROSS_ENTROPY_GRAD: RaiseRule = RaiseRule {
    name: "cross-entropy-grad",
    doc: "p - exp(log_prob) * sum(p) over the classes is `cross_entropy_grad`, where p is minus dloss over \
          the number of labels that count, at every such label, and 0 elsewhere. Where every label is \
          ignored it is 0.",
    patterns: &["(sub (mul=?p (scatter_elements=?hits 0 ~(select (equal ~?labels #ignore) 0 ~?labels) -1) \
         ~(select=?kept (equal ~?labels #ignore) 0 ~(div ?dloss ~(cast ~(reduce_sum=?count (cast (not \
         (equal ~?labels #ignore)))))))) (mul (exp ?lp) (reduce_sum=?sum ?p)))"],
    apply: |g, m| {
        let (lp, labels, dloss) = (m.get("lp")?, m.get("labels")?, m.get("dloss")?);
        let (p, hits, sum, kept) = (m.get("p")?, m.get("hits")?, m.get("sum")?, m.get("kept")?);
        let (OpKind::ScatterElements { axis: 1, mode: ScatterMode::Add | ScatterMode::Replace }, operands) =
            g.def(hits)?
        else {
            return None;
        };
        // Behind broadcasts over the classes there is one factor for every label.
        let mut factor = g.def(p)?.1.iter().copied().find(|&v| v != hits)?;
        while let Some((OpKind::Broadcast { .. }, &[inner])) = g.def(factor) {
            if one_class(g, lp, factor) {
                break;
            }
            factor = inner;
        }
        ensure(one_class(g, lp, factor) && g.ty(kept).numel() == g.ty(labels).numel())?;
        ensure(one_class(g, lp, *operands.get(1)?) && g.ty(hits) == g.ty(lp))?;
        let (OpKind::ReduceSum { axes, keepdims: true }, _) = g.def(sum)? else { return None };
        ensure(axes.as_slice() == [1] && g.ty(m.root) == g.ty(lp) && adds_all(g, m.get("count")?, labels))?;
        ensure(g.ty(dloss).numel() == 1)?;
        let kind = OpKind::CrossEntropyGrad {
            reduction: Reduction::Mean,
            ignore_index: ignored(g, m.get("ignore")?)?,
        };
        let (dloss, labels) = (g.reshape(dloss, &[])?, labelled(g, lp, labels)?);
        let dx = g.op1(kind, &[dloss, lp, labels])?;
        ensure(g.replace(m.root, dx))
    },
};
