//! Brings an op's operands to the device and runs it. Missing operands are copied or recomputed, however long
//! the chain.

use memc_planner::{Action, OpPos, Run, TensorId, TensorKind};

use super::facts::content;
use super::{EvictionWalk, MOST_RECOMPUTATIONS, Policy, Stuck, writer};

/// A recomputation that waits for its operands.
struct Frame {
    op: OpPos,
    /// Number of the op's operands that are on the device and pinned.
    ready: usize,
    /// The tensor that it is run for.
    wanted: TensorId,
}

impl EvictionWalk<'_> {
    /// Makes the present op's operands present, makes room for its results and workspace, and runs it.
    pub(super) fn bring(&mut self, i: OpPos, policy: &mut dyn Policy) -> Result<(), Stuck> {
        let op = &self.p.ops[i];
        let set = self.p.working_set(i);
        for &t in &set {
            self.pins[t] += 1;
        }
        for &t in &op.reads {
            let first = self.p.tensors[t].touches.first() == Some(&i);
            if first && self.p.tensors[t].kind == TensorKind::Transient {
                // Appears here, at no cost.
                continue;
            }
            self.fetch(t, content(self.p, t, i), i, policy)?;
        }
        let touched: Vec<TensorId> = op.reads.iter().chain(&op.writes).copied().collect();
        let mut at = Vec::new();
        for t in touched {
            if !self.here[t] {
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
            self.seen[t] = content(self.p, t, i) + 1;
        }
        for &t in &set {
            self.pins[t] -= 1;
            self.last[t] = self.clock;
        }
        Ok(())
    }

    /// Has a content on the device.
    fn fetch(
        &mut self,
        t: TensorId,
        seen: usize,
        until: OpPos,
        policy: &mut dyn Policy,
    ) -> Result<(), Stuck> {
        let group: Vec<TensorId> = policy.together(t).to_vec();
        if !self.here[t] && self.host[t] != Some(seen) {
            for &g in group.iter().filter(|&&g| g != t) {
                let next = self.next[g];
                let want = content(self.p, g, next);
                let there = self.here[g] || self.host[g] == Some(want);
                if next < super::NEVER && !there && self.p.ops[next].reads.contains(&g) {
                    self.fetch_one(g, want, until, policy)?;
                }
            }
        }
        self.fetch_one(t, seen, until, policy)
    }

    fn fetch_one(
        &mut self,
        t: TensorId,
        seen: usize,
        until: OpPos,
        policy: &mut dyn Policy,
    ) -> Result<(), Stuck> {
        let mut stack: Vec<Frame> = Vec::new();
        let mut want = Some((t, seen));
        loop {
            if let Some((t, seen)) = want.take() {
                stack.extend(self.present(t, seen, until, policy)?);
            }
            let Some(frame) = stack.last_mut() else { return Ok(()) };
            let op = &self.p.ops[frame.op];
            if let Some(&operand) = op.reads.get(frame.ready) {
                let seen = content(self.p, operand, frame.op);
                if self.here[operand] && self.seen[operand] == seen {
                    self.pins[operand] += 1;
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
        t: TensorId,
        seen: usize,
        until: OpPos,
        policy: &mut dyn Policy,
    ) -> Result<Option<Frame>, Stuck> {
        if self.here[t] {
            return if self.seen[t] == seen { Ok(None) } else { Err(Stuck::Lost(until)) };
        }
        let recomputable = self.recompute && self.facts.recomputable(t, seen, until);
        if self.host[t] == Some(seen) && !(recomputable && policy.ignores_host_copies()) {
            self.pins[t] += 1;
            let room = self.room(self.bytes(t), policy);
            self.pins[t] -= 1;
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
    fn recompute(&mut self, w: OpPos, wanted: TensorId, policy: &mut dyn Policy) -> Result<(), Stuck> {
        let op = &self.p.ops[w];
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
            self.pins[t] += 1;
            self.room(self.bytes(t), policy)?;
            self.occupy(t, content(self.p, t, w) + 1);
        }
        self.room(temporary, policy)?;
        let workspace = (op.workspace > 0).then_some(None);
        let back: Vec<TensorId> = at.iter().map(|a| a.0).collect();
        self.actions.push(Action::Run(Run { op: w, recompute: true, at, scratch, workspace }));
        self.clock += op.time_ns;
        for &t in op.reads.iter().chain(&back) {
            self.pins[t] -= 1;
            self.last[t] = self.clock;
        }
        for t in back {
            policy.came(self, t);
        }
        Ok(())
    }

    /// True if an op's run makes the content that the tensor's next touch reads, and that content is nowhere
    /// yet.
    fn wants_back(&self, t: TensorId, w: OpPos) -> bool {
        let next = self.next[t];
        self.p.tensors[t].kind == TensorKind::Transient
            && !self.here[t]
            && self.host[t] != Some(content(self.p, t, next))
            && next < super::NEVER
            && self.p.ops[next].reads.contains(&t)
            && content(self.p, t, next) == content(self.p, t, w) + 1
    }
}
