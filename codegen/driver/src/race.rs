//! The candidates of an instance in a race: the formulation, the order, and the ops on the host whose plan is
//! fastest.
//!
//! Formulations in the order as given are planned with less effort first, then other orders of the most
//! promising, and the best again with all effort. Where that leaves the step longer than ideal, more and
//! fewer updates run on the host. A candidate is planned only where its bound is below the shortest step that
//! is known, by 0.5 % where other updates run on the host. From effort 3 on every other planner is asked at
//! last.

mod on_host;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant as Time};

use memc_baselines::PLANNERS;
use memc_planner::{
    Alive, Formulation, MANY_OPS, NoPlan, Order, Planner, Progress, Request, Schedule, TensorKind,
};
use rayon::prelude::*;

use crate::candidate::Candidate;
use crate::error::Error;
use crate::instance::Instance;
use crate::machine::{now, since};
use crate::plan::{Outcome, Search, Solved};
use crate::watch::{Event, Found, Generation, Hold, Watch};

/// Effort from which on candidates are planned with less of it first.
const HEATS: u32 = 2;

/// Effort from which on every other planner is asked as well.
const ALL_PLANNERS: u32 = 3;

/// Candidates are planned with all effort whose steps were at most this part longer than the shortest.
const CLOSE: u64 = 200;

/// Most candidates that are planned with all effort.
const FINALISTS: usize = 2;

/// Ops of all candidates that are planned together, at most: of larger steps fewer are planned.
const OPS: usize = 16_000;

/// Most candidates with other ops on the host that are chosen before any of them is planned, and ops of all
/// of them together: of larger steps three are.
const MOST_ON_HOST: usize = 7;
const OPS_ON_HOST: usize = 4096;

/// Ops run on the host where that makes the step shorter by at least this part: it takes cores that the user
/// may want for data, and a throughput that a profile may only assume. As a larger budget may need no ops
/// there, its step may be longer by this part.
const LESS_BY_HOST: u64 = 200;

/// Where everything fits, a plan is fast enough whose step is longer than it could be by at most this part.
const NEAR_IDEAL: u64 = 1000;

/// Numbers of candidates that are planned.
struct Turns {
    /// With less effort, with the same ops on the host.
    first: usize,
    /// With other ops there.
    on_host: usize,
    /// The last of these, each like the fastest until then.
    like: usize,
    /// With all effort.
    finalists: usize,
}

impl Turns {
    /// Whether there are no heats: a single candidate with the same ops on the host is planned.
    fn is_single(&self) -> bool {
        self.first == 1
    }

    /// For a step of so many ops.
    fn of(ops: usize) -> Turns {
        let all = (OPS / ops.max(1)).max(3);
        let finalists = FINALISTS.min(all / 5).max(1);
        let most = (OPS_ON_HOST / ops.max(1)).clamp(3, MOST_ON_HOST);
        let apart = most.min((all - finalists).div_ceil(2));
        let like = if apart > 1 { 2 + apart / 3 } else { 0 };
        Turns { first: all - finalists - apart, on_host: apart + like, like, finalists }
    }
}

/// Runs a planner on the candidates and keeps the fastest plan.
pub(crate) fn race(
    instance: &Instance,
    budget: u64,
    search: &Search,
    watch: &dyn Watch,
) -> Result<Outcome, Error> {
    let order = (!search.allow.reorder).then_some(search.order.unwrap_or_default());
    let first = instance.candidates().first().map_or_else(Vec::new, |first| first.pose.host.clone());
    let session = Session {
        begun: now(),
        limit: search.time_limit,
        cut: AtomicBool::new(false),
        best: AtomicU64::new(u64::MAX),
        held: OnceLock::new(),
        watch,
        ideal_ns: instance.ideal_ns(),
        bound_ns: AtomicU64::new(0),
    };
    let entered: Vec<usize> = instance.with_host_ops(&first).collect();
    let others = (0..instance.candidates().len()).filter(|at| !entered.contains(at)).collect();
    let mut race = Race {
        instance,
        budget,
        search,
        session,
        entered,
        others,
        best: None,
        failure: None,
        evaluations: 0,
    };
    race.keep();
    let many = instance.given().numbers().ops.len() >= MANY_OPS && race.is_default() && search.effort > 0;
    if let Some(&first) = race.entered.first().filter(|_| many) {
        // A first plan: to prove the bound takes seconds.
        watch.event(Event::Stage("planning"));
        race.plan(first, search.planner, 0, (1, 1));
    }
    watch.event(Event::Stage("proving a bound"));
    let bound = || instance.least_bound(budget, search.allow, order, &first);
    let bound_ns = watch.is_seen().then(bound).flatten().unwrap_or(0);
    race.session.bound_ns.store(bound_ns, Ordering::Relaxed);
    watch.event(Event::Stage("planning"));
    race.run();
    race.ask_others();
    race.finish()
}

