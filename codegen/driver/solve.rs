//! One planner on one posed problem and budget: the better of its orders, within a time, kept on an interrupt.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memc_planner::planners::{self, NoPlan, PLANNERS, Planner, Progress as Found, Request};
use memc_planner::{Decisions, Kind, Realised, replay};

use crate::cli::{How, Question, ScriptFiles, Search};
use crate::exit::Error;
use crate::output::{Progress, STOP, Writing, ready};
use crate::planner::named;
use crate::posed::{Ordered, Posed, pose};
use crate::report::{ms, quotient};
use crate::source::read_text;
use crate::time::{now, since};

/// A plan.
#[derive(Clone)]
pub(crate) struct Solved {
    /// Which of [`Posed::tried`] it is of.
    pub(crate) at: usize,
    /// The plan.
    pub(crate) realised: Realised,
}

/// What a planner made of a problem and a budget.
pub(crate) struct Outcome {
    /// Who planned.
    pub(crate) planner: String,
    /// The budget in bytes.
    pub(crate) budget: u64,
    /// The plan, or why there is none.
    pub(crate) plan: Result<Solved, NoPlan>,
    /// Plans that were evaluated.
    pub(crate) evaluations: u64,
    /// Time that planning took in ns.
    pub(crate) plan_ns: u64,
    /// Whether a time limit or an interrupt ended the search.
    pub(crate) stopped: bool,
    /// Whether it was an interrupt.
    pub(crate) interrupted: bool,
}

impl Outcome {
    /// The problem that the plan is of, and the plan.
    pub(crate) fn of<'a>(&'a self, posed: &'a Posed) -> Option<(&'a Ordered, &'a Realised)> {
        let solved = self.plan.as_ref().ok()?;
        Some((posed.tried().get(solved.at)?, &solved.realised))
    }

    /// The certified bound that holds for the plan, in ns, and for what: the order of its problem where it keeps it,
    /// else every order.
    pub(crate) fn bound(&self, posed: &Posed, how: &How) -> Option<(u64, &'static str)> {
        let solved = self.plan.as_ref().ok()?;
        let bound = |at| posed.bound(at, self.budget, how.allow());
        let decisions = &solved.realised.decisions;
        if let Some(ns) = bound(solved.at)?.least(true).filter(|_| decisions.keeps_order()) {
            return Some((ns, "fixed order"));
        }
        // Problems in different orders differ in more than that: what is overwritten in place in one is copied in another.
        let least = (0..posed.tried().len()).filter_map(|at| bound(at)?.least(false)).min();
        Some((least?, "any order"))
    }
}

/// What the decision file of `--apply` makes of a question, or else the planner that is asked for.
pub(crate) fn answer(
    question: &Question,
    search: &Search,
    files: &ScriptFiles,
    progress: &Progress,
) -> Result<(Posed, Outcome), Error> {
    ready(&[Some(&question.source.model), files.apply.as_ref()], &[files.decisions.as_ref()])?;
    let (how, planner, script) = (&search.how, named(&search.planner)?, Script::read(files)?);
    let order = script.as_ref().map_or_else(|| how.order(), |s| Some(s.order()));
    let posed = pose(&question.source, &question.target, order, progress)?;
    let budget = posed.budget(question.gpu_mem)?;
    let outcome = match &script {
        Some(script) => script.apply(&posed, budget)?,
        None => solve(&posed, planner, how, budget, progress)?,
    };
    Ok((posed, outcome))
}

