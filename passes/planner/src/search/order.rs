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
        let mut ready: BTreeSet<u32> = (0..p.ops.len() as u32).filter(|&i| waits[i as usize] == 0).collect();
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
        while let Some(next) = ready.iter().copied().min_by_key(|&i| (added(i, &touches, &live), i)) {
            ready.remove(&next);
            out.push(next);
            let op = &p.ops[next as usize];
            for &t in op.reads.iter().chain(op.writes.iter().filter(|t| !op.reads.contains(t))) {
                touches[t as usize] -= 1;
                live[t as usize] = true;
            }
            for &a in &self.after[next as usize] {
                waits[a as usize] -= 1;
                if waits[a as usize] == 0 {
                    ready.insert(a);
                }
            }
        }
        out
    }
}
