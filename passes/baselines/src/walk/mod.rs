//! A walk through the step in the given order, like a memory manager at run time: an op that does not fit
//! evicts by a policy's score, and missing operands come back by a copy or by recomputation.
//!
//! The walk counts bytes, not addresses; offsets are chosen later. It records every choice as an action, so
//! it ends as decisions. It refuses wrong choices of a policy: a content that is neither on the host nor
//! computable at its next use never leaves the device.

mod bring;
mod facts;
mod hoist;

use std::collections::{BTreeMap, BTreeSet};

use memc_ir::Arena;
use memc_planner::{Action, Decisions, NoPlan, OpPos, Problem, Request, Resident, TensorId, TensorKind};

pub(crate) use facts::{Facts, NEVER, content, writer};
pub(crate) use hoist::{hoist, put_off, usage};

/// The two ways to leave the device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Eviction {
    /// Copied to the host, unless a copy is there.
    Swap,
    /// Dropped; recomputed when it is needed.
    Recompute,
}

/// Decisions of a method during the walk.
pub(crate) trait Policy {
    /// Rank of a tensor among those that may leave; the least leaves first, `None` stays.
    fn score(&mut self, _: &EvictionWalk<'_>, _: TensorId) -> Option<f64> {
        None
    }
    /// The way to leave, where both are possible.
    fn eviction(&mut self, _: &EvictionWalk<'_>, _: TensorId) -> Eviction {
        Eviction::Swap
    }
    /// True if a tensor that is on the host is recomputed all the same.
    fn ignores_host_copies(&self) -> bool {
        false
    }
    /// Bytes above which tensors leave before the present op although it fits.
    fn goal(&self, w: &EvictionWalk<'_>) -> u64 {
        w.capacity
    }
    /// Tensors to copy to the device before the present op, as long as there is room.
    fn prefetch(&mut self, _: &EvictionWalk<'_>) -> Vec<TensorId> {
        Vec::new()
    }
    /// Tensors to compute again together with one, in order; the tensor is among them, or the list is empty.
    fn together(&self, _: TensorId) -> &[TensorId] {
        &[]
    }
    /// Tensors that leave after the present op, whether or not there is room.
    fn leave(&mut self, _: &EvictionWalk<'_>) -> Vec<(TensorId, Eviction)> {
        Vec::new()
    }
    /// True if a tensor that was recomputed for another's sake stays until it is evicted.
    fn keeps_visitors(&self) -> bool {
        false
    }
    /// A tensor has left.
    fn left(&mut self, _: &EvictionWalk<'_>, _: TensorId, _: Eviction) {}
    /// A tensor has come back.
    fn came(&mut self, _: &EvictionWalk<'_>, _: TensorId) {}
}

/// Reason for a walk's early end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stuck {
    /// No room for the op, though all that may leave has left.
    NoRoom(OpPos),
    /// Ops are recomputed over and over.
    Thrash(OpPos),
    /// A content is gone for good: the walk contradicted itself.
    Lost(OpPos),
}

impl Stuck {
    /// As an answer to the request.
    pub(crate) fn explain(self, p: &Problem, method: &str) -> NoPlan {
        let label = |i: OpPos| p.ops.get(i).map_or("the step's end", |op| op.label.as_str());
        match self {
            Stuck::NoRoom(i) => NoPlan::Infeasible(format!(
                "{method} cannot make room for op {} ({}): all that it may evict has left",
                i.0,
                label(i)
            )),
            Stuck::Thrash(i) => NoPlan::Infeasible(format!(
                "{method} thrashes: before op {} ({}) more than {MOST_RECOMPUTATIONS} runs per op \
                 were recomputations",
                i.0,
                label(i)
            )),
            Stuck::Lost(i) => {
                NoPlan::Failed(format!("{method} lost an operand of op {} ({})", i.0, label(i)))
            }
        }
    }
}

/// Recomputations per op of the problem after which a walk gives up.
const MOST_RECOMPUTATIONS: usize = 8;

/// The state of a walk.
#[derive(Clone, Debug)]
pub(crate) struct EvictionWalk<'a> {
    pub(crate) p: &'a Problem,
    pub(crate) facts: &'a Facts,
    /// Bytes of the device arena.
    pub(crate) capacity: u64,
    /// Bytes on the device.
    pub(crate) used: u64,
    /// By tensor: true if it is on the device.
    pub(crate) here: Arena<TensorId, bool>,
    /// Those that are.
    present: BTreeSet<TensorId>,
    /// Its content there: how many writes it has seen.
    pub(crate) seen: Arena<TensorId, usize>,
    /// Its content in host memory.
    pub(crate) host: Arena<TensorId, Option<usize>>,
    /// First position from the present one on that touches it.
    pub(crate) next: Arena<TensorId, OpPos>,
    /// Compute time at its last touch in ns.
    pub(crate) last: Arena<TensorId, u64>,
    /// Compute time so far in ns.
    pub(crate) clock: u64,
    /// The present op.
    pub(crate) position: OpPos,
    /// By tensor: number of running ops that need it.
    pins: Arena<TensorId, u32>,
    swap: bool,
    recompute: bool,
    recomputations: usize,
    /// Tensors brought in for a recomputation of the present op's operands.
    visitors: Vec<TensorId>,
    residents: BTreeMap<TensorId, Resident>,
    actions: Vec<Action>,
}