struct Race<'a> {
    instance: &'a Instance,
    /// Bytes.
    budget: u64,
    search: &'a Search,
    session: Session<'a>,
    /// The candidates with the ops on the host that the first has there.
    entered: Vec<usize>,
    /// Those with other ops there.
    others: Vec<usize>,
    best: Option<Solved>,
    failure: Option<NoPlan>,
    evaluations: u64,
}

impl Race<'_> {
    /// Takes note of the candidates whose tensors can all stay.
    fn keep(&mut self) {
        let fitting: Vec<usize> = self.entered.iter().copied().filter(|&at| self.fits(at)).collect();
        for at in fitting {
            let kept = self.candidates()[at].kept().clone();
            self.offer(at, kept, 1);
        }
    }

    /// Plans the other candidates, and those where a search can hide copies of inputs.
    fn run(&mut self) {
        let mut open = self.entered.clone();
        open.retain(|&at| !self.fits(at) || self.is_default());
        open.retain(|&at| !self.is_hopeless(at));
        let (effort, heats) = (self.search.effort, self.search.effort >= HEATS && self.is_default());
        let turns = Turns::of(self.instance.given().numbers().ops.len());
        let mut open = if self.is_default() { self.shortest(open, turns.first) } else { open };
        // The first that may be skipped are the slowest.
        open.sort_by_key(|&at| self.candidates()[at].compute_ns());
        let all = open.len() + turns.on_host.min(self.others.len());
        if !heats || open.len() + self.others.len() < 2 || turns.is_single() {
            let times = self.heat(&open, effort, (0, all));
            let less = if heats { effort - 1 } else { effort };
            self.heat_on_host(&turns, less, &times, (open.len(), all));
            return;
        }
        let count = all + turns.finalists;
        let first = |at: &usize| self.candidates()[*at].pose.order == Order::Given;
        let (first, others): (Vec<usize>, Vec<usize>) = open.into_iter().partition(first);
        let mut times = self.heat(&first, effort - 1, (0, count));
        // Another order is tried of the formulations that promise most.
        let close = near(&times);
        let is_close = |at: usize| close.iter().any(|&c| self.formulation(c) == self.formulation(at));
        let promising = |&at: &usize| times.is_empty() || is_close(at);
        let others: Vec<usize> = others.into_iter().filter(promising).collect();
        let before = first.len() + others.len();
        times.extend(self.heat(&others, effort - 1, (first.len(), count)));
        let on_host = self.heat_on_host(&turns, effort - 1, &times, (before, count));
        times.extend(on_host);
        let last = self.finalists(&times, turns.finalists);
        self.heat(&last, effort, (count - last.len(), count));
    }

    /// So many candidates that are worth a plan with all effort, by the times of their steps in ns with less.
    fn finalists(&self, times: &[(u64, usize)], most: usize) -> Vec<usize> {
        let mut last = near(times);
        last.truncate(most);
        // With all effort, the best without other ops on the host may overtake those with them.
        if last.iter().all(|&at| self.is_hosted(at)) {
            let least = times.iter().map(|&(step_ns, _)| step_ns).min().unwrap_or(0);
            let far = least + least / LESS_BY_HOST + least / CLOSE;
            let others = times.iter().filter(|&&(step_ns, at)| step_ns < far && !self.is_hosted(at));
            if let Some(&(_, other)) = others.min() {
                last.truncate(1);
                last.push(other);
            }
        }
        last
    }

    /// So many of some candidates: those whose searches would begin with the shortest steps.
    fn shortest(&self, candidates: Vec<usize>, most: usize) -> Vec<usize> {
        if candidates.len() <= most {
            return candidates;
        }
        self.glances(&candidates).into_iter().take(most).map(|(_, at)| at).collect()
    }

    /// Times in ns of the steps that searches of candidates would begin with, the shortest first.
    fn glances(&self, candidates: &[usize]) -> Vec<(u64, usize)> {
        let request = self.search.request(self.instance.capacity(self.budget));
        let posed: Vec<(usize, &memc_planner::Problem)> =
            candidates.iter().map(|&at| (at, self.candidates()[at].numbers())).collect();
        let glance = |(at, p)| (memc_planner::search::glance(p, &request).unwrap_or(u64::MAX), at);
        let mut glances: Vec<(u64, usize)> = posed.into_par_iter().map(glance).collect();
        glances.sort_unstable();
        glances
    }

    /// Plans candidates one after another with some effort: the times of their steps in ns, with the
    /// candidates. `turns` says how many searches were before, of how many.
    fn heat(&mut self, candidates: &[usize], effort: u32, turns: (usize, usize)) -> Vec<(u64, usize)> {
        let plan = |(i, &at): (usize, &usize)| {
            let step_ns = self.plan(at, self.search.planner, effort, (turns.0 + i + 1, turns.1))?;
            Some((step_ns, at))
        };
        candidates.iter().enumerate().filter_map(plan).collect()
    }

    /// Asks every other planner as the user would: none has a faster plan then.
    fn ask_others(&mut self) {
        if self.search.effort < ALL_PLANNERS || !self.is_default() {
            return;
        }
        let open: Vec<usize> = self.entered.iter().copied().filter(|&at| !self.fits(at)).collect();
        for planner in &PLANNERS[1..] {
            for &at in &open {
                if self.session.stop((1, 1)) {
                    return;
                }
                self.plan(at, planner, self.search.effort, (1, 1));
            }
        }
    }

    /// Plans a candidate with some effort, unless no plan of it can be faster than one that is known; the
    /// step's time in ns. `turn` says which of how many searches it is.
    fn plan(&mut self, at: usize, planner: &Planner, effort: u32, turn: (usize, usize)) -> Option<u64> {
        if self.is_over() || self.is_hopeless(at) {
            return None;
        }
        let (instance, search, session) = (self.instance, self.search, &self.session);
        let candidate = &instance.candidates()[at];
        let stop = || session.stop(turn);
        // A search counts its own plans.
        let before = self.evaluations;
        let found = |found: Progress| session.found(found.step_ns, before + found.evaluations);
        // Generations and the reason for no plan are those of the planner that was asked for.
        let own = planner.name == search.planner.name;
        let alive = |alive: &Alive| {
            if own {
                session.generation(&alive.step_ns, before + alive.evaluations);
            }
        };
        let capacity = instance.capacity(self.budget);
        let request =
            Request { stop: &stop, watch: &found, alive: &alive, effort, ..search.request(capacity) };
        let answer = if self.fits(at) {
            Ok(beyond(candidate, search, &request))
        } else {
            memc_planner::solve(candidate.numbers(), planner, &request)
        };
        match answer {
            Ok((schedule, evaluations)) => {
                let step_ns = schedule.evaluation.step_ns;
                self.offer(at, schedule, evaluations);
                Some(step_ns)
            }
            Err(_) if !own => None,
            Err(failed @ NoPlan::Failed(_)) => {
                self.failure = Some(failed);
                None
            }
            Err(NoPlan::Infeasible(why)) => {
                let why = || NoPlan::Infeasible(why + &search.forbidden());
                self.failure = self.failure.take().or_else(|| Some(why()));
                None
            }
        }
    }

    /// Takes a plan for the best if it is.
    fn offer(&mut self, at: usize, mut schedule: Schedule, evaluations: u64) {
        self.evaluations += evaluations;
        schedule.decisions.pose = self.candidates()[at].pose.clone();
        self.session.found(schedule.evaluation.step_ns, self.evaluations);
        let is_better = |best: &Solved| {
            let (is, was) = (schedule.evaluation.step_ns, best.schedule.evaluation.step_ns);
            match (self.is_hosted(at), self.is_hosted(best.at)) {
                (true, false) => is <= was - was / LESS_BY_HOST,
                (false, true) => was > is - is / LESS_BY_HOST,
                _ => schedule.key() < best.schedule.key(),
            }
        };
        if self.best.as_ref().is_none_or(is_better) {
            self.best = Some(Solved { at, schedule });
        }
    }

    fn candidates(&self) -> &[Candidate] {
        self.instance.candidates()
    }

    fn formulation(&self, at: usize) -> Formulation {
        self.candidates()[at].pose.formulation
    }

    /// Whether everything of a candidate can stay.
    fn fits(&self, at: usize) -> bool {
        self.candidates()[at].kept().evaluation.dev_bytes <= self.instance.capacity(self.budget)
    }

    /// Whether a candidate has other ops on the host than the first.
    fn is_hosted(&self, at: usize) -> bool {
        self.others.contains(&at)
    }

    fn is_default(&self) -> bool {
        self.search.planner.name == PLANNERS[0].name
    }

    /// Whether the search has to end, or nothing faster can be found. A step with ops on the host may be
    /// shorter than the ideal one.
    fn is_over(&self) -> bool {
        let hosted = self.best.as_ref().is_some_and(|best| self.is_hosted(best.at));
        !hosted && self.step_ns() <= self.instance.ideal_ns() || self.session.watch.stop()
    }

    fn step_ns(&self) -> u64 {
        self.best.as_ref().map_or(u64::MAX, |best| best.schedule.evaluation.step_ns)
    }

    /// Whether no plan of a candidate is noticeably faster than the best one: by the sum of its ops' times,
    /// and by its bound.
    fn is_hopeless(&self, at: usize) -> bool {
        let Some(best) = &self.best else { return false };
        let candidate = &self.candidates()[at];
        let mut step_ns = self.step_ns();
        match (self.is_hosted(at), self.is_hosted(best.at)) {
            (true, false) => step_ns -= step_ns / LESS_BY_HOST,
            (false, true) => step_ns += step_ns / (LESS_BY_HOST - 1),
            _ => {}
        }
        if candidate.compute_ns() >= step_ns {
            return true;
        }
        if self.budget == u64::MAX {
            return true;
        }
        // Where everything fits in another order of the same ops, little is left to gain.
        let same = self.candidates()[best.at].pose.formulation == candidate.pose.formulation;
        let compute_ns = candidate.compute_ns();
        let is_near = step_ns <= compute_ns + compute_ns / NEAR_IDEAL;
        if same && is_near && self.fits(best.at) && !self.fits(at) {
            return true;
        }
        let Some(least) = self.bound_ns(at) else { return true };
        step_ns <= if self.fits(at) { least + least / NEAR_IDEAL } else { least }
    }

    /// Time in ns that no plan of a candidate can beat; none where nothing fits.
    fn bound_ns(&self, at: usize) -> Option<u64> {
        self.instance.bound(at, self.budget, self.search.allow)?.least(!self.search.allow.reorder)
    }

    fn finish(self) -> Result<Outcome, Error> {
        let Race { instance, budget, search, session, best, failure, evaluations, .. } = self;
        let (begun, stopped, watch) = (session.begun, session.cut.load(Ordering::Relaxed), session.watch);
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
            instance.record(search.allow, best.schedule.evaluation.dev_bytes);
        }
        let none = || NoPlan::Failed("no candidate was planned".into());
        Ok(Outcome {
            planner: search.planner.name.to_string(),
            budget,
            plan: best.ok_or_else(|| failure.unwrap_or_else(none)),
            evaluations,
            plan_ns: since(begun),
            stopped: stopped || interrupted,
            interrupted,
        })
    }
}

