//! A planning problem as a command poses it: read from a file or made of a model, in every order worth
//! trying.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::str::FromStr;

use memc_baselines::PLANNERS;
use memc_ir::{Bytes, Module, ParseError};
use memc_passes::plan::{Infeasible, Problem};
use memc_passes::{DeviceProfile, Pipeline};
use memc_planner::bound;
use memc_planner::{ALIGN, Allow, Formulation, NoPlan, Order, Pose, Request};
use rayon::prelude::*;

use crate::candidate::{Candidate, HostOps, Poses, handle, named, shares, updating};
use crate::device::AUTO;
use crate::error::{Error, NoFit};
use crate::machine::{host_memory, read_text};
use crate::source::{Model, Target, context, refuse_options};
use crate::watch::{Event, Watch};
use crate::workload::Workload;

/// The smallest budget for tensors that are handled as the user says is searched for to this part of itself.
const NEAR_SMALLEST: u64 = 16;

/// Memory size as a user gives it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Size {
    /// Bytes.
    Bytes(u64),
    /// Share of the device's memory, in percent.
    Percent(f64),
    /// Share of what the unplanned step takes, the device's reserve included, in percent.
    PeakPercent(f64),
}

impl FromStr for Size {
    type Err = ParseError;

    /// Parses a size as [`Bytes::parse`] does, a share of the device such as `90%`, or one of the unplanned
    /// peak such as `peak*60%`.
    fn from_str(text: &str) -> Result<Size, ParseError> {
        const EXAMPLE: &str = "write a size such as 16G, 512MiB, 4096B, 90% or peak*60%";
        if let Some(share) = text.trim().strip_prefix("peak*") {
            return match share.parse() {
                Ok(Size::Percent(percent)) => Ok(Size::PeakPercent(percent)),
                Err(error) if share.ends_with('%') => Err(error),
                _ => Err(format!("`{share}` is not a share: write one such as peak*60%").into()),
            };
        }
        let Some(number) = text.trim().strip_suffix('%') else {
            return Ok(Size::Bytes(Bytes::parse(text, EXAMPLE)?.0));
        };
        let percent: f64 = number.parse().map_err(|_| format!("`{number}` is not a number: {EXAMPLE}"))?;
        if !(percent > 0.0 && percent <= 100.0) {
            return Err(format!("`{}` is not between 0% and 100%", text.trim()).into());
        }
        Ok(Size::Percent(percent))
    }
}

/// A planning problem and its device.
///
/// Remembers bounds and budgets once they are found, so that many plans may be asked of one instance.
pub struct Instance {
    /// The problem as given, then those that are tried besides.
    candidates: Vec<Candidate>,
    /// The first that is tried.
    first: usize,
    /// Time of the step when nothing waits, of the fastest formulation, in ns.
    ideal_ns: u64,
    /// Bytes of a budget that are not the arena's: for the driver, libraries and code.
    pub reserve_bytes: u64,
    memory_bytes: Option<u64>,
    /// Smallest budgets by quick methods.
    smallest: RefCell<BTreeMap<Allow, u64>>,
    /// Smallest budgets of plans so far.
    planned: RefCell<BTreeMap<Allow, u64>>,
    /// Bounds by candidate, capacity and permissions.
    bounds: RefCell<BTreeMap<(usize, u64, Allow), Option<Bounds>>>,
}

/// Certified bounds on the step time in ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Of plans that keep the problem's order, if there may be one.
    fixed_order_ns: Option<u64>,
    /// Of every plan.
    order_free_ns: u64,
}

impl Bounds {
    /// The bound for plans in the fixed order, if there may be one, or for plans in any order.
    pub fn least(&self, fixed_order: bool) -> Option<u64> {
        if fixed_order { self.fixed_order_ns } else { Some(self.order_free_ns) }
    }
}

impl Instance {
    /// Reads a problem file, or makes the problem of a workload in some poses.
    pub fn read(
        workload: &Workload,
        target: &Target,
        poses: Poses,
        watch: &dyn Watch,
    ) -> Result<Instance, Error> {
        let source = match workload {
            Workload::Model(source) if source.path.extension().is_some_and(|e| e == "json") => source,
            _ => return Instance::of_model(&Model::read(workload, target, watch)?, poses),
        };
        watch.event(Event::Stage("importing"));
        refuse_options(source, "a planning problem has its own sizes, times and device")?;
        let defaults = [Target::default(), Target { device: AUTO.into(), ..Target::default() }];
        if !defaults.contains(target) {
            let text = "--device, --no-mem-rewrite and --no-fuse are for models; a planning problem \
                        has its own times and device";
            return Err(Error::Usage(text.into()));
        }
        let at = |e| Error::Model(format!("{}: {e}", source.path.display()));
        let numbers = memc_planner::json::parse(&read_text(&source.path)?).map_err(at)?;
        Instance::of_numbers(numbers, &poses)
    }

