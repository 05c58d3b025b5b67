//! The default planner's search: gaps chosen by duals that stalls teach, until the step fits and the layout
//! does.

mod decode;
mod duals;
mod headroom;
mod import;
mod kinds;
mod lns;
mod memetic;
mod order;
mod prefetch;
mod recompute;
mod repair;
mod select;
mod share;
mod state;

use memc_alloc::{Algorithm, Options};
use rayon::prelude::*;

use crate::bound;
use crate::decisions::Decisions;
use crate::error::DecisionsError;
use crate::evaluate::{Schedule, evaluate_by, evaluate_with};
use crate::genotype::Genotype;
use crate::ids::OpPos;
use crate::planner::{Progress, Request};
use crate::problem::Problem;
use duals::Duals;
use headroom::First;
use kinds::Kinds;
use lns::Random;
use order::Precedence;
use state::State;

/// Limits of a search.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Gaps and steps looked at while choosing: for all first choices, a third of all children, and
    /// the layouts of two finalists.
    pub work: u64,
    /// Layouts tried for one choice.
    pub layouts: usize,
    /// Work on one layout, in the unit of [`memc_alloc::Options`].
    pub layout_work: u64,
}

impl Limits {
    /// Limits for an effort from 0 to 5. In steps of few ops more moves are made for the same work, and fewer
    /// are left to make: they get less.
    pub fn effort(effort: u32, ops: usize) -> Limits {
        let (work, layouts, layout_work) = match effort {
            0 => (0, 4, 100_000),
            1 => (20_000_000, 8, 200_000),
            2 => (200_000_000, 16, 800_000),
            3 => (1_000_000_000, 32, 2_000_000),
            4 => (5_000_000_000, 64, 10_000_000),
            _ => (25_000_000_000, 128, 50_000_000),
        };
        Limits { work: work / 512 * (ops as u64).clamp(256, 512), layouts, layout_work }
    }
}

/// Result of a search.
pub struct Outcome {
    /// The best plan that fits, if any.
    pub best: Option<Schedule>,
    /// Plans that were evaluated.
    pub evaluations: u64,
}

/// Searches from the problem's order, and others unless it is to be kept, and from the best of some
/// decisions.
///
/// `planned`: whether there is a plan to fall back on; told to stop, a search without one first looks for
/// one.
pub fn search(
    p: &Problem,
    request: &Request<'_>,
    limits: Limits,
    known: &[Decisions],
    planned: bool,
) -> Result<Outcome, DecisionsError> {
    let precedence = request.allow.reorder.then(|| Precedence::new(p));
    let mut starts: Vec<Vec<OpPos>> = vec![p.ops.ids().collect()];
    starts.extend(precedence.iter().flat_map(|x| [x.eager(p), x.sinking(p)]));
    let mut distinct: Vec<Vec<OpPos>> = Vec::new();
    for start in starts {
        if !distinct.contains(&start) {
            distinct.push(start);
        }
    }
    // Where nothing fits the search finds out.
    let floor = bound::order_free(p, request.capacity, request.allow).unwrap_or_else(|_| p.compute_ns());
    let (precedence, kinds) = (precedence.as_ref(), &Kinds::new(p));
    let common = Common { p, request, floor, limits, planned, precedence, kinds };
    let population = memetic::evolve(&common, &distinct, known)?;
    let evolved = population.evaluations;
    let runs: Vec<Result<Run<'_>, DecisionsError>> = population
        .best
        .into_par_iter()
        .map(|(individual, seed)| {
            let mut run = Run::new(&common, Random(request.seed ^ seed));
            run.finish(individual)?;
            Ok(run)
        })
        .collect();
    let mut runs = runs.into_iter().collect::<Result<Vec<_>, _>>()?;
    headroom::refit(&mut runs)?;
    let evaluations: u64 = evolved + runs.iter().map(|run| run.evaluations).sum::<u64>();
    // One without a plan has none to offer; of equals the first.
    runs.extend(population.run);
    let best = runs.into_iter().filter(|run| run.best.is_some()).min_by_key(Run::key);
    let Some(mut run) = best else { return Ok(Outcome { best: None, evaluations }) };
    let before = run.evaluations;
    if let Some(state) = run.chosen.take() {
        let state = run.repair(state)?;
        run.prefetch(state)?;
    }
    run.arrive_early()?;
    Ok(Outcome { best: run.best, evaluations: evaluations + run.evaluations - before })
}

