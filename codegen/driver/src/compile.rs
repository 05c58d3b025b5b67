//! From a model and a budget to a plan that the checker has accepted.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use memc_ir::{Bytes, Module};
use memc_lower::{Lowered, lower};
use memc_passes::{CONV_WORKSPACE, DeviceProfile, Kernels};
use memc_plan::{Claims, Meta, Plan, PlanFile};
use memc_planner::{Allow, Evaluation, Formulation, Tensor, TensorKind};

use crate::candidate::{Candidate, HostOps, Poses};
use crate::error::Error;
use crate::host_memory::{self, dearest, swapped_bytes};
use crate::instance::{Instance, Size};
use crate::machine::{now, since};
use crate::plan::{DecisionsFile, Outcome, Search};
use crate::source::Model;
use crate::watch::{Event, Hold, Silent, Watch};

/// Options of [`compile`].
#[derive(Clone)]
pub struct Options<'a> {
    /// Device memory the step may take; `None`: everything stays on the device.
    pub budget: Option<Size>,
    /// Host memory in bytes that the plan may take. Where swapping takes more, less is swapped, at last
    /// nothing.
    pub host_memory: Option<u64>,
    /// Most workspace of a convolution on a GPU in bytes, within [`CONV_WORKSPACE`]. Two plans are made where
    /// it is more than the least: one with it, and one with the least unless the first is near the ideal. A
    /// library may choose another algorithm with more, whose sums are rounded otherwise: with the least plans
    /// of all budgets compute the same bits.
    pub conv_workspace: u64,
    /// Planner, permissions and effort.
    pub search: Search,
    /// Decisions to carry out instead of planning.
    pub decisions: Option<DecisionsFile>,
    /// Observer of the work.
    pub watch: &'a dyn Watch,
}

impl Default for Options<'_> {
    fn default() -> Self {
        let (budget, host_memory, search, decisions) = Default::default();
        let conv_workspace = *CONV_WORKSPACE.start();
        Options { budget, host_memory, conv_workspace, search, decisions, watch: &Silent }
    }
}

/// One in so many parts of the ideal that a step may take longer and be near it.
const NEAR: u64 = 20;
/// One in so many parts of a step by which workspace for convolutions makes it shorter at least. On an H200
/// ResNet-50 took 51 ms with it and 70 without (batch 64).
const WORTH: u64 = 10;

/// A plan that the checker has accepted.
pub struct Compiled {
    /// The plan.
    pub plan: Plan,
    /// Initial bytes of states, by index in the plan's state table.
    pub data: BTreeMap<usize, memc_ir::Data>,
    /// The problem.
    pub instance: Instance,
    /// The planner's answer.
    pub outcome: Outcome,
    /// Permissions of the plan: without swapping where host memory has no room for it.
    pub allow: Allow,
    /// The problem in which every tensor may be swapped, where some are not for want of host memory.
    whole: Option<Instance>,
}

impl Compiled {
    /// The formulation of the model that the plan is of.
    pub fn formulation(&self) -> Formulation {
        self.outcome.of(&self.instance).map_or(Formulation::Own, |(candidate, _)| candidate.pose.formulation)
    }

    /// Number of ops on the host, and their time in ns.
    pub fn on_host(&self) -> (usize, u64) {
        let plan = self.outcome.of(&self.instance);
        plan.map_or((0, 0), |(o, r)| (o.numbers().host_ops.len(), r.evaluation.host_ns))
    }

    /// Most bytes of the device in use at once, reserve included.
    pub fn peak_bytes(&self) -> u64 {
        let plan = self.outcome.of(&self.instance);
        plan.map_or(0, |(_, r)| r.evaluation.load_bytes + self.instance.reserve_bytes)
    }

    /// Arena of the unplanned step, reserve included, in bytes.
    pub fn unplanned_peak_bytes(&self) -> u64 {
        self.instance.given().kept().evaluation.dev_bytes + self.instance.reserve_bytes
    }

    /// The certified bound on the step in ns, and its extent.
    pub fn bound(&self) -> Option<(u64, &'static str)> {
        self.outcome.bound(self.whole.as_ref().unwrap_or(&self.instance), self.allow)
    }

