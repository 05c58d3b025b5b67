//! Attribution: moves of every tensor in a plan, their costs, and the causes of stalls.
//!
//! Reads a schedule; decides nothing. A copy's cost counts as hidden as far as no kernel waited for
//! it: a stall is put down to the copy that ended last of those that the kernel waited.

mod most;

use memc_ir::Arena;

use crate::decisions::Resident;
use crate::evaluate::{Schedule, live};
use crate::ids::{CommandIx, HostOpIx, OpPos, TensorId};
use crate::place::{Command, CommandKind, Event, Space};
use crate::problem::Problem;
use most::Most;

/// Return of a tensor to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Back {
    /// It is copied to the device.
    Copy,
    /// The op that computes it is recomputed.
    Recompute,
    /// An op overwrites it; only its copy to the host is needed.
    Write,
}

/// A time in which a tensor has no bytes on the device although it is needed again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gap {
    /// The tensor.
    pub tensor: TensorId,
    /// The last op that runs before it leaves; `None`: none in this step.
    pub after: Option<OpPos>,
    /// The op that it comes back for.
    pub before: Option<OpPos>,
    /// Whether it reaches into the next step.
    pub wraps: bool,
    /// Return of the tensor.
    pub back: Back,
    /// Time of its copy to the host in ns; 0 where the host has it already.
    pub out_ns: u64,
    /// Time of its copy to the device in ns.
    pub in_ns: u64,
    /// Time of the recomputed op in ns, shared among the tensors that come back by it.
    pub recompute_ns: u64,
    /// Time in ns that kernels waited for its copies.
    pub waited_ns: u64,
    /// The op during the gap at which most is on the device, and how many bytes that is.
    pub room: Option<(OpPos, u64)>,
}

impl Gap {
    /// Time of its copies and of recomputed ops in ns.
    pub fn cost_ns(&self) -> u64 {
        self.out_ns.saturating_add(self.in_ns).saturating_add(self.recompute_ns)
    }

    /// Time of its copies in ns that no kernel waited for.
    pub fn hidden_ns(&self) -> u64 {
        self.out_ns.saturating_add(self.in_ns).saturating_sub(self.waited_ns)
    }
}

/// Reason that a copy to the device ended late.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Late {
    /// The link was busy with other copies, or with this one.
    Link,
    /// Its bytes were in use until this op had run.
    Op(OpPos),
    /// Its bytes were in use until this tensor had been copied to the host.
    Out(TensorId),
    /// This op on the host had not run.
    Host(HostOpIx),
    /// The step before had not ended.
    Step,
}

/// Cause of a kernel's wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// A tensor's copy to the device.
    In(TensorId, Late),
    /// A tensor's copy to the host, which makes room.
    Out(TensorId),
    /// The copy of a result to the host.
    Output(TensorId),
    /// The end of the step before.
    Step,
}

/// A kernel that waited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stall {
    /// The op.
    pub op: OpPos,
    /// Whether it ran again.
    pub recompute: bool,
    /// Begin in ns since the step's begin.
    pub at_ns: u64,
    /// Idle time of the compute stream before it, in ns.
    pub ns: u64,
    /// Cause.
    pub cause: Cause,
}

/// Moves of a plan's tensors, and the use of its time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Account {
    /// By tensor, then in the order in which they leave.
    pub gaps: Vec<Gap>,
    /// In the order in which they happen.
    pub stalls: Vec<Stall>,
    /// Busy time of the link to the host in ns, copies undisturbed.
    pub to_host_ns: u64,
    /// Busy time of the link to the device in ns, copies undisturbed.
    pub to_device_ns: u64,
    /// Busy time of ops on the host in ns.
    pub on_host_ns: u64,
}

/// A run: its op and the bytes on the device meanwhile.
type RunAt = (OpPos, u64);

/// A gap that has begun: runs before it, and the command that copied the tensor out.
#[derive(Clone, Copy)]
struct Open {
    runs: usize,
    out: Option<CommandIx>,
}

/// End of a gap: runs before it, the return, and the command that copied the tensor in.
#[derive(Clone, Copy)]
struct Close {
    runs: usize,
    back: Back,
    command: Option<CommandIx>,
    recompute_ns: u64,
}

