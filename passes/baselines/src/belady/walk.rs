//! The swap planner: walks the step once, evicts by furthest next use, and chooses offsets as it goes.
//!
//! Recomputation competes with swapping by memory saved per second (TENSILE, section 4.4): an evicted tensor
//! is dropped without a copy where recomputation is cheaper than its copies.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use memc_ir::Arena;
use memc_planner::{Action, Decisions, OpPos, Place, Problem, Resident, Run, TensorId, TensorKind};

use super::arena::{DeviceArena, Owner};

/// Position after the last op.
const NEVER: OpPos = OpPos(u32::MAX);

/// Knobs of one walk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Knobs {
    /// Bytes of the device arena.
    pub(super) capacity: u64,
    /// Recompute a tensor when that takes less than this fraction of its copies' time; 0 never recomputes.
    pub(super) recompute: f64,
}

/// The position at which no room could be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NoRoom(pub(super) OpPos);

/// Plans the step with the given persistent tensors resident on the device and all others in host memory.
pub(super) fn plan(p: &Problem, residents: &BTreeSet<TensorId>, knobs: Knobs) -> Result<Decisions, NoRoom> {
    let mut w = AddressWalk::new(p, residents, knobs);
    for i in p.ops.ids() {
        w.step(i).map_err(|()| NoRoom(i))?;
    }
    Ok(Decisions { residents: w.residents, actions: w.actions, ..Decisions::default() })
}

/// A next touch, and the time of computing the tensor again for it in ns.
type Recomputation = (OpPos, Option<u64>);

struct AddressWalk<'a> {
    p: &'a Problem,
    knobs: Knobs,
    residents: BTreeMap<TensorId, Resident>,
    arena: DeviceArena,
    at: Arena<TensorId, Option<u64>>,
    /// True if host memory holds the tensor's present content.
    host: Arena<TensorId, bool>,
    /// Number of running ops that need the tensor.
    pins: Arena<TensorId, u32>,
    actions: Vec<Action>,
    position: OpPos,
    /// For each tensor, the first position from the present one on that touches it; [`NEVER`] after the
    /// last.
    next: Arena<TensorId, OpPos>,
    /// For each tensor, the next touch for which [`AddressWalk::recompute_chain`] was asked, and what
    /// computing it again takes in ns.
    recompute_ns: Arena<TensorId, Cell<Option<Recomputation>>>,
    /// Tensors brought in only for a recomputation of the present op's operands.
    visitors: Vec<TensorId>,
}

impl<'a> AddressWalk<'a> {
    fn new(p: &'a Problem, resident: &BTreeSet<TensorId>, knobs: Knobs) -> Self {
        let mut residents = BTreeMap::new();
        let mut base = 0;
        let mut at = Arena::filled(None, p.tensors.len());
        let mut host = Arena::filled(false, p.tensors.len());
        for (t, tensor) in p.tensors.iter() {
            match tensor.kind {
                TensorKind::Transient => {}
                TensorKind::Input | TensorKind::Hosted => host[t] = true,
                TensorKind::Persistent if resident.contains(&t) => {
                    residents.insert(t, Resident::Dev(Some(base)));
                    at[t] = Some(base);
                    base += tensor.bytes;
                }
                TensorKind::Persistent => {
                    residents.insert(t, Resident::Host);
                    host[t] = true;
                }
            }
        }
        let arena = DeviceArena::new(base, knobs.capacity);
        let pins = Arena::filled(0, p.tensors.len());
        let next = p.tensors.values().map(|t| t.touches.first().copied().unwrap_or(NEVER)).collect();
        let recompute_ns = Arena::filled(Cell::new(None), p.tensors.len());
        AddressWalk {
            p,
            knobs,
            residents,
            arena,
            at,
            host,
            pins,
            actions: Vec::new(),
            position: OpPos(0),
            next,
            recompute_ns,
            visitors: Vec::new(),
        }
    }

    fn bytes(&self, t: TensorId) -> u64 {
        self.p.tensors[t].bytes
    }

    fn on_host(&self, t: TensorId) -> bool {
        matches!(self.residents.get(&t), Some(Resident::Dev(_)))
    }

    fn step(&mut self, i: OpPos) -> Result<(), ()> {
        self.position = i;
        let set = self.p.working_set(i);
        if self.bring(i, &set).is_err() {
            // Fragmented: clear everything that may move and bring the working set in side by side.
            let present = |t: &TensorId| self.at[*t].is_some() && !self.on_host(*t);
            let movable: Vec<TensorId> = self.at.ids().filter(present).collect();
            for t in movable {
                self.evict(t, false);
            }
            self.arena.clear();
            self.pins.fill(0);
            self.bring(i, &set)?;
        }
        for &t in &set {
            self.next[t] = self.p.tensors[t].next_touch(i).unwrap_or(NEVER);
        }
        let visitors = std::mem::take(&mut self.visitors);
        for &t in set.iter().chain(&visitors) {
            self.pins[t] = 0;
            if self.at[t].is_none() {
                continue;
            }
            if self.next[t] == NEVER && !self.on_host(t) {
                if self.p.tensors[t].persistent() && !self.host[t] {
                    self.actions.push(Action::Out(t));
                    self.host[t] = true;
                }
                self.drop(t);
            }
        }
        Ok(())
    }

