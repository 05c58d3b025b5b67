//! M rules: slots, contents and copies, at the granularity of slots and in program order.
//!
//! The checker proves for the finished plan that concurrent streams do no harm to bytes. M8 only asks that a
//! copy's result is waited for, directly or through other waits, once waits are placed at all.

use std::collections::BTreeSet;

use super::Sink;
use crate::diag::Anchor;
use crate::entity::{Id, OpId, SlotId, StateId, ValueId};
use crate::module::{Code, Def, HostShadow, Module, Op, SLOT_ALIGN, Space, Stream};
use crate::print::{slot_name, value_name};

pub(super) fn check(m: &Module, sink: &mut Sink) {
    let mut state = Contents::new(m, sink);
    for &id in &m.order {
        state.op(id, sink);
    }
    state.end(sink);
    overlaps(m, sink);
    if m.order.iter().any(|&id| !m.ops[id].waits.is_empty()) {
        waits(m, sink);
    }
}

/// Content of every slot. Copies and clones of a value hold the same content as the value.
struct Contents<'a> {
    m: &'a Module,
    root: Vec<ValueId>,
    resident: Vec<bool>,
    allocated: Vec<bool>,
    holds: Vec<BTreeSet<ValueId>>,
}

impl<'a> Contents<'a> {
    fn new(m: &'a Module, sink: &mut Sink) -> Self {
        let mut s = Self {
            m,
            root: m.values.ids().collect(),
            resident: vec![false; m.slots.len()],
            allocated: vec![false; m.slots.len()],
            holds: vec![BTreeSet::new(); m.slots.len()],
        };
        for host_shadow in m.host_shadows.values() {
            s.host_shadow(host_shadow, sink);
        }
        for (v, slot) in m.resident_slots() {
            let on_host = matches!(m.values[v].def, Def::Input(_) | Def::HostShadow(_));
            let space = on_host.then_some(Space::Host);
            let Some(slot) = slot else {
                sink.report("M1", Anchor::Value(v), format!("{} has no slot", value_name(m, v)));
                continue;
            };
            if std::mem::replace(&mut s.resident[slot.index()], true) {
                sink.report(
                    "M1",
                    Anchor::Value(v),
                    format!("{} is the resident slot of two values", slot_name(m, slot)),
                );
            }
            s.allocated[slot.index()] = true;
            s.fits(v, slot, space, Anchor::Value(v), sink);
            s.holds[slot.index()].insert(s.root[v.index()]);
        }
        s
    }

    fn host_shadow(&mut self, host_shadow: &HostShadow, sink: &mut Sink) {
        let (m, v, of) = (self.m, host_shadow.value, host_shadow.of);
        let on_device = m.slot_of(of).is_some_and(|slot| m.slots[slot].space == Space::Dev);
        if !on_device || m.values[v].ty != m.values[of].ty {
            let (v, of) = (value_name(m, v), value_name(m, of));
            sink.report(
                "M1",
                Anchor::Value(host_shadow.value),
                format!("{v} is no host shadow of {of} on the device"),
            );
        }
        self.root[host_shadow.value.index()] = host_shadow.of;
    }

    fn fits(&self, v: ValueId, slot: SlotId, space: Option<Space>, at: Anchor, sink: &mut Sink) {
        let (place, ty) = (&self.m.slots[slot], &self.m.values[v].ty);
        if place.bytes < ty.bytes() || space.is_some_and(|s| s != place.space) {
            let name = slot_name(self.m, slot);
            sink.report("M1", at, format!("{} ({ty}) does not fit {name}", value_name(self.m, v)));
        }
    }

    fn op(&mut self, id: OpId, sink: &mut Sink) {
        let op = &self.m.ops[id];
        let at = Anchor::Op(id);
        match op.code {
            Code::Alloc(slot) | Code::Free(slot) => {
                let alloc = matches!(op.code, Code::Alloc(_));
                let i = slot.index();
                let stays = self.resident[i] && self.m.slots[slot].space == Space::Host;
                if stays || self.allocated[i] == alloc {
                    let word = if alloc { "allocated" } else { "freed" };
                    sink.report("M2", at, format!("{} cannot be {word} here", slot_name(self.m, slot)));
                }
                self.allocated[i] = alloc || stays;
                self.holds[i].clear();
                return;
            }
            Code::Compute(_) => {}
            Code::SwapIn | Code::SwapOut => {
                if let (Some(&x), Some(&y)) = (op.operands.first(), op.results.first()) {
                    self.root[y.index()] = self.root[x.index()];
                }
            }
        }
        if let Some(original) = op.clone_of {
            for (&r, &o) in op.results.iter().zip(&self.m.ops[original].results) {
                self.root[r.index()] = self.root[o.index()];
            }
        }
        let (from, to) = match op.code {
            Code::SwapOut => (Space::Dev, Space::Host),
            Code::SwapIn => (Space::Host, Space::Dev),
            Code::Compute(_) if op.on_host => (Space::Host, Space::Host),
            _ => (Space::Dev, Space::Dev),
        };
        for &v in &op.operands {
            self.read(v, from, at, sink);
        }
        self.workspace(op, at, sink);
        self.write(op, to, at, sink);
    }