/// Accounts for a schedule of the problem.
pub fn account(p: &Problem, r: &Schedule) -> Account {
    let waited = waited(r);
    let mut out = Account { stalls: stalls(r), ..Account::default() };
    for c in r.trace.commands.values() {
        match c.kind {
            CommandKind::In(_) => out.to_device_ns += c.ns,
            CommandKind::Out(_) | CommandKind::Send(_) | CommandKind::Output { .. } => {
                out.to_host_ns += c.ns;
            }
            CommandKind::HostRun(_) => out.on_host_ns += c.ns,
            CommandKind::Run { .. } => {}
        }
    }
    let runs = runs(r);
    let most = Most::new(runs.iter().map(|r| r.1).collect());
    let n = p.tensors.len();
    let mut walk = Attributor {
        p,
        r,
        runs: &runs,
        most: &most,
        waited: &waited,
        open: Arena::filled(None, n),
        copied: Arena::filled(None, n),
        first: Arena::filled(None, n),
        last: Arena::filled(None, n),
        gaps: Vec::new(),
    };
    walk.commands();
    out.gaps = walk.gaps;
    out.gaps.sort_by_key(|g| g.tensor);
    out
}

struct Attributor<'a> {
    p: &'a Problem,
    r: &'a Schedule,
    runs: &'a [RunAt],
    most: &'a Most,
    waited: &'a Arena<CommandIx, u64>,
    open: Arena<TensorId, Option<Open>>,
    /// The command of a tensor's last copy to the host that no gap has claimed.
    copied: Arena<TensorId, Option<CommandIx>>,
    /// First arrival of a tensor that the step does not begin with.
    first: Arena<TensorId, Option<Close>>,
    /// The last gap of a tensor, until an op touches it.
    last: Arena<TensorId, Option<usize>>,
    gaps: Vec<Gap>,
}

impl Attributor<'_> {
    fn commands(&mut self) {
        let trace = &self.r.trace;
        let mut done = 0usize;
        // Tensors whose bytes the next command fills.
        let mut arriving: Vec<TensorId> = Vec::new();
        for event in trace.events() {
            match event {
                Event::Alloc(slot) | Event::Free(slot) if trace.slots[slot].space == Space::Host => {}
                Event::Alloc(slot) => arriving.extend(trace.slots[slot].tensor),
                Event::Free(slot) => {
                    let Some(t) = trace.slots[slot].tensor else { continue };
                    let out = self.copied[t].take();
                    self.open[t] = Some(Open { runs: done, out });
                }
                Event::Command(i) => {
                    let command = Some(i);
                    match trace.commands[i].kind {
                        CommandKind::Out(t) => self.copied[t] = command,
                        CommandKind::In(t) => {
                            self.back(t, Close { runs: done, back: Back::Copy, command, recompute_ns: 0 });
                        }
                        CommandKind::Run { op, recompute } => {
                            self.run(op, recompute, &arriving, done);
                            done += 1;
                        }
                        CommandKind::Send(_) | CommandKind::HostRun(_) | CommandKind::Output { .. } => {}
                    }
                    arriving.clear();
                }
            }
        }
        for t in self.p.tensors.ids() {
            self.end(t, done);
        }
    }

    /// An op runs, after `done` runs, and fills the bytes of `arriving`.
    fn run(&mut self, op: OpPos, recompute: bool, arriving: &[TensorId], done: usize) {
        let op_of = &self.p.ops[op];
        let recompute_ns = if recompute { op_of.time_ns / arriving.len().max(1) as u64 } else { 0 };
        let back = if recompute { Back::Recompute } else { Back::Write };
        for &t in arriving {
            self.back(t, Close { runs: done, back, command: None, recompute_ns });
        }
        for &t in op_of.reads.iter().chain(&op_of.writes) {
            // An op that brings a tensor back is not what it comes back for.
            if recompute && arriving.contains(&t) {
                continue;
            }
            if let Some(gap) = self.last[t].take() {
                self.gaps[gap].before = Some(op);
            }
        }
    }

    /// A tensor is on the device again, or for the first time.
    fn back(&mut self, t: TensorId, close: Close) {
        match self.open[t].take() {
            Some(open) => self.gap(t, open, close, false),
            None => self.first[t] = self.first[t].or(Some(close)),
        }
    }

    /// The step ends: what is away then comes back in the next one.
    fn end(&mut self, t: TensorId, done: usize) {
        if !self.p.tensors[t].persistent() {
            return;
        }
        if let (Some(open), Some(close)) = (self.open[t], self.first[t]) {
            self.gap(t, open, close, true);
            let first = self.runs[close.runs.min(done)..].iter().map(|r| r.0);
            let touches = |op: &OpPos| self.p.tensors[t].touches.binary_search(op).is_ok();
            if let (Some(gap), Some(op)) = (self.gaps.last_mut(), { first }.find(touches)) {
                gap.before = Some(op);
            }
        }
        // A copy made for a gap of the next step, which is as this one.
        let shadowed = matches!(self.r.decisions.residents.get(&t), Some(Resident::Both(_)));
        if let Some(out) = self.copied[t].filter(|_| shadowed)
            && let Some(gap) = self.gaps.iter_mut().find(|g| g.tensor == t && g.out_ns == 0)
        {
            gap.out_ns = self.r.trace.commands.get(out).map_or(0, |c| c.ns);
            gap.waited_ns += self.waited.get(out).copied().unwrap_or(0);
        }
    }

    fn gap(&mut self, t: TensorId, open: Open, close: Close, wraps: bool) {
        if close.back == Back::Write && open.out.is_none() {
            // Nobody needed the old content.
            return;
        }
        let ns = |c: Option<CommandIx>| c.and_then(|c| self.r.trace.commands.get(c)).map_or(0, |c| c.ns);
        let waited = |c: Option<CommandIx>| c.and_then(|c| self.waited.get(c)).copied().unwrap_or(0);
        let most = if wraps {
            let (late, early) = (self.most.of(open.runs, self.runs.len()), self.most.of(0, close.runs));
            late.into_iter().chain(early).max_by_key(|&i| self.runs[i].1)
        } else {
            self.most.of(open.runs, close.runs)
        };
        self.last[t] = Some(self.gaps.len()).filter(|_| !wraps);
        self.gaps.push(Gap {
            tensor: t,
            after: open.runs.checked_sub(1).and_then(|i| self.runs.get(i)).map(|r| r.0),
            before: None,
            wraps,
            back: close.back,
            out_ns: ns(open.out),
            in_ns: ns(close.command),
            recompute_ns: close.recompute_ns,
            waited_ns: waited(open.out) + waited(close.command),
            room: most.and_then(|i| self.runs.get(i)).copied(),
        });
    }
}