/// Runs a planner on every order that is tried and keeps the fastest plan.
///
/// The time limit is shared among the orders. An interrupt ends the search once a plan has been found, and the command
/// at once before; [`Outcome::stopped`] then says so, and so does a line on stderr.
pub(crate) fn solve(
    posed: &Posed,
    planner: &Planner,
    how: &How,
    budget: u64,
    progress: &Progress,
) -> Result<Outcome, Error> {
    let capacity = posed.capacity(budget);
    let bounds =
        |at| posed.bound(at, budget, how.allow()).and_then(|b| b.least(how.fixed_order)).unwrap_or(0);
    // No order's plan is faster than the least of their bounds.
    progress.stage("proving a bound");
    let bound = if progress.visible() { (0..posed.tried().len()).map(bounds).min().unwrap_or(0) } else { 0 };
    let fits = |o: &Ordered| o.kept.evaluation.dev_bytes <= capacity;
    // With nothing to make room for, published methods decide nothing; a search still hides copies of inputs.
    let tried = || posed.tried().iter().enumerate().filter(|(_, o)| fits(o));
    let kept_ns = tried().map(|(_, o)| o.kept.evaluation.step_ns).min();
    let near = || tried().map(|(at, _)| bounds(at)).min().map_or(0, |bound| bound + bound / 1000);
    let limited = budget < u64::MAX;
    let search = limited && planner.name == PLANNERS[0].name && kept_ns.is_some_and(|ns| ns > near());
    progress.stage("planning");
    let begun = now();
    let session = Session {
        begun,
        limit: how.time_limit,
        cut: AtomicBool::new(false),
        best: AtomicU64::new(u64::MAX),
        keeping: OnceLock::new(),
        progress,
        ideal: posed.ideal_ns(),
        bound,
    };
    let orders = posed.tried().len();
    let (mut best, mut failure, mut evaluations) = (None::<Solved>, None, 0);
    for (at, o) in posed.tried().iter().enumerate() {
        let stop = || session.stop(at + 1, orders);
        let watch = |found: Found| session.found(found.step_ns, found.evaluations);
        let request = Request { stop: &stop, watch: &watch, ..how.request(capacity) };
        // Where another order lets everything stay, this one need not make room.
        if best.as_ref().is_some_and(|b| posed.tried().get(b.at).is_some_and(fits)) && !fits(o) {
            continue;
        }
        let found = if fits(o) {
            session.found(o.kept.evaluation.step_ns, 1);
            Ok(if search { beyond(o, planner, &request) } else { (o.kept.clone(), 1) })
        } else {
            planners::solve(o.numbers(), planner, &request)
        };
        match found {
            Ok((mut realised, n)) => {
                evaluations += n;
                realised.decisions.order = o.order;
                session.found(realised.evaluation.step_ns, evaluations);
                if best.as_ref().is_none_or(|b| realised.key() < b.realised.key()) {
                    best = Some(Solved { at, realised });
                }
            }
            Err(e @ NoPlan::Failed(_)) => failure = Some(e),
            Err(NoPlan::Infeasible(why)) => {
                failure = failure.or_else(|| Some(NoPlan::Infeasible(why + &forbidden(planner, how))));
            }
        }
        // Nothing is faster than the ideal.
        let done = best.as_ref().is_some_and(|b| b.realised.evaluation.step_ns <= posed.ideal_ns());
        if done || STOP.load(Ordering::Relaxed) {
            break;
        }
    }
    let stopped = session.cut.load(Ordering::Relaxed);
    drop(session);
    // From here on an interrupt is for what comes next.
    let interrupted = STOP.swap(false, Ordering::Relaxed);
    if interrupted && best.is_none() {
        return Err(Error::Interrupted);
    }
    if interrupted {
        progress.say("interrupted: going on with the best plan found so far");
    }
    if let Some(best) = &best {
        posed.fits(how.allow(), best.realised.evaluation.dev_bytes);
    }
    let none = || NoPlan::Failed("no order was planned".into());
    Ok(Outcome {
        planner: planner.name.to_string(),
        budget,
        plan: best.ok_or_else(|| failure.unwrap_or_else(none)),
        evaluations,
        plan_ns: since(begun),
        stopped: stopped || interrupted,
        interrupted,
    })
}

