//! Applies decisions: turns a problem and a script into a mem-phase module.
//!
//! The one place where decisions become IR. It is deterministic and trusts nothing: a script that reads what is not
//! there, runs an op twice or forgets one is refused here, and whatever slips through is caught by the verifier
//! and by the checker. Slots and commands come in the order of the planner's trace, whose offsets and awaits apply.

use std::collections::BTreeMap;

use memc_ir::{Await, Code, Def, Id, Module, OpId, Phase, Slot, SlotId, Space, Value, ValueId};
use memc_planner::{Action, Decisions, Home, Place, Realised, Run};

use super::problem::Problem;
use super::storage::{Kind, base};

/// The mem-phase module that carries out `decisions`, without offsets the script does not give and without awaits.
///
/// Errors say which action of the script is impossible.
pub fn apply(problem: &Problem, decisions: &Decisions) -> Result<Module, String> {
    let mut e = Emitter::new(problem, decisions)?;
    for (i, action) in decisions.actions.iter().enumerate() {
        e.action(i, action).map_err(|why| format!("action {} of the script: {why}", i + 1))?;
    }
    e.finish()
}

/// [`apply`], with the offsets and awaits of the script's realisation.
pub fn apply_realised(problem: &Problem, r: &Realised) -> Result<Module, String> {
    let mut m = apply(problem, &r.decisions)?;
    if m.slots.len() != r.trace.slots.len() {
        return Err("the trace of the script has other slots than the module".into());
    }
    for (slot, planned) in m.slots.ids().collect::<Vec<_>>().into_iter().zip(&r.trace.slots) {
        m.slots[slot].offset = planned.offset;
    }
    let runs = |&op: &OpId| m.ops[op].stream().is_some() && !m.ops[op].is_view();
    let commands: Vec<OpId> = m.order.iter().copied().filter(runs).collect();
    if commands.len() != r.awaits.len() {
        return Err("the trace of the script has other commands than the module".into());
    }
    for (&op, awaits) in commands.iter().zip(&r.awaits) {
        let mut list: Vec<Await> =
            awaits.iter().map(|a| Await { op: commands[a.command as usize], previous: a.previous }).collect();
        list.sort_unstable();
        m.ops[op].awaits = list;
    }
    Ok(m)
}

/// A stay of a tensor on the device.
struct Residency {
    slot: SlotId,
    /// Values of the source module that the slot holds now, and the values that stand for them here.
    holds: BTreeMap<ValueId, ValueId>,
}

/// A tensor's copy in host memory.
#[derive(Clone, Copy)]
struct HostCopy {
    /// What was copied, as a value of the source module.
    original: ValueId,
    /// The value in the host slot.
    value: ValueId,
}

struct Emitter<'a> {
    p: &'a Problem,
    m: Module,
    resident: Vec<Option<Residency>>,
    host: Vec<Option<HostCopy>>,
    /// Host slots of states, constants and inputs, which are never freed.
    host_home: Vec<Option<SlotId>>,
    /// Device slots of states and constants, to which they always return.
    dev_home: Vec<Option<SlotId>>,
    /// For every `out` action, the index of the last `in` that reads its copy.
    last_in: BTreeMap<usize, usize>,
    /// Host slots to free after an action.
    expiring: BTreeMap<usize, SlotId>,
    ran: Vec<bool>,
}

impl<'a> Emitter<'a> {
    fn new(p: &'a Problem, d: &Decisions) -> Result<Self, String> {
        let mut m = p.module.clone();
        m.phase = Phase::Mem;
        m.order.clear();
        let n = p.numbers.tensors.len();
        let mut e = Emitter {
            p,
            m,
            resident: (0..n).map(|_| None).collect(),
            host: vec![None; n],
            host_home: vec![None; n],
            dev_home: vec![None; n],
            last_in: last_ins(d),
            expiring: BTreeMap::new(),
            ran: vec![false; p.ops.len()],
        };
        for t in 0..n {
            e.home(t, d.homes.get(&(t as u32)).copied())?;
        }
        Ok(e)
    }

