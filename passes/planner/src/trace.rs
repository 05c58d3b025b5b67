//! Effect of decisions on memory and on the three streams: slots with live ranges, and commands that touch
//! them.
//!
//! Trusts nothing: decisions that read what is not there, or an older content, run an op twice or forget
//! one, or end a step otherwise than the next one begins are refused, with the action that is wrong.

use std::collections::{BTreeMap, BTreeSet};

use memc_ir::{Arena, Bytes, Id};

use crate::decisions::{Action, Decisions, Place, Resident, Run};
use crate::error::{At, DecisionsError};
use crate::ids::{CommandIx, HostOpIx, OpPos, SlotIx, TensorId, Tick};
use crate::place::{Command, CommandKind, Site, Slot, Stream, Trace};
use crate::problem::{ALIGN, Problem, TensorKind};

#[derive(Clone, Default)]
struct State {
    /// Slot on the device.
    slot: Option<SlotIx>,
    /// Slot on the device in which the tensor begins and ends a step, and to which it always returns.
    resident: Option<SlotIx>,
    /// Slot in host memory, and the content that is in it: how many writes it has seen.
    host: Option<(SlotIx, usize)>,
    /// Slot in host memory from which the content is on its way to the device.
    leaving: Option<SlotIx>,
    /// The content on the device.
    version: usize,
}

struct Tracer<'a> {
    p: &'a Problem,
    d: &'a Decisions,
    out: Trace,
    now: Tick,
    state: Arena<TensorId, State>,
    ran: Arena<OpPos, bool>,
    last_in: BTreeMap<usize, usize>,
    /// Host slots of copies that nothing reads after an action, by that action: tensor and slot.
    expiring: BTreeMap<usize, (TensorId, SlotIx)>,
    host: Host,
    /// Tensors that were copied to the device.
    arrived: BTreeSet<TensorId>,
}

/// Ops on the host, as far as they have run.
struct Host {
    /// By the action after which they run.
    after: BTreeMap<usize, Vec<HostOpIx>>,
    /// Tensors that they read.
    reads: BTreeSet<TensorId>,
    /// Tensors that decisions copy out for them.
    copied: BTreeSet<TensorId>,
    /// Copies that were sent to them. They stay until the step ends: what took their place would be copied
    /// only once the host has come so far.
    sent: BTreeMap<TensorId, SlotIx>,
}

impl Host {
    /// An op on the host runs once the ops that it comes after have run, and once what it writes has made
    /// its last way to the device.
    fn new(p: &Problem, d: &Decisions) -> Host {
        let (after, reads, copied, sent) = Default::default();
        let mut host = Host { after, reads, copied, sent };
        if p.host_ops.is_empty() {
            return host;
        }
        host.reads = p.host_ops.values().flat_map(|op| op.reads.iter().copied()).collect();
        let mut ran: Arena<OpPos, usize> = Arena::filled(0, p.ops.len());
        // The last copies of each tensor in each direction.
        let mut arrived: Arena<TensorId, usize> = Arena::filled(0, p.tensors.len());
        let mut left: Arena<TensorId, usize> = Arena::filled(0, p.tensors.len());
        for (i, action) in d.actions.iter().enumerate() {
            match action {
                Action::Run(run) if !run.recompute && run.op.index() < ran.len() => ran[run.op] = i,
                Action::In((t, _)) => arrived[*t] = i,
                Action::Out(t) => left[*t] = i,
                _ => {}
            }
        }
        for (at, op) in p.ops.iter() {
            host.copied.extend(op.sends.iter().filter(|&&t| left[t] > ran[at]));
        }
        for (h, op) in p.host_ops.iter() {
            let before = op.after.iter().map(|&at| ran[at]).chain(op.writes.iter().map(|&t| arrived[t]));
            let before = before.chain(op.reads.iter().filter(|t| host.copied.contains(t)).map(|&t| left[t]));
            host.after.entry(before.max().unwrap_or(0)).or_default().push(h);
        }
        host
    }
}

