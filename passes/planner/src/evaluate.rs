//! From decisions to figures: trace, allocation, waits, timeline.

use memc_alloc::{Algorithm, Options};
use memc_ir::{Arena, ByteRange, Id};

use crate::decisions::{Action, Decisions, Resident};
use crate::error::DecisionsError;
use crate::ids::{CommandIx, HostOpIx, SlotIx, StepPos, TensorId, Tick};
use crate::pack;
use crate::place::{Command, CommandKind, Site, Slot, Space, Trace};
use crate::problem::Problem;
use crate::simulate::{Job, Jobs, Timeline, Waits, simulate};
use crate::trace::trace;
use crate::waits::{Access, waits};

/// Cost of a steady-state step by the model.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Evaluation {
    /// Time from one step to the next in ns.
    pub step_ns: u64,
    /// Busy time of the kernels in ns, recomputation included.
    pub compute_ns: u64,
    /// Time of the recomputed kernels in ns.
    pub recompute_ns: u64,
    /// Recomputed kernels.
    pub recompute_ops: u64,
    /// Busy time of the ops on the host in ns.
    pub host_ns: u64,
    /// Bytes copied to the host to make room, and for ops there.
    pub swap_out_bytes: u64,
    /// Bytes copied to the device, inputs not counted.
    pub swap_in_bytes: u64,
    /// Most bytes of the device in use at once.
    pub load_bytes: u64,
    /// Height of the device arena in bytes.
    pub dev_bytes: u64,
    /// Height of the host arena in bytes.
    pub host_bytes: u64,
    /// Time in ns that kernels waited for copies to the device.
    pub stall_in_ns: u64,
    /// Time in ns that kernels waited for copies to the host, which make room.
    pub stall_out_ns: u64,
}

/// Decisions with all their offsets, and their effect.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Schedule {
    /// The decisions; every place in them has an offset.
    pub decisions: Decisions,
    /// Slots and commands.
    pub trace: Trace,
    /// Waits of every command.
    pub waits: Waits,
    /// Times of the commands.
    pub timeline: Timeline,
    /// The figures.
    pub evaluation: Evaluation,
}

impl Schedule {
    /// Key by which plans compare, the least is best: time, then traffic.
    pub fn key(&self) -> (u64, u64, u64) {
        let e = &self.evaluation;
        (e.step_ns, e.swap_in_bytes, e.swap_out_bytes)
    }
}

/// Carries decisions out on the model of the device.
///
/// Fails when the decisions are impossible; says at which action.
pub fn evaluate(p: &Problem, decisions: Decisions) -> Result<Schedule, DecisionsError> {
    evaluate_with(p, decisions, &Options { work: QUICK, ..Options::effort(0) }, &|| false)
}

/// Work of a layout when nothing says that it is too high.
const QUICK: u64 = 200_000;

/// As [`evaluate`], with a layout as `options` say, or the best until `stop` says so. Where that is higher
/// than the capacity, only the bytes on the device are evaluated, and `step_ns` is `u64::MAX`.
pub fn evaluate_with(
    p: &Problem,
    decisions: Decisions,
    options: &Options,
    stop: &dyn Fn() -> bool,
) -> Result<Schedule, DecisionsError> {
    let mut trace = trace(p, &decisions)?;
    pack::pack(&mut trace.slots, Space::Dev, options, stop)?;
    let dev_bytes = height(&trace, Space::Dev);
    if options.capacity.is_some_and(|capacity| dev_bytes > capacity) {
        let load_bytes = load(&trace);
        let evaluation = Evaluation { step_ns: u64::MAX, load_bytes, dev_bytes, ..Evaluation::default() };
        return Ok(Schedule { decisions, trace, evaluation, ..Schedule::default() });
    }
    finish(p, decisions, trace)
}