impl<'a> EvictionWalk<'a> {
    /// Persistent tensors that `resident` accepts start the step on the device, all others in host memory.
    pub(crate) fn new(
        p: &'a Problem,
        facts: &'a Facts,
        request: &Request<'_>,
        resident: impl Fn(TensorId) -> bool,
    ) -> EvictionWalk<'a> {
        let n = p.tensors.len();
        let mut w = EvictionWalk {
            p,
            facts,
            capacity: request.capacity,
            used: 0,
            here: Arena::filled(false, n),
            present: BTreeSet::new(),
            seen: Arena::filled(0, n),
            host: Arena::filled(None, n),
            next: p.tensors.values().map(|t| t.touches.first().copied().unwrap_or(NEVER)).collect(),
            last: Arena::filled(0, n),
            clock: 0,
            position: OpPos(0),
            pins: Arena::filled(0, n),
            swap: request.allow.on(&p.device).swap,
            recompute: request.allow.recompute,
            recomputations: 0,
            visitors: Vec::new(),
            residents: BTreeMap::new(),
            actions: Vec::new(),
        };
        for (t, tensor) in p.tensors.iter() {
            match tensor.kind {
                TensorKind::Transient => {}
                TensorKind::Input | TensorKind::Hosted => w.host[t] = Some(0),
                TensorKind::Persistent if resident(t) && !tensor.touches.is_empty() => {
                    w.residents.insert(t, Resident::Dev(None));
                    (w.here[t], w.used) = (true, w.used + tensor.bytes);
                    w.present.insert(t);
                }
                TensorKind::Persistent => {
                    w.residents.insert(t, Resident::Host);
                    w.host[t] = Some(0);
                }
            }
        }
        w
    }

    /// Walks through the step.
    pub(crate) fn run(
        mut self,
        policy: &mut dyn Policy,
    ) -> Result<(Decisions, Arena<TensorId, bool>), Stuck> {
        for i in self.p.ops.ids() {
            self.position = i;
            self.step(policy)?;
        }
        self.position = self.p.ops.next_id();
        let resident = self.p.tensors.ids().map(|t| self.here[t] && self.p.tensors[t].persistent());
        let resident = resident.collect();
        self.go_home(policy)?;
        Ok((Decisions { residents: self.residents, actions: self.actions, ..Decisions::default() }, resident))
    }

    pub(crate) fn bytes(&self, t: TensorId) -> u64 {
        self.p.tensors[t].bytes
    }

    /// True if the content on the device is read again, in this step or the next.
    pub(crate) fn needed(&self, t: TensorId) -> bool {
        match self.next[t] {
            NEVER => self.p.tensors[t].persistent(),
            next => self.p.ops[next].reads.contains(&t),
        }
    }

    /// True if the content on the device can be recomputed for its next touch.
    pub(crate) fn can_recompute(&self, t: TensorId) -> bool {
        let transient = self.p.tensors[t].kind == TensorKind::Transient;
        self.recompute && transient && self.facts.recomputable(t, self.seen[t], self.next[t])
    }

    /// True if the tensor can be copied to the host, or is there.
    pub(crate) fn can_swap(&self, t: TensorId) -> bool {
        self.swap || self.host[t] == Some(self.seen[t])
    }

    /// True if the tensor can leave now.
    pub(crate) fn movable(&self, t: TensorId) -> bool {
        self.here[t] && self.pins[t] == 0 && (!self.needed(t) || self.can_swap(t) || self.can_recompute(t))
    }

    fn step(&mut self, policy: &mut dyn Policy) -> Result<(), Stuck> {
        let i = self.position;
        for t in policy.prefetch(self) {
            if !self.here[t] && self.used + self.bytes(t) <= self.capacity {
                self.copy_in(t, policy);
            }
        }
        let set = self.p.working_set(i);
        self.bring(i, policy)?;
        for &t in &set {
            self.next[t] = self.p.tensors[t].next_touch(i).unwrap_or(NEVER);
        }
        let mut visitors = std::mem::take(&mut self.visitors);
        visitors.retain(|_| !policy.keeps_visitors());
        for &t in set.iter().chain(&visitors) {
            if self.here[t] && !self.p.tensors[t].persistent() && !self.needed(t) {
                self.drop(t);
            }
        }
        for (t, eviction) in policy.leave(self) {
            if self.movable(t) {
                self.evict(t, eviction, policy);
            }
        }
        Ok(())
    }

    /// Makes room for `bytes` beside what is there, down to the policy's goal where that can be.
    fn room(&mut self, bytes: u64, policy: &mut dyn Policy) -> Result<(), Stuck> {
        loop {
            let after = self.used.saturating_add(bytes);
            if after <= policy.goal(self).min(self.capacity) {
                return Ok(());
            }
            let mut best: Option<(f64, TensorId)> = None;
            for t in self.present.iter().copied().filter(|&t| self.movable(t)) {
                if let Some(score) = policy.score(self, t)
                    && best.is_none_or(|b| score < b.0)
                {
                    best = Some((score, t));
                }
            }
            match best {
                Some((_, t)) => {
                    let eviction = policy.eviction(self, t);
                    self.evict(t, eviction, policy);
                }
                None if after <= self.capacity => return Ok(()),
                None => return Err(Stuck::NoRoom(self.position)),
            }
        }
    }

    fn evict(&mut self, t: TensorId, eviction: Eviction, policy: &mut dyn Policy) {
        let eviction = match eviction {
            Eviction::Recompute if !self.can_recompute(t) => Eviction::Swap,
            Eviction::Swap if !self.can_swap(t) => Eviction::Recompute,
            eviction => eviction,
        };
        if self.needed(t) && eviction == Eviction::Swap && self.host[t] != Some(self.seen[t]) {
            self.actions.push(Action::Out(t));
            self.host[t] = Some(self.seen[t]);
        }
        self.drop(t);
        policy.left(self, t, eviction);
    }

    fn drop(&mut self, t: TensorId) {
        self.actions.push(Action::Drop(t));
        self.here[t] = false;
        self.present.remove(&t);
        self.used -= self.bytes(t);
    }

    fn occupy(&mut self, t: TensorId, seen: usize) {
        self.here[t] = true;
        self.present.insert(t);
        self.seen[t] = seen;
        self.used += self.bytes(t);
        self.last[t] = self.clock;
    }

    fn copy_in(&mut self, t: TensorId, policy: &mut dyn Policy) {
        if let Some(seen) = self.host[t] {
            self.actions.push(Action::In((t, None)));
            self.occupy(t, seen);
            policy.came(self, t);
        }
    }

    /// Has every persistent tensor where the step began with it.
    fn go_home(&mut self, policy: &mut dyn Policy) -> Result<(), Stuck> {
        let tensors = self.p.tensors.ids();
        for t in tensors.clone().filter(|&t| self.here[t]).collect::<Vec<_>>() {
            if !matches!(self.residents.get(&t), Some(Resident::Dev(_))) {
                self.evict(t, Eviction::Swap, policy);
            }
        }
        for t in tensors {
            if matches!(self.residents.get(&t), Some(Resident::Dev(_))) && !self.here[t] {
                self.copy_in(t, policy);
            }
        }
        Ok(())
    }
}
