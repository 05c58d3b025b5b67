//! Other orders of the ops: one to start from that frees bytes early, and moves of single ops.

use std::collections::BTreeSet;

use crate::problem::{Kind, Problem};

/// What must run before what, by op.
#[derive(Clone, Debug, Default)]
pub(crate) struct Precedence {
    before: Vec<Vec<u32>>,
    after: Vec<Vec<u32>>,
}

impl Precedence {
    pub(crate) fn new(p: &Problem) -> Precedence {
        let before = p.predecessors();
        let mut after = vec![Vec::new(); p.ops.len()];
        for (op, list) in before.iter().enumerate() {
            for &b in list {
                after[b as usize].push(op as u32);
            }
        }
        Precedence { before, after }
    }

    /// The steps between which an op may run, half-open: after the last that must precede it, before the first that it
    /// precedes; `ran` is the step of every op's first run.
    pub(crate) fn window(&self, op: u32, ran: &[u32], steps: usize) -> (usize, usize) {
        let from = self.before[op as usize].iter().map(|&b| ran[b as usize] as usize + 1).max();
        let to = self.after[op as usize].iter().map(|&a| ran[a as usize] as usize).min();
        (from.unwrap_or(0), to.unwrap_or(steps))
    }

    /// An order in which, of the ops that may run, always that one is next which adds the fewest bytes; the earliest of several.
    pub(crate) fn sinking(&self, p: &Problem) -> Vec<u32> {
        let mut waits: Vec<usize> = self.before.iter().map(Vec::len).collect();
        let mut touches: Vec<usize> = p.tensors.iter().map(|t| t.touches.len()).collect();
        let mut live = vec![false; p.tensors.len()];
        let mut out = Vec::with_capacity(p.ops.len());
        let added = |i: u32, touches: &[usize], live: &[bool]| -> i128 {
            let op = &p.ops[i as usize];
            let tensors = op.reads.iter().chain(op.writes.iter().filter(|t| !op.reads.contains(t)));
            let change = |&t: &u32| {
                let tensor = &p.tensors[t as usize];
                match tensor.kind {
                    Kind::Persistent => 0,
                    _ => {
                        let appears = if live[t as usize] { 0 } else { i128::from(tensor.bytes) };
                        appears - if touches[t as usize] == 1 { i128::from(tensor.bytes) } else { 0 }
                    }
                }
            };
            tensors.map(change).sum()
        };
        // Those that may run, and the bytes that they add.
        let mut ready: BTreeSet<(i128, u32)> = BTreeSet::new();
        let mut key: Vec<Option<i128>> = vec![None; p.ops.len()];
        let mut update = |i: u32, ready: &mut BTreeSet<(i128, u32)>, new: Option<i128>| {
            if let Some(old) = std::mem::replace(&mut key[i as usize], new) {
                ready.remove(&(old, i));
            }
            ready.extend(new.map(|new| (new, i)));
        };
        for i in (0..p.ops.len() as u32).filter(|&i| waits[i as usize] == 0) {
            update(i, &mut ready, Some(added(i, &touches, &live)));
        }
        while let Some(&(_, next)) = ready.first() {
            update(next, &mut ready, None);
            waits[next as usize] = usize::MAX;
            out.push(next);
            let op = &p.ops[next as usize];
            let tensors = op.reads.iter().chain(op.writes.iter().filter(|t| !op.reads.contains(t)));
            let mut changed = Vec::new();
            for &t in tensors {
                touches[t as usize] -= 1;
                if !std::mem::replace(&mut live[t as usize], true) || touches[t as usize] == 1 {
                    changed.push(t);
                }
            }
            for &a in &self.after[next as usize] {
                waits[a as usize] -= 1;
                if waits[a as usize] == 0 {
                    update(a, &mut ready, Some(added(a, &touches, &live)));
                }
            }
            for &i in changed.iter().flat_map(|&t| &p.tensors[t as usize].touches) {
                if waits[i as usize] == 0 {
                    update(i, &mut ready, Some(added(i, &touches, &live)));
                }
            }
        }
        out
    }
}
