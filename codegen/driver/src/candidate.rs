//! A problem as it is posed to a planner: formulation, order, and which ops run on the host.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use glob::Pattern;
use memc_ir::Module;
use memc_passes::plan::{Problem, bufferize};
use memc_planner::{
    Decisions, Evaluation, Formulation, Handling, NotOnHost, OpPos, Order, Placed, Pose, Schedule, TensorId,
    TensorKind, evaluate,
};

use crate::error::Error;

/// Poses of a problem that are tried; `None`: every one worth trying.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Poses {
    /// The formulation of a model's gradients.
    pub formulation: Option<Formulation>,
    /// The order of the ops.
    pub order: Option<Order>,
    /// The ops on the host.
    pub host: HostOps,
    /// Ways in which tensors may leave the device, by name.
    pub handling: Vec<(Pattern, Handling)>,
    /// Names of the tensors that may be swapped; `None`: all.
    pub swappable: Option<BTreeSet<String>>,
    /// Jobs with a limit of their own.
    pub limits: Vec<SwapLimit>,
}

/// Most tensors of a job that may be swapped. A job that may swap less than others waits less for copies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SwapLimit {
    /// Name of the job.
    pub job: String,
    /// Part of the bytes of its tensors, in thousandths.
    pub thousandths: u32,
}

/// Ops that run on the host.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum HostOps {
    /// None.
    #[default]
    None,
    /// Those with which the step is fastest.
    Best,
    /// These, by name.
    Named(Vec<String>),
    /// Those that update states whose names match.
    Updating(Vec<Pattern>),
}

impl Poses {
    /// Every formulation in the order as given.
    pub const GIVEN: Poses = Poses {
        formulation: None,
        order: Some(Order::Given),
        host: HostOps::None,
        handling: Vec::new(),
        swappable: None,
        limits: Vec::new(),
    };

    pub(crate) fn includes(&self, formulation: Formulation, order: Order) -> bool {
        self.formulation.is_none_or(|f| f == formulation) && self.order.is_none_or(|o| o == order)
    }
}

impl From<Pose> for Poses {
    fn from(pose: Pose) -> Poses {
        let host = if pose.host.is_empty() { HostOps::None } else { HostOps::Named(pose.host) };
        Poses { formulation: Some(pose.formulation), order: Some(pose.order), host, ..Poses::default() }
    }
}

/// A problem in one pose.
pub struct Candidate {
    /// Its formulation, order, and ops on the host.
    pub pose: Pose,
    of: Of,
    kept: OnceCell<Schedule>,
}

#[derive(Clone)]
enum Of {
    Model(Rc<Problem>),
    Numbers(Rc<memc_planner::Problem>),
    /// Another with these ops on the host, made when it is needed.
    Placed(Rc<Of>, BTreeSet<OpPos>, OnceCell<Box<Of>>),
}

impl Of {
    fn numbers(&self) -> &memc_planner::Problem {
        match self {
            Of::Model(p) => &p.numbers,
            Of::Numbers(p) => p,
            Of::Placed(base, ops, made) => made.get_or_init(|| Box::new(base.placed(ops))).numbers(),
        }
    }

    fn model(&self) -> Option<&Problem> {
        match self {
            Of::Model(p) => Some(p),
            Of::Numbers(_) => None,
            Of::Placed(base, ops, made) => made.get_or_init(|| Box::new(base.placed(ops))).model(),
        }
    }

    /// With some ops on the host that can run there; where one cannot, all stay.
    fn placed(&self, ops: &BTreeSet<OpPos>) -> Of {
        let placed = match self {
            Of::Model(p) => p.with_host_ops(ops).map(|p| Of::Model(Rc::new(p))),
            Of::Numbers(p) => {
                p.with_host_ops(ops).map(|Placed { problem, .. }| Of::Numbers(Rc::new(problem)))
            }
            Of::Placed(base, ..) => return base.placed(ops),
        };
        placed.unwrap_or_else(|_| self.clone())
    }
}

impl Candidate {
    /// The problem of a model.
    pub(crate) fn of_model(pose: Pose, p: Problem) -> Result<Candidate, Error> {
        Candidate::new(pose, Of::Model(Rc::new(p)))
    }

    /// A problem in numbers.
    pub(crate) fn of_numbers(pose: Pose, p: memc_planner::Problem) -> Result<Candidate, Error> {
        Candidate::new(pose, Of::Numbers(Rc::new(p)))
    }

    fn new(pose: Pose, of: Of) -> Result<Candidate, Error> {
        let p = of.numbers();
        let kept = evaluate(p, Decisions::keep_all(p)).map_err(|e| Error::Internal(e.to_string()))?;
        Ok(Candidate { pose, of, kept: OnceCell::from(kept) })
    }

