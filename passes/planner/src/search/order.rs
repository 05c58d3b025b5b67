//! Other orders of the ops: one to start from that frees bytes early, and moves of single ops.

use std::collections::BTreeSet;

use memc_ir::Arena;

use crate::ids::{OpPos, StepPos, TensorId};
use crate::problem::{Problem, TensorKind};

/// Precedence, by op.
#[derive(Clone, Debug, Default)]
pub(crate) struct Precedence {
    before: Arena<OpPos, Vec<OpPos>>,
    after: Arena<OpPos, Vec<OpPos>>,
}

impl Precedence {
    pub(crate) fn new(p: &Problem) -> Precedence {
        let before = p.predecessors();
        let mut after = Arena::filled(Vec::new(), p.ops.len());
        for (op, list) in before.iter() {
            for &b in list {
                after[b].push(op);
            }
        }
        Precedence { before, after }
    }

    /// The steps between which an op may run, half-open: after the last that must precede it, before the
    /// first that it precedes; `ran` is the step of every op's first run.
    pub(crate) fn window(&self, op: OpPos, ran: &Arena<OpPos, StepPos>, end: StepPos) -> (StepPos, StepPos) {
        let from = self.before[op].iter().map(|&b| ran[b].next()).max();
        let to = self.after[op].iter().map(|&a| ran[a]).min();
        (from.unwrap_or_default(), to.unwrap_or(end))
    }

    /// The problem's order, but ops that change persistent tensors run as soon as they may: an optimizer's
    /// updates follow their gradients.
    pub(crate) fn eager(&self, p: &Problem) -> Vec<OpPos> {
        let updates = |op: OpPos| p.ops[op].writes.iter().any(|&t| p.tensors[t].persistent());
        let mut waits: Arena<OpPos, usize> = self.before.values().map(Vec::len).collect();
        let mut out = Vec::with_capacity(p.ops.len());
        // Updates that may run, the last on top.
        let mut ready: Vec<OpPos> = p.ops.ids().rev().filter(|&op| waits[op] == 0 && updates(op)).collect();
        let mut run = |op: OpPos, ready: &mut Vec<OpPos>, out: &mut Vec<OpPos>| {
            out.push(op);
            for &a in self.after[op].iter().rev() {
                waits[a] -= 1;
                if waits[a] == 0 && updates(a) {
                    ready.push(a);
                }
            }
        };
        for op in p.ops.ids() {
            while let Some(update) = ready.pop() {
                run(update, &mut ready, &mut out);
            }
            if !updates(op) {
                run(op, &mut ready, &mut out);
            }
        }
        while let Some(update) = ready.pop() {
            run(update, &mut ready, &mut out);
        }
        out
    }

    /// An order in which, of the ops that may run, always that one is next which adds the fewest bytes; the
    /// earliest of several.
    pub(crate) fn sinking(&self, p: &Problem) -> Vec<OpPos> {
        let mut waits: Arena<OpPos, usize> = self.before.values().map(Vec::len).collect();
        let mut touches: Arena<TensorId, usize> = p.tensors.values().map(|t| t.touches.len()).collect();
        let mut live = Arena::filled(false, p.tensors.len());
        let mut out = Vec::with_capacity(p.ops.len());
        let added = |i: OpPos, touches: &Arena<TensorId, usize>, live: &Arena<TensorId, bool>| -> i128 {
            let op = &p.ops[i];
            let tensors = op.reads.iter().chain(op.writes.iter().filter(|t| !op.reads.contains(t)));
            let change = |&t: &TensorId| {
                let tensor = &p.tensors[t];
                match tensor.kind {
                    TensorKind::Persistent => 0,
                    _ => {
                        let appears = if live[t] { 0 } else { i128::from(tensor.bytes) };
                        appears - if touches[t] == 1 { i128::from(tensor.bytes) } else { 0 }
                    }
                }
            };
            tensors.map(change).sum()
        };
        // Those that may run, and the bytes that they add.
        let mut ready: BTreeSet<(i128, OpPos)> = BTreeSet::new();
        let mut key: Arena<OpPos, Option<i128>> = Arena::filled(None, p.ops.len());
        let mut update = |i: OpPos, ready: &mut BTreeSet<(i128, OpPos)>, new: Option<i128>| {
            if let Some(old) = std::mem::replace(&mut key[i], new) {
                ready.remove(&(old, i));
            }
            ready.extend(new.map(|new| (new, i)));
        };
        for i in p.ops.ids().filter(|&i| waits[i] == 0) {
            update(i, &mut ready, Some(added(i, &touches, &live)));
        }
        while let Some(&(_, next)) = ready.first() {
            update(next, &mut ready, None);
            waits[next] = usize::MAX;
            out.push(next);
            let op = &p.ops[next];
            let tensors = op.reads.iter().chain(op.writes.iter().filter(|t| !op.reads.contains(t)));
            let mut changed = Vec::new();
            for &t in tensors {
                touches[t] -= 1;
                if !std::mem::replace(&mut live[t], true) || touches[t] == 1 {
                    changed.push(t);
                }
            }
            for &a in &self.after[next] {
                waits[a] -= 1;
                if waits[a] == 0 {
                    update(a, &mut ready, Some(added(a, &touches, &live)));
                }
            }
            for &i in changed.iter().flat_map(|&t| &p.tensors[t].touches) {
                if waits[i] == 0 {
                    update(i, &mut ready, Some(added(i, &touches, &live)));
                }
            }
        }
        out
    }
}
