//! ODSwap: on-demand swapping by least recent use, then prefetching (the online baseline of Huang et al.,
//! SwapAdvisor, ASPLOS 2020, section 6.1, which takes its heuristics from vDNN and SuperNeurons).
//!
//! As described there: in the first iteration the least recently used tensors are swapped out when the next
//! op does not fit. Later iterations prefetch by the decisions of the first, to overlap copies with compute.
//! The first iteration does not count. All tensors take part, parameters included.
//!
//! The paper is silent on these points:
//! - Parameters when a step begins: those that the walk ends with on the device, found by walking until that
//!   repeats or four times. Before the first walk as many as fit, by first use. Other tensors that the last
//!   walk ends with return to where they began.
//! - Distance of prefetches: each copy begins as early as it and those behind it take, by the ops' times
//!   without stalls, as far as memory allows. Evictions stay where the first iteration made them.
//! - Copies to the host: none for a content that the host has already, or that is not read later.
//! - Ties in recency: the lower index first.

use memc_ir::Arena;
use memc_planner::{Allow, Decisions, Found, NoPlan, Planner, Problem, Request, TensorId};

use super::walk::{EvictionWalk, Facts, Policy, hoist, put_off};

/// The planner.
pub(super) const PLANNER: Planner = Planner {
    name: "odswap",
    summary: "swaps out on demand, least recently used first, and prefetches",
    source: "baseline of Huang et al., SwapAdvisor, 2020, section 6.1",
    swaps: true,
    recomputes: false,
    plan,
};

/// Walks before what is on the device at the boundary of steps is taken as it is.
const WALKS: u64 = 4;

fn plan(p: &Problem, request: &Request<'_>) -> Result<Found, NoPlan> {
    let facts = Facts::new(p);
    let (decisions, evaluations) = on_demand(p, &facts, request, "odswap")?;
    let decisions = put_off(p, decisions, request.capacity);
    Ok(Found { decisions: hoist(p, decisions, request.capacity, &|_, slot| (0, slot)), evaluations })
}

/// Swaps on demand by least recent use, without prefetching; also says how many walks that took.
pub(super) fn on_demand(
    p: &Problem,
    facts: &Facts,
    request: &Request<'_>,
    method: &str,
) -> Result<(Decisions, u64), NoPlan> {
    let request = Request { allow: Allow { recompute: false, ..request.allow }, ..*request };
    if !request.allow.on(&p.device).swap {
        let (decisions, _) = EvictionWalk::new(p, facts, &request, |_| true)
            .run(&mut Lru)
            .map_err(|e| e.explain(p, method))?;
        return Ok((decisions, 1));
    }
    let mut resident = first_fit(p, request.capacity);
    for walk in 1.. {
        let w = EvictionWalk::new(p, facts, &request, |t| resident[t]);
        let (decisions, after) = w.run(&mut Lru).map_err(|e| e.explain(p, method))?;
        if after == resident || walk == WALKS {
            return Ok((decisions, walk));
        }
        resident = after;
    }
    Err(NoPlan::Failed(format!("{method} never ends")))
}

/// Persistent tensors in the order of their first use, as many as fit.
fn first_fit(p: &Problem, capacity: u64) -> Arena<TensorId, bool> {
    let mut order: Vec<TensorId> = p.tensors.ids().filter(|&t| p.tensors[t].persistent()).collect();
    order.sort_by_key(|&t| (p.tensors[t].touches.first().copied(), t));
    let mut resident = Arena::filled(false, p.tensors.len());
    let mut used = 0u64;
    for t in order {
        let after = used.saturating_add(p.tensors[t].bytes);
        if after <= capacity {
            (resident[t], used) = (true, after);
        }
    }
    resident
}

struct Lru;

impl Policy for Lru {
    fn score(&mut self, w: &EvictionWalk<'_>, t: TensorId) -> Option<f64> {
        Some(w.last[t] as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memc_planner::sample;
    use memc_planner::{Action, solve};

    /// On a chain that does not fit, the least recently used activation leaves first: the first one.
    #[test]
    fn the_least_recently_used_leaves_first() {
        let p = sample::chain(6, 1 << 20, 1 << 21, 1 << 21);
        let capacity = 4 * (1 << 20) + 12 * 256;
        let found = plan(&p, &Request::new(capacity)).expect("it fits");
        let outs: Vec<u32> = found
            .decisions
            .actions
            .iter()
            .filter_map(|a| if let Action::Out(t) = a { Some(t.0) } else { None })
            .collect();
        assert_eq!(outs, [0, 1]);
    }

    /// Prefetching hides copies that fit behind the ops before them.
    #[test]
    fn prefetches_are_hidden() {
        let p = sample::chain(6, 1 << 20, 1 << 21, 1 << 21);
        let capacity = 5 * (1 << 20) + 12 * 256;
        let (schedule, _) = solve(&p, &PLANNER, &Request::new(capacity)).expect("it fits");
        assert!(schedule.evaluation.swap_in_bytes > 0);
        assert_eq!(schedule.evaluation.stall_in_ns, 0);
    }
}