    /// The instance of a problem in numbers.
    pub fn of_numbers(mut numbers: memc_planner::Problem, poses: &Poses) -> Result<Instance, Error> {
        handle(&mut numbers, poses, true)?;
        let memory_bytes = Some(numbers.device.memory_bytes).filter(|&b| b > 0);
        let given = Candidate::of_numbers(Pose::default(), numbers)?;
        let ideal_ns = given.compute_ns();
        let (candidates, first) = place(vec![given], 0, &poses.host)?;
        Ok(Instance::new(candidates, first, ideal_ns, (0, memory_bytes)))
    }

    /// The instance of a model, in some poses.
    pub fn of_model(model: &Model, poses: Poses) -> Result<Instance, Error> {
        Instance::on(model, &model.profile, poses)
    }

    /// The instance of a model on a device, in some poses.
    pub(crate) fn on(model: &Model, profile: &DeviceProfile, poses: Poses) -> Result<Instance, Error> {
        let graphs: Vec<(Formulation, &Module)> =
            model.graphs.iter().map(|graph| (graph.formulation, &graph.module)).collect();
        Instance::of_graphs(&graphs, profile, Poses { limits: model.limits.clone(), ..poses })
    }

    /// The instance of a graph-phase module, in some poses.
    pub fn of_graph(graph: &Module, profile: &DeviceProfile, poses: Poses) -> Result<Instance, Error> {
        Instance::of_graphs(&[(Formulation::Own, graph)], profile, poses)
    }

    /// The instance of a model's formulations, its own first.
    fn of_graphs(
        graphs: &[(Formulation, &Module)],
        profile: &DeviceProfile,
        poses: Poses,
    ) -> Result<Instance, Error> {
        let problem = |formulation, order, graph: &Module| {
            let pose = Pose { formulation, order, host: Vec::new() };
            let mut p = Problem::new(graph, profile)?;
            handle(&mut p.numbers, &poses, formulation == Formulation::Own)?;
            Candidate::of_model(pose, p)
        };
        let mut candidates = Vec::new();
        let mut ideal_ns = u64::MAX;
        for &(formulation, graph) in graphs {
            let candidate = problem(formulation, Order::Given, graph)?;
            ideal_ns = ideal_ns.min(candidate.compute_ns());
            // Plans are compared with the unplanned step of the first, tried or not.
            if candidates.is_empty() || poses.includes(formulation, Order::Given) {
                candidates.push(candidate);
            }
            if !poses.includes(formulation, Order::Greedy) {
                continue;
            }
            let module = greedy(graph, profile)?;
            if poses.order.is_some() || module.order != graph.order {
                candidates.push(problem(formulation, Order::Greedy, &module)?);
            }
        }
        if candidates.is_empty() {
            return Err(Error::Internal("a model has no graph".into()));
        }
        let mut first = usize::from(!poses.includes(Formulation::Own, Order::Given));
        if candidates.len() == first {
            let name = poses.formulation.map_or("", Formulation::name);
            return Err(Error::Usage(format!("the model has no other formulation `{name}`")));
        }
        if is_beaten(&candidates) {
            candidates.retain(|c| c.pose == Pose::default() || c.pose.formulation != Formulation::Own);
            first = 1;
        }
        let (candidates, first) = place(candidates, first, &poses.host)?;
        let own = profile.memory_bytes;
        let memory_bytes = own.or_else(|| (profile.name == "cpu").then(host_memory).flatten());
        Ok(Instance::new(candidates, first, ideal_ns, (profile.reserve_bytes, memory_bytes)))
    }

    fn new(
        candidates: Vec<Candidate>,
        first: usize,
        ideal_ns: u64,
        (reserve_bytes, memory_bytes): (u64, Option<u64>),
    ) -> Instance {
        let (smallest, planned, bounds) = Default::default();
        Instance { candidates, first, ideal_ns, reserve_bytes, memory_bytes, smallest, planned, bounds }
    }

