//! The default planner: what other planners find quickly, and a search from there.

use memc_alloc::Algorithm;
use rayon::prelude::*;

use crate::evaluate::{Schedule, evaluate_by};
use crate::planner::{CALLS, Found, NoPlan, Planner, Progress, Request, fit};
use crate::problem::Problem;
use crate::search::{self, Limits};

/// The planners whose plans the default planner starts from.
#[derive(Clone, Copy)]
pub struct Starts<'a> {
    /// Asked first, and always: fast, and they fit where anything can. Their reason for giving up holds for
    /// all.
    pub first: &'a [&'a Planner],
    /// Asked next: their plans take milliseconds for a thousand ops.
    pub quick: &'a [&'a Planner],
    /// Asked with the quick ones in steps of few ops only: they go over all ops dozens of times.
    pub thorough: &'a [&'a Planner],
}

impl Starts<'_> {
    /// No planner: the search starts from orders of the ops alone.
    pub const NONE: Starts<'static> = Starts { first: &[], quick: &[], thorough: &[] };
}

/// Ops from which on [`Starts::thorough`] ones are not asked.
const MANY: usize = 8192;

/// Ops up to which plans that fit are made of what all others answer; beyond, only of what promises most.
const FEW: usize = 256;

/// Number of answers that promise most.
const PROMISING: usize = 4;

/// Calls of each of those at most.
const TWICE: usize = 2;

/// Takes the best of what the starts find and of a search of order, swaps and recomputation from there.
pub fn plan(p: &Problem, request: &Request<'_>, starts: &Starts<'_>) -> Result<Found, NoPlan> {
    let limits = Limits::effort(request.effort, p.ops.len());
    let (mut best, mut evaluations) = (None::<Schedule>, 0);
    let consider = |best: &mut Option<Schedule>, r: Schedule, evaluations| {
        (request.watch)(Progress { step_ns: r.evaluation.step_ns, evaluations });
        if best.as_ref().is_none_or(|b| r.key() < b.key()) {
            *best = Some(r);
        }
    };
    let quiet = Request { watch: &|_| {}, ..*request };
    let (mut known, mut error) = (Vec::new(), None);
    // Other planners do not know how a tensor is to be handled; where they handle it otherwise, they are
    // refused.
    let reason = |why: NoPlan| Some(why).filter(|_| p.handling.is_empty());
    let thorough = starts.thorough.iter().filter(|_| p.ops.len() < MANY);
    let others: Vec<&Planner> = starts.quick.iter().chain(thorough).copied().collect();
    for (planners, whole) in [(starts.first, true), (&others, p.ops.len() <= FEW)] {
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
                Err(why) => error = error.or(reason(why)),
            }
        }
        let calls = if whole { CALLS } else { TWICE };
        if !whole {
            for (_, found) in &mut asked {
                evaluations += std::mem::take(&mut found.evaluations);
                known.push(found.decisions.clone());
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
                    known.push(r.decisions.clone());
                    consider(&mut best, r, evaluations);
                }
                Err(why) => error = error.or(reason(why)),
            }
        }
    }
    if let Some(best) = best.take_if(|_| request.effort == 0 && p.ops.len() > FEW) {
        return Ok(Found { decisions: best.decisions, evaluations });
    }
    let found = search::search(p, request, limits, &known, best.is_some())?;
    evaluations += found.evaluations;
    found.best.into_iter().for_each(|r| consider(&mut best, r, evaluations));
    match best {
        Some(best) => Ok(Found { decisions: best.decisions, evaluations }),
        None if !request.allow.on(&p.device).swap => {
            let recompute = if request.allow.recompute { "" } else { " or be computed again" };
            let why = format!("nothing can leave the device{recompute}, and nothing that was tried fits");
            Err(NoPlan::Infeasible(why))
        }
        None if !p.handling.is_empty() => {
            let why = "no plan that was tried fits and handles tensors as they are to be handled";
            Err(NoPlan::Infeasible(why.into()))
        }
        None => Err(error.unwrap_or(NoPlan::Infeasible(String::new()))),
    }
}

/// The answers whose steps would be shortest if any layout did; of those that cannot fit none.
fn promising<'a>(p: &Problem, capacity: u64, asked: Vec<(&'a Planner, Found)>) -> Vec<(&'a Planner, Found)> {
    let laid: Vec<_> = asked
        .par_iter()
        .map(|(_, found)| evaluate_by(p, found.decisions.clone(), Algorithm::FirstFit))
        .collect();
    let mut promising = Vec::new();
    for (answer, laid) in asked.into_iter().zip(laid) {
        if let Ok(Schedule { evaluation, .. }) = laid
            && evaluation.load_bytes <= capacity
        {
            promising.push((evaluation.step_ns, answer));
        }
    }
    promising.sort_by_key(|x| x.0);
    promising.into_iter().take(PROMISING).map(|x| x.1).collect()
}
