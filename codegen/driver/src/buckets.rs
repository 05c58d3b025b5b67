//! One plan for several extents of the same dimensions, such as sequence lengths: a bucket for each.
//!
//! The bucket whose unplanned step takes most memory is planned first, and decides where states are between
//! steps. The others are planned with states in those places. A constant that differs between buckets lives
//! in host memory, each in bytes of its own, and is copied to the device in the steps that read it.

use std::collections::{BTreeMap, BTreeSet};

use memc_alloc::Options as Layout;
use memc_codegen::{Lowered, lower};
use memc_ir::{Bytes, Module, TensorType};
use memc_plan::Plan;
use memc_planner::{Decisions, Resident, Schedule, evaluate_with, replay};

use crate::candidate::{Candidate, HostOps};
use crate::compile::{Data, Options, meta};
use crate::error::Error;
use crate::instance::Instance;
use crate::pins::{Pins, posed, restored};
use crate::plan::{Search, Solved};
use crate::relocate::share_host;
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
/// Fails with [`Error::Infeasible`] where a bucket has no plan, and with [`Error::Usage`] where the states
/// depend on the extents.
pub fn compile_buckets(models: &[BucketModel], options: &Options<'_>) -> Result<Buckets, Error> {
    if options.decisions.is_some() {
        return Err(Error::Usage(
            "--apply carries out the decisions of one plan; give --dim one size".into(),
        ));
    }
    models.iter().try_for_each(|of| of.model.require_values())?;
    same_states(models)?;
    let constants = Constants::of(models);
    let search = &options.search;
    let mut waiting = Vec::new();
    for of in models {
        waiting.push((of, Instance::of_model(&of.model, search.poses())?));
    }
    // Ties keep the order of the command line.
    waiting.sort_by_key(|(_, instance)| std::cmp::Reverse(instance.given().kept().evaluation.dev_bytes));
    let mut waiting = waiting.into_iter();
    let Some((of, instance)) = waiting.next() else {
        return Err(Error::Usage("a plan has at least one bucket".into()));
    };
    let budget = options.budget.map(|size| instance.bytes(size)).transpose()?;
    let limit = budget.unwrap_or(u64::MAX);
    let plan = |of: &BucketModel, instance: &Instance, search: &Search, pins: &Pins, text: Option<&str>| {
        options.watch.event(Event::Subject(&of.name));
        options.watch.event(Event::Stage("planning"));
        pinned(instance, limit, search, (pins, text), options).map_err(|error| in_bucket(error, &of.name))
    };
    let solved = plan(of, &instance, search, &constants.private_of(&of.model), None)?;
    let first = Planned { of, instance, solved };
    let text = first.solved.schedule.decisions.print(first.candidate()?.numbers());
    let places = places(first.candidate()?, &first.solved.schedule);
    let host = match &first.candidate()?.pose.host[..] {
        [] => HostOps::None,
        names => HostOps::Named(names.to_vec()),
    };
    let search = Search { host, ..search.clone() };
    let mut planned = vec![first];
    for (of, _) in waiting {
        let instance = Instance::of_model(&of.model, search.poses())?;
        let mut pins = places.clone();
        pins.extend(constants.private_of(&of.model));
        let solved = plan(of, &instance, &search, &pins, Some(&text))?;
        planned.push(Planned { of, instance, solved });
    }
    options.watch.event(Event::Subject(""));
    options.watch.event(Event::Stage("lowering and checking"));
    merged(&planned, &constants, budget, options)
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

/// The plans of all buckets as one, proved.
fn merged(
    planned: &[Planned<'_>],
    constants: &Constants,
    budget: Option<u64>,
    options: &Options<'_>,
) -> Result<Buckets, Error> {
    let (mut plans, mut data, mut sources) = (Vec::new(), Vec::new(), Vec::new());
    for bucket in planned {
        let (candidate, model) = (bucket.candidate()?, &bucket.of.model);
        let module = candidate.apply(&bucket.solved.schedule)?;
        memc_ir::verify(&module)
            .map_err(|d| Error::Internal(format!("the planned module breaks rules of the verifier:\n{d}")))?;
        let missing = || Error::Internal("the plan is of no graph of the model".into());
        let source = &model.graph(candidate.pose.formulation).ok_or_else(missing)?.module;
        let e = &bucket.solved.schedule.evaluation;
        let header = meta(model, (&bucket.instance, candidate), e, options.search.planner.name, budget);
        let lowered = lower(source, &module, header).map_err(|e| Error::Internal(e.to_string()))?;
        let Lowered { plan, data: own } = lowered;
        plans.push(plan);
        data.push(own);
        sources.push(source.clone());
    }
    share_host(&mut plans, &|state| constants.is_shared(state));
    let most = |of: &dyn Fn(&Plan) -> u64| plans.iter().map(of).max().unwrap_or(0);
    let (dev_bytes, host_bytes) = (most(&|plan| plan.meta.dev_bytes), most(&|plan| plan.meta.host_bytes));
    let budget_bytes = most(&|plan| plan.meta.budget_bytes);
    for plan in &mut plans {
        (plan.meta.dev_bytes, plan.meta.host_bytes) = (dev_bytes, host_bytes);
        plan.meta.budget_bytes = budget_bytes;
    }
    if let Some(may) = options.host_memory.filter(|&may| host_bytes > may) {
        return Err(Error::no_fit(format!(
            "the plan takes {} of host memory, more than --host-mem {}\n\
             hint: pass --host-mem {host_bytes}B or more, a larger --gpu-mem, or fewer sizes",
            Bytes(host_bytes),
            Bytes(may),
        )));
    }
    let names: Vec<String> = planned.iter().map(|bucket| bucket.of.name.clone()).collect();
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