    /// Makes the op's operands present, finds places for its results and workspace, and runs it.
    fn bring(&mut self, i: OpPos, set: &[TensorId]) -> Result<(), ()> {
        let op = &self.p.ops[i];
        for &t in set {
            self.pins[t] += 1;
        }
        // A tensor that appears with its first use needs a place, not a copy.
        let appears = |&t: &TensorId| {
            self.p.tensors[t].kind == TensorKind::Transient && self.p.tensors[t].touches.first() == Some(&i)
        };
        let (new, old): (Vec<TensorId>, Vec<TensorId>) = op.reads.iter().partition(|t| appears(t));
        for t in old {
            self.ensure(t, 0)?;
        }
        let (mut at, mut fresh) = (Vec::new(), Vec::new());
        let writes = new.into_iter().chain(op.writes.iter().copied()).collect();
        let placed = self.places(writes, op.workspace, &mut at, &mut fresh);
        let Ok(workspace) = placed else {
            for t in fresh {
                self.release(t);
            }
            return Err(());
        };
        self.actions.push(Action::Run(Run { op: i, at, workspace: workspace.map(Some), ..Run::default() }));
        if let Some(ws) = workspace {
            self.arena.remove(ws);
        }
        for &t in &op.writes {
            self.host[t] = false;
        }
        Ok(())
    }

    fn places(
        &mut self,
        writes: Vec<TensorId>,
        ws: u64,
        at: &mut Vec<Place>,
        fresh: &mut Vec<TensorId>,
    ) -> Result<Option<u64>, ()> {
        for t in writes {
            if self.at[t].is_none() {
                let offset = self.room(self.bytes(t))?;
                self.occupy(t, offset);
                at.push((t, Some(offset)));
                fresh.push(t);
            }
        }
        if ws == 0 {
            return Ok(None);
        }
        let offset = self.room(ws)?;
        self.arena.insert(offset, ws, Owner::Scratch);
        Ok(Some(offset))
    }

    fn occupy(&mut self, t: TensorId, offset: u64) {
        self.at[t] = Some(offset);
        self.arena.insert(offset, self.bytes(t), Owner::Tensor(t));
    }

    fn release(&mut self, t: TensorId) {
        if let Some(offset) = self.at[t].take() {
            self.arena.remove(offset);
        }
    }

    fn drop(&mut self, t: TensorId) {
        self.actions.push(Action::Drop(t));
        self.release(t);
    }

    /// An offset with room for `bytes`, evicting the cheapest neighbours where there is no hole.
    fn room(&mut self, bytes: u64) -> Result<u64, ()> {
        if let Some(at) = self.arena.hole(bytes) {
            return Ok(at);
        }
        let window = self.arena.cheapest_window(bytes, |t| self.eviction_cost(t)).ok_or(())?;
        for t in window {
            self.evict(t, true);
        }
        self.arena.hole(bytes).ok_or(())
    }

    /// Time to have the tensor back, spread over the time until it is needed; `None` when it must stay.
    fn eviction_cost(&self, t: TensorId) -> Option<f64> {
        if self.pins[t] > 0 || self.on_host(t) {
            return None;
        }
        let tensor = &self.p.tensors[t];
        let next = self.next[t];
        if next == NEVER {
            return Some(0.0);
        }
        let distance = f64::from(next.0.saturating_sub(self.position.0)) + 1.0;
        let back = self.p.device.h2d_ns(tensor.bytes);
        let out = if self.host[t] { 0 } else { self.p.device.d2h_ns(tensor.bytes) };
        let recompute =
            self.recompute_ns(t).map_or(u64::MAX, |ns| (ns as f64 / self.knobs.recompute.max(1e-9)) as u64);
        Some((back + out).min(recompute) as f64 / distance)
    }

    fn evict(&mut self, t: TensorId, may_recompute: bool) {
        let tensor = &self.p.tensors[t];
        let needed = tensor.persistent() || self.next[t] != NEVER;
        if needed && !self.host[t] {
            let copies = self.p.device.d2h_ns(tensor.bytes) + self.p.device.h2d_ns(tensor.bytes);
            let cheaper = |ns: u64| (ns as f64) < copies as f64 * self.knobs.recompute;
            if !(may_recompute && self.recompute_ns(t).is_some_and(cheaper)) {
                self.actions.push(Action::Out(t));
                self.host[t] = true;
            }
        }
        self.drop(t);
    }

