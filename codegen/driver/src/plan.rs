//! One planner on one instance and budget: the question, and the answer.

use std::time::Duration;

use glob::Pattern;
use memc_baselines::PLANNERS;
use memc_ir::Bytes;
use memc_passes::DeviceProfile;
use memc_planner::{
    Allow, Decisions, Formulation, Handling, NoPlan, Order, Planner, Request, Schedule, replay, widen,
};

use crate::candidate::{Candidate, HostOps, Poses};
use crate::error::Error;
use crate::instance::Instance;
use crate::machine::{now, since};
use crate::race::race;
use crate::watch::Watch;

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
    /// Order of the candidates; `None`: the better of all.
    pub order: Option<Order>,
    /// Formulation of the candidates; `None`: the best of all.
    pub formulation: Option<Formulation>,
    /// Ops of the candidates on the host.
    pub host: HostOps,
    /// Ways in which tensors may leave the device, by name; planners other than the default one know nothing
    /// of them.
    pub handling: Vec<(Pattern, Handling)>,
    /// Effort, from 0 for the first plan found to 5.
    pub effort: u32,
    /// Seed of everything random.
    pub seed: u64,
    /// Time after which each search ends with its best plan. Results then depend on the machine.
    pub time_limit: Option<Duration>,
}

impl Default for Search {
    fn default() -> Self {
        Search {
            planner: &PLANNERS[0],
            allow: Allow::ALL,
            order: None,
            formulation: None,
            host: HostOps::Best,
            handling: Vec::new(),
            effort: 2,
            seed: 0,
            time_limit: None,
        }
    }
}

impl Search {
    /// Poses in which an instance is to be made.
    pub fn poses(&self) -> Poses {
        let order = self.order.or_else(|| (!self.allow.reorder).then_some(Order::Given));
        let (host, handling) = (self.host.clone(), self.handling.clone());
        Poses { formulation: self.formulation, order, host, handling, ..Poses::default() }
    }

    pub(crate) fn request(&self, capacity: u64) -> Request<'static> {
        Request { allow: self.allow, seed: self.seed, effort: self.effort, ..Request::new(capacity) }
    }

    /// Deeds of a planner without a plan that options forbid.
    pub(crate) fn forbidden(&self) -> String {
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

    /// The certified bound that holds for the plan, in ns, and its extent: the orders of the candidates where
    /// the plan keeps its own's, else every order. Either holds for every formulation; of a plan with ops on
    /// the host for its own, with these ops there.
    pub fn bound(&self, instance: &Instance, allow: Allow) -> Option<(u64, &'static str)> {
        let solved = self.plan.as_ref().ok()?;
        let decisions = &solved.schedule.decisions;
        let pose = &decisions.pose;
        let order = decisions.keeps_order().then_some(pose.order);
        let extent = match (order.is_some(), pose.host.is_empty()) {
            (true, true) => "fixed order",
            (false, true) => "any order",
            (true, false) => "fixed order, this formulation with these ops on the host",
            (false, false) => "any order, this formulation with these ops on the host",
        };
        Some((self.bound_in(instance, allow, order)?, extent))
    }

    /// The certified bound in ns for plans in an order, or in any, with the plan's ops on the host.
    pub fn bound_in(&self, instance: &Instance, allow: Allow, order: Option<Order>) -> Option<u64> {
        let solved = self.plan.as_ref().ok()?;
        instance.least_bound(self.budget, allow, order, &solved.schedule.decisions.pose.host)
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
    /// before there is a plan, else with the best one, which [`Outcome::stopped`] and
    /// [`crate::Event::Kept`] tell.
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
        race(self, budget, search, watch)
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

    /// Carries out the decisions of a file instead of planning. The instance is one in
    /// [`DecisionsFile::poses`].
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

/// Decisions to be carried out, as text.
#[derive(Clone, Debug)]
pub struct DecisionsFile {
    /// Name for messages, such as that of its file.
    pub name: String,
    /// The decisions.
    pub text: String,
}

impl DecisionsFile {
    /// Pose in which the instance has to be made.
    pub fn poses(&self) -> Poses {
        Decisions::pose_in(&self.text).into()
    }
}
