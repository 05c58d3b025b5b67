//! Bufferization: from a schedule of the planner to memory IR.
//!
//! Folds the planner's trace, which alone defines the meaning of decisions. The IR gets its slots, their
//! offsets, the commands in their order and their waits. Two things are added: views of values, where an op
//! first needs them, and clones of recomputed ops. The verifier and the checker prove the result
//! independently.

use memc_ir::{Arena, Code, Def, Id, Module, OpId, Phase, Slot, SlotId, Space, Value, ValueId, Wait};
use memc_planner::{
    Command, CommandIx, CommandKind, Decisions, Event, HostOpIx, OpPos, Schedule, Site, SlotIx, TensorId,
    Trace, Waits, trace,
};

use super::problem::Problem;
use super::storage::TensorKind;
use crate::Contradiction;

/// The mem-phase module that carries out `decisions`, with the offsets that they give and without waits.
///
/// Errors name the action that is impossible.
pub fn apply(problem: &Problem, decisions: &Decisions) -> Result<Module, Contradiction> {
    let trace = trace(&problem.numbers, decisions).map_err(|refused| refused.to_string())?;
    fold(problem, &trace, None)
}

/// The mem-phase module of a schedule, with its offsets and waits.
pub fn bufferize(problem: &Problem, schedule: &Schedule) -> Result<Module, Contradiction> {
    fold(problem, &schedule.trace, Some(&schedule.waits))
}

fn fold(p: &Problem, trace: &Trace, waits: Option<&Waits>) -> Result<Module, Contradiction> {
    let mut m = Module::clone(&p.module);
    m.phase = Phase::Mem;
    m.order.clear();
    for slot in trace.slots.values() {
        m.slots.push(Slot { space: slot.space, bytes: slot.bytes, offset: slot.offset });
    }
    let mut b = Bufferizer {
        p,
        trace,
        m,
        content: Arena::filled(Vec::new(), trace.slots.len()),
        allocs: Vec::new(),
        last_use: last_uses(trace),
        outputs: [].iter(),
        ops: Arena::with_capacity(trace.commands.len()),
    };
    b.residents();
    for event in trace.events() {
        b.event(event)?;
    }
    b.next_states()?;
    if let Some(waits) = waits {
        b.waits(waits)?;
    }
    Ok(b.m)
}

/// The slot of the IR for a slot of the trace: both are numbered alike.
fn of_ir(slot: SlotIx) -> SlotId {
    SlotId::new(slot.index())
}

/// The last command that touches each slot.
fn last_uses(trace: &Trace) -> Arena<SlotIx, Option<CommandIx>> {
    let mut last = Arena::filled(None, trace.slots.len());
    for (i, command) in trace.commands.iter() {
        for &slot in command.reads.iter().chain(&command.writes) {
            last[slot] = Some(i);
        }
    }
    last
}

struct Bufferizer<'a> {
    p: &'a Problem,
    trace: &'a Trace,
    m: Module,
    /// For every slot, the values of the source module that it holds, each with the value that stands for it
    /// here; the one that the others are views of comes first.
    content: Arena<SlotId, Vec<(ValueId, ValueId)>>,
    /// Slots that the next command's action takes.
    allocs: Vec<SlotId>,
    last_use: Arena<SlotIx, Option<CommandIx>>,
    /// Outputs of the last op that are still to be handed out.
    outputs: std::slice::Iter<'a, usize>,
    /// The op of every command so far.
    ops: Arena<CommandIx, OpId>,
}

