//! Checkpointing in √n segments (Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016, arXiv
//! 1604.06174).
//!
//! As published: the forward pass is cut into √n segments. Tensors that pass from one segment to the next are
//! kept, tensors made and used within one are dropped. When the backward pass gets to a segment, the segment
//! is recomputed once. The method is static: the budget does not change it.
//!
//! The names are the paper's, without section numbers: this follows accounts of it in later papers and
//! reviews. The paper itself was not available.
//!
//! Not in those accounts (the paper describes layered networks), and decided here:
//! - End of the forward pass: at the op with the most live bytes.
//! - n, in a graph of ops: the number of forward ops with a recomputable result that the backward pass reads.
//!   Segments have the same number of them, to within one.
//! - The last segment is kept, since its backward pass follows at once.
//! - The number of segments is rounded up where √n is not whole.
//! - Results of ops that update in place or may not repeat are kept.
//! - A dropped tensor that the backward pass does not read itself comes back with its segment where a
//!   recomputation needs it, and leaves after the op that asked for it.

use std::collections::BTreeMap;

use memc_ir::Bytes;
use memc_planner::{Allow, Found, NoPlan, OpPos, Planner, Problem, Request, TensorId, TensorKind};

use super::walk::{Eviction, EvictionWalk, Facts, Policy, content, usage, writer};

/// The planner.
pub(super) const PLANNER: Planner = Planner {
    name: "checkpoint-sqrt",
    summary: "keeps the borders of √n segments of the forward pass and computes the rest again",
    source: "Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016",
    swaps: false,
    recomputes: true,
    plan,
};

fn plan(p: &Problem, request: &Request<'_>) -> Result<Found, NoPlan> {
    let facts = Facts::new(p);
    // Memory is not looked at on the way; the result either fits or does not.
    let open = Request { allow: Allow { swap: false, ..request.allow }, capacity: u64::MAX, ..*request };
    let mut policy = if request.allow.recompute { Segments::sqrt(p, &facts) } else { Segments::default() };
    let walk = EvictionWalk::new(p, &facts, &open, |_| true);
    let (decisions, _) = walk.run(&mut policy).map_err(|e| e.explain(p, "checkpoint-sqrt"))?;
    let peak = usage(p, &decisions).into_iter().max().unwrap_or(0);
    if peak > request.capacity {
        let segments = policy.groups.len();
        return Err(NoPlan::Infeasible(format!(
            "checkpoint-sqrt needs {} with its {segments} segments, whatever the budget",
            Bytes(peak)
        )));
    }
    Ok(Found { decisions, evaluations: 1 })
}

/// Tensors to drop in the forward pass, by segment.
#[derive(Default)]
pub(super) struct Segments {
    /// Tensors that come back together, in the order in which they are made.
    pub(super) groups: Vec<Vec<TensorId>>,
    /// The group of a tensor.
    pub(super) of: BTreeMap<TensorId, usize>,
    /// Tensors to drop after each op.
    pub(super) drops: BTreeMap<OpPos, Vec<TensorId>>,
}

impl Segments {
    /// √n segments.
    fn sqrt(p: &Problem, facts: &Facts) -> Segments {
        let made = droppable(p, facts);
        let mut ops: Vec<OpPos> = made.iter().map(|d| d.by).collect();
        ops.dedup();
        let segments = ops.len().isqrt() + usize::from(ops.len().isqrt().pow(2) < ops.len());
        // The segment of an op; ops in between belong to the one before.
        let border: Vec<OpPos> = (1..segments).map(|s| ops[s * ops.len() / segments]).collect();
        let segment = |i: OpPos| border.partition_point(|&b| b <= i);
        let mut s = Segments { groups: vec![Vec::new(); segments], ..Segments::default() };
        let within = |d: &&Droppable| segment(d.by) == segment(d.last) && segment(d.by) + 1 < segments;
        for d in made.iter().filter(within) {
            s.drop(d, segment(d.by));
        }
        s
    }

