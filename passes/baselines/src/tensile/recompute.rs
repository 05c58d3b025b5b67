//! Recomputation tasks (Sec. 4.4): accesses that were never released, by memory saved per second, until the
//! step fits.

use memc_planner::{Gap, Kind, Problem, Scheme, Sequence, Step, Swap};

use super::swap::Tasks;

/// Recomputation on top of the swap tasks.
pub(super) struct Recomputation<'a> {
    p: &'a Problem,
    tasks: &'a Tasks<'a>,
    /// For every gap, whether the tensor is released in it and recomputed at its end.
    gaps: Vec<bool>,
    /// For every op, the gaps that end in a recomputation before it.
    before: Vec<Vec<usize>>,
    /// For every tensor, the ops before which a recomputation reads it.
    read: Vec<Vec<i32>>,
    /// Tensors that are recomputed.
    released: Vec<bool>,
}

impl<'a> Recomputation<'a> {
    /// None yet.
    pub(super) fn new(p: &'a Problem, tasks: &'a Tasks<'a>) -> Recomputation<'a> {
        Recomputation {
            p,
            tasks,
            gaps: vec![false; tasks.scheme.swaps.len()],
            before: vec![Vec::new(); p.ops.len()],
            read: vec![Vec::new(); p.tensors.len()],
            released: vec![false; p.tensors.len()],
        }
    }

    /// The scheme with the recomputations in it.
    pub(super) fn scheme(&self) -> Scheme {
        let old = &self.tasks.scheme;
        let (n, mut steps) = (self.p.ops.len(), Vec::new());
        // Where every op's recomputations begin, and where the op itself is.
        let (mut block, mut run) = (Vec::with_capacity(n + 1), Vec::with_capacity(n));
        for (op, gaps) in self.before.iter().enumerate() {
            block.push(steps.len() as i32);
            for &g in gaps {
                let gap = &old.sequence.gaps[g];
                steps.extend(self.producer(gap).map(|op| Step { op, again: Some(gap.tensor) }));
            }
            run.push(steps.len() as i32);
            steps.push(Step { op: op as u32, again: None });
        }
        let end = steps.len() as i32;
        block.push(end);
        let place = |i: i32| {
            let i = i.max(0) as usize;
            if i > n { end + block[(i - n).min(n)] } else { block[i] }
        };
        let mut new = Scheme::keep_all(Sequence::new(self.p, steps));
        for t in 0..self.p.tensors.len() as u32 {
            let swapped =
                old.sequence.gaps_of(t).filter_map(|g| old.swaps[g].map(|s| (old.sequence.gaps[g].from, s)));
            let mut gaps = new.sequence.gaps_of(t);
            for (from, swap) in swapped {
                let from = if from < 0 { -1 } else { run[from as usize] };
                if let Some(g) = gaps.find(|&g| new.sequence.gaps[g].from == from) {
                    new.swaps[g] = Some(Swap { drop: place(swap.drop), back: place(swap.back) });
                }
            }
        }
        new
    }

    /// The only writer of a tensor, if it recomputes the content of the gap exactly.
    fn producer(&self, gap: &Gap) -> Option<u32> {
        let tensor = &self.p.tensors[gap.tensor as usize];
        let &[writer] = tensor.writes.as_slice() else { return None };
        let op = &self.p.ops[writer as usize];
        let made = tensor.kind == Kind::Transient && writer as i32 <= gap.from;
        // An operand that it updates in place has lost its content.
        (made && op.repeatable && !op.updates()).then_some(writer)
    }

    /// True if a tensor is on the device without a break from op `writer` to op `at`, with the same content.
    fn kept(&self, t: u32, writer: u32, at: i32) -> bool {
        let tensor = &self.p.tensors[t as usize];
        let alive = tensor.persistent() || tensor.touches.last().is_some_and(|&last| last as i32 >= at);
        alive
            && !self.tasks.swapped[t as usize]
            && !self.released[t as usize]
            && !tensor.written_between(writer, at.max(0) as u32)
    }

    /// Releases the most valuable tensor that lies unused at the peak; false when there is none.
    pub(super) fn extend(&mut self, peak: u32) -> bool {
        let sequence = &self.tasks.scheme.sequence;
        let peak = peak as i32;
        let mut best: Option<(f64, usize, u32)> = None;
        for (g, gap) in sequence.gaps.iter().enumerate() {
            if gap.from < 0 || gap.from >= peak || peak >= gap.to || gap.dead {
                continue;
            }
            let t = gap.tensor;
            if self.gaps[g] || self.tasks.swapped[t as usize] {
                continue;
            }
            let Some(writer) = self.producer(gap) else { continue };
            let op = &self.p.ops[writer as usize];
            let needed = self.read[t as usize].iter().any(|&at| gap.from < at && at <= gap.to);
            if needed || !op.reads.iter().all(|&u| self.kept(u, writer, gap.to)) {
                continue;
            }
            // MSPS: bytes per ns.
            let value = gap.bytes as f64 / op.time_ns.max(1) as f64;
            if best.is_none_or(|b| value > b.0) {
                best = Some((value, g, writer));
            }
        }
        let Some((_, g, writer)) = best else { return false };
        let gap = sequence.gaps[g];
        self.gaps[g] = true;
        self.released[gap.tensor as usize] = true;
        self.before[gap.to as usize].push(g);
        for &u in &self.p.ops[writer as usize].reads {
            self.read[u as usize].push(gap.to);
        }
        true
    }
}