    fn read(&self, v: ValueId, space: Space, at: Anchor, sink: &mut Sink) {
        let Some(slot) = self.m.slot_of(v) else {
            return sink.report("M1", at, format!("{} has no slot", value_name(self.m, v)));
        };
        let name = || format!("{} in {}", value_name(self.m, v), slot_name(self.m, slot));
        if self.m.slots[slot].space != space {
            sink.report("M1", at, format!("{} is not in {} memory", name(), space_name(space)));
        } else if !self.allocated[slot.index()] {
            sink.report("M2", at, format!("{} is read after it was freed", name()));
        } else if !self.holds[slot.index()].contains(&self.root[v.index()]) {
            sink.report("M3", at, format!("{} is overwritten or not yet written", name()));
        }
    }

    fn workspace(&self, op: &Op, at: Anchor, sink: &mut Sink) {
        let need =
            op.kind().map_or(0, |k| k.cost(&self.types(&op.operands), &self.types(&op.results)).workspace);
        match op.workspace {
            None if need == 0 => {}
            Some(s) if self.m.slots[s].space == Space::Dev && self.m.slots[s].bytes >= need => {
                if !self.allocated[s.index()] || self.resident[s.index()] {
                    sink.report("M2", at, format!("workspace {} is not allocated", slot_name(self.m, s)));
                }
            }
            _ => sink.report("M5", at, format!("the op needs {need} bytes of workspace")),
        }
    }

    fn types(&self, values: &[ValueId]) -> Vec<&'a crate::types::TensorType> {
        values.iter().map(|&v| &self.m.values[v].ty).collect()
    }

    fn write(&mut self, op: &Op, space: Space, at: Anchor, sink: &mut Sink) {
        if op.slots.len() != op.results.len() {
            return sink.report("M1", at, "every result needs one slot");
        }
        let view = op.is_view();
        let mut pairs = match op.kind() {
            Some(k) => k.inplace_pairs(&self.types(&op.operands), &self.types(&op.results)),
            None => Vec::new(),
        };
        if view {
            pairs = vec![(0, 0)];
        }
        for (j, (&v, &slot)) in op.results.iter().zip(&op.slots).enumerate() {
            self.fits(v, slot, Some(space), at, sink);
            if !self.allocated[slot.index()] {
                sink.report("M2", at, format!("{} is written but not allocated", slot_name(self.m, slot)));
            }
            let shares = |x: &ValueId| self.m.slot_of(*x) == Some(slot);
            let overlap = (0..op.operands.len()).filter(|&i| shares(&op.operands[i]));
            let bad = overlap
                .into_iter()
                .any(|i| !pairs.iter().any(|&(a, b)| b == j && op.operands[a] == op.operands[i]));
            let twice = op.slots[..j].contains(&slot) || op.workspace == Some(slot);
            if bad || twice || (view && !op.operands.iter().any(shares)) {
                sink.report(
                    "M4",
                    at,
                    format!("{} may not share {}", value_name(self.m, v), slot_name(self.m, slot)),
                );
            }
            let root = self.root[v.index()];
            if view {
                self.holds[slot.index()].insert(root);
            } else {
                self.holds[slot.index()] = BTreeSet::from([root]);
            }
        }
        if let Some(ws) = op.workspace {
            self.holds[ws.index()].clear();
        }
    }

    fn end(&self, sink: &mut Sink) {
        for (id, s) in self.m.states.iter() {
            s.slot.into_iter().for_each(|resident| self.ends(id, resident, sink));
        }
        for c in self.m.consts.values() {
            c.slot.into_iter().for_each(|resident| self.stays(c.value, resident, sink));
        }
        for host_shadow in self.m.host_shadows.values() {
            match self.m.values[host_shadow.of].def {
                Def::State(id) => self.ends(id, host_shadow.slot, sink),
                _ => self.stays(host_shadow.of, host_shadow.slot, sink),
            }
        }
        for (i, o) in self.m.outputs.iter().enumerate() {
            self.read(o.value, Space::Host, Anchor::Output(i), sink);
        }
        for (slot, _) in self.m.slots.iter() {
            let (allocated, resident) = (self.allocated[slot.index()], self.resident[slot.index()]);
            if allocated && !resident && !self.is_output(slot) {
                sink.report("M2", Anchor::Slot(slot), format!("{} is never freed", slot_name(self.m, slot)));
            } else if resident && !allocated {
                let message = format!("{} is freed and not allocated again", slot_name(self.m, slot));
                sink.report("M2", Anchor::Slot(slot), message);
            }
        }
    }

    fn ends(&self, id: StateId, resident: SlotId, sink: &mut Sink) {
        let s = &self.m.states[id];
        let (want, at) = match s.next {
            Some(next) => (next, Anchor::Carry(id)),
            None => (s.value, Anchor::Value(s.value)),
        };
        if !self.holds[resident.index()].contains(&self.root[want.index()]) {
            let message =
                format!("{} does not end in {}", value_name(self.m, want), slot_name(self.m, resident));
            sink.report("M6", at, message);
        }
    }

    fn stays(&self, constant: ValueId, resident: SlotId, sink: &mut Sink) {
        if !self.holds[resident.index()].contains(&constant) {
            sink.report("M6", Anchor::Value(constant), "a constant's slot is overwritten");
        }
    }

    fn is_output(&self, slot: SlotId) -> bool {
        self.m.outputs.iter().any(|o| self.m.slot_of(o.value) == Some(slot))
    }
}