/// For every command, how long kernels waited for it.
fn waited(r: &Schedule) -> Arena<CommandIx, u64> {
    let mut out = Arena::filled(0u64, r.trace.commands.len());
    for (c, span) in r.trace.commands.values().zip(r.timeline.spans.values()) {
        if let (CommandKind::Run { .. }, Some(cause)) = (c.kind, span.cause) {
            out[cause] += span.stall;
        }
    }
    out
}

fn stalls(r: &Schedule) -> Vec<Stall> {
    let mut out = Vec::new();
    for (c, span) in r.trace.commands.values().zip(r.timeline.spans.values()) {
        let CommandKind::Run { op, recompute } = c.kind else { continue };
        if span.stall == 0 {
            continue;
        }
        let late = |copy: CommandIx| {
            let span = r.timeline.spans.get(copy).copied().unwrap_or_default();
            match span.cause.filter(|_| span.stall > 0).map(|c| r.trace.commands[c].kind) {
                Some(CommandKind::Run { op, .. }) => Late::Op(op),
                Some(CommandKind::Out(t) | CommandKind::Send(t) | CommandKind::Output { tensor: t, .. }) => {
                    Late::Out(t)
                }
                Some(CommandKind::HostRun(op)) => Late::Host(op),
                Some(CommandKind::In(_)) => Late::Link,
                None if span.stall > 0 => Late::Step,
                None => Late::Link,
            }
        };
        let cause = match span.cause.map(|c| (c, r.trace.commands[c].kind)) {
            Some((c, CommandKind::In(t))) => Cause::In(t, late(c)),
            Some((_, CommandKind::Out(t) | CommandKind::Send(t))) => Cause::Out(t),
            Some((_, CommandKind::Output { tensor, .. })) => Cause::Output(tensor),
            Some((_, CommandKind::Run { .. } | CommandKind::HostRun(_))) | None => Cause::Step,
        };
        out.push(Stall { op, recompute, at_ns: span.start, ns: span.stall, cause });
    }
    out
}

/// Every run in order, with the bytes on the device meanwhile.
fn runs(r: &Schedule) -> Vec<RunAt> {
    let loads = live(&r.trace);
    let run = |c: &Command| match c.kind {
        CommandKind::Run { op, .. } => Some((op, loads.get(c.at).copied().unwrap_or(0))),
        _ => None,
    };
    r.trace.commands.values().filter_map(run).collect()
}