    /// Whether more memory would hardly make the step shorter.
    fn is_near_ideal(&self) -> bool {
        let claims = &self.plan.meta.claims;
        claims.step_ns <= claims.ideal_ns.saturating_add(claims.ideal_ns / NEAR)
    }

    /// Whether the plan, with more workspace for convolutions, is worth more than one with the usual. The
    /// model takes kernels to be as fast without it, unless both times were measured.
    fn is_worth(&self, usual: &Compiled) -> bool {
        let [roomy, usual] = [self, usual].map(|compiled| compiled.plan.meta.claims.step_ns);
        roomy <= usual.saturating_add(usual / WORTH)
    }

    /// The plan, after a warning where it may take more than the device has.
    fn told(self, model: &Model, options: &Options<'_>) -> Compiled {
        let budget = self.plan.meta.budget_bytes;
        if let Some(has) = model.profile.memory_bytes.filter(|&has| budget > has) {
            let (takes, has, name) = (Bytes(budget), Bytes(has), &model.profile.name);
            let text = format!("the plan may take {takes}, and {name} has {has}");
            options.watch.event(Event::Warning(&text));
        }
        self
    }

    /// Writes the plan file as a whole or not at all, and returns the hash of its content.
    pub fn write(&self, path: &Path, stop: &dyn Fn() -> bool) -> Result<[u8; 32], Error> {
        Ok(memc_plan::write(path, &self.plan, &mut Data(std::slice::from_ref(&self.data)), stop)?)
    }

    /// The plan as an open file, without one.
    pub fn in_memory(&self) -> Result<PlanFile, Error> {
        Ok(PlanFile::in_memory(&self.plan, &mut Data(std::slice::from_ref(&self.data)))?)
    }
}

/// Hands the plan writer each state's initial bytes: of the plan, then of its buckets.
pub(crate) struct Data<'a>(pub(crate) &'a [BTreeMap<usize, memc_ir::Data>]);

impl memc_plan::InitialData for Data<'_> {
    fn bytes(&mut self, bucket: usize, state: usize) -> std::io::Result<std::borrow::Cow<'_, [u8]>> {
        match self.0.get(bucket).and_then(|data| data.get(&state)) {
            Some(bytes) => Ok(std::borrow::Cow::Borrowed(bytes)),
            None => Err(std::io::Error::other("the state has no initial bytes")),
        }
    }
}

/// Plans a training step within a budget, lowers it and has the checker prove it.
///
/// Fails with [`Error::Infeasible`] where no plan fits the device or the host, and with
/// [`Error::Interrupted`] where a request to stop comes before there is a plan.
pub fn compile(model: &Model, options: &Options<'_>) -> Result<Compiled, Error> {
    model.require_values()?;
    options.watch.event(Event::Stage("planning"));
    let poses = options.decisions.as_ref().map_or_else(|| options.search.poses(), DecisionsFile::poses);
    let instance = Instance::of_model(model, poses.clone())?;
    let budget = options.budget.map(|size| instance.bytes(size)).transpose()?;
    let begun = now();
    let roomy = match with_room(model, options, &poses, budget)? {
        Some(roomy) if roomy.outcome.interrupted || roomy.is_near_ideal() => {
            return Ok(roomy.told(model, options));
        }
        other => other,
    };
    // A request to stop must not lose it.
    let held = roomy.as_ref().map(|_| Hold::begin(options.watch));
    let mut search = options.search.clone();
    search.time_limit =
        search.time_limit.map(|limit| limit.saturating_sub(Duration::from_nanos(since(begun))));
    let job = Job { model, profile: &model.profile, options, instance, whole: None, budget, search };
    let usual = job.finish(&poses);
    drop(held);
    let compiled = match (roomy, usual) {
        (Some(roomy), Ok(usual)) if roomy.is_worth(&usual) => roomy,
        (Some(roomy), Err(Error::Infeasible(_) | Error::Interrupted)) => roomy,
        (_, usual) => usual?,
    };
    Ok(compiled.told(model, options))
}

