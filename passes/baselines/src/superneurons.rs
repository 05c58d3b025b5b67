//! SuperNeurons: liveness, an LRU tensor cache for the results of expensive layers, and cost-aware
//! recomputation of the others (Wang et al., SuperNeurons, PPoPP 2018, arXiv 1801.04380).
//!
//! As published: a tensor is freed after its last use. The unified tensor pool offloads only the results of
//! convolutions. Its tensor cache does so only when memory runs out, the least recently used first. In the
//! backward pass each convolution fetches the tensors that the convolution before it in the network needs.
//! Cheap layers are dropped in the forward pass and recomputed by segments between convolutions (cost-aware
//! recomputation). A segment of at most l_peak bytes, the most that one layer needs, is speed-centric: it is
//! recomputed once and stays until its use. Others are memory-centric: they are recomputed for every use.
//!
//! The names are the paper's, without section numbers: this follows accounts of it in later papers and
//! reviews. The paper itself was not available.
//!
//! Not in those accounts (the paper describes cuDNN layers), and decided here:
//! - Expensive ops: those with "conv", "gemm", "matmul" or "linear" in their label (the paper: convolutions
//!   and fully connected layers).
//! - Results that are neither expensive nor recomputable from the borders of their segment, such as those of
//!   an in-place update or of an op whose operand is gone by then: the cache holds them like the results of
//!   convolutions.
//! - Cheap layers are dropped only where something does not fit.
//! - End of the forward pass: at the op with the most live bytes, which also decides which tensors are
//!   dropped.
//! - Gradients are in the cache too, unless recomputed. Weights stay.
//! - Convolution workspaces are not chosen: a problem has one time per op.
//! - Ties in recency: the lower index first.

use std::collections::BTreeSet;

use memc_planner::{
    AccessSequence, Action, Decisions, Found, Genotype, NoPlan, Op, OpPos, Planner, Problem, Request,
    TensorId, TensorKind,
};

use super::checkpoint::{Droppable, Segments, droppable};
use super::vdnn::is_conv;
use super::walk::{Eviction, EvictionWalk, Facts, Policy, content, hoist, put_off, writer};

/// The planner.
pub(super) const PLANNER: Planner = Planner {
    name: "superneurons",
    summary: "caches results of expensive layers by recency, swapping them, and computes cheap layers again",
    source: "Wang et al., SuperNeurons, 2018",
    swaps: true,
    recomputes: true,
    plan,
};

fn plan(p: &Problem, request: &Request<'_>) -> Result<Found, NoPlan> {
    let facts = Facts::new(p);
    if facts.peak <= request.capacity {
        let keep = Genotype::keep_all(AccessSequence::of_order(p, p.ops.ids()));
        return Ok(Found { decisions: keep.decisions(p), evaluations: 1 });
    }
    let mut policy = Cache::new(p, &facts, request.allow.recompute);
    let walk = EvictionWalk::new(p, &facts, request, |_| true);
    let (decisions, _) = walk.run(&mut policy).map_err(|e| e.explain(p, "superneurons"))?;
    let decisions = put_off(p, decisions, request.capacity);
    let launch = launches(p, &decisions);
    let lead = |_: TensorId, slot: usize| launch.get(slot).map_or((slot, slot), |&at| (at, at));
    Ok(Found { decisions: hoist(p, decisions, request.capacity, &lead), evaluations: 1 })
}

/// True if a layer's result is worth its copies.
fn expensive(op: &Op) -> bool {
    let label = op.label.to_ascii_lowercase();
    is_conv(op) || ["gemm", "matmul", "linear"].iter().any(|s| label.contains(s))
}

/// True if a tensor can be recomputed without running an expensive op, or one of another segment.
fn cheap(p: &Problem, dropped: &Segments, d: &Droppable, segment: &dyn Fn(OpPos) -> usize) -> bool {
    let here = segment(d.by);
    let (mut seen, mut open) = (BTreeSet::from([d.by]), vec![d.by]);
    while let Some(op) = open.pop() {
        if expensive(&p.ops[op]) || segment(op) != here {
            return false;
        }
        for &r in &p.ops[op].reads {
            let operand = &p.tensors[r];
            if dropped.of.get(&r).is_some_and(|&g| g != here) {
                return false;
            }
            let gone = operand.kind == TensorKind::Transient && operand.touches.last() < Some(&d.next);
            if let Some(by) = writer(p, r, content(p, r, op)).filter(|_| gone)
                && seen.insert(by)
            {
                open.push(by);
            }
        }
    }
    true
}

/// For every run of decisions, the last expensive one before it: where its copies start.
fn launches(p: &Problem, d: &Decisions) -> Vec<usize> {
    let runs = d.actions.iter().filter_map(|a| if let Action::Run(run) = a { Some(run.op) } else { None });
    let mut last = 0;
    let mut out = Vec::new();
    for (k, op) in runs.enumerate() {
        out.push(last);
        if expensive(&p.ops[op]) {
            last = k;
        }
    }
    out.push(last);
    out
}

