//! The default planner: what the quick ones of the others find, and a search from there.

use memc_layout::Algorithm;
use rayon::prelude::*;

use super::{
    CALLS, Found, NoPlan, Planner, Progress, Request, autoswap, belady, capuchin, checkpoint, delta, dtr,
    odswap, solve_with, superneurons, tensile, vdnn,
};
use crate::decisions::Decisions;
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

/// Ops up to which all others are asked until their layouts fit, and their plans are candidates; beyond, only those that
/// promise most are.
const FEW: usize = 256;

/// How many those are, and how often each is asked.
const PROMISING: (usize, usize) = (4, 2);

/// What another planner chose.
struct Asked<'a> {
    planner: &'a Planner,
    decisions: Decisions,
    /// Its plan, if one was made of that.
    realised: Option<Realised>,
    /// Its step in ns, if any layout would do.
    promised: Option<u64>,
    evaluations: u64,
}

fn plan(p: &Problem, request: &Request<'_>) -> Result<Found, NoPlan> {
    let mut limits = Limits::effort(request.effort);
    // In small steps more moves are made for the same work, and fewer are left to make.
    limits.work = limits.work / 512 * (p.ops.len() as u64).clamp(128, 512);
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
        let enough = (request.stop)() || request.effort == 0 && p.ops.len() >= MANY;
        if let Some(best) = best.take_if(|_| enough) {
            return Ok(Found { decisions: best.decisions, evaluations });
        }
        let work = limits.layout_work;
        let (asked, reasons) = ask(p, planners, request, whole.then_some((work, CALLS)));
        error = error.or(reasons.into_iter().next());
        let mut promising: Vec<(u64, &Planner)> =
            asked.iter().filter_map(|a| Some((a.promised?, a.planner))).collect();
        promising.sort_by_key(|x| x.0);
        let promising: Vec<&Planner> = promising.into_iter().take(PROMISING.0).map(|x| x.1).collect();
        let (whole, _) = ask(p, &promising, request, Some((work, PROMISING.1)));
        for mut a in asked.into_iter().chain(whole) {
            evaluations += a.evaluations;
            a.realised.take().into_iter().for_each(|r| consider(&mut best, r, evaluations));
            starts.push(a.decisions);
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

/// Asks each for a plan, with so much work for a layout and at most so many times, or for decisions alone; and why some
/// have none.
fn ask<'a>(
    p: &Problem,
    planners: &[&'a Planner],
    request: &Request<'_>,
    whole: Option<(u64, usize)>,
) -> (Vec<Asked<'a>>, Vec<NoPlan>) {
    let quiet = Request { watch: &|_| {}, ..*request };
    let ask = |&planner: &&'a Planner| {
        if let Some((work, calls)) = whole {
            let (r, evaluations) = solve_with(p, planner, &quiet, work, calls)?;
            let decisions = r.decisions.clone();
            return Ok(Asked { planner, decisions, realised: Some(r), promised: None, evaluations });
        }
        let Found { decisions, evaluations } = (planner.plan)(p, &quiet)?;
        let laid = realise_by(p, decisions.clone(), Algorithm::FirstFit).map_err(NoPlan::Failed)?.evaluation;
        let promised = (laid.load_bytes <= request.capacity).then_some(laid.step_ns);
        Ok(Asked { planner, decisions, realised: None, promised, evaluations })
    };
    let asked: Vec<Result<Asked<'a>, NoPlan>> = planners.par_iter().map(ask).collect();
    let (mut found, mut reasons) = (Vec::new(), Vec::new());
    for asked in asked {
        match asked {
            Ok(asked) => found.push(asked),
            Err(why) => reasons.push(why),
        }
    }
    (found, reasons)
}
