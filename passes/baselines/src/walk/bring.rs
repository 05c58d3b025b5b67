//! Brings an op's operands to the device and runs it. Missing operands are copied or recomputed, however long
//! the chain.

use memc_planner::{Action, Kind, Run};

use super::facts::content;
use super::{EvictionWalk, MOST_RECOMPUTATIONS, Policy, Stuck, writer};

/// A recomputation that waits for its operands.
struct Frame {
    op: u32,
    /// Number of the op's operands that are on the device and pinned.
    ready: usize,
    /// The tensor that it is run for.
    wanted: u32,
}

impl EvictionWalk<'_> {
    /// Makes the present op's operands present, makes room for its results and workspace, and runs it.
    pub(super) fn bring(&mut self, i: u32, policy: &mut dyn Policy) -> Result<(), Stuck> {
        let op = &self.p.ops[i as usize];
        let set = self.p.working_set(i as usize);
        for &t in &set {
            self.pins[t as usize] += 1;
        }
        for &t in &op.reads {
            let first = self.p.tensors[t as usize].touches.first() == Some(&i);
            if first && self.p.tensors[t as usize].kind == Kind::Transient {
                // Appears here, at no cost.
                continue;
            }
            self.fetch(t, content(self.p, t, i), i, policy)?;
        }
        let touched: Vec<u32> = op.reads.iter().chain(&op.writes).copied().collect();
        let mut at = Vec::new();
        for t in touched {
            if !self.here[t as usize] {
                self.room(self.bytes(t), policy)?;
                self.occupy(t, 0);
                at.push((t, None));
            }
        }
        self.room(op.workspace, policy)?;
        let workspace = (op.workspace > 0).then_some(None);
        self.actions.push(Action::Run(Run { op: i, at, workspace, ..Run::default() }));
        self.clock += op.time_ns;
        for &t in &op.writes {
            self.seen[t as usize] = content(self.p, t, i) + 1;
        }
        for &t in &set {
            self.pins[t as usize] -= 1;
            self.last[t as usize] = self.clock;
        }
        Ok(())
    }

    /// Has a content on the device.
    fn fetch(&mut self, t: u32, seen: u32, until: u32, policy: &mut dyn Policy) -> Result<(), Stuck> {
        let group: Vec<u32> = policy.together(t).to_vec();
        if !self.here[t as usize] && self.host[t as usize] != Some(seen) {
            for &g in group.iter().filter(|&&g| g != t) {
                let next = self.next[g as usize];
                let want = content(self.p, g, next);
                let there = self.here[g as usize] || self.host[g as usize] == Some(want);
                if next < super::NEVER && !there && self.p.ops[next as usize].reads.contains(&g) {
                    self.fetch_one(g, want, until, policy)?;
                }
            }
        }
        self.fetch_one(t, seen, until, policy)
    }

    fn fetch_one(&mut self, t: u32, seen: u32, until: u32, policy: &mut dyn Policy) -> Result<(), Stuck> {
        let mut stack: Vec<Frame> = Vec::new();
        let mut want = Some((t, seen));
        loop {
            if let Some((t, seen)) = want.take() {
                stack.extend(self.present(t, seen, until, policy)?);
            }
            let Some(frame) = stack.last_mut() else { return Ok(()) };
            let op = &self.p.ops[frame.op as usize];
            if let Some(&operand) = op.reads.get(frame.ready) {
                let seen = content(self.p, operand, frame.op);
                if self.here[operand as usize] && self.seen[operand as usize] == seen {
                    self.pins[operand as usize] += 1;
                    frame.ready += 1;
                } else {
                    self.visitors.push(operand);
                    want = Some((operand, seen));
                }
                continue;
            }
            let (op, wanted) = (frame.op, frame.wanted);
            self.recompute(op, wanted, policy)?;
            stack.pop();
        }
    }

    /// Copies a tensor in, or says what has to run for it; nothing when it is there.
    fn present(
        &mut self,
        t: u32,
        seen: u32,
        until: u32,
        policy: &mut dyn Policy,
    ) -> Result<Option<Frame>, Stuck> {
        let i = t as usize;
        if self.here[i] {
            return if self.seen[i] == seen { Ok(None) } else { Err(Stuck::Lost(until)) };
        }
        let recomputable = self.recompute && self.facts.recomputable(t, seen, until);
        if self.host[i] == Some(seen) && !(recomputable && policy.ignores_host_copies()) {
            self.pins[i] += 1;
            let room = self.room(self.bytes(t), policy);
            self.pins[i] -= 1;
            room?;
            self.copy_in(t, policy);
            return Ok(None);
        }
        match writer(self.p, t, seen).filter(|_| recomputable) {
            Some(op) => Ok(Some(Frame { op, ready: 0, wanted: t })),
            None => Err(Stuck::Lost(until)),
        }
    }

    /// Runs an op again whose operands are there and pinned: for one tensor, and for what else of its results
    /// is gone and needed.
    fn recompute(&mut self, w: u32, wanted: u32, policy: &mut dyn Policy) -> Result<(), Stuck> {
        let op = &self.p.ops[w as usize];
        self.recomputations += 1;
        if self.recomputations > MOST_RECOMPUTATIONS * self.p.ops.len() {
            return Err(Stuck::Thrash(self.position));
        }
        let (mut at, mut scratch, mut temporary) = (Vec::new(), Vec::new(), op.workspace);
        for &t in &op.writes {
            if t == wanted || self.wants_back(t, w) {
                at.push((t, None));
            } else {
                scratch.push(None);
                temporary += self.bytes(t);
            }
        }
        for &(t, _) in &at {
            self.pins[t as usize] += 1;
            self.room(self.bytes(t), policy)?;
            self.occupy(t, content(self.p, t, w) + 1);
        }
        self.room(temporary, policy)?;
        let workspace = (op.workspace > 0).then_some(None);
        let back: Vec<u32> = at.iter().map(|a| a.0).collect();
        self.actions.push(Action::Run(Run { op: w, again: true, at, scratch, workspace }));
        self.clock += op.time_ns;
        for &t in op.reads.iter().chain(&back) {
            self.pins[t as usize] -= 1;
            self.last[t as usize] = self.clock;
        }
        for t in back {
            policy.came(self, t);
        }
        Ok(())
    }

    /// True if an op's run makes the content that the tensor's next touch reads, and that content is nowhere
    /// yet.
    fn wants_back(&self, t: u32, w: u32) -> bool {
        let next = self.next[t as usize];
        self.p.tensors[t as usize].kind == Kind::Transient
            && !self.here[t as usize]
            && self.host[t as usize] != Some(content(self.p, t, next))
            && next < super::NEVER
            && self.p.ops[next as usize].reads.contains(&t)
            && content(self.p, t, next) == content(self.p, t, w) + 1
    }
}
