//! Lifetimes that the order of a problem implies: the last position at which each content can be recomputed.

use memc_ir::Arena;
use memc_planner::{AccessSequence, Genotype, OpPos, Problem, StepPos, TensorId};

/// Position after the last op.
pub(crate) const NEVER: OpPos = OpPos(u32::MAX);

/// Facts of the given order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// The op with the most bytes on the device when nothing leaves early, which parts the forward from the
    /// backward pass.
    pub(crate) split: OpPos,
    /// Those bytes.
    pub(crate) peak: u64,
    /// By tensor and content (how many writes it has seen): the last position just before which it can be
    /// computed.
    limits: Arena<TensorId, Vec<OpPos>>,
}

impl Facts {
    /// Of a problem's order.
    pub(crate) fn new(p: &Problem) -> Facts {
        let order = AccessSequence::of_order(p, p.ops.ids());
        let live = Genotype::keep_all(order).usage();
        let split = live.ids().max_by_key(|&i| (live[i], std::cmp::Reverse(i))).unwrap_or(StepPos(0));
        let peak = live.get(split).copied().unwrap_or(0);
        let mut limits: Arena<TensorId, Vec<OpPos>> =
            p.tensors.values().map(|t| vec![OpPos(0); t.writes.len() + 1]).collect();
        for (i, op) in p.ops.iter() {
            let limit = if op.repeatable { recompute_limit(p, &limits, i) } else { OpPos(0) };
            for &t in op.writes.iter().filter(|&t| !op.reads.contains(t)) {
                limits[t][content(p, t, i) + 1] = limit;
            }
        }
        Facts { split: OpPos(split.0), peak, limits }
    }

    /// True if a content can be recomputed just before `position`, from contents that are there or can be
    /// recomputed then.
    pub(crate) fn recomputable(&self, t: TensorId, content: usize, position: OpPos) -> bool {
        let limits = &self.limits[t];
        position < NEVER && limits.get(content).is_some_and(|&l| l > OpPos(0) && position <= l)
    }
}

/// Number of writes that a tensor has seen just before a position.
pub(crate) fn content(p: &Problem, t: TensorId, position: OpPos) -> usize {
    p.tensors[t].writes.partition_point(|&w| w < position)
}

/// The op whose run gives a tensor a content; none for the content that it starts with.
pub(crate) fn writer(p: &Problem, t: TensorId, content: usize) -> Option<OpPos> {
    p.tensors[t].writes.get(content.checked_sub(1)?).copied()
}

/// Time until which an op can be recomputed: while each operand has the content that it
/// had, or can have it again.
fn recompute_limit(p: &Problem, limits: &Arena<TensorId, Vec<OpPos>>, w: OpPos) -> OpPos {
    let op = &p.ops[w];
    let operand = |&r: &TensorId| {
        let tensor = &p.tensors[r];
        let had = content(p, r, w);
        let overwritten = tensor.writes.get(had).copied().unwrap_or(NEVER);
        // Once nothing reads a content any more it is gone, but for what a step begins or ends with.
        let end = match tensor.writes.get(had) {
            Some(_) if tensor.kind.arrives() && had == 0 => overwritten,
            Some(&o) if p.ops[o].reads.contains(&r) => o,
            Some(&o) => {
                tensor.touches[..tensor.touches.partition_point(|&x| x < o)].last().map_or(OpPos(0), |&x| x)
            }
            None if tensor.persistent() || tensor.kind.arrives() && had == 0 => NEVER,
            None => tensor.touches.last().copied().unwrap_or(OpPos(0)),
        };
        overwritten.min(end.max(limits[r][had]))
    };
    op.reads.iter().map(operand).min().unwrap_or(NEVER)
}
