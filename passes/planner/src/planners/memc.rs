//! The default planner: what the quick ones of the others find, and a search from there.

use memc_layout::Algorithm;
use rayon::prelude::*;

use super::{
    CALLS, Found, NoPlan, Planner, Progress, Request, autoswap, belady, capuchin, checkpoint, delta, dtr,
    fit, odswap, superneurons, tensile, vdnn,
};
use crate::problem::Problem;
use crate::realise::{Realised, realise_by};
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

/// Ops up to which plans that fit are made of what all others answer; beyond, only of what promises most.
const FEW: usize = 256;

/// How many those are.
const PROMISING: usize = 4;

/// How often each of those is asked.
const TWICE: usize = 2;

fn plan(p: &Problem, request: &Request<'_>) -> Result<Found, NoPlan> {
    let limits = Limits::effort(request.effort, p.ops.len());
    let (mut best, mut evaluations) = (None::<Realised>, 0);
    let consider = |best: &mut Option<Realised>, r: Realised, evaluations| {
        (request.watch)(Progress { step_ns: r.evaluation.step_ns, evaluations });
        if best.as_ref().is_none_or(|b| r.key() < b.key()) {
            *best = Some(r);
        }
    };
    let quiet = Request { watch: &|_| {}, ..*request };
    let (mut starts, mut error) = (Vec::new(), None);
    let thorough = THOROUGH.iter().filter(|_| p.ops.len() < MANY);
    let others: Vec<&Planner> = QUICK.iter().chain(thorough).copied().collect();
    // Belady's walks always fit where anything can, and are there at once; when they give up, their reason holds for all.
    for (planners, whole) in [(&[&belady::PLANNER][..], true), (&others, p.ops.len() <= FEW)] {
        // The least effort is the first plan, where others take long.
        let enough = (request.stop)() || request.effort == 0 && p.ops.len() >= MANY;
        if let Some(best) = best.take_if(|_| enough) {
            return Ok(Found { decisions: best.decisions, evaluations });
        }
        let answers: Vec<_> =
            planners.par_iter().map(|&planner| (planner, (planner.plan)(p, &quiet))).collect();
        let mut asked = Vec::new();
        for (planner, answer) in answers {
            match answer {
                Ok(found) => asked.push((planner, found)),
                Err(why) => error = error.or(Some(why)),
            }
        }
        let calls = if whole { CALLS } else { TWICE };
        if !whole {
            for (_, found) in &mut asked {
                evaluations += std::mem::take(&mut found.evaluations);
                starts.push(found.decisions.clone());
            }
            asked = promising(p, request.capacity, asked);
        }
        let fitted: Vec<_> = asked
            .into_par_iter()
            .map(|(planner, found)| fit(p, planner, &quiet, found, (limits.layout_work, calls)))
            .collect();
        for fitted in fitted {
            match fitted {
                Ok((r, spent)) => {
                    evaluations += spent;
                    starts.push(r.decisions.clone());
                    consider(&mut best, r, evaluations);
                }
                Err(why) => error = error.or(Some(why)),
            }
        }
    }
    if let Some(best) = best.take_if(|_| request.effort == 0 && p.ops.len() > FEW) {
        return Ok(Found { decisions: best.decisions, evaluations });
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

/// The answers whose steps would be shortest if any layout did; of those that cannot fit none.
fn promising<'a>(p: &Problem, capacity: u64, asked: Vec<(&'a Planner, Found)>) -> Vec<(&'a Planner, Found)> {
    let laid: Vec<_> = asked
        .par_iter()
        .map(|(_, found)| realise_by(p, found.decisions.clone(), Algorithm::FirstFit))
        .collect();
    let mut promising = Vec::new();
    for (answer, laid) in asked.into_iter().zip(laid) {
        if let Ok(Realised { evaluation, .. }) = laid
            && evaluation.load_bytes <= capacity
        {
            promising.push((evaluation.step_ns, answer));
        }
    }
    promising.sort_by_key(|x| x.0);
    promising.into_iter().take(PROMISING).map(|x| x.1).collect()
}
