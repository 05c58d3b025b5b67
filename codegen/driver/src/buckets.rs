//! One plan for several extents of the same dimensions, such as sequence lengths: a bucket for each.
//!
//! The bucket whose unplanned step takes most memory is planned first, and decides where states are between
//! steps. The others are planned with states in those places. A constant that differs between buckets lives
//! in host memory, each in bytes of its own, and is copied to the device in the steps that read it.

use std::collections::{BTreeMap, BTreeSet};

use memc_alloc::Options as Layout;
use memc_ir::{Bytes, Module, TensorType};
use memc_lower::{Lowered, lower};
use memc_plan::Plan;
use memc_planner::{Decisions, Resident, Schedule, evaluate_with, replay};

use crate::candidate::{Candidate, HostOps};
use crate::compile::{Data, Options, asked_for, meta};
use crate::error::Error;
use crate::host_memory::{dearest, swapped_bytes};
use crate::instance::Instance;
use crate::pins::{Pins, posed, restored};
use crate::plan::{Search, Solved};
use crate::relocate::{KeptBytes, share_host};
use crate::source::Model;
use crate::watch::Event;

/// A model at some extents, such as `seq=128`.
pub struct BucketModel {
    /// The extents, for people.
    pub name: String,
    /// The model.
    pub model: Model,
}

/// A plan with buckets that the checker has accepted.
pub struct Buckets {
    /// The plan, of the bucket that takes most memory, with the others in it.
    pub plan: Plan,
    /// Names of the buckets, that of the plan itself first.
    pub names: Vec<String>,
    /// Name of the planner.
    pub planner: String,
    /// Initial bytes of states of each bucket, by index in its state table.
    data: Vec<BTreeMap<usize, memc_ir::Data>>,
}

impl Buckets {
    /// Writes the plan file as a whole or not at all, and returns the hash of its content.
    pub fn write(&self, path: &std::path::Path, stop: &dyn Fn() -> bool) -> Result<[u8; 32], Error> {
        Ok(memc_plan::write(path, &self.plan, &mut Data(&self.data), stop)?)
    }
}

/// A bucket, planned.
struct Planned<'a> {
    of: &'a BucketModel,
    instance: Instance,
    solved: Solved,
}

impl Planned<'_> {
    fn candidate(&self) -> Result<&Candidate, Error> {
        let candidate = self.instance.candidates().get(self.solved.at);
        candidate.ok_or_else(|| Error::Internal("a bucket's plan is of no candidate".into()))
    }
}

/// Plans all buckets within one budget, lowers them into one plan and has the checker prove it for steps of
/// them in any sequence. A budget in percent of the peak is one of the largest bucket.
///
/// Fails with [`Error::Infeasible`] where a bucket has no plan within the budget and the host memory, and
/// with [`Error::Usage`] where the states depend on the extents.
pub fn compile_buckets(models: &[BucketModel], options: &Options<'_>) -> Result<Buckets, Error> {
    if options.decisions.is_some() {
        return Err(Error::Usage(
            "--apply carries out the decisions of one plan; give --dim one size".into(),
        ));
    }
    models.iter().try_for_each(|of| of.model.require_values())?;
    same_states(models)?;
    let mut waiting = Vec::new();
    for of in models {
        waiting.push((of, Instance::of_model(&of.model, options.search.poses())?));
    }
    // Ties keep the order of the command line.
    waiting.sort_by_key(|(_, instance)| std::cmp::Reverse(instance.given().kept().evaluation.dev_bytes));
    let Some((_, first)) = waiting.first() else {
        return Err(Error::Usage("a plan has at least one bucket".into()));
    };
    let budget = options.budget.map(|size| first.bytes(size)).transpose()?;
    let unplanned = waiting.iter().map(|(_, instance)| instance.given().kept().evaluation.host_bytes);
    let limits = unplanned.map(HostLimit::new).collect();
    let of = waiting.into_iter().map(|(of, _)| of).collect();
    let mut work = Work { of, constants: Constants::of(models), budget, options, limits, took: None };
    let mut planned = Vec::new();
    let merged = loop {
        while planned.len() < work.of.len() {
            let next = work.next(&planned)?;
            planned.push(next);
        }
        let merged = Merged::of(&planned, &work)?;
        if merged.host_bytes() <= options.host_memory.unwrap_or(u64::MAX) {
            break merged;
        }
        let replanned = work.tighten(&planned, &merged)?;
        // The first decides where states are, and so about all others.
        if replanned == 0 {
            planned.clear();
            work.limits.iter_mut().skip(1).for_each(HostLimit::reset);
        } else {
            let rest = planned.split_off(replanned).into_iter().skip(1);
            let next = work.next(&planned)?;
            planned.push(next);
            planned.extend(rest);
        }
    };
    options.watch.event(Event::Subject(""));
    options.watch.event(Event::Stage("lowering and checking"));
    let names = planned.iter().map(|bucket| bucket.of.name.clone()).collect();
    merged.proved(names, options)
}