    /// Drops a tensor after its last use in the forward pass.
    pub(super) fn drop(&mut self, d: &Droppable, group: usize) {
        self.groups[group].push(d.tensor);
        self.of.insert(d.tensor, group);
        self.drops.entry(d.last).or_default().push(d.tensor);
    }
}

/// A tensor that the forward pass makes, the backward pass reads, and that can be computed again in between.
pub(super) struct Droppable {
    pub(super) tensor: TensorId,
    /// The op that makes it.
    pub(super) by: OpPos,
    /// Its last use in the forward pass.
    pub(super) last: OpPos,
    /// Its first use in the backward pass.
    pub(super) next: OpPos,
}

/// All of them, in the order in which they are made.
pub(super) fn droppable(p: &Problem, facts: &Facts) -> Vec<Droppable> {
    let mut out = Vec::new();
    for (t, tensor) in p.tensors.iter().filter(|(_, t)| t.kind == TensorKind::Transient) {
        let k = tensor.touches.partition_point(|&x| x < facts.split);
        let (Some(&last), Some(&next)) =
            (k.checked_sub(1).and_then(|k| tensor.touches.get(k)), tensor.touches.get(k))
        else {
            continue;
        };
        let seen = content(p, t, next);
        if let Some(by) = writer(p, t, seen)
            && by <= last
            && p.ops[next].reads.contains(&t)
            && facts.recomputable(t, seen, next)
        {
            out.push(Droppable { tensor: t, by, last, next });
        }
    }
    out.sort_by_key(|d| (d.by, d.tensor));
    out
}

impl Policy for Segments {
    fn together(&self, t: TensorId) -> &[TensorId] {
        self.of.get(&t).and_then(|&g| self.groups.get(g)).map_or(&[], Vec::as_slice)
    }
    fn leave(&mut self, w: &EvictionWalk<'_>) -> Vec<(TensorId, Eviction)> {
        let drops = self.drops.get(&w.position);
        drops.into_iter().flatten().map(|&t| (t, Eviction::Recompute)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memc_planner::evaluate;
    use memc_planner::sample;

    /// On a chain of n = k² layers with k segments: every activation but those at the k - 1 borders and in
    /// the last segment is computed again once, and the peak is k - 1 borders and one segment.
    #[test]
    fn a_chain_of_sixteen_layers() {
        let bytes = 1 << 20;
        let p = sample::chain(16, bytes, 1000, 1000);
        let found = plan(&p, &Request::new(1 << 30)).expect("it fits");
        let e = evaluate(&p, found.decisions).expect("the decisions run").evaluation;
        assert_eq!(e.recompute_ops, 3 * 3);
        let activations = e.load_bytes / bytes;
        assert!((3 + 4..=3 + 4 + 1).contains(&activations), "{activations} activations");
    }

    /// The paper's claim: memory grows with √n, and no op runs more than twice.
    #[test]
    fn memory_is_sublinear() {
        for k in [5u64, 8, 12] {
            let p = sample::chain((k * k) as u32, 1 << 20, 1000, 1000);
            let found = plan(&p, &Request::new(1 << 40)).expect("it fits");
            let e = evaluate(&p, found.decisions).expect("the decisions run").evaluation;
            assert!(e.load_bytes <= (2 * k + 1) << 20, "{} bytes for k = {k}", e.load_bytes);
            assert!(e.recompute_ops <= k * k);
        }
    }

    /// The budget is not part of the method: below what it needs there is no plan, and the message says the
    /// bytes.
    #[test]
    fn too_small_a_budget_is_said() {
        let p = sample::chain(16, 1 << 20, 1000, 1000);
        let Err(NoPlan::Infeasible(why)) = plan(&p, &Request::new(5 << 20)) else { panic!("it cannot fit") };
        assert!(why.contains(" MiB (") && why.contains(" B) with its 4 segments"), "{why}");
    }
}