/// As [`evaluate_with`], with the slots of inputs left free at the end of a step, each from a run on: its
/// copy for the next step may begin then. `None` where they have no room.
pub(crate) fn evaluate_prefetched(
    p: &Problem,
    decisions: Decisions,
    (options, stop): (&Options, &dyn Fn() -> bool),
    inputs: &[(TensorId, StepPos)],
) -> Result<Option<Schedule>, DecisionsError> {
    let mut trace = trace(p, &decisions)?;
    let live: Vec<Vec<(Tick, Tick)>> = trace.slots.values().map(|s| s.live.clone()).collect();
    let runs: Arena<StepPos, Tick> =
        trace.commands.values().filter(|c| matches!(c.kind, CommandKind::Run { .. })).map(|c| c.at).collect();
    for &(t, run) in inputs {
        let arrival = trace.commands.values().find(|c| c.kind == CommandKind::In(t));
        let slot = arrival.and_then(|c| c.writes.first()).and_then(|&s| trace.slots.get_mut(s));
        let (Some(slot), Some(&from)) = (slot, runs.get(run)) else { continue };
        let from = slot.live.last().map_or(from, |last| last.1.max(from));
        if from < trace.end {
            slot.live.push((from, trace.end));
        }
    }
    if options.capacity.is_some_and(|capacity| load(&trace) > capacity) {
        return Ok(None);
    }
    pack::pack(&mut trace.slots, Space::Dev, options, stop)?;
    for (slot, live) in trace.slots.values_mut().zip(live) {
        slot.live = live;
    }
    finish(p, decisions, trace).map(Some)
}

/// Gives every place on the device the offset that one algorithm chooses; also returns the arena's height in
/// bytes.
pub fn lay_out(
    p: &Problem,
    mut decisions: Decisions,
    algorithm: Algorithm,
) -> Result<(Decisions, u64), DecisionsError> {
    let mut trace = trace(p, &decisions)?;
    let height = pack::pack_by(&mut trace.slots, Space::Dev, algorithm)?;
    for slot in trace.slots.values().filter(|s| s.space == Space::Dev) {
        settle(&mut decisions, slot);
    }
    Ok((decisions, height))
}

/// As [`evaluate`], with a layout by one algorithm, which is fast.
pub fn evaluate_by(
    p: &Problem,
    decisions: Decisions,
    algorithm: Algorithm,
) -> Result<Schedule, DecisionsError> {
    let mut trace = trace(p, &decisions)?;
    pack::pack_by(&mut trace.slots, Space::Dev, algorithm)?;
    finish(p, decisions, trace)
}

/// From a trace whose slots on the device have offsets.
fn finish(p: &Problem, mut decisions: Decisions, mut trace: Trace) -> Result<Schedule, DecisionsError> {
    pack::pack(&mut trace.slots, Space::Host, &Options::effort(0), &|| false)?;
    for slot in trace.slots.values() {
        settle(&mut decisions, slot);
    }
    let (jobs, accesses) = jobs_and_accesses(p, &trace);
    let waits = waits(&accesses);
    let timeline = simulate(&p.device, &jobs, &waits).map_err(|d| {
        format!("the decisions wait for themselves at command {} ({:?})", d.0.0, trace.commands[d.0].kind)
    })?;
    let evaluation = figures(p, &trace, &timeline);
    Ok(Schedule { decisions, trace, waits, timeline, evaluation })
}

/// Times of the commands of a trace whose slots have offsets, and the bytes that they touch, for [`simulate`]
/// and [`waits`] work on.
pub fn jobs_and_accesses(p: &Problem, trace: &Trace) -> (Jobs, Arena<CommandIx, Access>) {
    let range = |&s: &SlotIx| {
        let slot = &trace.slots[s];
        let start = slot.offset.unwrap_or(0);
        ByteRange { space: slot.space, start, end: start + slot.bytes }
    };
    let access = |c: &Command| Access {
        stream: c.stream,
        reads: c.reads.iter().map(range).collect(),
        writes: c.writes.iter().map(range).collect(),
        after: c.after,
    };
    (jobs(p, trace), trace.commands.values().map(access).collect())
}

/// Times of the commands of a trace, for [`simulate`].
pub(crate) fn jobs(p: &Problem, trace: &Trace) -> Jobs {
    let input =
        |c: &Command| matches!(c.kind, CommandKind::In(t) if p.tensors[t].kind == crate::TensorKind::Input);
    let last = |is: &dyn Fn(&Command) -> bool| trace.commands.iter().rfind(|(_, c)| is(c)).map(|(i, _)| i);
    // The host writes the next step's inputs once nothing reads these.
    let reads_input = |c: &Command| matches!(c.kind, CommandKind::HostRun(h) if reads_input(p, h));
    let output = |c: &Command| matches!(c.kind, CommandKind::Output { .. });
    let gates = [last(&input), last(&output), last(&reads_input)];
    let slowdown = |c: &Command| match c.kind {
        CommandKind::Run { op, .. } => p.ops[op].slowdown,
        _ => 0,
    };
    let job = |(i, c): (CommandIx, &Command)| Job {
        stream: c.stream,
        ns: c.ns,
        slowdown: slowdown(c),
        gate: gates.contains(&Some(i)),
    };
    trace.commands.iter().map(job).collect()
}