/// Carries out decisions symbolically; errors name the action.
pub fn trace(p: &Problem, d: &Decisions) -> Result<Trace, DecisionsError> {
    let mut x = Tracer {
        p,
        d,
        out: Trace::default(),
        now: Tick(0),
        state: Arena::filled(State::default(), p.tensors.len()),
        ran: Arena::filled(false, p.ops.len()),
        last_in: last_ins(d),
        expiring: BTreeMap::new(),
        host: Host::new(p, d),
        arrived: BTreeSet::new(),
    };
    for t in p.tensors.ids() {
        x.resident(t)?;
    }
    x.out.start = x.now;
    for (i, action) in d.actions.iter().enumerate() {
        x.action(i, action).map_err(|e| e.at(At::Action(i)))?;
    }
    x.finish()
}

impl Tracer<'_> {
    fn name(&self, t: TensorId) -> &str {
        &self.p.tensors[t].name
    }

    fn tick(&mut self) -> Tick {
        let now = self.now;
        self.now = now.next();
        now
    }

    fn slot(&mut self, tensor: Option<TensorId>, bytes: u64, offset: Option<u64>, site: Site) -> SlotIx {
        let from = self.tick();
        let live = vec![(from, Tick::NEVER)];
        self.out.slots.push(Slot { space: site.space(), bytes, offset, live, tensor, site })
    }

    fn free(&mut self, slot: SlotIx) {
        let to = self.tick();
        if let Some(last) = self.out.slots[slot].live.last_mut() {
            last.1 = to;
        }
    }

    fn command(
        &mut self,
        kind: CommandKind,
        stream: Stream,
        ns: u64,
        reads: Vec<SlotIx>,
        writes: Vec<SlotIx>,
    ) {
        let at = self.tick();
        // A result is handed out once the op has run, even if it only reads the tensor.
        let run = |(_, c): &(CommandIx, &Command)| matches!(c.kind, CommandKind::Run { .. });
        let after = match kind {
            CommandKind::Output { .. } => self.out.commands.iter().rfind(run).map(|(i, _)| i),
            _ => None,
        };
        self.out.commands.push(Command { kind, stream, at, ns, reads, writes, after });
    }

    fn resident(&mut self, t: TensorId) -> Result<(), DecisionsError> {
        let tensor = &self.p.tensors[t];
        let resident = self.d.residents.get(&t).copied();
        match (tensor.kind, resident) {
            (TensorKind::Transient, _) => {}
            (TensorKind::Persistent, None) => {
                return Err(format!("%{} is resident nowhere", tensor.name).into());
            }
            (TensorKind::Persistent, Some(Resident::Dev(at) | Resident::Both(at))) => {
                let slot = self.slot(Some(t), tensor.bytes, at, Site::Resident(t));
                self.state[t].slot = Some(slot);
                self.state[t].resident = Some(slot);
                if self.has_host_resident(t) {
                    let host = self.slot(Some(t), tensor.bytes, None, Site::HostResident(t));
                    self.state[t].host = Some((host, 0));
                }
            }
            (TensorKind::Input | TensorKind::Hosted, _) | (TensorKind::Persistent, Some(Resident::Host)) => {
                self.state[t].host = Some((self.slot(Some(t), tensor.bytes, None, Site::HostResident(t)), 0));
            }
        }
        Ok(())
    }

    /// Whether a persistent tensor has a place in host memory from step to step. One that never changes has
    /// where ops on the host read it, wherever it is resident.
    fn has_host_resident(&self, t: TensorId) -> bool {
        let constant = self.p.tensors[t].writes.is_empty();
        matches!(self.d.residents.get(&t), Some(Resident::Host | Resident::Both(_)))
            || self.p.tensors[t].persistent() && constant && self.host.reads.contains(&t)
    }

    /// Writes that a tensor has seen when an op touches it.
    fn expected(&self, t: TensorId, op: OpPos) -> usize {
        self.p.tensors[t].writes.partition_point(|&w| w < op)
    }

    fn action(&mut self, index: usize, action: &Action) -> Result<(), DecisionsError> {
        match action {
            Action::In(place) => {
                let t = place.0;
                let Some((host, version)) = self.state[t].host else {
                    return Err(format!("%{} has no copy in host memory", self.name(t)).into());
                };
                let again = !self.arrived.insert(t) || !self.p.tensors[t].kind.arrives();
                if again && !self.p.handling(t).swaps() {
                    return Err(format!("%{} may not be copied back to the device", self.name(t)).into());
                }
                let slot = self.allocate(*place, Site::In(index))?;
                self.state[t].version = version;
                let ns = self.p.device.h2d_ns(self.p.tensors[t].size);
                self.command(CommandKind::In(t), Stream::HostToDevice, ns, vec![host], vec![slot]);
            }
            Action::Out(t) => {
                if !self.p.handling(*t).swaps() && !self.host.copied.contains(t) {
                    return Err(format!("%{} may not be copied to the host", self.name(*t)).into());
                }
                let (tensor, state) = (&self.p.tensors[*t], self.state[*t].clone());
                let Some(slot) = state.slot else {
                    return Err(format!("%{} is not on the device", self.name(*t)).into());
                };
                let host = match state.host.filter(|_| self.has_host_resident(*t)) {
                    Some((host, _)) => host,
                    None => {
                        let host = self.slot(Some(*t), tensor.bytes, None, Site::Copy);
                        if self.host.copied.contains(t) && state.version == tensor.writes.len() {
                            self.host.sent.insert(*t, host);
                        } else {
                            let last = self.last_in.get(&index).copied().unwrap_or(index);
                            self.expiring.insert(last, (*t, host));
                        }
                        host
                    }
                };
                self.state[*t].host = Some((host, state.version));
                let ns = self.p.device.d2h_ns(tensor.size);
                self.command(CommandKind::Out(*t), Stream::DeviceToHost, ns, vec![slot], vec![host]);
            }
            Action::Drop(t) => {
                let Some(slot) = self.state[*t].slot.take() else {
                    return Err(format!("%{} is not on the device", self.name(*t)).into());
                };
                self.free(slot);
            }
            Action::Run(run) => self.run(index, run)?,
        }
        for h in self.host.after.remove(&index).unwrap_or_default() {
            self.host_run(h)?;
        }
        if let Some((t, slot)) = self.expiring.remove(&index) {
            let state = &mut self.state[t];
            state.host = state.host.filter(|h| h.0 != slot);
            match action {
                // Its bytes are read until the tensor is used; whoever took them earlier would wait for the
                // copy.
                Action::In(_) => state.leaving = Some(slot),
                _ => self.free(slot),
            }
        }
        Ok(())
    }

    fn allocate(&mut self, (t, at): Place, site: Site) -> Result<SlotIx, DecisionsError> {
        if self.state[t].slot.is_some() {
            return Err(format!("%{} is on the device already", self.name(t)).into());
        }
        let slot = match self.state[t].resident {
            None => self.slot(Some(t), self.p.tensors[t].bytes, at, site),
            Some(resident) => {
                let known = self.out.slots[resident].offset;
                if at.is_some() && known.is_some() && at != known {
                    return Err(format!(
                        "%{} returns to another offset than its resident slot's",
                        self.name(t)
                    )
                    .into());
                }
                let from = self.tick();
                self.out.slots[resident].offset = known.or(at);
                self.out.slots[resident].live.push((from, Tick::NEVER));
                resident
            }
        };
        self.state[t].slot = Some(slot);
        Ok(slot)
    }

    fn run(&mut self, index: usize, run: &Run) -> Result<(), DecisionsError> {
        let p = self.p;
        let Some(op) = p.ops.get(run.op) else { return Err("no such op".into()) };
        if self.ran[run.op] != run.recompute {
            let what = if run.recompute { "is recomputed before it ran" } else { "runs twice" };
            return Err(format!("{} {what}", op.name).into());
        }
        if run.recompute && !op.repeatable {
            return Err(format!("{} may not be recomputed", op.name).into());
        }
        if let Some(&early) = op.after.iter().find(|&&a| !self.ran[a]) {
            return Err(
                format!("{} runs before {}, which it must come after", op.name, p.ops[early].name).into()
            );
        }
        self.ran[run.op] = true;
        for (k, place) in run.at.iter().enumerate() {
            let (t, tensor) = (place.0, &p.tensors[place.0]);
            let appears = tensor.kind == TensorKind::Transient
                && !run.recompute
                && op.reads.contains(&t)
                && tensor.touches.first() == Some(&run.op);
            if !op.writes.contains(&t) && !appears {
                return Err(format!("{} does not write %{}", op.name, tensor.name).into());
            }
            if run.recompute && !p.handling(t).recomputes() {
                return Err(format!("%{} may not be recomputed", tensor.name).into());
            }
            self.allocate(*place, Site::At(index, k))?;
            self.state[t].version = usize::MAX;
            if appears {
                self.state[t].version = 0;
            }
        }
        for &t in op.reads.iter().chain(&op.writes) {
            if let Some(slot) = self.state[t].leaving.take() {
                self.free(slot);
            }
        }
        let mut reads = Vec::with_capacity(op.reads.len());
        for &t in &op.reads {
            let state = &self.state[t];
            let Some(slot) = state.slot else {
                return Err(format!("{} needs %{}, which is not on the device", op.name, self.name(t)).into());
            };
            if state.version != self.expected(t, run.op) {
                return Err(
                    format!("{} needs another content of %{} than there is", op.name, self.name(t)).into()
                );
            }
            reads.push(slot);
        }
        let (mut writes, scratch) = self.results(index, run)?;
        if run.workspace.is_some() != (op.workspace > 0) {
            return Err(format!("{} needs {} of workspace", op.name, Bytes(op.workspace)).into());
        }
        let workspace =
            run.workspace.map(|offset| self.slot(None, op.workspace, offset, Site::Workspace(index)));
        writes.extend(workspace);
        let kind = CommandKind::Run { op: run.op, recompute: run.recompute };
        self.command(kind, Stream::Compute, op.time_ns, reads, writes);
        for slot in scratch.into_iter().chain(workspace) {
            self.free(slot);
        }
        if run.recompute {
            return Ok(());
        }
        self.outputs(run.op)?;
        self.sends(run.op)
    }

    /// Copies to the host what ops there read of this op.
    fn sends(&mut self, op: OpPos) -> Result<(), DecisionsError> {
        let p = self.p;
        for &t in &p.ops[op].sends {
            if self.host.copied.contains(&t) {
                continue;
            }
            let Some(source) = self.state[t].slot else {
                return Err(format!("%{} is read on the host but not on the device", self.name(t)).into());
            };
            let host = self.slot(Some(t), p.tensors[t].bytes, None, Site::Copy);
            self.host.sent.insert(t, host);
            let ns = p.device.d2h_ns(p.tensors[t].size);
            self.command(CommandKind::Send(t), Stream::DeviceToHost, ns, vec![source], vec![host]);
        }
        Ok(())
    }

    /// Runs an op on the host.
    fn host_run(&mut self, h: HostOpIx) -> Result<(), DecisionsError> {
        let p = self.p;
        let op = &p.host_ops[h];
        let place = |x: &Self, t: TensorId| {
            let sent = x.host.sent.get(&t).copied().or(x.state[t].host.map(|host| host.0));
            sent.ok_or_else(|| format!("{} needs %{} on the host", op.name, x.name(t)))
        };
        let places = |x: &Self, list: &[TensorId]| -> Result<Vec<SlotIx>, String> {
            list.iter().map(|&t| place(x, t)).collect()
        };
        let (reads, writes) = (places(self, &op.reads)?, places(self, &op.writes)?);
        self.command(CommandKind::HostRun(h), Stream::HostCompute, op.time_ns, reads, writes);
        Ok(())
    }

    /// Slots that a run writes, and those among them that hold results nobody wants.
    fn results(&mut self, index: usize, run: &Run) -> Result<(Vec<SlotIx>, Vec<SlotIx>), DecisionsError> {
        let p = self.p;
        let op = &p.ops[run.op];
        let (mut writes, mut scratch) = (Vec::with_capacity(op.writes.len()), Vec::new());
        for &t in &op.writes {
            let here = run.at.iter().any(|p| p.0 == t) || op.reads.contains(&t);
            match self.state[t].slot {
                Some(slot) if !run.recompute || here => {
                    self.state[t].version = self.expected(t, run.op) + 1;
                    writes.push(slot);
                }
                None if !run.recompute => return Err(format!("%{} has no place", self.name(t)).into()),
                _ => {
                    let offset = run.scratch.get(scratch.len()).copied().flatten();
                    let bytes = p.tensors[t].bytes;
                    let slot = self.slot(None, bytes, offset, Site::Scratch(index, scratch.len()));
                    scratch.push(slot);
                    writes.push(slot);
                }
            }
        }
        Ok((writes, scratch))
    }

    /// Hands out the results of the step that an op makes.
    fn outputs(&mut self, op: OpPos) -> Result<(), DecisionsError> {
        let p = self.p;
        for &(t, bytes) in &p.ops[op].outputs {
            let Some(source) = self.state[t].slot else {
                let name = self.name(t);
                return Err(format!("%{name} is a result of the step but not on the device").into());
            };
            let room = bytes.max(1).next_multiple_of(ALIGN);
            let host = self.slot(Some(t), room, None, Site::Output);
            let kind = CommandKind::Output { tensor: t, bytes };
            let ns = p.device.d2h_ns(bytes);
            self.command(kind, Stream::DeviceToHost, ns, vec![source], vec![host]);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Trace, DecisionsError> {
        if let Some((op, _)) = self.ran.iter().find(|(_, ran)| !**ran) {
            return Err(format!("{} never runs", self.p.ops[op].name).into());
        }
        for (t, tensor) in self.p.tensors.iter().filter(|(_, t)| t.persistent()) {
            let (state, last) = (&self.state[t], tensor.writes.len());
            let leaves = matches!(self.d.residents.get(&t), Some(Resident::Host));
            if leaves && !tensor.touches.is_empty() && !self.p.handling(t).swaps() {
                return Err(format!("%{} may not live in host memory", tensor.name).into());
            }
            match self.d.residents.get(&t) {
                Some(resident @ (Resident::Dev(_) | Resident::Both(_))) => {
                    if state.slot.is_none() || state.version != last {
                        return Err(
                            format!("the step ends without %{} in its resident slot", tensor.name).into()
                        );
                    }
                    if matches!(resident, Resident::Both(_)) && state.host.is_none_or(|h| h.1 != last) {
                        return Err(format!("the step ends with another %{} on the host", tensor.name).into());
                    }
                }
                _ if state.slot.is_some() => {
                    return Err(format!("the step ends with %{} still on the device", tensor.name).into());
                }
                _ if state.host.is_none_or(|h| h.1 != last) => {
                    return Err(format!(
                        "the step ends without %{} in host memory, where it is resident",
                        tensor.name
                    )
                    .into());
                }
                _ => {}
            }
        }
        let end = self.now;
        for slot in self.out.slots.values_mut() {
            for live in &mut slot.live {
                live.1 = live.1.min(end);
            }
        }
        self.out.end = end;
        Ok(self.out)
    }
}

/// For every `out` action, the last `in` of the same tensor before its next `out`.
fn last_ins(d: &Decisions) -> BTreeMap<usize, usize> {
    let mut current: BTreeMap<TensorId, usize> = BTreeMap::new();
    let mut last = BTreeMap::new();
    for (i, action) in d.actions.iter().enumerate() {
        match action {
            Action::Out(t) => {
                current.insert(*t, i);
            }
            Action::In((t, _)) => {
                if let Some(&out) = current.get(t) {
                    last.insert(out, i);
                }
            }
            _ => {}
        }
    }
    last
}