/// What a search finds where everything fits, if it is faster than to keep everything.
///
/// It may take as much more room as hiding the inputs' copies can be worth: each input twice, once for this step and once
/// for the next.
fn beyond(o: &Ordered, planner: &Planner, request: &Request<'_>) -> (Realised, u64) {
    let inputs = o.numbers().tensors.iter().filter(|t| t.kind == Kind::Input).map(|t| t.bytes);
    let room = inputs.fold(o.kept.evaluation.dev_bytes, |room, bytes| room.saturating_add(2 * bytes));
    let request = Request { capacity: request.capacity.min(room), ..*request };
    match planners::solve(o.numbers(), planner, &request) {
        Ok(found) if found.0.evaluation.step_ns < o.kept.evaluation.step_ns => found,
        other => (o.kept.clone(), other.map_or(1, |found| found.1)),
    }
}

/// What a planner without a plan would do if options did not forbid it.
fn forbidden(planner: &Planner, how: &How) -> String {
    let swap = (how.no_swap && planner.swaps).then_some("; --no-swap keeps it from swapping");
    let again = (how.no_recompute && planner.recomputes)
        .then_some("; --no-recompute keeps it from running ops again");
    swap.into_iter().chain(again).collect()
}

/// What ends a search, and what is known of it while it runs.
struct Session<'a> {
    begun: Instant,
    limit: Option<Duration>,
    /// Whether the search was told to stop.
    cut: AtomicBool,
    /// Time of the best step so far in ns.
    best: AtomicU64,
    /// Once a plan has been found, until the search has ended.
    keeping: OnceLock<Writing>,
    progress: &'a Progress,
    /// Time of the ideal step in ns.
    ideal: u64,
    /// What no plan is faster than, in ns; 0 where that is not known.
    bound: u64,
}

impl Session<'_> {
    /// Whether the search on the first `done` of `all` orders has to end.
    fn stop(&self, done: usize, all: usize) -> bool {
        let share = |limit: Duration| limit.mul_f64(done as f64 / all.max(1) as f64);
        let late = self.limit.is_some_and(|limit| self.begun.elapsed() >= share(limit));
        let stop = late || STOP.load(Ordering::Relaxed);
        if stop {
            self.cut.store(true, Ordering::Relaxed);
        }
        stop
    }

    fn found(&self, step_ns: u64, evaluations: u64) {
        // An interrupt now has something to keep.
        self.keeping.get_or_init(Writing::begin);
        let best = self.best.fetch_min(step_ns, Ordering::Relaxed).min(step_ns);
        let bound = match self.bound {
            0 => String::new(),
            bound => format!(", {} of the bound {}", quotient(best, bound), ms(bound)),
        };
        self.progress.stage(&format!(
            "planning: {}, {} of the ideal{bound}, {evaluations} plans",
            ms(best),
            quotient(best, self.ideal)
        ));
    }
}

/// What a decision file to be applied says, and the order that its problem was posed in.
pub(crate) struct Script {
    file: std::path::PathBuf,
    text: String,
}

impl Script {
    /// Reads the file of `--apply`, if one is given.
    pub(crate) fn read(files: &ScriptFiles) -> Result<Option<Script>, Error> {
        let read = |file: &std::path::PathBuf| Ok(Script { text: read_text(file)?, file: file.clone() });
        files.apply.as_ref().map(read).transpose()
    }

    /// The order that the problem has to be posed in.
    pub(crate) fn order(&self) -> memc_planner::Order {
        Decisions::order_in(&self.text)
    }

    /// Carries the decisions out instead of planning.
    pub(crate) fn apply(&self, posed: &Posed, budget: u64) -> Result<Outcome, Error> {
        let begun = now();
        let at = |e| Error::Model(format!("{}: {e}", self.file.display()));
        let realised = replay(posed.tried()[0].numbers(), &self.text).map_err(at)?;
        let (need, have) = (realised.evaluation.dev_bytes, posed.capacity(budget));
        if need > have {
            let (need, have) = (memc_ir::Bytes(need), memc_ir::Bytes(have));
            let text = format!("{}: the decisions take {need}, the budget is {have}", self.file.display());
            return Err(Error::Infeasible(text, None));
        }
        Ok(Outcome {
            planner: "decisions".into(),
            budget,
            plan: Ok(Solved { at: 0, realised }),
            evaluations: 1,
            plan_ns: since(begun),
            stopped: false,
            interrupted: false,
        })
    }
}