    /// The same candidates as problems in numbers that `pose` makes of theirs.
    pub(crate) fn reposed(
        &self,
        pose: &dyn Fn(&memc_planner::Problem) -> memc_planner::Problem,
    ) -> Result<Instance, Error> {
        let again = |c: &Candidate| Candidate::of_numbers(c.pose.clone(), pose(c.numbers()));
        let candidates: Vec<Candidate> = self.candidates.iter().map(again).collect::<Result<_, _>>()?;
        let sizes = (self.reserve_bytes, self.memory_bytes);
        Ok(Instance::new(candidates, self.first, self.ideal_ns, sizes))
    }

    /// The problem as given: its unplanned step is what plans are compared with.
    pub fn given(&self) -> &Candidate {
        &self.candidates[0]
    }

    /// The candidates that are tried, each in a pose of its own.
    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates[self.first..]
    }

    /// Indices of the candidates that have just these ops on the host.
    pub(crate) fn with_host_ops(&self, host: &[String]) -> impl Iterator<Item = usize> {
        let all = self.candidates().iter().enumerate();
        all.filter(move |(_, c)| c.pose.host == host).map(|(at, _)| at)
    }

    /// Name of the model or problem.
    pub fn name(&self) -> &str {
        &self.given().numbers().name
    }

    /// Time of all ops in ns, each once, of the fastest formulation: the step when nothing waits.
    pub fn ideal_ns(&self) -> u64 {
        self.ideal_ns
    }

    /// A budget in bytes.
    pub fn bytes(&self, size: Size) -> Result<u64, Error> {
        match size {
            Size::Bytes(bytes) => Ok(bytes),
            Size::Percent(percent) => {
                let memory = self.memory_bytes.ok_or_else(unknown_memory)?;
                Ok((memory as f64 * percent / 100.0) as u64)
            }
            Size::PeakPercent(percent) => {
                let peak = self.given().kept().evaluation.dev_bytes.saturating_add(self.reserve_bytes);
                Ok((peak as f64 * percent / 100.0) as u64)
            }
        }
    }

    /// The budget in bytes: as given, or the memory that the problem's device has.
    pub fn budget(&self, size: Option<Size>) -> Result<u64, Error> {
        let own = Some(self.given().numbers().device.memory_bytes).filter(|&b| b > 0);
        size.map_or_else(|| own.or(self.memory_bytes).ok_or_else(unknown_memory), |size| self.bytes(size))
    }

    /// Bytes of a budget that are left for the arena.
    pub fn capacity(&self, budget: u64) -> u64 {
        budget.saturating_sub(self.reserve_bytes) / ALIGN * ALIGN
    }

    /// Takes note of a plan with an arena of so many bytes.
    pub(crate) fn record(&self, allow: Allow, arena_bytes: u64) {
        let budget = arena_bytes.saturating_add(self.reserve_bytes);
        let mut planned = self.planned.borrow_mut();
        let least = planned.entry(allow).or_insert(budget);
        *least = budget.min(*least);
    }

    /// The smallest budget for which a quick method, or any planner that was asked, knows a plan, in
    /// whichever pose.
    pub fn smallest(&self, allow: Allow) -> Result<u64, Error> {
        let planned = self.planned.borrow().get(&allow).copied().unwrap_or(u64::MAX);
        if let Some(&known) = self.smallest.borrow().get(&allow) {
            return Ok(known.min(planned));
        }
        // Of shares of ops on the host that may be chosen, none is asked.
        let host = self.candidates().first().map_or(&[][..], |first| &first.pose.host);
        let posed: Vec<(&memc_planner::Problem, u64)> = self
            .with_host_ops(host)
            .map(|at| &self.candidates()[at])
            .map(|c| (c.numbers(), c.kept().evaluation.dev_bytes))
            .collect();
        let found: Result<Vec<u64>, Error> =
            posed.into_par_iter().map(|(p, kept)| smallest(p, kept, allow)).collect();
        let least = found?.into_iter().min().unwrap_or(u64::MAX);
        let total = least.saturating_add(self.reserve_bytes);
        self.smallest.borrow_mut().insert(allow, total);
        Ok(total.min(planned))
    }

    /// As [`Instance::smallest`], but looks for one where the user says how tensors are handled: that takes
    /// several plans.
    fn search_smallest(&self, allow: Allow) -> Result<u64, Error> {
        let known = self.smallest(allow)?;
        let Some(first) = self.candidates().first().filter(|c| !c.numbers().handling.is_empty()) else {
            return Ok(known);
        };
        let p = first.numbers();
        let (mut low, mut least) = (p.largest_working_set().1, known.saturating_sub(self.reserve_bytes));
        while least.saturating_sub(low) > least / NEAR_SMALLEST {
            let capacity = (low + (least - low) / 2) / ALIGN * ALIGN;
            let request = Request { allow, effort: 0, ..Request::new(capacity) };
            match memc_planner::solve(p, &PLANNERS[0], &request) {
                Ok((plan, _)) => least = plan.evaluation.dev_bytes.min(capacity),
                Err(NoPlan::Infeasible(_)) => low = capacity + ALIGN,
                Err(failed) => return Err(Error::Internal(failed.to_string())),
            }
        }
        Ok(least.saturating_add(self.reserve_bytes))
    }

    /// The certified bounds on plans of a candidate; none where nothing fits in any order.
    pub fn bound(&self, at: usize, budget: u64, allow: Allow) -> Option<Bounds> {
        self.bound_all(&[at], budget, allow).pop().flatten()
    }

    /// As [`Instance::bound`], of several at once.
    pub(crate) fn bound_all(&self, at: &[usize], budget: u64, allow: Allow) -> Vec<Option<Bounds>> {
        let capacity = self.capacity(budget);
        let unknown = |at: &&usize| !self.bounds.borrow().contains_key(&(**at, capacity, allow));
        let posed: Vec<(usize, &memc_planner::Problem)> = at
            .iter()
            .filter(unknown)
            .filter_map(|&at| Some((at, self.candidates().get(at)?.numbers())))
            .collect();
        let bounds =
            |b: bound::Bound| Bounds { fixed_order_ns: b.fixed_order.ok(), order_free_ns: b.order_free_ns };
        let bound = |(at, p): (usize, &memc_planner::Problem)| {
            ((at, capacity, allow), bound::bound(p, capacity, allow).ok().map(bounds))
        };
        let found: Vec<_> = posed.into_par_iter().map(bound).collect();
        let mut known = self.bounds.borrow_mut();
        known.extend(found);
        at.iter().map(|&at| known.get(&(at, capacity, allow)).copied().flatten()).collect()
    }

    /// The certified bound in ns on plans of every formulation, in the order of a pose, or in any, with these
    /// ops on the host.
    pub fn least_bound(
        &self,
        budget: u64,
        allow: Allow,
        order: Option<Order>,
        host: &[String],
    ) -> Option<u64> {
        let mut candidates: Vec<(u64, usize)> =
            self.with_host_ops(host).map(|at| (self.candidates()[at].compute_ns(), at)).collect();
        candidates.retain(|&(_, at)| order.is_none_or(|order| self.candidates()[at].pose.order == order));
        candidates.sort_unstable();
        let least = |at: &[usize]| {
            let bounds = self.bound_all(at, budget, allow);
            bounds.into_iter().flatten().filter_map(|b| b.least(order.is_some())).min()
        };
        let (&(_, fastest), _) = candidates.split_first()?;
        let first = least(&[fastest]);
        // No bound is below the sum of the ops' times.
        let open = candidates[1..].iter().filter(|(compute_ns, _)| first.is_none_or(|f| f > *compute_ns));
        let open: Vec<usize> = open.map(|&(_, at)| at).collect();
        first.into_iter().chain(least(&open)).min()
    }

    /// Note that the device cannot swap, where swapping is allowed.
    pub fn cut_off(&self, allow: Allow) -> Option<String> {
        let device = &self.given().numbers().device;
        let links =
            [("h2d_bytes_per_s", device.h2d_bytes_per_s), ("d2h_bytes_per_s", device.d2h_bytes_per_s)];
        let dead: Vec<&str> = links.iter().filter(|l| l.1 == 0).map(|l| l.0).collect();
        let says = if dead.len() == 1 { "is" } else { "are" };
        let text = || format!("the device's {} {says} 0, so that nothing can be swapped", dead.join(" and "));
        (allow.swap && !dead.is_empty()).then(text)
    }

    /// Error without a plan: the planner's reason, a budget that would do, and the op that needs the most.
    ///
    /// The budget that is said to have a plan has one by the default planner, whichever were `asked`.
    pub fn infeasible(&self, asked: &[&str], why: &str, budget: u64, allow: Allow) -> Result<Error, Error> {
        let default = memc_baselines::PLANNERS.first().map_or("", |p| p.name);
        let other = !asked.contains(&default);
        let smallest = self.search_smallest(allow)?;
        let at = &self.candidates()[0];
        // Where a walk may swap it comes down to the least there is, or nearly; checkpoints do not.
        let least = at.numbers().largest_working_set().1.saturating_add(self.reserve_bytes);
        if least > budget || (smallest > budget && allow.swap && at.numbers().device.can_swap()) {
            let report = Infeasible::new(at.numbers(), at.model(), budget, self.reserve_bytes, smallest);
            let note = match (other, least > budget) {
                (true, true) => {
                    format!("\nnote: that is enough for --planner {default}; others may need more")
                }
                (true, false) => {
                    format!("\nnote: that is enough for --planner {default}; others may need more: {why}")
                }
                _ => String::new(),
            };
            let text = format!("{report}{note}");
            return Ok(Error::Infeasible(NoFit { text, report: Some(Box::new(report)) }));
        }
        let by = if other { format!(", with --planner {default}") } else { String::new() };
        let note = self.cut_off(allow).map_or_else(String::new, |note| format!("\nnote: {note}"));
        Ok(Error::no_fit(format!(
            "{why}\n  smallest budget known to have a plan: {}{}{by}{note}\nhint: give more --gpu-mem, \
             or another --planner; `memc compare` shows what each finds",
            Bytes(smallest),
            and_reserve(self.reserve_bytes),
        )))
    }
}