impl Bufferizer<'_> {
    /// Gives persistent tensors and inputs the slots in which the step begins.
    fn residents(&mut self) {
        for (slot, planned) in
            self.m.slots.ids().collect::<Vec<_>>().into_iter().zip(self.trace.slots.values())
        {
            let (t, host) = match planned.site {
                Site::Resident(t) => (t, false),
                Site::HostResident(t) => (t, true),
                _ => continue,
            };
            let (value, kind) = self.p.storages.tensors[t];
            let place = match kind {
                TensorKind::State(s) => &mut self.m.states[s].slot,
                TensorKind::Const(c) => &mut self.m.consts[c].slot,
                TensorKind::Input(i) => &mut self.m.inputs[i].slot,
                TensorKind::Transient => continue,
            };
            // The host comes second where a tensor has both.
            let held = if host && place.is_some() {
                let Value { name, ty, .. } = &self.p.module.values[value];
                let host_shadow = self.m.add_host_shadow(name, ty.clone(), value, slot);
                self.m.host_shadows[host_shadow].value
            } else {
                *place = Some(slot);
                value
            };
            self.content[slot] = vec![(value, held)];
        }
    }

    fn event(&mut self, event: Event) -> Result<(), Contradiction> {
        match event {
            Event::Alloc(slot) => self.allocs.push(of_ir(slot)),
            Event::Free(slot) => {
                // The bytes of a host copy are free as soon as nothing reads them; the trace keeps them
                // longer.
                if self.trace.slots[slot].site != Site::Copy {
                    self.free(of_ir(slot));
                }
            }
            Event::Command(i) => {
                let command = &self.trace.commands[i];
                let op = match command.kind {
                    CommandKind::Run { op, recompute } => self.run(op, recompute, command)?,
                    CommandKind::In(_) => self.copy(Code::SwapIn, command, None)?,
                    CommandKind::Out(_) | CommandKind::Send(_) => self.copy(Code::SwapOut, command, None)?,
                    CommandKind::HostRun(op) => self.host_run(op, command)?,
                    CommandKind::Output { .. } => {
                        let &o =
                            self.outputs.next().ok_or("the trace has an output that the module lacks")?;
                        let op = self.copy(Code::SwapOut, command, Some(self.p.module.outputs[o].value))?;
                        self.m.outputs[o].value = self.m.ops[op].results[0];
                        op
                    }
                };
                self.ops.push(op);
                for &slot in command.reads.iter().chain(&command.writes) {
                    let copy = self.trace.slots[slot].site == Site::Copy;
                    if copy && self.last_use[slot] == Some(i) {
                        self.free(of_ir(slot));
                    }
                }
            }
        }
        Ok(())
    }

    fn mem_op(&mut self, code: Code) {
        let op = self.m.push_op(code, Vec::new(), Vec::new(), "");
        self.m.order.push(op);
    }

    fn free(&mut self, slot: SlotId) {
        self.content[slot].clear();
        self.mem_op(Code::Free(slot));
    }

    /// Puts the allocations of an action before its command.
    fn take_slots(&mut self) {
        for slot in std::mem::take(&mut self.allocs) {
            self.mem_op(Code::Alloc(slot));
        }
    }

    /// Copies a value from the slot that the command reads to the one that it writes. `value` defaults to the
    /// value there that all others are views of.
    fn copy(&mut self, code: Code, command: &Command, value: Option<ValueId>) -> Result<OpId, Contradiction> {
        let (&[from], &[to]) = (&command.reads[..], &command.writes[..]) else {
            return Err("a copy of the trace has not one source and one destination".into());
        };
        let (from, to) = (of_ir(from), of_ir(to));
        let (original, source) = match value {
            Some(v) => (v, self.resolve(v, from)?),
            None => *self.content[from].first().ok_or("a copy of the trace reads an empty slot")?,
        };
        self.take_slots();
        let id = OpId::new(self.m.ops.len());
        let (name, ty) = (self.p.module.values[original].name.clone(), self.m.values[source].ty.clone());
        let copied = self.m.add_value(&name, ty, Def::Op(id, 0));
        let op = self.m.push_op(code, vec![source], vec![copied], "");
        self.m.ops[op].slots = vec![to];
        self.m.order.push(op);
        self.content[to] = vec![(original, copied)];
        Ok(op)
    }

    /// The stand-in of a source value that lies in a slot; missing views are added.
    fn resolve(&mut self, v: ValueId, slot: SlotId) -> Result<ValueId, Contradiction> {
        if let Some(&(_, value)) = self.content[slot].iter().find(|(original, _)| *original == v) {
            return Ok(value);
        }
        let view = self.p.module.def_op(v).filter(|&op| self.p.module.ops[op].is_view());
        let op =
            view.ok_or_else(|| format!("%{} is needed but not on the device", self.p.module.values[v].name))?;
        let operand = self.resolve(self.p.module.ops[op].operands[0], slot)?;
        let placed = self.place_op(op, vec![operand], vec![slot]);
        let value = self.m.ops[placed].results[0];
        self.content[slot].push((v, value));
        Ok(value)
    }

    fn run(&mut self, position: OpPos, recompute: bool, command: &Command) -> Result<OpId, Contradiction> {
        let p = self.p;
        let placed = self.compute(p.ops[position], &p.numbers.ops[position].reads, command)?;
        if !recompute {
            self.outputs = p.outputs[position].iter();
        }
        Ok(placed)
    }

    fn host_run(&mut self, op: HostOpIx, command: &Command) -> Result<OpId, Contradiction> {
        let p = self.p;
        self.compute(p.host_ops[op], &p.numbers.host_ops[op].reads, command)
    }

    /// Puts an op of the source module with the slots of its command; `reads` are the tensors that those
    /// which it reads hold.
    fn compute(&mut self, id: OpId, reads: &[TensorId], command: &Command) -> Result<OpId, Contradiction> {
        let p = self.p;
        let source = &p.module.ops[id];
        let mut operands = Vec::with_capacity(source.operands.len());
        for &v in &source.operands {
            let t = p.storages.of[v];
            let slot = reads.iter().position(|&read| read == t).and_then(|k| command.reads.get(k));
            let &slot = slot.ok_or("a run of the trace has other operands than its op")?;
            operands.push(self.resolve(v, of_ir(slot))?);
        }
        self.take_slots();
        let Some((slots, workspace)) = command.writes.split_at_checked(source.results.len()) else {
            return Err("a run of the trace has other results than its op".into());
        };
        let slots: Vec<SlotId> = slots.iter().copied().map(of_ir).collect();
        let placed = self.place_op(id, operands, slots.clone());
        self.m.ops[placed].workspace = workspace.first().copied().map(of_ir);
        let results = source.results.iter().zip(&self.m.ops[placed].results);
        for ((&original, &value), slot) in results.zip(slots) {
            self.content[slot] = vec![(original, value)];
        }
        Ok(placed)
    }

    /// Puts an op of the source module, or a clone of it when it has been put before, at the end of the
    /// order.
    fn place_op(&mut self, op: OpId, operands: Vec<ValueId>, slots: Vec<SlotId>) -> OpId {
        let placed = if self.m.ops[op].slots.is_empty() { op } else { self.clone_op(op) };
        self.m.ops[placed].operands = operands;
        self.m.ops[placed].on_host = slots.iter().all(|&slot| self.m.slots[slot].space == Space::Host);
        self.m.ops[placed].slots = slots;
        self.m.order.push(placed);
        placed
    }

    fn clone_op(&mut self, op: OpId) -> OpId {
        let id = OpId::new(self.m.ops.len());
        let source = &self.p.module.ops[op];
        let results = source.results.iter().zip(0..).map(|(&r, i)| {
            let value = &self.p.module.values[r];
            self.m.add_value(&value.name, value.ty.clone(), Def::Op(id, i))
        });
        let results = results.collect();
        let clone = self.m.push_op(source.code.clone(), Vec::new(), results, &source.origin);
        self.m.ops[clone].clone_of = Some(op);
        clone
    }

    /// Sets the next value of each state: the content of its slot at the end of this step.
    fn next_states(&mut self) -> Result<(), Contradiction> {
        for s in self.p.module.states.ids() {
            let Some(next) = self.p.module.states[s].next else { continue };
            let slot = self.m.states[s].slot.ok_or("a state of the module has no slot in the trace")?;
            self.m.states[s].next = Some(match (self.m.slots[slot].space, &self.content[slot][..]) {
                (Space::Host, &[(_, copy), ..]) => copy,
                _ => self.resolve(next, slot)?,
            });
        }
        Ok(())
    }

    /// Gives every command's op the waits of the schedule.
    fn waits(&mut self, waits: &Waits) -> Result<(), Contradiction> {
        if waits.len() != self.ops.len() {
            return Err("the schedule has waits of other commands than its trace".into());
        }
        for (&op, waits) in self.ops.values().zip(waits.values()) {
            let list = waits.iter();
            let list = list.map(|a| Wait { op: self.ops[a.command], previous: a.previous });
            let mut list: Vec<Wait> = list.collect();
            list.sort_unstable();
            self.m.ops[op].waits = list;
        }
        Ok(())
    }
}
