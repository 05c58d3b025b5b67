//! Copies, drops and recomputation of a plan, tensor by tensor, and the stalls of its kernels with their
//! causes.

use memc_ir::Arena;
use memc_planner::attribution::{self, Back, Cause, Late, account};
use memc_planner::{HostOpIx, OpPos, Resident, Schedule, TensorId, TensorKind};
use serde::{Serialize, Serializer};

use crate::candidate::Candidate;
use crate::report::over;

/// A plan explained. Times in ns.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// Every tensor, in the problem's order.
    pub tensors: Vec<TensorFate>,
    /// Every stall, in the order of their times.
    pub stalls: Vec<Stall>,
    /// Stalls by what they wait for: how many and how long, the longest first.
    pub stalled: Vec<(&'static str, usize, u64)>,
    /// Time that the link to the host is busy.
    pub to_host_ns: u64,
    /// Time that the link to the device is busy.
    pub to_device_ns: u64,
    /// Time of the ops on the host.
    pub on_host_ns: u64,
}

/// Fate of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Does {
    /// It stays on the device.
    Keep,
    /// It leaves and is copied back, or only leaves.
    Swap,
    /// It is dropped and recomputed.
    Recompute,
    /// One in some gaps, the other in others.
    Both,
    /// It lives in host memory, where an op on the host updates it.
    Host,
}

impl Does {
    /// All fates.
    pub const ALL: [Does; 5] = [Does::Keep, Does::Swap, Does::Recompute, Does::Both, Does::Host];

    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Does::Keep => "keep",
            Does::Swap => "swap",
            Does::Recompute => "recompute",
            Does::Both => "swap and recompute",
            Does::Host => "host",
        }
    }
}

impl Serialize for Does {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(self.name())
    }
}

/// A tensor and its gaps.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "names say what and in which unit")]
pub struct TensorFate {
    pub name: String,
    pub bytes: u64,
    pub kind: &'static str,
    /// Where a persistent tensor is when a step begins: `dev`, `host` or `both`.
    pub resident: Option<&'static str>,
    pub does: Does,
    pub gaps: Vec<Gap>,
}

/// A time in which a tensor has no bytes on the device although it is needed again.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "names say what and in which unit")]
pub struct Gap {
    /// The last op before it leaves; `None`: it is away when the step begins.
    pub after: Option<String>,
    /// The op that it comes back for.
    pub before: Option<String>,
    /// Whether the gap reaches into the next step.
    pub next_step: bool,
    /// `copy`, `recompute` or `overwriting`.
    pub back_by: &'static str,
    pub copy_out_ns: u64,
    pub copy_in_ns: u64,
    pub recompute_ns: u64,
    /// Time that kernels waited for the copies.
    pub waited_ns: u64,
    /// Share of the copies' time that no kernel waited for.
    pub hidden: Option<f64>,
    /// The op during the gap at which most is on the device.
    pub makes_room_for: Option<String>,
    /// Bytes on the device then.
    pub bytes_there: Option<u64>,
}

/// A kernel that waits.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs, reason = "names say what and in which unit")]
pub struct Stall {
    pub op: String,
    /// Whether the op is recomputed.
    pub recompute: bool,
    pub at_ns: u64,
    pub ns: u64,
    pub waits_for: String,
    /// Cause of that, in turn.
    pub because_of: String,
    pub tensor: Option<String>,
}

/// Explains a plan of a candidate.
pub fn explain(candidate: &Candidate, plan: &Schedule) -> Explanation {
    let account = account(candidate.numbers(), plan);
    let names = Names(candidate);
    let p = candidate.numbers();
    let mut tensors: Arena<TensorId, TensorFate> = p
        .tensors
        .iter()
        .map(|(t, tensor)| TensorFate {
            name: tensor.name.clone(),
            bytes: tensor.bytes,
            kind: tensor.kind.name(),
            resident: plan.decisions.residents.get(&t).map(Resident::name),
            does: if tensor.kind == TensorKind::Hosted { Does::Host } else { Does::Keep },
            gaps: Vec::new(),
        })
        .collect();
    for gap in &account.gaps {
        let Some(of) = tensors.get_mut(gap.tensor) else { continue };
        let this = if gap.back == Back::Recompute { Does::Recompute } else { Does::Swap };
        of.does = match of.does {
            Does::Host => Does::Host,
            does if does == Does::Keep || does == this => this,
            _ => Does::Both,
        };
        of.gaps.push(names.gap(gap));
    }
    Explanation {
        tensors: tensors.into_values().collect(),
        stalls: account.stalls.iter().map(|s| names.stall(s)).collect(),
        stalled: by_cause(&account.stalls),
        to_host_ns: account.to_host_ns,
        to_device_ns: account.to_device_ns,
        on_host_ns: account.on_host_ns,
    }
}