/// Time in ns of the step that a search would begin with, in the problem's order and without a layout; none
/// where its choices do not fit. Takes a small part of a search's time.
pub fn glance(p: &Problem, request: &Request<'_>) -> Option<u64> {
    let floor = p.compute_ns();
    let (limits, kinds) = (Limits::effort(0, 0), &Kinds::default());
    let common = Common { p, request, floor, limits, planned: true, precedence: None, kinds };
    memetic::glance(&common).into_iter().min()
}

/// Question, limits and facts that all parts of a search share.
#[derive(Clone, Copy)]
struct Common<'a> {
    p: &'a Problem,
    request: &'a Request<'a>,
    /// No step is shorter, in ns.
    floor: u64,
    limits: Limits,
    /// Whether there is a plan even if this finds none.
    planned: bool,
    /// None where the order is kept.
    precedence: Option<&'a Precedence>,
    kinds: &'a Kinds,
}

struct Run<'a> {
    common: Common<'a>,
    random: Random,
    /// Whether slots may also be objects of a pool with size classes.
    pooled: bool,
    /// The best plan that fits.
    best: Option<Schedule>,
    /// Genotype that it was decoded from.
    chosen: Option<State<'a>>,
    /// Genotype for which allocations were made.
    first: Option<First<'a>>,
    evaluations: u64,
    work: u64,
}

/// Choices in a row that are no better before duals are given up.
const PATIENCE: u32 = 40;

