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
    plan,
};

/// Planners whose plans take milliseconds for a thousand ops.
const QUICK: [&Planner; 14] = [
    &belady::PLANNER,
    &superneurons::PLANNER,
    &odswap::PLANNER,
    &delta::PLANNER,
    &autoswap::DOA,
    &autoswap::AOA,
    &autoswap::WDOA,
    &autoswap::SWDOA,
    &autoswap::COMBINED,
    &capuchin::PLANNER,
    &tensile::PLANNER,
    &dtr::PLANNER,
    &vdnn::ALL,
    &checkpoint::PLANNER,
];

/// Ops up to which others are asked until their layouts fit, and their plans are candidates; beyond, once, and then only
/// what they choose is a start for the search.
const FEW: usize = 256;

/// What another planner found.
#[derive(Default)]
struct Known {
    /// A plan that fits.
    realised: Option<Realised>,
    /// What it chose.
    decisions: Option<Decisions>,
    /// Why there is none.
    error: Option<NoPlan>,
    evaluations: u64,
}

fn plan(p: &Problem, request: &Request<'_>) -> Result<Found, NoPlan> {
    let limits = Limits::effort(request.effort);
    let mut best: Option<Realised> = None;
    let mut evaluations = 0;
    let mut consider = |r: Realised, evaluations| {
        (request.watch)(Progress { step_ns: r.evaluation.step_ns, evaluations });
        if best.as_ref().is_none_or(|b| r.key() < b.key()) {
            best = Some(r);
        }
    };
    // The first of them always fits where anything can, and is there at once.
    let (first, rest) = QUICK.split_at(1);
    let mut known: Vec<Known> = Vec::new();
    for (planners, whole) in [(first, true), (rest, p.ops.len() <= FEW)] {
        if known.iter().any(|k| k.realised.is_some()) && (request.stop)() {
            break;
        }
        let ask = |planner: &&Planner| ask(p, planner, request, whole.then_some(limits.layout_work));
        let asked: Vec<Known> = planners.par_iter().map(ask).collect();
        for asked in asked {
            evaluations += asked.evaluations;
            asked.realised.iter().cloned().for_each(|r| consider(r, evaluations));
            known.push(asked);
        }
    }
    let starts: Vec<Decisions> = known.iter_mut().filter_map(|k| k.decisions.take()).collect();
    let found = search::search(p, request, limits, &starts).map_err(NoPlan::Failed)?;
    evaluations += found.evaluations;
    found.best.into_iter().for_each(|r| consider(r, evaluations));
    match best {
        Some(best) => Ok(Found { decisions: best.decisions, evaluations }),
        // What the first one says holds for all: it gives up last.
        None => Err(known.into_iter().find_map(|k| k.error).unwrap_or(NoPlan::Infeasible(String::new()))),
    }
}

/// Asks for a plan, with so much work for a layout, or for decisions alone.
fn ask(p: &Problem, planner: &Planner, request: &Request<'_>, layout_work: Option<u64>) -> Known {
    let quiet = Request { watch: &|_| {}, ..*request };
    let solved = match layout_work {
        Some(work) => {
            solve_with(p, planner, &quiet, work).map(|(r, n)| (Some(r.decisions.clone()), Some(r), n))
        }
        None => (planner.plan)(p, &quiet).map(|found| (Some(found.decisions), None, found.evaluations)),
    };
    match solved {
        Ok((decisions, realised, evaluations)) => Known { realised, decisions, error: None, evaluations },
        Err(error) => Known { error: Some(error), ..Known::default() },
    }
}