    fn home(&mut self, t: usize, home: Option<Home>) -> Result<(), String> {
        let tensor = &self.p.numbers.tensors[t];
        let (value, kind) = self.p.storages.tensors[t];
        let space = match (kind, home) {
            (Kind::Transient, _) => return Ok(()),
            (Kind::Input(_), _) | (_, Some(Home::Host)) => Space::Host,
            (_, Some(Home::Dev(_) | Home::Both(_))) => Space::Dev,
            (_, None) => return Err(format!("%{} has no home", tensor.name)),
        };
        let offset = if let Some(Home::Dev(at) | Home::Both(at)) = home { at } else { None };
        let slot = self.m.slots.push(Slot { space, bytes: tensor.bytes, offset });
        match kind {
            Kind::State(s) => self.m.states[s].slot = Some(slot),
            Kind::Const(c) => self.m.consts[c].slot = Some(slot),
            Kind::Input(i) => self.m.inputs[i].slot = Some(slot),
            Kind::Transient => {}
        }
        if space == Space::Dev {
            self.resident[t] = Some(Residency { slot, holds: BTreeMap::from([(value, value)]) });
            self.dev_home[t] = Some(slot);
            if matches!(home, Some(Home::Both(_))) {
                let slot = self.m.slots.push(Slot { space: Space::Host, bytes: tensor.bytes, offset: None });
                let Value { name, ty, .. } = &self.p.module.values[value];
                let mirror = self.m.add_mirror(name, ty.clone(), value, slot);
                let copy = self.m.mirrors[mirror].value;
                self.host[t] = Some(HostCopy { original: value, value: copy });
                self.host_home[t] = Some(slot);
            }
        } else {
            self.host[t] = Some(HostCopy { original: value, value });
            self.host_home[t] = Some(slot);
        }
        Ok(())
    }

    fn tensor_name(&self, t: u32) -> &str {
        &self.p.numbers.tensors[t as usize].name
    }

    fn slot(&mut self, space: Space, bytes: u64, offset: Option<u64>) -> SlotId {
        let slot = self.m.slots.push(Slot { space, bytes, offset });
        self.mem_op(Code::Alloc(slot));
        slot
    }

    fn mem_op(&mut self, code: Code) {
        let op = self.m.push_op(code, Vec::new(), Vec::new(), "");
        self.m.order.push(op);
    }

    /// A copy of `source` into `slot`, as a new value.
    fn copy(&mut self, code: Code, source: ValueId, original: ValueId, slot: SlotId) -> ValueId {
        let id = OpId::new(self.m.ops.len());
        let (name, ty) = (self.p.module.values[original].name.clone(), self.m.values[source].ty.clone());
        let value = self.m.add_value(&name, ty, Def::Op(id, 0));
        let op = self.m.push_op(code, vec![source], vec![value], "");
        self.m.ops[op].slots = vec![slot];
        self.m.order.push(op);
        value
    }

    fn allocate(&mut self, (t, at): Place) -> Result<SlotId, String> {
        if self.resident[t as usize].is_some() {
            return Err(format!("%{} is on the device already", self.tensor_name(t)));
        }
        let slot = match self.dev_home[t as usize] {
            None => self.slot(Space::Dev, self.p.numbers.tensors[t as usize].bytes, at),
            Some(home) => {
                if at.is_some() && self.m.slots[home].offset.is_some_and(|o| Some(o) != at) {
                    return Err(format!("%{} returns to another place than its home", self.tensor_name(t)));
                }
                self.m.slots[home].offset = self.m.slots[home].offset.or(at);
                self.mem_op(Code::Alloc(home));
                home
            }
        };
        self.resident[t as usize] = Some(Residency { slot, holds: BTreeMap::new() });
        Ok(slot)
    }

