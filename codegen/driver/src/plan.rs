//! One planner on one instance and budget: the better of its orders, within a time, kept on a request to
//! stop.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant as Time};

use memc_baselines::PLANNERS;
use memc_ir::Bytes;
use memc_passes::DeviceProfile;
use memc_planner::{
    Allow, Decisions, NoPlan, Order, Planner, Progress, Request, Schedule, TensorKind, replay, widen,
};

use crate::error::Error;
use crate::instance::{Candidate, Instance};
use crate::machine::{now, since};
use crate::watch::{Event, Found, Hold, Watch};

/// The planner of a name.
pub fn planner(name: &str) -> Result<&'static Planner, Error> {
    memc_baselines::named(name).ok_or_else(|| {
        let known: Vec<&str> = PLANNERS.iter().map(|p| p.name).collect();
        Error::Usage(format!("unknown planner `{name}` (known: {})", known.join(", ")))
    })
}

/// Planner, permissions and effort of a search.
#[derive(Clone)]
pub struct Search {
    /// The planner.
    pub planner: &'static Planner,
    /// Permissions of the plan; without reordering, each candidate keeps its order.
    pub allow: Allow,
    /// Order of the one candidate; `None`: the better of all.
    pub order: Option<Order>,
    /// Effort, from 0 for the first plan found to 5.
    pub effort: u32,
    /// Seed of everything random.
    pub seed: u64,
    /// Time after which each search ends with its best plan. Results then depend on the machine.
    pub time_limit: Option<Duration>,
}

impl Default for Search {
    fn default() -> Self {
        Search { planner: &PLANNERS[0], allow: Allow::ALL, order: None, effort: 2, seed: 0, time_limit: None }
    }
}

impl Search {
    /// Order in which an instance is to be made; `None`: every one worth trying.
    pub fn order(&self) -> Option<Order> {
        self.order.or_else(|| (!self.allow.reorder).then_some(Order::Given))
    }

    fn request(&self, capacity: u64) -> Request<'static> {
        Request { allow: self.allow, seed: self.seed, effort: self.effort, ..Request::new(capacity) }
    }

    /// Deeds of a planner without a plan that options forbid.
    fn forbidden(&self) -> String {
        let swap = (!self.allow.swap && self.planner.swaps).then_some("; --no-swap keeps it from swapping");
        let again = (!self.allow.recompute && self.planner.recomputes)
            .then_some("; --no-recompute keeps it from running ops again");
        swap.into_iter().chain(again).collect()
    }
}

/// A plan.
#[derive(Clone)]
pub struct Solved {
    /// Index among [`Instance::candidates`].
    pub at: usize,
    /// The plan.
    pub schedule: Schedule,
}

/// Answer of a planner to an instance and a budget.
pub struct Outcome {
    /// Name of the planner, or `decisions`.
    pub planner: String,
    /// The budget in bytes.
    pub budget: u64,
    /// The plan, or why there is none.
    pub plan: Result<Solved, NoPlan>,
    /// Plans that were evaluated.
    pub evaluations: u64,
    /// Time that planning took in ns.
    pub plan_ns: u64,
    /// Whether a time limit or a request to stop ended the search.
    pub stopped: bool,
    /// Whether it was a request to stop.
    pub interrupted: bool,
}

impl Outcome {
    /// The candidate that the plan is of, and the plan.
    pub fn of<'a>(&'a self, instance: &'a Instance) -> Option<(&'a Candidate, &'a Schedule)> {
        let solved = self.plan.as_ref().ok()?;
        Some((instance.candidates().get(solved.at)?, &solved.schedule))
    }

    /// The plan as [`Outcome::of`] gives it, or the error that explains why there is none.
    pub fn require<'a>(
        &'a self,
        instance: &'a Instance,
        allow: Allow,
    ) -> Result<(&'a Candidate, &'a Schedule), Error> {
        match &self.plan {
            Ok(_) => self.of(instance).ok_or_else(|| Error::Internal("the plan is of no candidate".into())),
            Err(NoPlan::Infeasible(why)) => {
                Err(instance.infeasible(&[&self.planner], why, self.budget, allow)?)
            }
            Err(NoPlan::Failed(text)) => Err(Error::Internal(text.clone())),
        }
    }

    /// Gives convolutions more workspace, up to `most` bytes, where the budget has room for it; without a
    /// budget, where the device's memory has.
    pub(crate) fn widen(&mut self, instance: &Instance, profile: &DeviceProfile, most: u64) {
        let Ok(solved) = &mut self.plan else { return };
        let budget = Some(self.budget).filter(|&bytes| bytes < u64::MAX).or(profile.memory_bytes);
        let capacity = budget.map_or(0, |bytes| instance.capacity(bytes));
        let candidate = instance.candidates().get(solved.at);
        if let Some(problem) = candidate.and_then(Candidate::model) {
            let plan = std::mem::take(&mut solved.schedule);
            solved.schedule = widen(&problem.numbers, plan, &problem.wishes(profile, most), capacity);
        }
    }

    /// The decisions of the plan as text, which [`DecisionsFile`] replays.
    pub fn decisions(&self, instance: &Instance) -> Option<String> {
        self.of(instance).map(|(candidate, plan)| plan.decisions.print(candidate.numbers()))
    }

    /// The certified bound that holds for the plan, in ns, and its extent: the order of its candidate where
    /// the plan keeps it, else every order.
    pub fn bound(&self, instance: &Instance, allow: Allow) -> Option<(u64, &'static str)> {
        let solved = self.plan.as_ref().ok()?;
        let bound = |at| instance.bound(at, self.budget, allow);
        let decisions = &solved.schedule.decisions;
        if let Some(ns) = bound(solved.at)?.least(true).filter(|_| decisions.keeps_order()) {
            return Some((ns, "fixed order"));
        }
        // Candidates differ in more than their order: an op in place in one may copy in another.
        let least = (0..instance.candidates().len()).filter_map(|at| bound(at)?.least(false)).min();
        Some((least?, "any order"))
    }
}

