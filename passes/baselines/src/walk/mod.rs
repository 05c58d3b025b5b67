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

use memc_planner::{Action, Decisions, Home, Kind, NoPlan, Problem, Request};

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
    fn score(&mut self, _: &EvictionWalk<'_>, _: u32) -> Option<f64> {
        None
    }
    /// The way to leave, where both are possible.
    fn eviction(&mut self, _: &EvictionWalk<'_>, _: u32) -> Eviction {
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
    fn prefetch(&mut self, _: &EvictionWalk<'_>) -> Vec<u32> {
        Vec::new()
    }
    /// Tensors to compute again together with one, in order; the tensor is among them, or the list is empty.
    fn together(&self, _: u32) -> &[u32] {
        &[]
    }
    /// Tensors that leave after the present op, whether or not there is room.
    fn leave(&mut self, _: &EvictionWalk<'_>) -> Vec<(u32, Eviction)> {
        Vec::new()
    }
    /// True if a tensor that was recomputed for another's sake stays until it is evicted.
    fn keeps_visitors(&self) -> bool {
        false
    }
    /// A tensor has left.
    fn left(&mut self, _: &EvictionWalk<'_>, _: u32, _: Eviction) {}
    /// A tensor has come back.
    fn came(&mut self, _: &EvictionWalk<'_>, _: u32) {}
}

/// Reason for a walk's early end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stuck {
    /// No room for the op, though all that may leave has left.
    NoRoom(u32),
    /// Ops run again over and over.
    Thrash(u32),
    /// A content is gone for good: the walk contradicted itself.
    Lost(u32),
}

impl Stuck {
    /// As an answer to the request.
    pub(crate) fn explain(self, p: &Problem, method: &str) -> NoPlan {
        let label = |i: u32| p.ops.get(i as usize).map_or("the step's end", |op| op.label.as_str());
        match self {
            Stuck::NoRoom(i) => NoPlan::Infeasible(format!(
                "{method} cannot make room for op {i} ({}): all that it may evict has left",
                label(i)
            )),
            Stuck::Thrash(i) => NoPlan::Infeasible(format!(
                "{method} thrashes: before op {i} ({}) more than {MOST_RECOMPUTATIONS} runs per op were recomputations",
                label(i)
            )),
            Stuck::Lost(i) => NoPlan::Failed(format!("{method} lost an operand of op {i} ({})", label(i))),
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
    pub(crate) here: Vec<bool>,
    /// Those that are.
    present: BTreeSet<u32>,
    /// Its content there: how many writes it has seen.
    pub(crate) seen: Vec<u32>,
    /// Its content in host memory.
    pub(crate) host: Vec<Option<u32>>,
    /// First position from the present one on that touches it.
    pub(crate) next: Vec<u32>,
    /// Compute time at its last touch in ns.
    pub(crate) last: Vec<u64>,
    /// Compute time so far in ns.
    pub(crate) clock: u64,
    /// The present op.
    pub(crate) position: u32,
    /// By tensor: number of running ops that need it.
    pins: Vec<u32>,
    swap: bool,
    recompute: bool,
    recomputations: usize,
    /// Tensors brought in for a recomputation of the present op's operands.
    visitors: Vec<u32>,
    homes: BTreeMap<u32, Home>,
    actions: Vec<Action>,
}

impl<'a> EvictionWalk<'a> {
    /// Persistent tensors that `resident` accepts start the step on the device, all others in host memory.
    pub(crate) fn new(
        p: &'a Problem,
        facts: &'a Facts,
        request: &Request<'_>,
        resident: impl Fn(u32) -> bool,
    ) -> EvictionWalk<'a> {
        let n = p.tensors.len();
        let mut w = EvictionWalk {
            p,
            facts,
            capacity: request.capacity,
            used: 0,
            here: vec![false; n],
            present: BTreeSet::new(),
            seen: vec![0; n],
            host: vec![None; n],
            next: p.tensors.iter().map(|t| t.touches.first().copied().unwrap_or(NEVER)).collect(),
            last: vec![0; n],
            clock: 0,
            position: 0,
            pins: vec![0; n],
            swap: request.allow.on(&p.device).swap,
            recompute: request.allow.recompute,
            recomputations: 0,
            visitors: Vec::new(),
            homes: BTreeMap::new(),
            actions: Vec::new(),
        };
        for (t, tensor) in p.tensors.iter().enumerate() {
            match tensor.kind {
                Kind::Transient => {}
                Kind::Input => w.host[t] = Some(0),
                Kind::Persistent if resident(t as u32) && !tensor.touches.is_empty() => {
                    w.homes.insert(t as u32, Home::Dev(None));
                    (w.here[t], w.used) = (true, w.used + tensor.bytes);
                    w.present.insert(t as u32);
                }
                Kind::Persistent => {
                    w.homes.insert(t as u32, Home::Host);
                    w.host[t] = Some(0);
                }
            }
        }
        w
    }

    /// Walks through the step.
    pub(crate) fn run(mut self, policy: &mut dyn Policy) -> Result<(Decisions, Vec<bool>), Stuck> {
        for i in 0..self.p.ops.len() as u32 {
            self.position = i;
            self.step(policy)?;
        }
        self.position = self.p.ops.len() as u32;
        let resident = (0..self.p.tensors.len()).map(|t| self.here[t] && self.p.tensors[t].persistent());
        let resident = resident.collect();
        self.go_home(policy)?;
        Ok((Decisions { homes: self.homes, actions: self.actions, ..Decisions::default() }, resident))
    }

    pub(crate) fn bytes(&self, t: u32) -> u64 {
        self.p.tensors[t as usize].bytes
    }

    /// True if the content on the device is read again, in this step or the next.
    pub(crate) fn needed(&self, t: u32) -> bool {
        match self.next[t as usize] {
            NEVER => self.p.tensors[t as usize].persistent(),
            next => self.p.ops[next as usize].reads.contains(&t),
        }
    }

    /// True if the content on the device can be recomputed for its next touch.
    pub(crate) fn can_recompute(&self, t: u32) -> bool {
        let transient = self.p.tensors[t as usize].kind == Kind::Transient;
        self.recompute
            && transient
            && self.facts.recomputable(t, self.seen[t as usize], self.next[t as usize])
    }

    /// True if the tensor can be copied to the host, or is there.
    pub(crate) fn can_swap(&self, t: u32) -> bool {
        self.swap || self.host[t as usize] == Some(self.seen[t as usize])
    }

    /// True if the tensor can leave now.
    pub(crate) fn movable(&self, t: u32) -> bool {
        let i = t as usize;
        self.here[i] && self.pins[i] == 0 && (!self.needed(t) || self.can_swap(t) || self.can_recompute(t))
    }

    fn step(&mut self, policy: &mut dyn Policy) -> Result<(), Stuck> {
        let i = self.position;
        for t in policy.prefetch(self) {
            let k = t as usize;
            if !self.here[k] && self.used + self.bytes(t) <= self.capacity {
                self.copy_in(t, policy);
            }
        }
        let set = self.p.working_set(i as usize);
        self.bring(i, policy)?;
        for &t in &set {
            self.next[t as usize] = self.p.tensors[t as usize].next_touch(i).unwrap_or(NEVER);
        }
        let mut visitors = std::mem::take(&mut self.visitors);
        visitors.retain(|_| !policy.keeps_visitors());
        for &t in set.iter().chain(&visitors) {
            if self.here[t as usize] && !self.p.tensors[t as usize].persistent() && !self.needed(t) {
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
            let mut best: Option<(f64, u32)> = None;
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

    fn evict(&mut self, t: u32, eviction: Eviction, policy: &mut dyn Policy) {
        let i = t as usize;
        let eviction = match eviction {
            Eviction::Recompute if !self.can_recompute(t) => Eviction::Swap,
            Eviction::Swap if !self.can_swap(t) => Eviction::Recompute,
            eviction => eviction,
        };
        if self.needed(t) && eviction == Eviction::Swap && self.host[i] != Some(self.seen[i]) {
            self.actions.push(Action::Out(t));
            self.host[i] = Some(self.seen[i]);
        }
        self.drop(t);
        policy.left(self, t, eviction);
    }

    fn drop(&mut self, t: u32) {
        self.actions.push(Action::Drop(t));
        self.here[t as usize] = false;
        self.present.remove(&t);
        self.used -= self.bytes(t);
    }

    fn occupy(&mut self, t: u32, seen: u32) {
        self.here[t as usize] = true;
        self.present.insert(t);
        self.seen[t as usize] = seen;
        self.used += self.bytes(t);
        self.last[t as usize] = self.clock;
    }

    fn copy_in(&mut self, t: u32, policy: &mut dyn Policy) {
        if let Some(seen) = self.host[t as usize] {
            self.actions.push(Action::In((t, None)));
            self.occupy(t, seen);
            policy.came(self, t);
        }
    }

    /// Has every persistent tensor where the step began with it.
    fn go_home(&mut self, policy: &mut dyn Policy) -> Result<(), Stuck> {
        let tensors = 0..self.p.tensors.len() as u32;
        for t in tensors.clone().filter(|&t| self.here[t as usize]).collect::<Vec<_>>() {
            if !matches!(self.homes.get(&t), Some(Home::Dev(_))) {
                self.evict(t, Eviction::Swap, policy);
            }
        }
        for t in tensors {
            if matches!(self.homes.get(&t), Some(Home::Dev(_))) && !self.here[t as usize] {
                self.copy_in(t, policy);
            }
        }
        Ok(())
    }
}