/// Names of a candidate's ops and tensors.
struct Names<'a>(&'a Candidate);

impl Names<'_> {
    fn tensor(&self, t: TensorId) -> String {
        self.0.numbers().tensors.get(t).map(|t| t.name.clone()).unwrap_or_default()
    }

    /// A model's op by its source node; one of a problem by its name, which nothing else has.
    fn called(&self, name: &str, label: &str) -> String {
        if self.0.model().is_some() { label.to_string() } else { name.to_string() }
    }

    fn op(&self, op: OpPos) -> String {
        self.0.numbers().ops.get(op).map(|op| self.called(&op.name, &op.label)).unwrap_or_default()
    }

    fn host_op(&self, op: HostOpIx) -> String {
        self.0.numbers().host_ops.get(op).map(|op| self.called(&op.name, &op.label)).unwrap_or_default()
    }

    fn gap(&self, gap: &attribution::Gap) -> Gap {
        Gap {
            after: gap.after.map(|op| self.op(op)),
            before: gap.before.map(|op| self.op(op)),
            next_step: gap.wraps,
            back_by: match gap.back {
                Back::Copy => "copy",
                Back::Recompute => "recompute",
                Back::Write => "overwriting",
            },
            copy_out_ns: gap.out_ns,
            copy_in_ns: gap.in_ns,
            recompute_ns: gap.recompute_ns,
            waited_ns: gap.waited_ns,
            hidden: over(gap.hidden_ns(), gap.out_ns + gap.in_ns),
            makes_room_for: gap.room.map(|(op, _)| self.op(op)),
            bytes_there: gap.room.map(|(_, bytes)| bytes),
        }
    }

    fn stall(&self, stall: &attribution::Stall) -> Stall {
        let (waits_for, because_of) = self.cause(stall.cause);
        Stall {
            op: self.op(stall.op),
            recompute: stall.recompute,
            at_ns: stall.at_ns,
            ns: stall.ns,
            waits_for,
            because_of,
            tensor: match stall.cause {
                Cause::In(t, _) | Cause::Out(t) | Cause::Output(t) => Some(self.tensor(t)),
                Cause::Step => None,
            },
        }
    }

    /// Cause of a stall, and the cause of that.
    fn cause(&self, cause: Cause) -> (String, String) {
        match cause {
            Cause::In(t, late) => {
                let late = match late {
                    Late::Link => "the link".into(),
                    Late::Op(op) => format!("room: {}", self.op(op)),
                    Late::Out(t) => format!("room: {} on its way out", self.tensor(t)),
                    Late::Host(op) => format!("{} on the host", self.host_op(op)),
                    Late::Step => "the step before".into(),
                };
                (format!("{} coming in", self.tensor(t)), late)
            }
            Cause::Out(t) => (format!("room: {} on its way out", self.tensor(t)), "the link".into()),
            Cause::Output(t) => (format!("result {} on its way out", self.tensor(t)), "the link".into()),
            Cause::Step => ("the step before".into(), "-".into()),
        }
    }
}

/// Stalls by what they wait for: how many, and for how long in ns.
fn by_cause(stalls: &[attribution::Stall]) -> Vec<(&'static str, usize, u64)> {
    let name = |cause: Cause| match cause {
        Cause::In(..) => "waiting for copies in",
        Cause::Out(_) => "waiting for room",
        Cause::Output(_) => "waiting for results to leave",
        Cause::Step => "waiting for the step before",
    };
    let mut out: Vec<(&'static str, usize, u64)> = Vec::new();
    for s in stalls {
        match out.iter_mut().find(|o| o.0 == name(s.cause)) {
            Some(known) => {
                known.1 += 1;
                known.2 += s.ns;
            }
            None => out.push((name(s.cause), 1, s.ns)),
        }
    }
    out.sort_by_key(|o| std::cmp::Reverse(o.2));
    out
}