/// The candidates whose steps are hardly longer than the shortest, that one first.
fn near(times: &[(u64, usize)]) -> Vec<usize> {
    let mut times = times.to_vec();
    times.sort_unstable();
    let least = times.first().map_or(0, |first| first.0);
    times.retain(|(step_ns, _)| *step_ns <= least + least / CLOSE);
    times.into_iter().map(|(_, at)| at).collect()
}

/// Plan of a search where everything fits, if it is faster than to keep everything.
///
/// It may take as much more room as hiding the inputs' copies can be worth: each input twice, once for this
/// step and once for the next.
fn beyond(o: &Candidate, search: &Search, request: &Request<'_>) -> (Schedule, u64) {
    let inputs = o.numbers().tensors.values().filter(|t| t.kind == TensorKind::Input).map(|t| t.bytes);
    let room = inputs.fold(o.kept().evaluation.dev_bytes, |room, bytes| room.saturating_add(2 * bytes));
    let request = Request { capacity: request.capacity.min(room), ..*request };
    match memc_planner::solve(o.numbers(), search.planner, &request) {
        Ok(found) if found.0.evaluation.step_ns < o.kept().evaluation.step_ns => found,
        other => (o.kept().clone(), other.map_or(1, |found| found.1)),
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
    bound_ns: AtomicU64,
}

impl Session<'_> {
    /// Whether the first `done` of `all` searches have to end.
    fn stop(&self, (done, all): (usize, usize)) -> bool {
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
        let (ideal_ns, bound_ns) = (self.ideal_ns, self.bound_ns.load(Ordering::Relaxed));
        let elapsed_ns = since(self.begun);
        self.watch.event(Event::Found(Found { step_ns, ideal_ns, bound_ns, evaluations, elapsed_ns }));
    }

    fn generation(&self, step_ns: &[u64], evaluations: u64) {
        let elapsed_ns = since(self.begun);
        self.watch.event(Event::Generation(Generation { step_ns, evaluations, elapsed_ns }));
    }
}