    /// The same with some ops on the host. Fails with the first that cannot run there.
    pub(crate) fn with_host_ops(&self, ops: BTreeSet<OpPos>) -> Result<Candidate, (OpPos, NotOnHost)> {
        let p = self.numbers();
        for &at in &ops {
            p.can_run_on_host(at).map_err(|why| (at, why))?;
        }
        // In one order, whatever that of the ops is: poses compare.
        let mut host: Vec<String> = ops.iter().map(|&at| p.ops[at].name.clone()).collect();
        host.sort_unstable();
        let pose = Pose { host, ..self.pose.clone() };
        Ok(Candidate {
            pose,
            of: Of::Placed(Rc::new(self.of.clone()), ops, OnceCell::new()),
            kept: OnceCell::new(),
        })
    }

    /// The unplanned step.
    pub fn kept(&self) -> &Schedule {
        self.kept.get_or_init(|| {
            let p = self.numbers();
            // A problem that cannot be evaluated fits nowhere.
            let never = Evaluation { dev_bytes: u64::MAX, step_ns: u64::MAX, ..Evaluation::default() };
            evaluate(p, Decisions::keep_all(p))
                .unwrap_or_else(|_| Schedule { evaluation: never, ..Schedule::default() })
        })
    }

    /// The problem in numbers.
    pub fn numbers(&self) -> &memc_planner::Problem {
        self.of.numbers()
    }

    /// Time of all ops on the device in ns, each once.
    pub fn compute_ns(&self) -> u64 {
        self.numbers().compute_ns()
    }

    /// The problem of a model; `None` for one that was read as numbers.
    pub fn model(&self) -> Option<&Problem> {
        self.of.model()
    }

    /// Carries a plan out: the memory IR of a model's step.
    pub fn apply(&self, plan: &Schedule) -> Result<Module, Error> {
        let Some(problem) = self.model() else {
            return Err(Error::Internal("the problem is not a model's".into()));
        };
        bufferize(problem, plan).map_err(|e| Error::Internal(e.to_string()))
    }
}

/// Has tensors of a problem leave the device in these ways only. With `all`, every pattern has to name one.
pub(crate) fn handle(p: &mut memc_planner::Problem, poses: &Poses, all: bool) -> Result<(), Error> {
    for (pattern, handling) in &poses.handling {
        let option = match handling {
            Handling::Keep => "--keep",
            Handling::Swap => "--swap",
            Handling::Recompute | Handling::Any => "--recompute",
        };
        let refused = |why: &str| Err(Error::Usage(format!("{option} {pattern}: {why}")));
        let named: Vec<TensorId> =
            p.tensors.iter().filter(|(_, t)| pattern.matches(&t.name)).map(|(t, _)| t).collect();
        let recomputes = |t: &TensorId| {
            let tensor = &p.tensors[*t];
            let transient = tensor.kind == TensorKind::Transient;
            transient && tensor.writes.iter().any(|&w| p.ops[w].repeatable)
        };
        let able: Vec<TensorId> =
            named.iter().copied().filter(|t| *handling != Handling::Recompute || recomputes(t)).collect();
        if all && named.is_empty() {
            return refused("no tensor is called so; `memc explain --all` lists them");
        }
        if all && able.is_empty() {
            return refused(
                "no op computes what is called so, or not again: inputs and states can be swapped",
            );
        }
        if *handling == Handling::Swap && !p.device.can_swap() {
            return refused("the device has no link to the host");
        }
        for t in able {
            let other = p.handling.insert(t, *handling).filter(|other| other != handling);
            if other.is_some() {
                return refused(&format!("%{} is named by another option, too", p.tensors[t].name));
            }
        }
    }
    // To live in host memory is not to be swapped.
    let hosted = hosted(p, &poses.host);
    let limits = poses.limits.iter();
    let mut barred: BTreeSet<TensorId> = limits.flat_map(|limit| beyond(p, limit, &hosted)).collect();
    if let Some(swappable) = &poses.swappable {
        barred.extend(p.tensors.iter().filter(|(_, t)| !swappable.contains(&t.name)).map(|(t, _)| t));
    }
    for t in barred.into_iter().filter(|t| !hosted.contains(t)) {
        let recomputes = p.tensors[t].kind == TensorKind::Transient && p.handling(t).recomputes();
        p.handling.insert(t, if recomputes { Handling::Recompute } else { Handling::Keep });
    }
    Ok(())
}

/// The states that the user's ops on the host change.
fn hosted(p: &memc_planner::Problem, host: &HostOps) -> BTreeSet<TensorId> {
    let ops: Vec<OpPos> = match host {
        HostOps::None | HostOps::Best => Vec::new(),
        HostOps::Named(names) => {
            p.ops.iter().filter(|(_, op)| names.contains(&op.name)).map(|(at, _)| at).collect()
        }
        HostOps::Updating(patterns) => patterns.iter().flat_map(|pattern| updates(p, pattern)).collect(),
    };
    let ops = ops.into_iter().map(|at| &p.ops[at]).filter(|op| op.host_ns.is_some());
    ops.flat_map(|op| op.writes.iter().copied()).filter(|&t| p.tensors[t].persistent()).collect()
}

