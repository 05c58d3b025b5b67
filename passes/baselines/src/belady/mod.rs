//! Belady's rule in bytes, with addresses: several walks over the step, each judged on its timeline; the best
//! one wins.
//!
//! SwapAdvisor's swap planner (section 4.2) without its search, and with recomputation by memory saved per
//! second (TENSILE, section 4.4). It chooses offsets as it walks, so it reaches budgets that leave no slack
//! for an allocator.

mod arena;
mod prefetch;
mod residents;
mod walk;

use std::collections::BTreeSet;

use memc_ir::Bytes;
use memc_planner::{
    ALIGN, DecisionsError, Found, MANY_OPS, NoPlan, Planner, Problem, Request, Schedule, TensorId, evaluate,
};
use rayon::prelude::*;

use prefetch::prefetch;
use residents::residents;
use walk::Knobs;

/// The walks.
pub(super) const PLANNER: Planner = Planner {
    name: "belady",
    summary: "evicts what is needed last, settling addresses on the way; \
              recomputes what is cheaper than its copies",
    source: "after SwapAdvisor (ASPLOS 2020), section 4.2",
    swaps: true,
    recomputes: true,
    plan,
};

/// Longest recomputation, in multiples of the copies' time; 0 never recomputes.
const RECOMPUTE: [f64; 4] = [0.0, 0.25, 1.0, 4.0];

/// Shares of the capacity to plan for as well: eviction is greedy, and less room sometimes makes it choose
/// better.
const TIGHTER: [u64; 2] = [92, 80];

/// Shares of the capacity that the choice of resident parameters may count on; the rest is for activations.
const SHARES: [u64; 4] = [100, 85, 70, 50];

fn plan(p: &Problem, request: &Request<'_>) -> Result<Found, NoPlan> {
    let capacity = request.capacity;
    if !p.device.can_swap() {
        return Err(NoPlan::Infeasible("the device has no link to the host (bandwidth 0)".into()));
    }
    if !request.allow.swap {
        return Err(NoPlan::Infeasible("belady finds nothing without swapping".into()));
    }
    // The least effort is few walks, where one takes long.
    let few = request.effort == 0 && p.ops.len() >= MANY_OPS;
    let (shares, tighter) = if few { (&SHARES[..1], &[][..]) } else { (&SHARES[..], &TIGHTER[..]) };
    let mut residents: Vec<BTreeSet<TensorId>> =
        shares.iter().map(|share| residents(p, capacity / 100 * share)).collect();
    residents.push(BTreeSet::new());
    residents.dedup();
    let recompute = match (request.allow.recompute, few) {
        (false, _) => &RECOMPUTE[..1],
        (true, true) => &[0.0, 1.0],
        (true, false) => &RECOMPUTE[..],
    };
    let knobs = |h: usize| {
        let full = recompute.iter().map(move |&recompute| (h, Knobs { capacity, recompute }));
        let tight = move |share: &u64| (h, Knobs { capacity: capacity / 100 * share, recompute: 0.0 });
        full.chain(tighter.iter().map(tight))
    };
    let candidates: Vec<(usize, Knobs)> = (0..residents.len()).flat_map(knobs).collect();
    let plans: Vec<Result<Option<Schedule>, DecisionsError>> =
        candidates.par_iter().map(|&(h, knobs)| attempt(p, &residents[h], knobs)).collect();
    let mut best: Option<Schedule> = None;
    let evaluations = plans.len() as u64;
    for planned in plans {
        let Some(planned) = planned? else { continue };
        if best.as_ref().is_none_or(|b| planned.key() < b.key()) {
            best = Some(planned);
        }
    }
    match best {
        Some(best) => Ok(Found { decisions: best.decisions, evaluations }),
        None => Err(NoPlan::Infeasible(format!("no walk makes room within {}", Bytes(capacity)))),
    }
}

fn attempt(
    p: &Problem,
    residents: &BTreeSet<TensorId>,
    knobs: Knobs,
) -> Result<Option<Schedule>, DecisionsError> {
    let Ok(mut decisions) = walk::plan(p, residents, knobs) else { return Ok(None) };
    prefetch(p, &mut decisions);
    let schedule = evaluate(p, decisions)?;
    Ok(Some(schedule).filter(|r| r.evaluation.dev_bytes <= knobs.capacity))
}

/// Part of what the unplanned step takes to which [`smallest_feasible`] is exact.
const GRAIN: u64 = 1 << 20;

/// The smallest capacity for which a walk finds a plan: at least the largest working set, found by bisection
/// above it.
///
/// `kept` is what the unplanned step takes, which always does.
pub fn smallest_feasible(p: &Problem, kept: u64) -> Result<u64, DecisionsError> {
    let (_, bound) = p.largest_working_set();
    if !p.device.can_swap() {
        return Ok(kept);
    }
    let none = BTreeSet::new();
    let knobs = |capacity| Knobs { capacity, recompute: 0.0 };
    let walks = |capacity: u64| Ok(walk::plan(p, &none, knobs(capacity)).is_ok());
    let fits = |capacity: u64| attempt(p, &none, knobs(capacity)).map(|r| r.is_some());
    // Where a walk ends there is a plan, or nearly always.
    let found = least(bound, kept, walks)?;
    if found == kept || fits(found)? { Ok(found) } else { least(bound, kept, fits) }
}

/// The least capacity from `low` on that is good enough, found by bisection. `high` is.
fn least(
    mut low: u64,
    mut high: u64,
    good: impl Fn(u64) -> Result<bool, DecisionsError>,
) -> Result<u64, DecisionsError> {
    if high <= low || good(low)? {
        return Ok(low.min(high));
    }
    let grain = (high / GRAIN).max(ALIGN);
    while high - low > grain {
        let middle = (low + (high - low) / 2).div_ceil(ALIGN) * ALIGN;
        if good(middle)? { high = middle } else { low = middle }
    }
    Ok(high)
}

#[cfg(test)]
mod tests {
    use super::*;
    use memc_planner::sample::{device, op, tensor};
    use memc_planner::{Action, TensorKind};

    /// A content that is overwritten unread is recomputed from the last op that made it anew.
    #[test]
    fn what_was_overwritten_is_not_computed_again() {
        let tensors = [("t", 1 << 20), ("large", 1 << 21)]
            .map(|(name, size)| tensor(name, TensorKind::Transient, size));
        let ops = vec![
            op("first", 1000, &[], &[0]),
            op("read", 1000, &[0], &[]),
            op("second", 1000, &[], &[0]),
            op("fill", 1000, &[], &[1]),
            op("last", 1000, &[0], &[]),
        ];
        let p = Problem::new("overwritten", device(), tensors.to_vec(), ops).expect("valid");
        let found = plan(&p, &Request::new(1 << 21)).expect("computes t again");
        let recompute = found.decisions.actions.iter().filter_map(|a| match a {
            Action::Run(run) if run.recompute => Some(run.op.0),
            _ => None,
        });
        assert_eq!(recompute.collect::<Vec<_>>(), [2]);
    }
}