struct Cache {
    segments: Segments,
    /// By segment: true if it is computed anew for every use.
    memory_centric: Vec<bool>,
    split: OpPos,
}

impl Cache {
    fn new(p: &Problem, facts: &Facts, recompute: bool) -> Cache {
        let borders: Vec<OpPos> = p.ops.ids().filter(|&i| expensive(&p.ops[i])).collect();
        let mut segments = Segments { groups: vec![Vec::new(); borders.len() + 1], ..Segments::default() };
        let segment = |op: OpPos| borders.partition_point(|&b| b <= op);
        for d in droppable(p, facts).iter().filter(|_| recompute) {
            if cheap(p, &segments, d, &segment) {
                segments.drop(d, segment(d.by));
            }
        }
        let l_peak = p.largest_working_set().1;
        let bytes = |g: &Vec<TensorId>| g.iter().map(|&t| p.tensors[t].bytes).sum::<u64>();
        let memory_centric = segments.groups.iter().map(|g| bytes(g) > l_peak).collect();
        Cache { segments, memory_centric, split: facts.split }
    }

    /// True if the tensor is of a segment that does not stay.
    fn fleeting(&self, t: TensorId) -> bool {
        self.segments.of.get(&t).is_some_and(|&g| self.memory_centric[g])
    }
}

impl Policy for Cache {
    fn score(&mut self, w: &EvictionWalk<'_>, t: TensorId) -> Option<f64> {
        // The rest of a segment, which memory-centric recomputation drops on its way.
        if !w.needed(t) || (w.position >= self.split && self.fleeting(t)) {
            return Some(-1.0);
        }
        let cached = w.p.tensors[t].kind != TensorKind::Persistent && !self.segments.of.contains_key(&t);
        cached.then(|| w.last[t] as f64)
    }
    fn eviction(&mut self, _: &EvictionWalk<'_>, t: TensorId) -> Eviction {
        if self.segments.of.contains_key(&t) { Eviction::Recompute } else { Eviction::Swap }
    }
    fn together(&self, t: TensorId) -> &[TensorId] {
        if self.fleeting(t) { &[] } else { self.segments.together(t) }
    }
    fn leave(&mut self, w: &EvictionWalk<'_>) -> Vec<(TensorId, Eviction)> {
        let mut out = self.segments.leave(w);
        if w.position >= self.split {
            let fleeting = self.segments.of.keys().filter(|&&t| self.fleeting(t) && w.here[t]);
            out.extend(fleeting.map(|&t| (t, Eviction::Recompute)));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memc_planner::sample::chain;
    use memc_planner::solve;

    const MB: u64 = 1 << 20;

    /// Every second layer of a chain is a convolution.
    fn network() -> Problem {
        let mut p = chain(8, MB, 4 * MB, 4 * MB);
        for i in (0..8).step_by(2) {
            p.ops[OpPos(i)].label = format!("conv{i}");
        }
        p
    }

    /// Cheap layers are computed again, once each as their segments fit, convolutions never, and as long as
    /// memory does not run out nothing is swapped.
    #[test]
    fn cheap_layers_run_again() {
        let p = network();
        let found = plan(&p, &Request::new(7 * MB)).expect("it fits");
        let runs = found
            .decisions
            .actions
            .iter()
            .filter_map(|a| if let Action::Run(r) = a { Some(r) } else { None });
        let recompute: Vec<u32> = runs.filter(|r| r.recompute).map(|r| r.op.0).collect();
        assert_eq!(recompute, [7, 5, 3, 1]);
        assert!(!found.decisions.actions.iter().any(|a| matches!(a, Action::Out(_))));
    }

    /// Out of memory, the least recently used result of a convolution leaves first: the first one.
    #[test]
    fn the_cache_evicts_convolutions_by_recency() {
        let p = network();
        let found = plan(&p, &Request::new(4 * MB + 16 * 256)).expect("it fits");
        let outs = found
            .decisions
            .actions
            .iter()
            .filter_map(|a| if let Action::Out(t) = a { Some(t.0) } else { None });
        let outs: Vec<u32> = outs.collect();
        assert_eq!(outs.first(), Some(&0));
        assert!(outs.iter().all(|t| t % 2 == 0), "{outs:?}");
    }

    /// With room for everything it does nothing.
    #[test]
    fn nothing_happens_without_need() {
        let p = network();
        let (schedule, _) = solve(&p, &PLANNER, &Request::new(9 * MB)).expect("it fits");
        assert_eq!((schedule.evaluation.recompute_ops, schedule.evaluation.swap_in_bytes), (0, 0));
    }
}