/// Candidates with ops on the host: besides those without, or in their place. Returns them with the index of
/// the first that is tried.
fn place(
    mut candidates: Vec<Candidate>,
    first: usize,
    host: &HostOps,
) -> Result<(Vec<Candidate>, usize), Error> {
    match host {
        HostOps::None => {}
        HostOps::Best => {
            let given = candidates[first..].iter().filter(|c| c.pose.order == Order::Given);
            let placed: Vec<Candidate> = given.flat_map(shares).collect();
            candidates.extend(placed);
        }
        HostOps::Named(names) => return instead(candidates, first, &|c| named(c, names)),
        HostOps::Updating(patterns) => return instead(candidates, first, &|c| updating(c, patterns)),
    }
    Ok((candidates, first))
}

/// Puts others in the place of the candidates from `first` on; the first of all stays, for comparison. In
/// another order or formulation an op may not be able to run on the host; where it can in none, the first
/// says why.
fn instead(
    mut candidates: Vec<Candidate>,
    first: usize,
    place: &dyn Fn(&Candidate) -> Result<Candidate, Error>,
) -> Result<(Vec<Candidate>, usize), Error> {
    let (placed, refused): (Vec<_>, Vec<_>) = candidates[first..].iter().map(place).partition(Result::is_ok);
    if let (true, Some(Err(why))) = (placed.is_empty(), refused.into_iter().next()) {
        return Err(why);
    }
    candidates.truncate(1);
    candidates.extend(placed.into_iter().flatten());
    Ok((candidates, 1))
}