fn space_name(space: Space) -> &'static str {
    if space == Space::Dev { "device" } else { "host" }
}

/// M7: slots allocated at the same time have disjoint bytes.
fn overlaps(m: &Module, sink: &mut Sink) {
    // Live ranges as (first, end) positions; resident slots are live from the start.
    let mut live: Vec<(SlotId, usize, usize)> = Vec::new();
    let mut open = vec![None; m.slots.len()];
    let end = m.order.len();
    for slot in m.resident_slots().filter_map(|(_, slot)| slot) {
        open[slot.index()] = Some(0);
    }
    for (i, &id) in m.order.iter().enumerate() {
        match m.ops[id].code {
            Code::Alloc(s) => open[s.index()] = Some(i),
            Code::Free(s) => live.extend(open[s.index()].take().map(|start| (s, start, i))),
            _ => {}
        }
    }
    live.extend(m.slots.ids().filter_map(|s| open[s.index()].map(|start| (s, start, end))));
    live.sort_by_key(|&(s, first, _)| (first, s));
    for (slot, place) in m.slots.iter() {
        if place.offset.is_some_and(|o| o % SLOT_ALIGN != 0 || o.checked_add(place.bytes).is_none()) {
            sink.report("M7", Anchor::Slot(slot), format!("{} is misaligned", slot_name(m, slot)));
        }
    }
    let mut active: Vec<(SlotId, usize)> = Vec::new();
    for &(slot, first, last) in &live {
        active.retain(|&(_, end)| end > first);
        let a = &m.slots[slot];
        for &(other, _) in &active {
            let b = &m.slots[other];
            if let (Some(x), Some(y)) = (a.offset, b.offset)
                && a.space == b.space
                && x < y.saturating_add(b.bytes)
                && y < x.saturating_add(a.bytes)
            {
                let (first, second) = (slot_name(m, slot), slot_name(m, other));
                sink.report(
                    "M7",
                    Anchor::Slot(slot),
                    format!("{first} overlaps {second} while both are live"),
                );
            }
        }
        active.push((slot, last));
    }
}

/// M8: vector clocks of the streams over one step.
fn waits(m: &Module, sink: &mut Sink) {
    const STREAMS: usize = Stream::ALL.len();
    let mut clocks = [[0u64; STREAMS]; STREAMS];
    let mut done: Vec<Option<([u64; STREAMS], usize)>> = vec![None; m.ops.len()];
    for &id in &m.order {
        let op = &m.ops[id];
        if op.is_view() {
            // A view is available as soon as its operand.
            done[id.index()] = op.operands.first().and_then(|&v| m.def_op(v)).and_then(|d| done[d.index()]);
            continue;
        }
        let Some(s) = op.stream().and_then(|s| Stream::ALL.iter().position(|&t| t == s)) else { continue };
        for a in op.waits.iter().filter(|a| !a.previous) {
            let Some((clock, _)) = done[a.op.index()] else {
                sink.report("M8", Anchor::Op(id), "the op waits for one that is issued later in the step");
                continue;
            };
            for t in 0..STREAMS {
                clocks[s][t] = clocks[s][t].max(clock[t]);
            }
        }
        for &v in &op.operands {
            let Some((clock, t)) = m.def_op(v).and_then(|d| done[d.index()]) else { continue };
            if t != s && clocks[s][t] < clock[t] {
                sink.report("M8", Anchor::Op(id), format!("{} may not have arrived", value_name(m, v)));
            }
        }
        clocks[s][s] += 1;
        done[id.index()] = Some((clocks[s], s));
    }
}