/// The buckets to plan, the largest first, and what they have to fit into.
struct Work<'a> {
    of: Vec<&'a BucketModel>,
    constants: Constants,
    /// Bytes; `None`: everything stays on the device.
    budget: Option<u64>,
    options: &'a Options<'a>,
    limits: Vec<HostLimit>,
    /// Host memory of the plan without limits in bytes, where it is too much.
    took: Option<u64>,
}

impl<'a> Work<'a> {
    /// Plans the next bucket. Where what it may swap for want of host memory is not enough, it swaps nothing.
    fn next(&mut self, planned: &[Planned<'_>]) -> Result<Planned<'a>, Error> {
        let found = self.plan(planned);
        match (found, self.limits.get_mut(planned.len())) {
            (Err(Error::Infeasible(_)), Some(limit)) if (1..HostLimit::NOTHING).contains(&limit.level) => {
                limit.stop();
                self.plan(planned)
            }
            (found, _) => found,
        }
    }

    /// Plans the next bucket within its limit. The first decides where states are between steps.
    fn plan(&self, planned: &[Planned<'_>]) -> Result<Planned<'a>, Error> {
        let (options, at) = (self.options, planned.len());
        let missing = || Error::Internal("a bucket is lost".into());
        let (of, limit) = self.of.get(at).zip(self.limits.get(at)).ok_or_else(missing)?;
        let mut search = options.search.clone();
        let (mut pins, mut text) = (Pins::new(), None);
        if let Some(first) = planned.first() {
            let candidate = first.candidate()?;
            text = Some(first.solved.schedule.decisions.print(candidate.numbers()));
            pins = places(candidate, &first.solved.schedule);
            search.host = match &candidate.pose.host[..] {
                [] => HostOps::None,
                names => HostOps::Named(names.to_vec()),
            };
        } else if limit.level > 0 {
            search.host = asked_for(&search.host);
        }
        pins.extend(self.constants.private_of(&of.model));
        let mut poses = search.poses();
        poses.swappable.clone_from(&limit.swappable);
        // Tensors with their place in host memory come from there in any case.
        let on_host = pins.iter().filter(|(_, place)| **place == Resident::Host);
        poses.swappable.iter_mut().for_each(|names| names.extend(on_host.clone().map(|pin| pin.0.clone())));
        search.allow.swap &= limit.level < HostLimit::NOTHING;
        options.watch.event(Event::Subject(&of.name));
        options.watch.event(Event::Stage("planning"));
        let instance = Instance::of_model(&of.model, poses)?;
        let budget = self.budget.unwrap_or(u64::MAX);
        // Decisions of the first swap what this one may not.
        let text = text.filter(|_| limit.level == 0);
        let solved = pinned(&instance, budget, &search, (&pins, text.as_deref()), options);
        let solved = solved.map_err(|error| match (limit.level, error) {
            (0, error) => in_bucket(error, &of.name),
            (_, Error::Infeasible(_)) => self.too_much(at),
            (_, error) => in_bucket(error, &of.name),
        })?;
        Ok(Planned { of, instance, solved })
    }

    /// Lets the bucket that takes most host memory swap less, or where it swaps nothing any more, the first.
    /// Returns the index of the bucket that is to be planned again.
    fn tighten(&mut self, planned: &[Planned<'_>], merged: &Merged) -> Result<usize, Error> {
        let most = self.options.host_memory.unwrap_or(u64::MAX);
        self.took.get_or_insert(merged.host_bytes());
        let takes = |at: usize| merged.plans.get(at).map_or(0, |plan| plan.meta.host_bytes);
        let worst = (0..planned.len()).max_by_key(|&at| (takes(at), std::cmp::Reverse(at))).unwrap_or(0);
        let may = |at: usize| self.limits.get(at).is_some_and(|limit| limit.level < HostLimit::NOTHING);
        let swaps = self.options.search.allow.swap;
        let Some(at) = [worst, 0].into_iter().find(|&at| swaps && may(at)) else {
            return Err(self.too_much(worst));
        };
        let (Some(bucket), Some(limit)) = (planned.get(at), self.limits.get_mut(at)) else {
            return Err(Error::Internal("a bucket is lost".into()));
        };
        let (p, plan) = (bucket.candidate()?.numbers(), &bucket.solved.schedule);
        // The first bucket may leave fewer states in host memory.
        let kept = if at == 0 { merged.kept_bytes.own } else { merged.kept_bytes.all };
        limit.tighten((takes(at), most), kept, (p, plan));
        // No other planner knows which tensors it may swap.
        if self.options.search.planner.name != Search::default().planner.name {
            limit.stop();
        }
        Ok(at)
    }

    /// Error of a bucket that takes too much host memory, and has no plan with less.
    fn too_much(&self, at: usize) -> Error {
        let takes = self.took.unwrap_or(0);
        let name = self.of.get(at).map_or("", |of| &of.name);
        let most = self.options.host_memory.unwrap_or(u64::MAX);
        Error::no_fit(format!(
            "{name}: the plan takes {} of host memory, more than --host-mem {}, and no plan that takes less \
             is found in this budget\nhint: inputs, outputs, and constants that depend on the size pass \
             through host memory, too; pass --host-mem {takes}B or more, a larger --gpu-mem, or fewer sizes",
            Bytes(takes),
            Bytes(most),
        ))
    }
}

/// Limit of what a bucket may swap, where host memory is short.
struct HostLimit {
    /// Number of times that it became tighter, at most [`HostLimit::NOTHING`].
    level: u8,
    /// Names of the tensors that may be swapped; `None`: all.
    swappable: Option<BTreeSet<String>>,
    /// Host memory of the unplanned step in bytes: its inputs and outputs.
    unplanned: u64,
}

impl HostLimit {
    /// The level at which nothing is swapped.
    const NOTHING: u8 = 3;

    fn new(unplanned: u64) -> HostLimit {
        HostLimit { level: 0, swappable: None, unplanned }
    }

    fn reset(&mut self) {
        *self = HostLimit::new(self.unplanned);
    }

    /// Allows no tensor any more.
    fn stop(&mut self) {
        (self.level, self.swappable) = (HostLimit::NOTHING, None);
    }

    /// Allows fewer tensors than a plan swaps that takes `takes` bytes of host memory where it may have
    /// `most`, and `kept_bytes` stay there. Tensors share bytes of the host; the second level assumes that
    /// they do not.
    fn tighten(
        &mut self,
        (takes, most): (u64, u64),
        kept_bytes: u64,
        (p, plan): (&memc_planner::Problem, &Schedule),
    ) {
        self.level = self.level.saturating_add(1);
        let given = self.unplanned.saturating_add(kept_bytes);
        let room = most.saturating_sub(given);
        if room == 0 || self.level >= HostLimit::NOTHING {
            return self.stop();
        }
        let shared = u128::from(swapped_bytes(p, plan)) * u128::from(room);
        let shared = shared / u128::from(takes.saturating_sub(given).max(1));
        let room = if self.level == 1 { u64::try_from(shared).unwrap_or(u64::MAX) } else { room };
        self.swappable = Some(dearest(p, plan, room));
    }
}

/// The error of a bucket, named in the text.
fn in_bucket(error: Error, name: &str) -> Error {
    match error {
        Error::Usage(text) => Error::Usage(format!("{name}: {text}")),
        Error::Infeasible(mut why) => {
            why.text = format!("{name}: {}", why.text);
            Error::Infeasible(why)
        }
        Error::Internal(text) => Error::Internal(format!("{name}: {text}")),
        other => other,
    }
}

/// Refuses models whose states depend on the extents.
fn same_states(models: &[BucketModel]) -> Result<(), Error> {
    let [first, others @ ..] = models else { return Ok(()) };
    fn states(of: &BucketModel) -> Vec<(&str, &TensorType, memc_ir::Role, &memc_ir::Init)> {
        let module = &of.model.own().module;
        let states = module.states.values();
        let entries = states.map(|state| {
            let value = &module.values[state.value];
            (value.name.as_str(), &value.ty, state.role, &state.init)
        });
        entries.collect()
    }
    let known = states(first);
    for other in others {
        let own = states(other);
        let pair = known.iter().zip(&own).find(|(a, b)| a != b);
        if pair.is_none() && known.len() == own.len() {
            continue;
        }
        let text = |state: Option<(&str, &TensorType)>| {
            state.map_or_else(|| "nothing more".to_owned(), |(name, ty)| format!("`{name}` {ty}"))
        };
        let at = known.iter().zip(&own).take_while(|(a, b)| a == b).count();
        let [a, b] = [&known, &own].map(|list| text(list.get(at).map(|state| (state.0, state.1))));
        return Err(Error::Usage(format!(
            "the states of the model are not the same for all sizes: {a} with {}, {b} with {}; one plan for \
             several sizes needs states that do not depend on them",
            first.name, other.name
        )));
    }
    Ok(())
}

/// Constants of the buckets' graphs.
struct Constants {
    /// Name, type and hash of those that all graphs of all buckets have.
    shared: BTreeSet<(String, TensorType, [u8; 32])>,
}

impl Constants {
    fn of(models: &[BucketModel]) -> Constants {
        let graphs = models.iter().flat_map(|of| &of.model.graphs);
        let sets = graphs.map(|graph| constants(&graph.module));
        let shared = sets.reduce(|mut all, other| {
            all.retain(|constant| other.contains(constant));
            all
        });
        Constants { shared: shared.unwrap_or_default() }
    }

    /// The constants of a model that not all buckets have: they live in host memory.
    fn private_of(&self, model: &Model) -> Pins {
        let graphs = model.graphs.iter().flat_map(|graph| constants(&graph.module));
        let private = graphs.filter(|constant| !self.shared.contains(constant));
        private.map(|(name, ..)| (name, Resident::Host)).collect()
    }

    /// Whether a state of a plan is in every bucket.
    fn is_shared(&self, state: &memc_plan::State) -> bool {
        let hash = match state.init {
            memc_plan::Init::Data { hash, .. } => hash,
            _ => [0; 32],
        };
        state.is_variable() || self.shared.contains(&(state.name.clone(), state.ty.clone(), hash))
    }
}

/// Name, type and hash of a graph's constants.
fn constants(module: &Module) -> BTreeSet<(String, TensorType, [u8; 32])> {
    let entry = |constant: &memc_ir::Const| {
        let value = &module.values[constant.value];
        (value.name.clone(), value.ty.clone(), memc_plan::hash(&constant.data))
    };
    module.consts.values().map(entry).collect()
}

/// Places of a plan's persistent tensors between steps.
fn places(candidate: &Candidate, plan: &Schedule) -> Pins {
    let p = candidate.numbers();
    plan.decisions.residents.iter().map(|(&t, &resident)| (p.tensors[t].name.clone(), resident)).collect()
}

/// Parts of the arena, in thousandths, that a search may take for a step whose states have their places: what
/// the search lays out freely may not fit around them.
const PARTS: [u64; 4] = [1000, 950, 850, 700];

/// The fastest plan of a bucket with persistent tensors in their places: one that is searched, or that of the
/// decisions of a larger bucket, whose tensors have room for those of this one.
fn pinned(
    instance: &Instance,
    budget: u64,
    search: &Search,
    (pins, larger): (&Pins, Option<&str>),
    options: &Options<'_>,
) -> Result<Solved, Error> {
    let watch = options.watch;
    if pins.is_empty() {
        let outcome = instance.plan(budget, search, watch)?;
        outcome.require(instance, search.allow)?;
        return outcome.plan.map_err(|_| Error::Internal("a plan is lost".into()));
    }
    let capacity = instance.capacity(budget);
    let problem = instance.reposed(&|p| posed(p, pins))?;
    let mut best: Option<Solved> = None;
    let mut refused = None;
    for part in PARTS {
        let part = u64::try_from(u128::from(capacity) * u128::from(part) / 1000).unwrap_or(capacity);
        let outcome = problem.plan(part.saturating_add(instance.reserve_bytes), search, watch)?;
        let Ok(solved) = outcome.plan else {
            refused.get_or_insert(outcome);
            break;
        };
        let Some(candidate) = instance.candidates().get(solved.at) else { break };
        let decisions = restored(candidate.numbers(), pins, &solved.schedule.decisions);
        let schedule = laid_out(candidate, decisions, capacity, search, &|| watch.stop())?;
        if let Some(schedule) = schedule {
            best = Some(Solved { at: solved.at, schedule });
            break;
        }
    }
    for (at, candidate) in instance.candidates().iter().enumerate() {
        let Some(text) = larger.filter(|text| Decisions::pose_in(text) == candidate.pose) else { continue };
        // Another graph may lack a tensor that the decisions name.
        let Ok(schedule) = replay(candidate.numbers(), text) else { continue };
        let fits = schedule.evaluation.dev_bytes <= capacity;
        if fits && best.as_ref().is_none_or(|best| schedule.key() < best.schedule.key()) {
            best = Some(Solved { at, schedule });
        }
    }
    match (best, refused) {
        (Some(best), _) => Ok(best),
        (None, Some(outcome)) => {
            outcome.require(&problem, search.allow)?;
            Err(Error::Internal("a bucket has no plan, and no reason".into()))
        }
        (None, None) => Err(Error::no_fit(
            "no layout was found around the states, which have the places of the largest bucket\n\
             hint: give more --gpu-mem, or fewer sizes"
                .into(),
        )),
    }
}

/// Decisions with all their offsets; `None` where they do not fit.
fn laid_out(
    candidate: &Candidate,
    decisions: Decisions,
    capacity: u64,
    search: &Search,
    stop: &(dyn Fn() -> bool + Sync),
) -> Result<Option<Schedule>, Error> {
    let effort = u8::try_from(search.effort).unwrap_or(u8::MAX);
    let layout = Layout { capacity: Some(capacity), ..Layout::effort(effort) };
    let schedule = evaluate_with(candidate.numbers(), decisions, &layout, &|| stop());
    let schedule = schedule.map_err(|error| Error::Internal(error.to_string()))?;
    Ok(Some(schedule).filter(|schedule| schedule.evaluation.dev_bytes <= capacity))
}

/// Plans of all buckets in one host arena, before the proof.
struct Merged {
    plans: Vec<Plan>,
    data: Vec<BTreeMap<usize, memc_ir::Data>>,
    sources: Vec<Module>,
    kept_bytes: KeptBytes,
}

impl Merged {
    /// Lowers the plans and lets them share the host arena. Each has the host memory that it takes itself.
    fn of(planned: &[Planned<'_>], work: &Work<'_>) -> Result<Merged, Error> {
        let (mut plans, mut data, mut sources) = (Vec::new(), Vec::new(), Vec::new());
        for bucket in planned {
            let (candidate, model) = (bucket.candidate()?, &bucket.of.model);
            let module = candidate.apply(&bucket.solved.schedule)?;
            memc_ir::verify(&module).map_err(|d| {
                Error::Internal(format!("the planned module breaks rules of the verifier:\n{d}"))
            })?;
            let missing = || Error::Internal("the plan is of no graph of the model".into());
            let source = &model.graph(candidate.pose.formulation).ok_or_else(missing)?.module;
            let e = &bucket.solved.schedule.evaluation;
            let planner = work.options.search.planner.name;
            let header = meta(model, (&bucket.instance, candidate), e, planner, work.budget);
            let lowered = lower(source, &module, header).map_err(|e| Error::Internal(e.to_string()))?;
            let Lowered { plan, data: own } = lowered;
            plans.push(plan);
            data.push(own);
            sources.push(source.clone());
        }
        let kept_bytes = share_host(&mut plans, &|state| work.constants.is_shared(state));
        Ok(Merged { plans, data, sources, kept_bytes })
    }

    fn host_bytes(&self) -> u64 {
        self.plans.iter().map(|plan| plan.meta.host_bytes).max().unwrap_or(0)
    }

    /// The plans as one, proved.
    fn proved(self, names: Vec<String>, options: &Options<'_>) -> Result<Buckets, Error> {
        let host_bytes = self.host_bytes();
        let Merged { mut plans, data, sources, .. } = self;
        let most = |of: &dyn Fn(&Plan) -> u64| plans.iter().map(of).max().unwrap_or(0);
        let dev_bytes = most(&|plan| plan.meta.dev_bytes);
        let budget_bytes = most(&|plan| plan.meta.budget_bytes);
        for plan in &mut plans {
            (plan.meta.dev_bytes, plan.meta.host_bytes) = (dev_bytes, host_bytes);
            plan.meta.budget_bytes = budget_bytes;
        }
        let mut plans = plans.into_iter();
        let mut plan = plans.next().ok_or_else(|| Error::Internal("a plan has no bucket".into()))?;
        plan.buckets = plans.collect();
        plan.layout_data()?;
        memc_check::check_buckets(&sources, &plan).map_err(|e| {
            let name = names.get(e.bucket).map_or("", String::as_str);
            Error::Internal(format!("the plan of {name} is wrong and was not written:\n{}", e.errors))
        })?;
        Ok(Buckets { plan, names, planner: options.search.planner.name.to_owned(), data })
    }
}