/// Whether another formulation takes no more time than the model's own, and no more memory.
fn is_beaten(candidates: &[Candidate]) -> bool {
    let [own, others @ ..] = candidates else { return false };
    let bytes = |c: &Candidate| c.kept().evaluation.dev_bytes;
    others.iter().any(|other| {
        let comparable = other.pose.formulation != Formulation::Own && other.pose.order == own.pose.order;
        comparable && other.compute_ns() <= own.compute_ns() && bytes(other) <= bytes(own)
    })
}

/// The graph with its ops in the order that memory would like best.
fn greedy(graph: &Module, profile: &DeviceProfile) -> Result<Module, Error> {
    let mut module = graph.clone();
    let pass = format!("schedule-ops{{algo={}}}", Order::Greedy.name());
    Pipeline::parse(&pass)?.run(&mut module, &mut context(profile))?;
    Ok(module)
}

/// The smallest arena for which a quick method knows a plan; all stays in one of `kept` bytes.
fn smallest(p: &memc_planner::Problem, kept: u64, allow: Allow) -> Result<u64, Error> {
    // Quick methods do not know how tensors are to be handled; all may stay.
    if !p.handling.is_empty() {
        return Ok(kept);
    }
    let request = Request { allow, ..Request::new(kept) };
    memc_baselines::smallest(p, kept, &request).map_err(|e| Error::Internal(e.to_string()))
}

fn unknown_memory() -> Error {
    Error::Usage("the memory of the device is not known here: give --gpu-mem in bytes, as 16G".into())
}

/// Ending of a sentence on a budget, for people: the part that is not the arena's, nothing where all of it
/// is.
pub fn and_reserve(reserve_bytes: u64) -> String {
    match reserve_bytes {
        0 => String::new(),
        bytes => format!(", the device's reserve of {} included", Bytes(bytes).short()),
    }
}
