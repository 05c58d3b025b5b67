//! DELTA: a filter chooses the tensor to evict, a director chooses between copy and recomputation, a
//! prefetcher brings tensors back (Tang et al., DELTA, 2022).
//!
//! A run-time policy, carried out ahead of time on the step in the given order. Algorithm 1 is the walk:
//! before an op runs, its evicted operands are recomputed, and so are offloaded ones where they can be. While
//! three quarters of memory are in use or the op does not fit, the filter (algorithm 2) chooses the tensor
//! with the least 1 / (bytes · staleness), equation
//! 1. The director (algorithm 3) drops it where h_r / h_o, equation 4, is at most 1, and offloads it
//!    otherwise. h_r is the time of its recomputation, with its evicted neighbours as in DTR. h_o is its
//!    bytes by the bandwidth, of which 35 % count (equations 5 and 6). The prefetcher (algorithm 4) reloads
//!    offloaded tensors in the backward pass while memory is enough, at most n at a time. By assumption 2 the
//!    threshold of three quarters holds in the forward pass only.
//!
//! The filters of equations 2 and 3, which section 5.7 compares with that of equation 1, are planners of
//! their own: `delta-lru` takes the stalest tensor, `delta-greedy` the largest.
//!
//! The paper is silent, or contradicts itself, on these points:
//! - Releases in the backward pass: assumption 2 has none, algorithm 1 has no such rule. Here they are made
//!   when an op does not fit otherwise.
//! - The prefetcher's bound n: 4 reloaded tensors that wait for their use. Its condition, "memory is enough
//!   or count < n", is read as both. Memory is enough while the op at hand still fits. Its queue is in the
//!   order of next use.
//! - The director's c_s: time of one copy, as in equation 6, though the text says both directions.
//! - The filter of `delta`: the base one of three, as in the paper's conclusion (section 5.7).
//! - Parameters stay; the three quarters are of the memory that they leave.
//! - End of the forward pass: at the op with the most live bytes.
//! - Ties, and the limit at which a walk gives up: as in `dtr`.

use memc_ir::Arena;
use memc_planner::{Found, NoPlan, OpPos, Planner, Problem, Request, TensorId, TensorKind};

use super::cost::Neighbourhood;
use super::walk::{Eviction, EvictionWalk, Facts, NEVER, Policy, put_off};

/// The planner.
pub(super) const PLANNER: Planner = Planner {
    name: "delta",
    summary: "filter, director and prefetcher: evicts by bytes and staleness, offloads or computes again",
    source: "Tang et al., DELTA, 2022, algorithms 1 to 4",
    swaps: true,
    recomputes: true,
    plan: |p, request| plan(p, request, Filter::Base),
};

/// With the filter of equation 2.
pub(super) const LRU: Planner = Planner {
    name: "delta-lru",
    summary: "as `delta`, evicts what was used least recently",
    source: "Tang et al., DELTA, 2022, equation 2",
    plan: |p, request| plan(p, request, Filter::Lru),
    ..PLANNER
};

/// With the filter of equation 3.
pub(super) const GREEDY: Planner = Planner {
    name: "delta-greedy",
    summary: "as `delta`, evicts what is largest",
    source: "Tang et al., DELTA, 2022, equation 3",
    plan: |p, request| plan(p, request, Filter::Greedy),
    ..PLANNER
};

/// The value by which the filter chooses; the least leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Filter {
    /// Equation 1: the reciprocal of bytes times staleness.
    Base,
    /// Equation 2: the reciprocal of staleness.
    Lru,
    /// Equation 3: the reciprocal of bytes.
    Greedy,
}

/// Reloaded tensors that wait for their use at most.
const AT_ONCE: usize = 4;

/// The part of the bandwidth that counts.
const BANDWIDTH: f64 = 0.35;

fn plan(p: &Problem, request: &Request<'_>, filter: Filter) -> Result<Found, NoPlan> {
    let facts = Facts::new(p);
    let fixed = p.tensors.values().filter(|t| t.persistent() && !t.touches.is_empty()).map(|t| t.bytes).sum();
    let mut policy = Delta {
        filter,
        near: Neighbourhood::new(p),
        fixed,
        offloaded: Arena::filled(false, p.tensors.len()),
        ahead: Vec::new(),
    };
    let walk = EvictionWalk::new(p, &facts, request, |_| true);
    let (decisions, _) = walk.run(&mut policy).map_err(|e| e.explain(p, "delta"))?;
    Ok(Found { decisions: put_off(p, decisions, request.capacity), evaluations: 1 })
}

struct Delta {
    filter: Filter,
    near: Neighbourhood,
    /// Bytes of the parameters.
    fixed: u64,
    /// The prefetcher's queue.
    offloaded: Arena<TensorId, bool>,
    /// Tensors that were reloaded, with the position of the use.
    ahead: Vec<(TensorId, OpPos)>,
}