/// Whether an op on the host reads an input where the host wrote it. One that ops on the device write is sent
/// to it from there.
fn reads_input(p: &Problem, h: HostOpIx) -> bool {
    let fed = |t: &crate::Tensor| t.kind == crate::TensorKind::Input && t.writes.is_empty();
    p.host_ops[h].reads.iter().any(|&t| fed(&p.tensors[t]))
}

/// Writes a slot's offset into the decisions.
fn settle(d: &mut Decisions, slot: &Slot) {
    let run = |d: &mut Decisions, i: usize, f: &mut dyn FnMut(&mut crate::decisions::Run)| {
        if let Some(Action::Run(run)) = d.actions.get_mut(i) {
            f(run);
        }
    };
    match slot.site {
        Site::HostResident(_) | Site::Copy | Site::Output => {}
        Site::Resident(t) => {
            let both = matches!(d.residents.get(&t), Some(Resident::Both(_)));
            d.residents
                .insert(t, if both { Resident::Both(slot.offset) } else { Resident::Dev(slot.offset) });
        }
        Site::In(i) => {
            if let Some(Action::In(place)) = d.actions.get_mut(i) {
                place.1 = slot.offset;
            }
        }
        Site::At(i, k) => run(d, i, &mut |r| {
            if let Some(place) = r.at.get_mut(k) {
                place.1 = slot.offset;
            }
        }),
        Site::Scratch(i, k) => run(d, i, &mut |r| {
            r.scratch.resize(r.scratch.len().max(k + 1), None);
            r.scratch[k] = slot.offset;
        }),
        Site::Workspace(i) => run(d, i, &mut |r| r.workspace = Some(slot.offset)),
    }
}

fn figures(p: &Problem, trace: &Trace, timeline: &Timeline) -> Evaluation {
    let mut e = Evaluation { step_ns: timeline.step_ns, ..Evaluation::default() };
    for (c, span) in trace.commands.values().zip(timeline.spans.values()) {
        match c.kind {
            CommandKind::Run { recompute, .. } => {
                e.compute_ns += c.ns;
                e.recompute_ns += if recompute { c.ns } else { 0 };
                e.recompute_ops += u64::from(recompute);
                match span.cause.map(|i| trace.commands[i].kind) {
                    Some(CommandKind::In(_)) => e.stall_in_ns += span.stall,
                    Some(CommandKind::Out(_)) => e.stall_out_ns += span.stall,
                    _ => {}
                }
            }
            CommandKind::In(t) if p.tensors[t].kind == crate::TensorKind::Input => {}
            CommandKind::In(t) => e.swap_in_bytes += p.tensors[t].size,
            CommandKind::Out(t) | CommandKind::Send(t) => e.swap_out_bytes += p.tensors[t].size,
            CommandKind::HostRun(_) => e.host_ns += c.ns,
            CommandKind::Output { .. } => {}
        }
    }
    e.load_bytes = load(trace);
    e.dev_bytes = height(trace, Space::Dev);
    e.host_bytes = height(trace, Space::Host);
    e
}

/// Bytes of an arena.
fn height(trace: &Trace, space: Space) -> u64 {
    let slots = trace.slots.values().filter(|s| s.space == space && !s.live.is_empty());
    slots.map(|s| s.offset.unwrap_or(0) + s.bytes).max().unwrap_or(0)
}

/// Most bytes live at once on the device: no layout is lower.
pub fn load(trace: &Trace) -> u64 {
    live(trace).into_values().max().unwrap_or(0)
}

/// Bytes live on the device at every moment of trace time.
pub(crate) fn live(trace: &Trace) -> Arena<Tick, u64> {
    let mut delta = Arena::filled(0i128, trace.end.next().index());
    for slot in trace.slots.values().filter(|s| s.space == Space::Dev) {
        for &(from, to) in &slot.live {
            delta[from] += i128::from(slot.bytes);
            delta[to.min(trace.end)] -= i128::from(slot.bytes);
        }
    }
    let mut live = 0i128;
    let at = delta.values().map(|d| {
        live += d;
        live.max(0) as u64
    });
    at.collect()
}
