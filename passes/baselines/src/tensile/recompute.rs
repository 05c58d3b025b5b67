//! Recomputation tasks (Sec. 4.4): accesses that were never released, by memory saved per second, until the
//! step fits.

use memc_ir::Arena;
use memc_planner::{
    AccessSequence, Gap, GapIx, Genotype, OpPos, Problem, Step, StepPos, Swap, TensorId, TensorKind,
};

use super::swap::Tasks;

/// Position of an op in the sequence of the swap tasks, whose steps are the ops.
fn position(op: OpPos) -> i32 {
    StepPos(op.0).position()
}

/// The op at a position of that sequence.
fn op_at(position: i32) -> OpPos {
    OpPos(StepPos::at(position).0)
}

/// Recomputation on top of the swap tasks.
pub(super) struct Recomputation<'a> {
    p: &'a Problem,
    tasks: &'a Tasks<'a>,
    /// For every gap, whether the tensor is released in it and recomputed at its end.
    gaps: Arena<GapIx, bool>,
    /// For every op, the gaps that end in a recomputation before it.
    before: Arena<OpPos, Vec<GapIx>>,
    /// For every tensor, the ops before which a recomputation reads it.
    read: Arena<TensorId, Vec<i32>>,
    /// Tensors that are recomputed.
    released: Arena<TensorId, bool>,
}

impl<'a> Recomputation<'a> {
    /// None yet.
    pub(super) fn new(p: &'a Problem, tasks: &'a Tasks<'a>) -> Recomputation<'a> {
        Recomputation {
            p,
            tasks,
            gaps: Arena::filled(false, tasks.genotype.swaps.len()),
            before: Arena::filled(Vec::new(), p.ops.len()),
            read: Arena::filled(Vec::new(), p.tensors.len()),
            released: Arena::filled(false, p.tensors.len()),
        }
    }

    /// The genotype with the recomputations in it.
    pub(super) fn genotype(&self) -> Genotype {
        let old = &self.tasks.genotype;
        let (n, mut steps) = (self.p.ops.len() as i32, Arena::<StepPos, Step>::default());
        // Where every op's recomputations begin, and where the op itself is.
        let (mut block, mut run) = (Arena::<StepPos, i32>::default(), Arena::<StepPos, i32>::default());
        for (op, gaps) in self.before.iter() {
            block.push(steps.next_id().position());
            for &g in gaps {
                let gap = &old.sequence.gaps[g];
                steps.extend(self.producer(gap).map(|op| Step::again(op, gap.tensor)));
            }
            run.push(steps.next_id().position());
            steps.push(Step::first(op));
        }
        let end = steps.next_id().position();
        block.push(end);
        let place = |i: i32| {
            if i > n { end + block[StepPos::at((i - n).min(n))] } else { block[StepPos::at(i)] }
        };
        let mut new = Genotype::keep_all(AccessSequence::new(self.p, steps.into_values().collect()));
        for t in self.p.tensors.ids() {
            let swapped =
                old.sequence.gaps_of(t).filter_map(|g| old.swaps[g].map(|s| (old.sequence.gaps[g].from, s)));
            let mut gaps = new.sequence.gaps_of(t);
            for (from, swap) in swapped {
                let from = if from < 0 { -1 } else { run[StepPos::at(from)] };
                if let Some(g) = gaps.find(|&g| new.sequence.gaps[g].from == from) {
                    new.swaps[g] = Some(Swap { drop: place(swap.drop), back: place(swap.back) });
                }
            }
        }
        new
    }

    /// The only writer of a tensor, if it recomputes the content of the gap exactly.
    fn producer(&self, gap: &Gap) -> Option<OpPos> {
        let tensor = &self.p.tensors[gap.tensor];
        let &[writer] = tensor.writes.as_slice() else { return None };
        let op = &self.p.ops[writer];
        let made = tensor.kind == TensorKind::Transient && position(writer) <= gap.from;
        // An operand that it updates in place has lost its content.
        (made && op.repeatable && !op.updates()).then_some(writer)
    }

    /// True if a tensor is on the device without a break from op `writer` to op `at`, with the same content.
    fn kept(&self, t: TensorId, writer: OpPos, at: i32) -> bool {
        let tensor = &self.p.tensors[t];
        let alive = tensor.persistent() || tensor.touches.last().is_some_and(|&last| position(last) >= at);
        alive && !self.tasks.swapped[t] && !self.released[t] && !tensor.written_between(writer, op_at(at))
    }

    /// Releases the most valuable tensor that lies unused at the peak; false when there is none.
    pub(super) fn extend(&mut self, peak: OpPos) -> bool {
        let sequence = &self.tasks.genotype.sequence;
        let peak = position(peak);
        let mut best: Option<(f64, GapIx, OpPos)> = None;
        for (g, gap) in sequence.gaps.iter() {
            if gap.from < 0 || gap.from >= peak || peak >= gap.to || gap.dead {
                continue;
            }
            let t = gap.tensor;
            if self.gaps[g] || self.tasks.swapped[t] {
                continue;
            }
            let Some(writer) = self.producer(gap) else { continue };
            let op = &self.p.ops[writer];
            let needed = self.read[t].iter().any(|&at| gap.from < at && at <= gap.to);
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
        self.released[gap.tensor] = true;
        self.before[op_at(gap.to)].push(g);
        for &u in &self.p.ops[writer].reads {
            self.read[u].push(gap.to);
        }
        true
    }
}