/// The ops that change states whose names match.
fn updates(p: &memc_planner::Problem, pattern: &Pattern) -> Vec<OpPos> {
    let states = p.tensors.values().filter(|t| t.persistent() && pattern.matches(&t.name));
    states.flat_map(|state| state.writes.iter().copied()).collect()
}

/// The tensors of a job that may not be swapped: all but the largest, and those on the host.
fn beyond(p: &memc_planner::Problem, limit: &SwapLimit, hosted: &BTreeSet<TensorId>) -> Vec<TensorId> {
    let prefix = format!("{}/", limit.job);
    let of_job = p.tensors.iter().filter(|(t, _)| !hosted.contains(t));
    let of_job = of_job.filter(|(_, t)| t.name.starts_with(&prefix) && !t.kind.arrives());
    let mut tensors: Vec<(u64, TensorId)> = of_job.map(|(t, tensor)| (tensor.bytes, t)).collect();
    tensors.sort_unstable_by_key(|&(bytes, t)| (std::cmp::Reverse(bytes), t));
    let all: u64 = tensors.iter().map(|(bytes, _)| bytes).sum();
    let mut left = u64::try_from(u128::from(all) * u128::from(limit.thousandths) / 1000).unwrap_or(all);
    tensors.retain(|(bytes, _)| match left.checked_sub(*bytes) {
        Some(less) => {
            left = less;
            false
        }
        None => true,
    });
    tensors.into_iter().map(|(_, t)| t).collect()
}

/// The candidate with the ops of these names on the host.
pub(crate) fn named(candidate: &Candidate, names: &[String]) -> Result<Candidate, Error> {
    let p = candidate.numbers();
    let mut ops = BTreeSet::new();
    for name in names {
        let op = p.ops.iter().find(|(_, op)| op.name == *name).map(|(at, _)| at);
        ops.insert(op.ok_or_else(|| Error::Usage(format!("no op is called %{name}")))?);
    }
    on_host(candidate, ops)
}

/// The candidate with the updates of states on the host whose names match. Ops without a time on the host,
/// such as that of the step counter, stay on the device.
pub(crate) fn updating(candidate: &Candidate, patterns: &[Pattern]) -> Result<Candidate, Error> {
    let p = candidate.numbers();
    let mut ops = BTreeSet::new();
    for pattern in patterns {
        let updates = updates(p, pattern);
        if updates.is_empty() {
            return Err(Error::Usage(format!(
                "--host {pattern}: no state that the step changes is called so; `memc explain` lists them"
            )));
        }
        let able: Vec<OpPos> = updates.iter().copied().filter(|&at| p.ops[at].host_ns.is_some()).collect();
        ops.extend(if able.is_empty() { updates } else { able });
    }
    on_host(candidate, ops)
}

fn on_host(candidate: &Candidate, ops: BTreeSet<OpPos>) -> Result<Candidate, Error> {
    candidate.with_host_ops(ops).map_err(|(at, why)| {
        let p = candidate.numbers();
        let (op, why) = (&p.ops[at].name, why.describe(p));
        Error::Usage(format!("%{op} cannot run on the host: it {why}"))
    })
}

/// Ops on the host are tried with all of the states, and with less by this part each time.
const PARTS: u64 = 8;

/// The candidate with more and less of its ops on the host. Those of the last layers leave the first weights
/// of the next step alone; the same share of every layer keeps host and link busy all the while; the largest
/// states are worth a copy most.
pub(crate) fn shares(candidate: &Candidate) -> Vec<Candidate> {
    let p = candidate.numbers();
    let able = p.host_candidates();
    let bytes = |at: &OpPos| p.ops[*at].writes.iter().map(|&t| p.tensors[t].bytes).sum::<u64>();
    let all: u64 = able.iter().map(bytes).sum();
    // Takes an op where those taken so far are less than they should be.
    let taken = |able: &[OpPos], most: &dyn Fn(u64) -> u64| {
        let (mut ops, mut there, mut passed) = (BTreeSet::new(), 0, 0);
        for at in able {
            passed += bytes(at);
            if there + bytes(at) / 2 <= most(passed) {
                there += bytes(at);
                ops.insert(*at);
            }
        }
        ops
    };
    let mut by_size = able.clone();
    by_size.sort_by_key(|at| (std::cmp::Reverse(bytes(at)), *at));
    let mut shares: Vec<BTreeSet<OpPos>> = Vec::new();
    for parts in (1..=PARTS).rev() {
        let most = all / PARTS * parts;
        for ops in [
            taken(&able, &|_| most),
            taken(&able, &|passed| passed / PARTS * parts),
            taken(&by_size, &|_| most),
        ] {
            if !ops.is_empty() && !shares.contains(&ops) {
                shares.push(ops);
            }
        }
    }
    shares.into_iter().filter_map(|ops| candidate.with_host_ops(ops).ok()).collect()
}