    fn action(&mut self, index: usize, action: &Action) -> Result<(), String> {
        match action {
            Action::In(place) => {
                let t = place.0;
                let Some(copy) = self.host[t as usize] else {
                    return Err(format!("%{} has no copy in host memory", self.tensor_name(t)));
                };
                let slot = self.allocate(*place)?;
                let value = self.copy(Code::SwapIn, copy.value, copy.original, slot);
                if let Some(r) = &mut self.resident[t as usize] {
                    r.holds.insert(copy.original, value);
                }
            }
            Action::Out(t) => self.swap_out(index, *t)?,
            Action::Drop(t) => {
                let Some(r) = self.resident[*t as usize].take() else {
                    return Err(format!("%{} is not on the device", self.tensor_name(*t)));
                };
                self.mem_op(Code::Free(r.slot));
            }
            Action::Run(run) => self.run(run)?,
        }
        if let Some(slot) = self.expiring.remove(&index) {
            self.mem_op(Code::Free(slot));
        }
        Ok(())
    }

    /// The source value whose bytes the tensor holds, and its stand-in.
    fn content(&self, t: u32) -> Result<(ValueId, ValueId), String> {
        let holds = self.resident[t as usize].as_ref().map(|r| &r.holds);
        let content = holds.and_then(|h| h.iter().find(|(v, _)| base(&self.p.module, **v) == **v));
        content
            .map(|(&original, &value)| (original, value))
            .ok_or_else(|| format!("%{} is not on the device", self.tensor_name(t)))
    }

    fn swap_out(&mut self, index: usize, t: u32) -> Result<(), String> {
        let (original, value) = self.content(t)?;
        let persistent = self.p.numbers.tensors[t as usize].persistent();
        let slot = match self.host_home[t as usize].filter(|_| persistent) {
            Some(home) => home,
            None => {
                let slot = self.slot(Space::Host, self.p.numbers.tensors[t as usize].bytes, None);
                let last = self.last_in.get(&index).copied().unwrap_or(index);
                self.expiring.insert(last, slot);
                slot
            }
        };
        let copied = self.copy(Code::SwapOut, value, original, slot);
        self.host[t as usize] = Some(HostCopy { original, value: copied });
        Ok(())
    }

    /// The stand-in of a source value that must be on the device; views are taken again where needed.
    fn resolve(&mut self, v: ValueId) -> Result<ValueId, String> {
        let t = self.p.storages.of[v.index()];
        let missing = || format!("%{} is needed but not on the device", self.p.module.values[v].name);
        let residency = self.resident.get(t as usize).and_then(Option::as_ref).ok_or_else(missing)?;
        if let Some(&value) = residency.holds.get(&v) {
            return Ok(value);
        }
        let slot = residency.slot;
        let op = self.p.module.def_op(v).filter(|&op| self.p.module.ops[op].is_view()).ok_or_else(missing)?;
        let operand = self.resolve(self.p.module.ops[op].operands[0])?;
        let view = self.place_op(op, vec![operand], vec![slot]);
        let value = self.m.ops[view].results[0];
        if let Some(r) = &mut self.resident[t as usize] {
            r.holds.insert(v, value);
        }
        Ok(value)
    }

    /// Puts an op of the source module, or a clone of it when it has been put before, at the end of the order.
    fn place_op(&mut self, op: OpId, operands: Vec<ValueId>, slots: Vec<SlotId>) -> OpId {
        let placed = if self.m.ops[op].slots.is_empty() { op } else { self.clone_op(op) };
        self.m.ops[placed].operands = operands;
        self.m.ops[placed].slots = slots;
        self.m.order.push(placed);
        placed
    }

    fn clone_op(&mut self, op: OpId) -> OpId {
        let id = OpId::new(self.m.ops.len());
        let source = &self.p.module.ops[op];
        let results = source
            .results
            .iter()
            .enumerate()
            .map(|(i, &r)| {
                let value = &self.p.module.values[r];
                self.m.add_value(&value.name, value.ty.clone(), Def::Op(id, i as u32))
            })
            .collect();
        let clone = self.m.push_op(source.code.clone(), Vec::new(), results, &source.origin);
        self.m.ops[clone].clone_of = Some(op);
        clone
    }

