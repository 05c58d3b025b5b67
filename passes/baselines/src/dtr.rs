//! DTR: evicts greedily by a heuristic and recomputes on access (Kirisame et al., 2020, arXiv 2006.09616).
//!
//! Before an op runs, its evicted operands are recomputed, recursively. While there is no room, the tensor on
//! the device with the least h is evicted. The heuristic is h_DTR^eq: cost / (bytes · staleness). Cost is the
//! tensor's own compute time plus that of the evicted components next to it. Union-find keeps the components.
//! A tensor that comes back takes its own cost out of its component but does not split it, as in the paper.
//! Staleness is compute time since the last touch, recomputation included. Weights and inputs are constants,
//! which are never evicted.
//!
//! The names are the paper's, without section numbers: this follows accounts of it in later papers and
//! reviews. The paper itself was not available.
//!
//! Not in those accounts (the paper describes an eager framework), and decided here:
//! - Release: an operand is released right after its last use in the step, which is the paper's "eager
//!   eviction". Unlike after its "banishing", a released tensor comes back where a recomputation needs it,
//!   and then stays until the heuristic evicts it.
//! - Ops that update in place: the paper makes them pure by copying. Here they run once. Their results stay
//!   on the device, and so does a tensor whose recomputation needs an operand that is overwritten by then.
//! - Aliases: every tensor is its own storage, so that c0 is the time of the op that writes it.
//! - An op with several results: its run brings back all of them that are still needed.
//! - Ties: the lower index first. The walk gives up after eight recomputations per op of the step.

use memc_planner::{Allow, Found, NoPlan, Planner, Problem, Request, TensorId, TensorKind};

use super::cost::Neighbourhood;
use super::walk::{Eviction, EvictionWalk, Facts, Policy};

/// The planner.
pub(super) const PLANNER: Planner = Planner {
    name: "dtr",
    summary: "evicts greedily by h_DTR^eq and computes again on access; no swapping",
    source: "Kirisame et al., Dynamic Tensor Rematerialization, 2020",
    swaps: false,
    recomputes: true,
    plan,
};

fn plan(p: &Problem, request: &Request<'_>) -> Result<Found, NoPlan> {
    let facts = Facts::new(p);
    let request = Request { allow: Allow { swap: false, ..request.allow }, ..*request };
    let mut policy = Dtr(Neighbourhood::new(p));
    let walk = EvictionWalk::new(p, &facts, &request, |_| true);
    let (decisions, _) = walk.run(&mut policy).map_err(|e| e.explain(p, "dtr"))?;
    Ok(Found { decisions, evaluations: 1 })
}

struct Dtr(Neighbourhood);

impl Policy for Dtr {
    fn score(&mut self, w: &EvictionWalk<'_>, t: TensorId) -> Option<f64> {
        if w.p.tensors[t].kind != TensorKind::Transient {
            return None;
        }
        let staleness = w.clock.saturating_sub(w.last[t]).max(1);
        Some(self.0.cost(w, t) as f64 / (w.bytes(t) as f64 * staleness as f64))
    }
    fn keeps_visitors(&self) -> bool {
        true
    }
    fn left(&mut self, w: &EvictionWalk<'_>, t: TensorId, eviction: Eviction) {
        if eviction == Eviction::Recompute {
            self.0.left(w, t);
        }
    }
    fn came(&mut self, _: &EvictionWalk<'_>, t: TensorId) {
        self.0.came(t);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memc_planner::sample;
    use memc_planner::solve;

    /// A chain of 16 layers with room for 5 activations runs, and with a cost that is between linear and
    /// quadratic.
    #[test]
    fn a_chain_runs_in_a_third_of_its_memory() {
        let p = sample::chain(16, 1 << 20, 1000, 1000);
        let capacity = 5 * (1 << 20) + 40 * 256;
        let (schedule, _) = solve(&p, &PLANNER, &Request::new(capacity)).expect("a chain fits");
        let e = schedule.evaluation;
        assert!(e.recompute_ops >= 16 - 5, "{} recomputations", e.recompute_ops);
        assert!(e.recompute_ops <= 16 * 16 / 4, "{} recomputations", e.recompute_ops);
        assert_eq!(e.step_ns, p.compute_ns() + e.recompute_ns);
        assert_eq!((e.swap_in_bytes, e.swap_out_bytes), (0, 0));
    }

    /// Without recomputation there is nothing left of the method.
    #[test]
    fn needs_recomputation() {
        let p = sample::chain(8, 1 << 20, 1000, 1000);
        let allow = Allow { recompute: false, ..Allow::ALL };
        let request = Request { allow, ..Request::new(5 << 20) };
        assert!(matches!(plan(&p, &request), Err(NoPlan::Infeasible(_))));
    }

    /// h counts the evicted neighbours: the cost of a tensor grows by that of the evicted one it is made
    /// from, and falls again when that one is back.
    #[test]
    fn evicted_neighbours_count() {
        let p = sample::chain(4, 1024, 700, 1000);
        let facts = Facts::new(&p);
        let mut w = EvictionWalk::new(&p, &facts, &Request::new(1 << 30), |_| true);
        w.seen = memc_ir::Arena::filled(1, p.tensors.len());
        let mut near = Neighbourhood::new(&p);
        assert_eq!(near.cost(&w, TensorId(2)), 700);
        near.left(&w, TensorId(1));
        near.left(&w, TensorId(0));
        assert_eq!(near.cost(&w, TensorId(2)), 2100);
        near.came(TensorId(1));
        assert_eq!(near.cost(&w, TensorId(2)), 700);
        assert_eq!(near.cost(&w, TensorId(1)), 1400);
    }
}