/// The plan in which convolutions have the workspace that the options allow, where it is more than usual and
/// there is such a plan. Its search takes at most half of the time.
fn with_room(
    model: &Model,
    options: &Options<'_>,
    poses: &Poses,
    budget: Option<u64>,
) -> Result<Option<Compiled>, Error> {
    let profile = DeviceProfile { conv_workspace: options.conv_workspace, ..(*model.profile).clone() };
    let is_more = profile.kernels == Kernels::Gpu && profile.conv_workspace > *CONV_WORKSPACE.start();
    if !is_more || budget.is_none() || options.decisions.is_some() {
        return Ok(None);
    }
    let (instance, mut search) = (Instance::on(model, &profile, poses.clone())?, options.search.clone());
    search.time_limit = search.time_limit.map(|limit| limit / 2);
    let job = Job { model, profile: &profile, options, instance, whole: None, budget, search };
    match job.finish(poses) {
        Ok(compiled) => Ok(Some(compiled)),
        Err(Error::Infeasible(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Header of the plan of a candidate, as far as [`lower`] does not fill it in. Without a budget it has the
/// bytes that it takes.
pub(crate) fn meta(
    model: &Model,
    (instance, candidate): (&Instance, &Candidate),
    e: &Evaluation,
    planner: &str,
    budget: Option<u64>,
) -> Meta {
    Meta {
        planner: planner.to_owned(),
        profile: model.profile.name.to_string(),
        options: model.recorded(candidate.pose.formulation),
        budget_bytes: budget.unwrap_or(e.dev_bytes + instance.reserve_bytes),
        reserve_bytes: instance.reserve_bytes,
        claims: Claims {
            unplanned_peak_bytes: instance.given().kept().evaluation.dev_bytes,
            ideal_ns: instance.ideal_ns(),
            step_ns: e.step_ns,
            recompute_ns: e.recompute_ns,
            ..Claims::default()
        },
        ..Meta::default()
    }
}

/// Ops on the host that the user has named; none that would be chosen.
pub(crate) fn asked_for(host: &HostOps) -> HostOps {
    if *host == HostOps::Best { HostOps::None } else { host.clone() }
}

/// Ops up to which an error says how much host memory would be enough.
const HINTED_OPS: usize = 1024;

/// Limits of host memory that are tried for it, with the least effort.
const HALVINGS: usize = 6;

/// A compilation, and the permissions that it has so far.
struct Job<'a> {
    model: &'a Model,
    /// The model's device, with the workspace that convolutions have.
    profile: &'a DeviceProfile,
    options: &'a Options<'a>,
    instance: Instance,
    /// The instance in which every tensor may be swapped, where that is another.
    whole: Option<Instance>,
    /// Bytes; `None`: everything stays on the device.
    budget: Option<u64>,
    search: Search,
}

impl Job<'_> {
    /// A plan that the host has room for, too.
    fn finish(mut self, poses: &Poses) -> Result<Compiled, Error> {
        let (model, options) = (self.model, self.options);
        let most = options.host_memory.unwrap_or(u64::MAX);
        let (mut outcome, mut lowered) = self.run()?;
        if lowered.plan.meta.host_bytes > most && options.decisions.is_none() && self.search.allow.swap {
            let swaps = lowered.plan.meta.host_bytes;
            (outcome, lowered) = match self.swapping_less(poses, &outcome, swaps, most)? {
                Some(found) => found,
                None => {
                    let search = self.search.clone();
                    // Host memory then holds inputs and outputs only.
                    self.search.allow.swap = false;
                    self.search.host = asked_for(&self.search.host);
                    let alone = Instance::on(model, self.profile, self.search.poses())?;
                    let last = std::mem::replace(&mut self.instance, alone);
                    let whole = self.whole.take().unwrap_or(last);
                    match self.run() {
                        Ok(found) => found,
                        Err(Error::Infeasible(_)) => {
                            let without = self.without_swaps(most)?;
                            let with = Job { instance: whole, search, ..self };
                            return Err(with.too_much_swapped(poses, &outcome, [swaps, most], &without));
                        }
                        Err(e) => return Err(e),
                    }
                }
            };
        }
        let meta = &lowered.plan.meta;
        if meta.host_bytes > most {
            let (has, may) = (Bytes(meta.host_bytes), Bytes(most));
            let largest = self.largest_hosted(&outcome);
            return Err(Error::no_fit(format!(
                "the plan takes {has} of host memory, more than --host-mem {may}{largest}\n\
                 hint: inputs and outputs pass through host memory, too, and states of --host live there; \
                 pass --host-mem {}B or more, or a smaller batch",
                meta.host_bytes
            )));
        }
        let allow = self.search.allow;
        let Lowered { plan, data } = lowered;
        Ok(Compiled { plan, data, outcome, allow, instance: self.instance, whole: self.whole })
    }

    /// Line with the largest state that a plan has in host memory; empty where it has none there.
    fn largest_hosted(&self, outcome: &Outcome) -> String {
        let Some((candidate, _)) = outcome.of(&self.instance) else { return String::new() };
        let hosted = candidate.numbers().tensors.values().filter(|t| t.kind == TensorKind::Hosted);
        said_of("state", hosted.max_by_key(|t| t.bytes))
    }

    /// Plans, or carries decisions out; then lowers and checks.
    fn run(&self) -> Result<(Outcome, Lowered), Error> {
        let (budget, watch) = (self.budget.unwrap_or(u64::MAX), self.options.watch);
        let decisions = self.options.decisions.as_ref();
        let mut outcome = self.instance.answer(budget, &self.search, decisions, watch)?;
        outcome.widen(&self.instance, self.profile, self.options.conv_workspace);
        let (candidate, plan) = outcome.require(&self.instance, self.search.allow)?;
        let module = candidate.apply(plan)?;
        let formulation = candidate.pose.formulation;
        let of = (&self.instance, candidate);
        let meta = meta(self.model, of, &plan.evaluation, &outcome.planner, self.budget);
        watch.event(Event::Stage("lowering and checking"));
        let lowered = self.prove(formulation, &module, meta)?;
        Ok((outcome, lowered))
    }

    /// Plans again, with fewer tensors that may be swapped than a plan has that takes `swaps` bytes of host
    /// memory, until that takes at most `most`; `None` where this finds nothing. The instance is then the one
    /// of the plan.
    fn swapping_less(
        &mut self,
        poses: &Poses,
        outcome: &Outcome,
        swaps: u64,
        most: u64,
    ) -> Result<Option<(Outcome, Lowered)>, Error> {
        let given = self.instance.given().kept().evaluation.host_bytes;
        let Some((candidate, plan)) = outcome.of(&self.instance) else { return Ok(None) };
        if self.search.planner.name != Search::default().planner.name || most <= given {
            return Ok(None);
        }
        let (p, plan) = (candidate.numbers().clone(), plan.clone());
        // Tensors share bytes of the host; then it is assumed that they do not.
        let room = most - given;
        let shared = u128::from(swapped_bytes(&p, &plan)) * u128::from(room);
        let shared = shared / u128::from(swaps.saturating_sub(given).max(1));
        for room in [u64::try_from(shared).unwrap_or(u64::MAX), room] {
            let swappable = Some(dearest(&p, &plan, room));
            let poses = Poses { swappable, host: asked_for(&poses.host), ..poses.clone() };
            let less = Instance::on(self.model, self.profile, poses)?;
            let whole = std::mem::replace(&mut self.instance, less);
            self.whole.get_or_insert(whole);
            match self.run() {
                Ok(found) if found.1.plan.meta.host_bytes <= most => return Ok(Some(found)),
                Ok(_) | Err(Error::Infeasible(_)) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(None)
    }

    /// Lowers a planned module and has the checker prove the plan against its formulation. Errors are the
    /// user's where the decisions are.
    fn prove(&self, formulation: Formulation, module: &Module, meta: Meta) -> Result<Lowered, Error> {
        let wrong = |text: String| match &self.options.decisions {
            Some(file) => Error::Usage(format!("{}: {text}", file.name)),
            None => Error::Internal(text),
        };
        memc_ir::verify(module)
            .map_err(|d| wrong(format!("the planned module breaks rules of the verifier:\n{d}")))?;
        let missing = || Error::Internal("the plan is of no graph of the model".into());
        let source = &self.model.graph(formulation).ok_or_else(missing)?.module;
        let lowered = lower(source, module, meta).map_err(|e| Error::Internal(e.to_string()))?;
        memc_check::check(source, &lowered.plan)
            .map_err(|e| wrong(format!("the plan is wrong and was not written:\n{e}")))?;
        Ok(lowered)
    }

    /// Part of a hint: the budget on the device that needs no swapping, where the one given is too small.
    fn without_swaps(&self, most: u64) -> Result<String, Error> {
        let smallest = self.instance.smallest(self.search.allow)?;
        // Bytes that pass through host memory in any case.
        let least = self.instance.given().kept().evaluation.host_bytes;
        let is_more = smallest > self.budget.unwrap_or(u64::MAX) && least <= most;
        let hint = || format!(", or --gpu-mem {smallest}B or more, which needs no swapping");
        Ok(if is_more { hint() } else { String::new() })
    }

    /// Error where a plan that swaps takes too much host memory and none without swapping is found.
    fn too_much_swapped(
        self,
        poses: &Poses,
        outcome: &Outcome,
        [swaps, most]: [u64; 2],
        without: &str,
    ) -> Error {
        let largest = self.largest_swapped(outcome);
        let enough = match self.enough(poses, outcome, [swaps, most]) {
            Ok(enough) => enough,
            Err(e) => return e,
        };
        let (takes, most) = (Bytes(swaps), Bytes(most));
        Error::no_fit(format!(
            "the plan takes {takes} of host memory, more than --host-mem {most}, and no plan without \
             swapping is found in this budget{largest}\nhint: pass --host-mem {enough}B or more{without}"
        ))
    }

    /// Line with the largest tensor that a plan swaps; empty where there is none.
    fn largest_swapped(&self, outcome: &Outcome) -> String {
        let Some((candidate, plan)) = outcome.of(&self.instance) else { return String::new() };
        said_of("tensor", host_memory::largest(candidate.numbers(), plan))
    }

    /// Bytes of host memory with which there is a plan: the least that was found, or `swaps`, which are
    /// enough. `most` are too few. Large models are not planned again for it.
    fn enough(mut self, poses: &Poses, outcome: &Outcome, [swaps, most]: [u64; 2]) -> Result<u64, Error> {
        if self.instance.given().numbers().ops.len() > HINTED_OPS {
            return Ok(swaps);
        }
        let effort = std::mem::take(&mut self.search.effort);
        let (mut least, mut enough) = (most, swaps);
        for _ in 0..HALVINGS {
            let middle = least + (enough - least) / 2;
            let is_enough = self.is_enough(poses, outcome, [swaps, middle])?;
            *(if is_enough { &mut enough } else { &mut least }) = middle;
        }
        // More effort may not find it.
        self.search.effort = effort;
        let is_enough = enough == swaps || self.is_enough(poses, outcome, [swaps, enough])?;
        Ok(if is_enough { enough } else { swaps })
    }

    /// Whether there is a plan with fewer tensors swapped that takes at most `most` bytes of host memory.
    fn is_enough(
        &mut self,
        poses: &Poses,
        outcome: &Outcome,
        [swaps, most]: [u64; 2],
    ) -> Result<bool, Error> {
        let found = self.swapping_less(poses, outcome, swaps, most)?.is_some();
        if let Some(whole) = self.whole.take() {
            self.instance = whole;
        }
        Ok(found)
    }
}

/// Line with the largest of some kind of tensors in host memory; empty where there is none.
fn said_of(kind: &str, largest: Option<&Tensor>) -> String {
    largest.map_or_else(String::new, |largest| {
        format!("\n  the largest {kind} there: %{}, {}", largest.name, Bytes(largest.bytes))
    })
}
