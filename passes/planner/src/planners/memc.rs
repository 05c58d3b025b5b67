//! The default planner: what the quick ones of the others find, and a search from there.

use rayon::prelude::*;

use super::{
    Found, NoPlan, Planner, Progress, Request, autoswap, belady, capuchin, checkpoint, delta, dtr, odswap,
    solve_with, superneurons, tensile, vdnn,
};
use crate::decisions::Decisions;
use crate::problem::Problem;
use crate::realise::Realised;
use crate::search::{self, Limits};

/// The default.
pub(super) const PLANNER: Planner = Planner {
    name: "memc",
    summary: "searches order, swaps and repeated runs together, from what the quick ones of the others find",
    source: "this project",
    swaps: true,
    recomputes: true,
    plan,
};

/// Planners, besides Belady's walks, whose plans take milliseconds for a thousand ops.
const QUICK: [&Planner; 11] = [
    &superneurons::PLANNER,
    &odswap::PLANNER,
    &delta::PLANNER,
    &autoswap::DOA,
    &autoswap::AOA,
    &autoswap::WDOA,
    &autoswap::SWDOA,
    &autoswap::COMBINED,
    &dtr::PLANNER,
    &vdnn::ALL,
    &checkpoint::PLANNER,
];

/// Planners that go over all ops dozens of times.
const THOROUGH: [&Planner; 2] = [&capuchin::PLANNER, &tensile::PLANNER];

/// Ops from which on [`THOROUGH`] ones are not asked.
const MANY: usize = 8192;

/// Ops up to which others are asked until their layouts fit, and their plans are candidates; beyond, once, and then only
/// what they choose is a start for the search.
const FEW: usize = 256;

/// What another planner chose, its plan if one was made of that, and how many it evaluated.
type Asked = (Decisions, Option<Realised>, u64);

fn plan(p: &Problem, request: &Request<'_>) -> Result<Found, NoPlan> {
    let limits = Limits::effort(request.effort);
    let (mut best, mut evaluations) = (None::<Realised>, 0);
    let consider = |best: &mut Option<Realised>, r: Realised, evaluations| {
        (request.watch)(Progress { step_ns: r.evaluation.step_ns, evaluations });
        if best.as_ref().is_none_or(|b| r.key() < b.key()) {
            *best = Some(r);
        }
    };
    let (mut starts, mut error) = (Vec::new(), None);
    let thorough = THOROUGH.iter().filter(|_| p.ops.len() < MANY);
    let others: Vec<&Planner> = QUICK.iter().chain(thorough).copied().collect();
    // Belady's walks always fit where anything can, and are there at once; when they give up, their reason holds for all.
    for (planners, whole) in [(&[&belady::PLANNER][..], true), (&others, p.ops.len() <= FEW)] {
        // The least effort is the first plan, where others take long.
        let enough = (request.stop)() || request.effort == 0 && p.ops.len() > FEW;
        if let Some(best) = best.take_if(|_| enough) {
            return Ok(Found { decisions: best.decisions, evaluations });
        }
        let ask = |planner: &&Planner| ask(p, planner, request, whole.then_some(limits.layout_work));
        let asked: Vec<Result<Asked, NoPlan>> = planners.par_iter().map(ask).collect();
        for asked in asked {
            match asked {
                Ok((decisions, realised, n)) => {
                    evaluations += n;
                    realised.into_iter().for_each(|r| consider(&mut best, r, evaluations));
                    starts.push(decisions);
                }
                Err(e) => error = error.or(Some(e)),
            }
        }
    }
    let found = search::search(p, request, limits, &starts, best.is_some()).map_err(NoPlan::Failed)?;
    evaluations += found.evaluations;
    found.best.into_iter().for_each(|r| consider(&mut best, r, evaluations));
    match best {
        Some(best) => Ok(Found { decisions: best.decisions, evaluations }),
        None if !(request.swap && p.device.can_swap()) => {
            let again = if request.recompute { "" } else { " or be computed again" };
            let why = format!("nothing can leave the device{again}, and nothing that was tried fits");
            Err(NoPlan::Infeasible(why))
        }
        None => Err(error.unwrap_or(NoPlan::Infeasible(String::new()))),
    }
}

/// Asks for a plan, with so much work for a layout, or for decisions alone.
fn ask(
    p: &Problem,
    planner: &Planner,
    request: &Request<'_>,
    layout_work: Option<u64>,
) -> Result<Asked, NoPlan> {
    let quiet = Request { watch: &|_| {}, ..*request };
    let Some(work) = layout_work else {
        return (planner.plan)(p, &quiet).map(|found| (found.decisions, None, found.evaluations));
    };
    solve_with(p, planner, &quiet, work).map(|(r, n)| (r.decisions.clone(), Some(r), n))
}