    fn run(&mut self, run: &Run) -> Result<(), String> {
        let (p, position, again, at) = (self.p, run.op, run.again, &run.at);
        let (Some(op), Some(&id)) = (p.numbers.ops.get(position as usize), p.ops.get(position as usize))
        else {
            return Err("no such op".into());
        };
        if self.ran[position as usize] != again {
            let what = if again { "runs again before it ran" } else { "runs twice" };
            return Err(format!("{} {what}", op.name));
        }
        self.ran[position as usize] = true;
        let source = &p.module.ops[id];
        let operands: Result<Vec<ValueId>, String> =
            source.operands.iter().map(|&v| self.resolve(v)).collect();
        let operands = operands?;
        for place in at {
            if !op.writes.contains(&place.0) {
                return Err(format!("{} does not write %{}", op.name, self.tensor_name(place.0)));
            }
            self.allocate(*place)?;
        }
        let mut scratch = Vec::new();
        let mut slots = Vec::new();
        for &v in &source.results {
            let t = p.storages.of[v.index()];
            match &self.resident[t as usize] {
                Some(r) if !again || at.iter().any(|p| p.0 == t) || op.reads.contains(&t) => {
                    slots.push(r.slot)
                }
                None if !again => return Err(format!("%{} has no place", self.tensor_name(t))),
                _ => {
                    let offset = run.scratch.get(scratch.len()).copied().flatten();
                    let slot = self.slot(Space::Dev, p.numbers.tensors[t as usize].bytes, offset);
                    scratch.push(slot);
                    slots.push(slot);
                }
            }
        }
        let workspace = run.workspace.map(|offset| self.slot(Space::Dev, op.workspace, offset));
        let placed = self.place_op(id, operands, slots.clone());
        self.m.ops[placed].workspace = workspace;
        let results = self.m.ops[placed].results.clone();
        for (&original, &value) in source.results.iter().zip(&results) {
            let t = p.storages.of[original.index()];
            if let Some(r) = self.resident[t as usize].as_mut().filter(|r| slots.contains(&r.slot)) {
                r.holds = BTreeMap::from([(original, value)]);
                if !self.p.numbers.tensors[t as usize].persistent() {
                    // A copy in host memory no longer shows what the tensor holds.
                    self.host[t as usize] = self.host[t as usize].filter(|c| c.original == original);
                }
            }
        }
        for slot in scratch.into_iter().chain(workspace) {
            self.mem_op(Code::Free(slot));
        }
        if !again {
            for &o in &p.outputs[position as usize] {
                let original = p.module.outputs[o].value;
                let value = self.resolve(original)?;
                let bytes = memc_ir::aligned(p.module.values[original].ty.bytes().max(1));
                let slot = self.slot(Space::Host, bytes, None);
                self.m.outputs[o].value = self.copy(Code::SwapOut, value, original, slot);
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Module, String> {
        if let Some(op) = self.ran.iter().position(|r| !r) {
            return Err(format!("{} never runs", self.p.numbers.ops[op].name));
        }
        for s in self.p.module.states.ids() {
            let Some(next) = self.p.module.states[s].next else { continue };
            let t = self.p.storages.of[self.p.module.states[s].value.index()];
            self.m.states[s].next = Some(match (self.dev_home[t as usize], self.host[t as usize]) {
                (None, Some(copy)) => copy.value,
                _ => self.resolve(next)?,
            });
        }
        Ok(self.m)
    }
}

/// For every `out` action, the last `in` of the same tensor before its next `out`.
fn last_ins(d: &Decisions) -> BTreeMap<usize, usize> {
    let mut current: BTreeMap<u32, usize> = BTreeMap::new();
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
