//! The default planner: what other planners find quickly, and a search from there.

use memc_alloc::Algorithm;
use rayon::prelude::*;

use crate::decisions::Decisions;
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

/// Ops from which on planners that a search starts from look no further than for a first plan.
pub const MANY_OPS: usize = 8192;

/// Ops from which on [`Starts::thorough`] planners are not asked.
const LONG: usize = 2048;

/// Ops up to which plans that fit are made of what all others answer. Beyond, they are made where they may be
/// faster than what the search found, and of what promises most where there is no other plan or no search.
const FEW: usize = 256;

/// Number of answers that promise most.
const PROMISING: usize = 4;

/// Calls of each of those at most.
const TWICE: usize = 2;

/// Takes the best of what the starts find and of a search of order, swaps and recomputation from there.
pub fn plan(p: &Problem, request: &Request<'_>, starts: &Starts<'_>) -> Result<Found, NoPlan> {
    let (few, many) = (p.ops.len() <= FEW, p.ops.len() >= MANY_OPS);
    let mut c = Composition::new(p, request);
    let first = c.ask(starts.first);
    c.fit(first, CALLS);
    // The least effort is the first plan, where others take long.
    let enough = (request.stop)() || request.effort == 0 && many;
    if let Some(found) = c.found(enough) {
        return Ok(found);
    }
    let thorough = starts.thorough.iter().filter(|_| p.ops.len() < LONG);
    let others: Vec<&Planner> = starts.quick.iter().chain(thorough).copied().collect();
    let mut asked = c.ask(&others);
    let mut promised = Vec::new();
    if !few {
        for (_, found) in &mut asked {
            c.evaluations += std::mem::take(&mut found.evaluations);
            c.known.push(found.decisions.clone());
        }
        promised = promises(p, request.capacity, std::mem::take(&mut asked));
        let fits = if c.best.is_some() && (many || request.effort > 0) { 0 } else { PROMISING };
        asked.extend(promised.iter().take(fits).map(|(_, answer)| answer.clone()));
    }
    c.fit(asked, if few { CALLS } else { TWICE });
    if let Some(found) = c.found(request.effort == 0 && !few) {
        return Ok(found);
    }
    let found = search::search(p, request, c.limits, &c.known, c.best.is_some())?;
    c.evaluations += found.evaluations;
    found.best.into_iter().for_each(|r| c.consider(r));
    // No planner that was asked may have a faster plan.
    let best_ns = c.best.as_ref().map_or(u64::MAX, |best| best.evaluation.step_ns);
    promised.retain(|&(step_ns, _)| step_ns < best_ns && !(request.stop)());
    c.fit(promised.into_iter().map(|(_, answer)| answer).collect(), CALLS);
    c.found(true).ok_or_else(|| c.failure())
}

/// A planner with what it answered.
type Answer<'a> = (&'a Planner, Found);

/// Plans and decisions found so far.
struct Composition<'a> {
    p: &'a Problem,
    request: &'a Request<'a>,
    limits: Limits,
    best: Option<Schedule>,
    evaluations: u64,
    /// Decisions for the search to start from.
    known: Vec<Decisions>,
    /// The first planner's reason for giving up.
    error: Option<NoPlan>,
}

impl<'a> Composition<'a> {
    fn new(p: &'a Problem, request: &'a Request<'a>) -> Composition<'a> {
        let limits = Limits::effort(request.effort, p.ops.len());
        Composition { p, request, limits, best: None, evaluations: 0, known: Vec::new(), error: None }
    }

    /// Answers of planners; those without one are left out.
    fn ask<'b>(&mut self, planners: &[&'b Planner]) -> Vec<Answer<'b>> {
        // They need not look far where that takes long.
        let effort = if self.p.ops.len() >= MANY_OPS { 0 } else { self.request.effort };
        let (p, brief) = (self.p, Request { effort, watch: &|_| {}, alive: &|_| {}, ..*self.request });
        let answers: Vec<_> =
            planners.par_iter().map(|&planner| (planner, (planner.plan)(p, &brief))).collect();
        let mut asked = Vec::new();
        for (planner, answer) in answers {
            match answer {
                Ok(found) => asked.push((planner, found)),
                Err(why) => self.give_up(why),
            }
        }
        asked
    }

    /// Makes plans that fit of answers.
    fn fit(&mut self, asked: Vec<Answer<'_>>, calls: usize) {
        let (p, work) = (self.p, self.limits.layout_work);
        let quiet = Request { watch: &|_| {}, alive: &|_| {}, ..*self.request };
        let fit = |(planner, found)| fit(p, planner, &quiet, found, (work, calls));
        let fitted: Vec<_> = asked.into_par_iter().map(fit).collect();
        for fitted in fitted {
            match fitted {
                Ok((r, spent)) => {
                    self.evaluations += spent;
                    self.known.push(r.decisions.clone());
                    self.consider(r);
                }
                Err(why) => self.give_up(why),
            }
        }
    }

    /// Takes a plan for the best if it is.
    fn consider(&mut self, r: Schedule) {
        (self.request.watch)(Progress { step_ns: r.evaluation.step_ns, evaluations: self.evaluations });
        if self.best.as_ref().is_none_or(|b| r.key() < b.key()) {
            self.best = Some(r);
        }
    }

    /// Takes note of a planner's reason. Planners do not know how a tensor is to be handled; where they
    /// handle it otherwise, they are refused.
    fn give_up(&mut self, why: NoPlan) {
        if self.error.is_none() && self.p.handling.is_empty() {
            self.error = Some(why);
        }
    }

    /// The best plan, if there is one and it is good enough.
    fn found(&mut self, enough: bool) -> Option<Found> {
        let best = self.best.take_if(|_| enough)?;
        Some(Found { decisions: best.decisions, evaluations: self.evaluations })
    }

    /// Reason for finding nothing.
    fn failure(&mut self) -> NoPlan {
        let (p, allow) = (self.p, self.request.allow);
        if !allow.on(&p.device).swap {
            let recompute = if allow.recompute { "" } else { " or be computed again" };
            let why = format!("nothing can leave the device{recompute}, and nothing that was tried fits");
            return NoPlan::Infeasible(why);
        }
        if !p.handling.is_empty() {
            let why = "no plan that was tried fits and handles tensors as they are to be handled";
            return NoPlan::Infeasible(why.into());
        }
        self.error.take().unwrap_or(NoPlan::Infeasible(String::new()))
    }
}

/// The answers that may fit, with the times of their steps in ns if a quick layout did, the shortest first.
fn promises<'a>(p: &Problem, capacity: u64, asked: Vec<Answer<'a>>) -> Vec<(u64, Answer<'a>)> {
    let laid: Vec<_> =
        asked.par_iter().map(|(_, found)| evaluate_by(p, found.decisions.clone(), Algorithm::Peak)).collect();
    let mut promises = Vec::new();
    for (answer, laid) in asked.into_iter().zip(laid) {
        if let Ok(Schedule { evaluation, .. }) = laid
            && evaluation.load_bytes <= capacity
        {
            promises.push((evaluation.step_ns, answer));
        }
    }
    promises.sort_by_key(|x| x.0);
    promises
}