impl Policy for Delta {
    fn score(&mut self, w: &EvictionWalk<'_>, t: TensorId) -> Option<f64> {
        let staleness = w.clock.saturating_sub(w.last[t]).max(1);
        let transient = w.p.tensors[t].kind == TensorKind::Transient;
        let product = match self.filter {
            Filter::Base => w.bytes(t) as f64 * staleness as f64,
            Filter::Lru => staleness as f64,
            Filter::Greedy => w.bytes(t) as f64,
        };
        transient.then(|| 1.0 / product)
    }
    fn eviction(&mut self, w: &EvictionWalk<'_>, t: TensorId) -> Eviction {
        let swap_ns =
            w.p.tensors[t].size as f64 * 1e9 / (BANDWIDTH * w.p.device.h2d_bytes_per_s.max(1) as f64);
        if self.near.cost(w, t) as f64 <= swap_ns { Eviction::Recompute } else { Eviction::Swap }
    }
    fn ignores_host_copies(&self) -> bool {
        true
    }
    fn goal(&self, w: &EvictionWalk<'_>) -> u64 {
        let room = w.capacity.saturating_sub(self.fixed);
        if w.position < w.facts.split { w.capacity - room / 4 } else { w.capacity }
    }
    fn prefetch(&mut self, w: &EvictionWalk<'_>) -> Vec<TensorId> {
        if w.position < w.facts.split {
            return Vec::new();
        }
        let set = w.p.working_set(w.position);
        let missing: u64 = set.iter().filter(|&&t| !w.here[t]).map(|&t| w.bytes(t)).sum();
        let mut room = w.capacity.saturating_sub(w.used + missing + w.p.ops[w.position].workspace);
        let mut queue: Vec<TensorId> =
            self.offloaded.ids().filter(|&t| self.offloaded[t] && w.next[t] < NEVER).collect();
        queue.sort_by_key(|&t| (w.next[t], t));
        let fits = |t: &TensorId| match room.checked_sub(w.bytes(*t)) {
            Some(left) => {
                room = left;
                true
            }
            None => false,
        };
        self.ahead.retain(|&(t, next)| w.here[t] && w.next[t] == next);
        let count = AT_ONCE.saturating_sub(self.ahead.len());
        let chosen: Vec<TensorId> = queue.into_iter().take(count).take_while(fits).collect();
        self.ahead.extend(chosen.iter().map(|&t| (t, w.next[t])));
        chosen
    }
    fn left(&mut self, w: &EvictionWalk<'_>, t: TensorId, eviction: Eviction) {
        match eviction {
            Eviction::Recompute => self.near.left(w, t),
            Eviction::Swap => self.offloaded[t] = true,
        }
    }
    fn came(&mut self, _: &EvictionWalk<'_>, t: TensorId) {
        self.offloaded[t] = false;
        self.near.came(t);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memc_planner::sample::chain;
    use memc_planner::solve;

    const MB: u64 = 1 << 20;

    /// The director computes again what is cheaper than 35 % of the link carries, and offloads the rest
    /// (equation 4).
    #[test]
    fn the_director_compares_costs() {
        // A copy of 1 MB counts as 1 MB / 0.35 ns of this link.
        for (forward_ns, recomputes) in [(2 * MB, true), (4 * MB, false)] {
            let p = chain(8, MB, forward_ns, 10 * MB);
            let facts = Facts::new(&p);
            let mut w = EvictionWalk::new(&p, &facts, &Request::new(1 << 30), |_| true);
            w.seen = Arena::filled(1, p.tensors.len());
            let mut delta = Delta {
                filter: Filter::Base,
                near: Neighbourhood::new(&p),
                fixed: 0,
                offloaded: Arena::filled(false, 16),
                ahead: Vec::new(),
            };
            assert_eq!(
                delta.eviction(&w, TensorId(3)),
                if recomputes { Eviction::Recompute } else { Eviction::Swap }
            );
        }
    }

    /// The filters release the largest product of bytes and staleness first, the stalest, and the largest
    /// (equations 1 to 3).
    #[test]
    fn the_filters_take_large_and_stale_first() {
        let p = chain(4, MB, 1000, 1000);
        let facts = Facts::new(&p);
        let mut w = EvictionWalk::new(&p, &facts, &Request::new(1 << 30), |_| true);
        (w.clock, w.last) = (10_000, vec![9_000, 2_000, 5_000, 9_500, 0, 0, 0, 0].into());
        let order = |filter: Filter| {
            let mut delta = Delta {
                filter,
                near: Neighbourhood::new(&p),
                fixed: 0,
                offloaded: Arena::filled(false, 8),
                ahead: Vec::new(),
            };
            let mut scores: Vec<(f64, u32)> =
                (0..5).filter_map(|t| Some((delta.score(&w, TensorId(t))?, t))).collect();
            scores.sort_by(|a, b| a.0.total_cmp(&b.0));
            scores.into_iter().map(|s| s.1).collect::<Vec<_>>()
        };
        // The gradient, tensor 4, is the stalest and the smallest.
        assert_eq!(order(Filter::Base), [1, 2, 0, 3, 4]);
        assert_eq!(order(Filter::Lru), [4, 1, 2, 0, 3]);
        assert_eq!(order(Filter::Greedy), [0, 1, 2, 3, 4], "of equals the lower index");
    }

    /// It starts to release at three quarters of memory, before an op fails to fit.
    #[test]
    fn releases_early() {
        let p = chain(8, MB, 1000, 1000);
        let (schedule, _) = solve(&p, &PLANNER, &Request::new(9 * MB)).expect("it fits");
        assert!(schedule.evaluation.recompute_ops > 0, "all eight activations would fit");
    }
}