impl<'a> Run<'a> {
    fn new(common: &Common<'a>, random: Random) -> Run<'a> {
        let (best, chosen, first, evaluations, work) = Default::default();
        Run { common: *common, random, pooled: false, best, chosen, first, evaluations, work }
    }

    /// Lays a choice out, and varies it until its layout fits or the work is done.
    fn finish(&mut self, first: First<'a>) -> Result<(), DecisionsError> {
        if self.common.planned && (self.common.request.stop)() {
            return Ok(());
        }
        self.pooled = first.pooled;
        self.judge(&first.state, &first.state.genotype)?;
        if self.done() {
            return Ok(());
        }
        self.first = Some(first.clone());
        let until = self.common.limits.work / 2;
        self.fit(first, false, self.common.limits.layouts, until)
    }

    /// Time of its plan's step.
    fn step_ns(&self) -> Option<u64> {
        Some(self.best.as_ref()?.evaluation.step_ns)
    }

    /// Key of its plan.
    fn key(&self) -> Option<(u64, u64, u64)> {
        self.best.as_ref().map(Schedule::key)
    }

    /// Whether nothing better can be found.
    fn done(&self) -> bool {
        self.best.as_ref().is_some_and(|b| b.evaluation.step_ns <= self.common.floor)
            || (self.common.request.stop)()
    }

    /// Lays a choice out and evaluates it in full.
    fn judge(&mut self, s: &State<'a>, genotype: &Genotype) -> Result<Schedule, DecisionsError> {
        let r = self.lay_out(genotype)?;
        self.evaluations += 1;
        let better = self.best.as_ref().is_none_or(|b| r.key() < b.key());
        if better && r.evaluation.dev_bytes <= self.common.request.capacity {
            self.found(r.clone());
            self.chosen = Some(s.clone());
        }
        Ok(r)
    }

    fn lay_out(&self, genotype: &Genotype) -> Result<Schedule, DecisionsError> {
        let (capacity, work) = (Some(self.common.request.capacity), self.common.limits.layout_work);
        // Many layouts fail, most of them whatever is tried; a first plan is worth trying all.
        let options = Options { capacity, work, seed: 0, all: self.best.is_none() };
        let stop = || (self.common.planned || self.best.is_some()) && (self.common.request.stop)();
        let packed = evaluate_with(self.common.p, genotype.decisions(self.common.p), &options, &stop)?;
        if !self.pooled {
            return Ok(packed);
        }
        let pooled = evaluate_by(self.common.p, genotype.decisions(self.common.p), Algorithm::SizeClass)?;
        let over = |r: &Schedule| r.evaluation.dev_bytes.saturating_sub(self.common.request.capacity);
        let better = (over(&pooled), pooled.key()) < (over(&packed), packed.key());
        Ok(if better { pooled } else { packed })
    }

    /// Takes a plan for the best.
    fn found(&mut self, r: Schedule) {
        let (step_ns, evaluations) = (r.evaluation.step_ns, self.evaluations);
        (self.common.request.watch)(Progress { step_ns, evaluations });
        self.best = Some(r);
    }

    /// Value of a genotype, in ns: its step by the fast timing; of a small one the true step, and more if
    /// it is too high.
    fn value(&mut self, s: &State<'a>, step: u64) -> Result<u64, DecisionsError> {
        if s.steps() > SMALL {
            return Ok(step);
        }
        let capacity = self.common.request.capacity;
        let mut r = self.judge(s, &s.genotype)?;
        if r.evaluation.dev_bytes > capacity {
            r = self.judge(s, &s.genotype.clone().longest())?;
        }
        Ok(if r.evaluation.dev_bytes <= capacity { r.evaluation.step_ns } else { step.saturating_mul(4) })
    }

    /// Chooses gaps again and again, each time with what the last choice's stalls taught; the fastest, with
    /// the time of its step in ns.
    fn learn(
        &mut self,
        mut s: State<'a>,
        duals: &mut Duals,
        rate: f64,
        until: u64,
    ) -> Option<(u64, State<'a>)> {
        let mut best: Option<(u64, State<'a>)> = None;
        let mut stale = 0;
        loop {
            s.clear();
            if !select::greedy(&mut s, duals, &mut self.work) {
                break;
            }
            s.commit();
            let step = s.decode(DECODES);
            self.evaluations += DECODES as u64;
            self.work += (DECODES * 2 * (s.steps() + s.open.len())) as u64;
            stale += 1;
            if best.as_ref().is_none_or(|b| step < b.0) {
                best = Some((step, s.clone()));
                stale = 0;
            }
            if step <= self.common.floor
                || stale > PATIENCE
                || self.work >= until
                || (self.common.request.stop)()
            {
                break;
            }
            s.time();
            duals.learn(&s, rate);
        }
        best
    }

    /// Moves on from a choice while that makes it faster, and returns the fastest, with its value in ns.
    fn lns(
        &mut self,
        mut s: State<'a>,
        duals: &Duals,
        until: u64,
    ) -> Result<(u64, State<'a>), DecisionsError> {
        let step = s.decode(DECODES);
        s.time();
        s.commit();
        let mut present = self.value(&s, step)?;
        let mut best = (present, s.clone());
        let floor = self.common.floor;
        let patience = PATIENCE_MOVES + 2 * s.open.len();
        let mut stale = 0;
        while self.work < until && best.0 > floor && stale < patience && !self.done() {
            stale += 1;
            let moved = lns::step(&mut s, duals, &self.common, &mut self.random, &mut self.work);
            self.work += (DECODES * 2 * (s.steps() + s.open.len())) as u64;
            self.evaluations += DECODES as u64;
            // Slightly worse is good enough to go on from.
            let limit = present + present.saturating_sub(floor) / SLACK;
            let mut accepted = moved.filter(|&step| step <= limit);
            if let Some(step) = accepted {
                accepted = Some(self.value(&s, step)?).filter(|&value| value <= limit);
            }
            let Some(value) = accepted else {
                s.rollback();
                s.commit();
                continue;
            };
            s.commit();
            present = value;
            s.time();
            if present < best.0 {
                best = (present, s.clone());
                stale = 0;
            }
        }
        Ok(best)
    }
}

/// Moves in a row without a faster step before a search is given up, and 2 for each gap.
const PATIENCE_MOVES: usize = 200;

/// Steps up to this many runs are evaluated in full at every move.
const SMALL: usize = 16;

/// A move is accepted when it adds at most this part of the time above the ideal.
const SLACK: u64 = 200;

/// Rounds of decoding one choice.
const DECODES: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::chain;

    /// Told to stop, a search lays nothing out any more where there is a plan already, and looks for one
    /// where there is none.
    #[test]
    fn a_search_that_is_to_stop_only_looks_for_a_first_plan() {
        let p = chain(32, 4096, 100, 200);
        let request = Request { stop: &|| true, ..Request::new(40 * 1024) };
        let found = |planned| {
            let limits = Limits::effort(5, p.ops.len());
            search(&p, &request, limits, &[], planned).expect("the search does not fail")
        };
        let (with, without) = (found(true), found(false));
        assert!(with.best.is_none() && with.evaluations == 0, "{} evaluations", with.evaluations);
        assert!(without.best.is_some_and(|r| r.evaluation.dev_bytes <= 40 * 1024));
    }
}