impl Instance {
    /// Carries out saved decisions, or else runs the planner.
    pub fn answer(
        &self,
        budget: u64,
        search: &Search,
        file: Option<&DecisionsFile>,
        watch: &dyn Watch,
    ) -> Result<Outcome, Error> {
        match file {
            Some(file) => self.replay(file, budget),
            None => self.plan(budget, search, watch),
        }
    }

    /// Runs a planner on every candidate and keeps the fastest plan.
    ///
    /// The candidates share the time limit. A request to stop ends the search: with [`Error::Interrupted`]
    /// before there is a plan, else with the best one, which [`Outcome::stopped`] and [`Event::Kept`] tell.
    pub fn plan(&self, budget: u64, search: &Search, watch: &dyn Watch) -> Result<Outcome, Error> {
        if budget < self.reserve_bytes {
            // A step that takes no memory at all would else fit.
            let reserve = Bytes(self.reserve_bytes);
            return Ok(Self::nothing(
                budget,
                search,
                format!("the device's reserve of {reserve} does not fit"),
            ));
        }
        self.search(budget, search, watch)
    }

    fn search(&self, budget: u64, search: &Search, watch: &dyn Watch) -> Result<Outcome, Error> {
        let planner = search.planner;
        let capacity = self.capacity(budget);
        // No candidate's plan is faster than the least of their bounds.
        watch.event(Event::Stage("proving a bound"));
        let orders = self.candidates().len();
        let least = |at| self.least(at, budget, search);
        let bound_ns = if watch.is_seen() { (0..orders).map(least).min().unwrap_or(0) } else { 0 };
        let fits = |o: &Candidate| o.kept.evaluation.dev_bytes <= capacity;
        let improve = self.is_worth_a_search(budget, search);
        watch.event(Event::Stage("planning"));
        let session = Session {
            begun: now(),
            limit: search.time_limit,
            cut: AtomicBool::new(false),
            best: AtomicU64::new(u64::MAX),
            held: OnceLock::new(),
            watch,
            ideal_ns: self.ideal_ns(),
            bound_ns,
        };
        let (mut best, mut failure, mut evaluations) = (None::<Solved>, None, 0);
        for (at, o) in self.candidates().iter().enumerate() {
            let stop = || session.stop(at + 1, orders);
            let found = |found: Progress| session.found(found.step_ns, found.evaluations);
            let request = Request { stop: &stop, watch: &found, ..search.request(capacity) };
            // Where another order lets everything stay, this one need not make room.
            if best.as_ref().is_some_and(|b| self.candidates().get(b.at).is_some_and(fits)) && !fits(o) {
                continue;
            }
            let answer = if fits(o) {
                session.found(o.kept.evaluation.step_ns, 1);
                Ok(if improve { beyond(o, planner, &request) } else { (o.kept.clone(), 1) })
            } else {
                memc_planner::solve(o.numbers(), planner, &request)
            };
            match answer {
                Ok((mut schedule, n)) => {
                    evaluations += n;
                    schedule.decisions.order = o.order;
                    session.found(schedule.evaluation.step_ns, evaluations);
                    if best.as_ref().is_none_or(|b| schedule.key() < b.schedule.key()) {
                        best = Some(Solved { at, schedule });
                    }
                }
                Err(e @ NoPlan::Failed(_)) => failure = Some(e),
                Err(NoPlan::Infeasible(why)) => {
                    failure = failure.or_else(|| Some(NoPlan::Infeasible(why + &search.forbidden())));
                }
            }
            // Nothing is faster than the ideal.
            let done = best.as_ref().is_some_and(|b| b.schedule.evaluation.step_ns <= self.ideal_ns());
            if done || watch.stop() {
                break;
            }
        }
        let (begun, stopped) = (session.begun, session.cut.load(Ordering::Relaxed));
        drop(session);
        // From here on a request to stop is for the work that follows.
        let interrupted = watch.take_stop();
        if interrupted && best.is_none() {
            return Err(Error::Interrupted);
        }
        if interrupted {
            watch.event(Event::Kept);
        }
        if let Some(best) = &best {
            self.record(search.allow, best.schedule.evaluation.dev_bytes);
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

    /// Answer that no plan fits, without a search.
    fn nothing(budget: u64, search: &Search, why: String) -> Outcome {
        Outcome {
            planner: search.planner.name.to_string(),
            budget,
            plan: Err(NoPlan::Infeasible(why)),
            evaluations: 0,
            plan_ns: 0,
            stopped: false,
            interrupted: false,
        }
    }

    /// Time in ns that no plan of a candidate can beat; 0 where nothing is known.
    fn least(&self, at: usize, budget: u64, search: &Search) -> u64 {
        self.bound(at, budget, search.allow).and_then(|b| b.least(!search.allow.reorder)).unwrap_or(0)
    }

    /// Whether to search although everything fits in some order.
    ///
    /// With nothing to make room for, published methods decide nothing; a search still hides copies of
    /// inputs.
    fn is_worth_a_search(&self, budget: u64, search: &Search) -> bool {
        let capacity = self.capacity(budget);
        let candidates = self.candidates().iter().enumerate();
        let fitting: Vec<_> = candidates.filter(|(_, o)| o.kept.evaluation.dev_bytes <= capacity).collect();
        let Some(kept_ns) = fitting.iter().map(|(_, o)| o.kept.evaluation.step_ns).min() else {
            return false;
        };
        if budget == u64::MAX || search.planner.name != PLANNERS[0].name {
            return false;
        }
        let bound = fitting.iter().map(|&(at, _)| self.least(at, budget, search)).min().unwrap_or(0);
        kept_ns > bound + bound / 1000
    }

    /// Carries out the decisions of a file instead of planning. The instance is one in
    /// [`DecisionsFile::order`].
    pub fn replay(&self, file: &DecisionsFile, budget: u64) -> Result<Outcome, Error> {
        let begun = now();
        let at = |e| Error::Model(format!("{}: {e}", file.name));
        let schedule = replay(self.candidates()[0].numbers(), &file.text).map_err(at)?;
        let need = schedule.evaluation.dev_bytes.saturating_add(self.reserve_bytes);
        if need > budget {
            let (need, have) = (Bytes(need), Bytes(budget));
            return Err(Error::no_fit(format!(
                "{}: the decisions take {need}, the budget is {have}",
                file.name
            )));
        }
        Ok(Outcome {
            planner: "decisions".into(),
            budget,
            plan: Ok(Solved { at: 0, schedule }),
            evaluations: 1,
            plan_ns: since(begun),
            stopped: false,
            interrupted: false,
        })
    }
}

/// Plan of a search where everything fits, if it is faster than to keep everything.
///
/// It may take as much more room as hiding the inputs' copies can be worth: each input twice, once for this
/// step and once for the next.
fn beyond(o: &Candidate, planner: &Planner, request: &Request<'_>) -> (Schedule, u64) {
    let inputs = o.numbers().tensors.values().filter(|t| t.kind == TensorKind::Input).map(|t| t.bytes);
    let room = inputs.fold(o.kept.evaluation.dev_bytes, |room, bytes| room.saturating_add(2 * bytes));
    let request = Request { capacity: request.capacity.min(room), ..*request };
    match memc_planner::solve(o.numbers(), planner, &request) {
        Ok(found) if found.0.evaluation.step_ns < o.kept.evaluation.step_ns => found,
        other => (o.kept.clone(), other.map_or(1, |found| found.1)),
    }
}

/// Limits of a search, and its progress.
struct Session<'a> {
    begun: Time,
    limit: Option<Duration>,
    /// Whether the search was told to stop.
    cut: AtomicBool,
    /// Time of the best step so far in ns.
    best: AtomicU64,
    /// From the first plan until the search has ended.
    held: OnceLock<Hold<'a>>,
    watch: &'a dyn Watch,
    /// Time of the ideal step in ns.
    ideal_ns: u64,
    /// Time in ns that no plan can beat; 0 where unknown.
    bound_ns: u64,
}

impl Session<'_> {
    /// Whether the search on the first `done` of `all` candidates has to end.
    fn stop(&self, done: usize, all: usize) -> bool {
        let share = |limit: Duration| limit.mul_f64(done as f64 / all.max(1) as f64);
        let late = self.limit.is_some_and(|limit| self.begun.elapsed() >= share(limit));
        let stop = late || self.watch.stop();
        if stop {
            self.cut.store(true, Ordering::Relaxed);
        }
        stop
    }

    fn found(&self, step_ns: u64, evaluations: u64) {
        // A request to stop now has something to keep.
        self.held.get_or_init(|| Hold::begin(self.watch));
        let step_ns = self.best.fetch_min(step_ns, Ordering::Relaxed).min(step_ns);
        let (ideal_ns, bound_ns) = (self.ideal_ns, self.bound_ns);
        self.watch.event(Event::Found(Found { step_ns, ideal_ns, bound_ns, evaluations }));
    }
}

/// Decisions to be carried out, as text.
#[derive(Clone, Debug)]
pub struct DecisionsFile {
    /// Name for messages, such as that of its file.
    pub name: String,
    /// The decisions.
    pub text: String,
}

impl DecisionsFile {
    /// Order in which the instance has to be made.
    pub fn order(&self) -> Order {
        Decisions::order_in(&self.text)
    }
}
