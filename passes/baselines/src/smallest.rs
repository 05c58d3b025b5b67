//! The smallest budget for which a quick planner has a plan.

use memc_planner::{ALIGN, NoPlan, Planner, Problem, Request, evaluate};

use super::{belady, capuchin, checkpoint, dtr, odswap, superneurons};

/// Planners for steps that may not swap; elsewhere Belady's walks come down the furthest.
const OTHERS: [&Planner; 5] =
    [&checkpoint::PLANNER, &odswap::PLANNER, &superneurons::PLANNER, &capuchin::PLANNER, &dtr::PLANNER];

/// Most calls of each of them.
const CALLS: u32 = 8;

/// The smallest capacity for which one of the quick planners is known to have a plan: Belady's walks where
/// they may swap, the others elsewhere. Another planner may need less. `kept` is the arena of the unplanned
/// step, which always has a plan. Of the request only the permissions count.
pub fn smallest(p: &Problem, kept: u64, request: &Request<'_>) -> Result<u64, NoPlan> {
    if request.allow.on(&p.device).swap {
        return Ok(belady::smallest_feasible(p, kept)?);
    }
    let mut best = kept;
    for planner in OTHERS {
        let mut low = p.largest_working_set().1;
        // First a little less than the best: a planner that fails there is mostly no better.
        let mut capacity = best.saturating_sub(ALIGN) / ALIGN * ALIGN;
        for _ in 0..CALLS {
            if capacity < low || capacity >= best {
                break;
            }
            match height(p, planner, &Request { capacity, effort: 0, ..*request })? {
                Some(bytes) => best = bytes,
                None if capacity + ALIGN >= best => break,
                None => low = capacity + ALIGN,
            }
            capacity = (low + best.saturating_sub(low) / 2) / ALIGN * ALIGN;
        }
    }
    Ok(best)
}

/// Arena bytes of a planner's plan, if that fits.
fn height(p: &Problem, planner: &Planner, request: &Request<'_>) -> Result<Option<u64>, NoPlan> {
    match (planner.plan)(p, request) {
        Ok(found) => {
            let bytes = evaluate(p, found.decisions)?.evaluation.dev_bytes;
            Ok(Some(bytes).filter(|&b| b <= request.capacity))
        }
        Err(NoPlan::Infeasible(_)) => Ok(None),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memc_planner::Allow;
    use memc_planner::sample::{Seed, any};

    /// Without a link there is a plan at what is returned, and planners other than checkpoints come down
    /// further at times.
    #[test]
    fn without_a_link_several_planners_are_asked() {
        let (mut lower, mut further) = (0, 0);
        for seed in 0..400 {
            let p = any(&mut Seed(seed), 14).expect("it is a problem").problem;
            let kept =
                evaluate(&p, memc_planner::Decisions::keep_all(&p)).expect("it runs").evaluation.dev_bytes;
            let request = Request { allow: Allow { swap: false, ..Allow::ALL }, ..Request::new(kept) };
            let all = smallest(&p, kept, &request).expect("no planner fails");
            assert!(p.largest_working_set().1 <= all && all <= kept, "seed {seed}");
            let at = |planner, capacity| {
                height(&p, planner, &Request { capacity, effort: 0, ..request }).expect("no planner fails")
            };
            if all < kept {
                let plans = OTHERS.iter().filter_map(|planner| at(planner, all));
                assert!(plans.min() <= Some(all), "seed {seed}");
                lower += 1;
                further += u32::from(at(&checkpoint::PLANNER, kept).is_none_or(|bytes| bytes > all));
            }
        }
        assert!(lower > 20 && further > 5, "{lower} {further}");
    }
}