    /// The ops that compute a transient tensor's present content, and their time; `None` when they cannot run
    /// again just before the tensor's next use because an operand is gone or changed by then.
    fn recompute_chain(&self, t: TensorId) -> Option<(&'a [OpPos], u64)> {
        let tensor = &self.p.tensors[t];
        let next = self.next[t];
        if self.knobs.recompute <= 0.0 || tensor.kind != TensorKind::Transient || next == NEVER {
            return None;
        }
        // Older contents, from before it was made anew, are of no use.
        let chain = &tensor.writes[..tensor.writes.partition_point(|&w| w < next)];
        let anew = |&w: &OpPos| !self.p.ops[w].reads.contains(&t);
        let chain = &chain[chain.iter().rposition(anew)?..];
        let mut time = 0;
        for &w in chain {
            let op = &self.p.ops[w];
            if !op.repeatable {
                return None;
            }
            time += op.time_ns;
            let fresh = |&r: &TensorId| r == t || (!self.p.tensors[r].persistent() && !op.reads.contains(&r));
            if !op.writes.iter().all(fresh) {
                return None;
            }
            for &o in op.reads.iter().filter(|&&o| o != t) {
                let operand = &self.p.tensors[o];
                // A content written into an input dies with its last use; the one that arrived is in host
                // memory.
                let alive = match operand.kind {
                    TensorKind::Persistent | TensorKind::Hosted => true,
                    TensorKind::Input if operand.writes.first().is_none_or(|&first| first >= next) => true,
                    _ => operand.touches.last().is_some_and(|&l| l >= next),
                };
                if !alive || operand.written_between(w, next) {
                    return None;
                }
            }
        }
        Some((chain, time))
    }

    /// Time of the tensor's [`AddressWalk::recompute_chain`], which depends on nothing but its next touch.
    fn recompute_ns(&self, t: TensorId) -> Option<u64> {
        let next = self.next[t];
        match self.recompute_ns[t].get() {
            Some((at, ns)) if at == next => ns,
            _ => {
                let ns = self.recompute_chain(t).map(|(_, ns)| ns);
                self.recompute_ns[t].set(Some((next, ns)));
                ns
            }
        }
    }

    /// Has the tensor's present content on the device: by a copy, or by computing it again.
    fn ensure(&mut self, t: TensorId, depth: u32) -> Result<(), ()> {
        if self.at[t].is_some() {
            return Ok(());
        }
        if self.host[t] {
            let offset = self.room(self.bytes(t))?;
            self.occupy(t, offset);
            self.actions.push(Action::In((t, Some(offset))));
            return Ok(());
        }
        const DEEPEST: u32 = 6;
        let chain = self.recompute_chain(t).filter(|_| depth < DEEPEST).ok_or(())?.0;
        for (i, &w) in chain.iter().enumerate() {
            if self.recompute(w, t, depth).is_err() {
                // The bytes are not the content; before the first op ran, they are not even allocated.
                if i > 0 && self.at[t].is_some() {
                    self.actions.push(Action::Drop(t));
                }
                self.release(t);
                return Err(());
            }
        }
        Ok(())
    }

    fn recompute(&mut self, w: OpPos, t: TensorId, depth: u32) -> Result<(), ()> {
        let op = &self.p.ops[w];
        let reads: Vec<TensorId> = op.reads.iter().copied().filter(|&o| o != t).collect();
        for &o in reads.iter().chain([&t]) {
            self.pins[o] += 1;
        }
        for &o in &reads {
            self.ensure(o, depth + 1)?;
        }
        self.visitors.extend(&reads);
        let mut at = Vec::new();
        if self.at[t].is_none() {
            let offset = self.room(self.bytes(t))?;
            self.occupy(t, offset);
            at.push((t, Some(offset)));
        }
        let mut scratch = Vec::new();
        let others: Vec<u64> = op.writes.iter().filter(|&&o| o != t).map(|&o| self.bytes(o)).collect();
        let temporary: Vec<u64> =
            others.iter().copied().chain((op.workspace > 0).then_some(op.workspace)).collect();
        for bytes in temporary {
            let offset = self.room(bytes)?;
            self.arena.insert(offset, bytes, Owner::Scratch);
            scratch.push(offset);
        }
        for &offset in &scratch {
            self.arena.remove(offset);
        }
        let workspace = (op.workspace > 0).then(|| scratch.pop());
        let scratch = scratch.into_iter().map(Some).collect();
        self.actions.push(Action::Run(Run { op: w, recompute: true, at, scratch, workspace }));
        for &o in reads.iter().chain([&t]) {
            self.pins[o] = self.pins[o].saturating_sub(1);
        }
        Ok(())
    }
}
