//! Duals of link time, learned from stalls: what a copy at a busy time costs beyond its own.

use memc_ir::Arena;

use super::recompute::Chain;
use super::state::{State, StepId};
use crate::ids::{GapIx, OpPos, StepPos, TensorId};
use crate::problem::{Problem, TensorKind};
use crate::timing::Cause;

/// For every op, how many times its duration a copy there costs, besides the copy itself.
#[derive(Clone, Debug)]
pub(crate) struct Duals {
    /// Of copies to the host that begin before the op.
    pub(crate) out: Arena<OpPos, f64>,
    /// Of copies to the device that the op needs.
    pub(crate) back: Arena<OpPos, f64>,
    /// Cost of recomputing an op, in units of its duration.
    pub(crate) recompute: Arena<OpPos, f64>,
    /// Which operands are made again with a content that needs them: those that take at most this part of
    /// their copies' time.
    pub(crate) reach: f64,
    /// Part of a copy's fixed cost that counts in gaps that reach into the next step, where there is time for
    /// many.
    pub(crate) across: f64,
    /// Gaps that stay swapped even where there is room: tensor, and id of the step they follow.
    pub(crate) pinned: Vec<(TensorId, Option<StepId>)>,
    /// For every tensor, a factor of what its copies cost; 1 where there is none.
    pub(crate) copies: Arena<TensorId, f64>,
}

impl Duals {
    pub(crate) fn new(ops: usize, recompute: f64) -> Duals {
        Duals {
            out: Arena::filled(0.0, ops + 1),
            back: Arena::filled(0.0, ops + 1),
            recompute: Arena::filled(recompute, ops),
            reach: 1.0,
            across: 1.0,
            pinned: Vec::new(),
            copies: Arena::default(),
        }
    }

    /// Cost of a chain of recomputed ops, its part of the last one, in the measure of [`Duals::cost`].
    pub(crate) fn recompute(&self, p: &Problem, chain: &Chain) -> f64 {
        let cost = |op: OpPos| p.ops[op].time_ns as f64 * self.recompute[op];
        let Some((&last, operands)) = chain.ops.split_last() else { return 0.0 };
        operands.iter().map(|&op| cost(op)).sum::<f64>() + chain.part * cost(last)
    }

    /// Cost in ns of a tensor's copies when the gaps in `flipped` are swapped otherwise than they are,
    /// and it is on both sides or not.
    pub(crate) fn cost(&self, s: &State<'_>, t: TensorId, flipped: &[GapIx], shadowed: bool) -> f64 {
        let (sequence, n) = (&s.genotype.sequence, s.steps());
        let gaps = sequence.gaps_of(t);
        let swapped = |g: GapIx| s.swapped(g) != flipped.contains(&g);
        let on_host = |g: GapIx| sequence.gaps[g].wraps(n) && swapped(g);
        // See `Genotype::needs_shadow`.
        let mut unchanged = gaps.clone().take_while(|&g| !sequence.gaps[g].dirty);
        let shadowed = shadowed && unchanged.any(|g| swapped(g) && !sequence.gaps[g].dead);
        let mut dirty = match s.p.tensors[t].kind {
            TensorKind::Transient => gaps.clone().next().map(|g| sequence.gaps[g].from + 1),
            TensorKind::Input | TensorKind::Hosted => None,
            TensorKind::Persistent if shadowed || gaps.clone().next_back().is_some_and(on_host) => None,
            TensorKind::Persistent => Some(0),
        };
        let each = |wraps: bool| if wraps { s.each_ns * self.across } else { s.each_ns };
        let mut cost = 0.0;
        for g in gaps {
            let gap = &sequence.gaps[g];
            if gap.dirty {
                dirty = Some(gap.from + 1);
            }
            let wraps = gap.wraps(n);
            let wanted = if swapped(g) { !gap.dead || wraps } else { wraps && shadowed };
            if let Some(at) = dirty.filter(|_| wanted) {
                cost += (s.copies.out[g] as f64 + each(wraps))
                    * (1.0 + self.out[s.anchor[StepPos::at(at.min(n as i32))]]);
                dirty = None;
            }
            if swapped(g) && !gap.dead {
                let to = s.anchor[sequence.step_at(gap.to)];
                cost += (s.copies.back[g] as f64 + each(wraps)) * (1.0 + self.back[to]);
            }
        }
        cost * self.copies.get(t).copied().unwrap_or(1.0)
    }

    /// Raises the duals of a gap's copies.
    pub(crate) fn dearer(&mut self, s: &State<'_>, g: GapIx) {
        let sequence = &s.genotype.sequence;
        let back = &mut self.back[s.anchor[sequence.step_at(sequence.gaps[g].to)]];
        *back = 2.0 * *back + 0.5;
        if s.outs[g] >= 0 {
            let out = &mut self.out[s.anchor[StepPos::at(s.outs[g].min(s.steps() as i32))]];
            *out = 2.0 * *out + 0.5;
        }
    }

    /// Raises the duals where copies made steps wait in the last evaluation.
    pub(crate) fn learn(&mut self, s: &State<'_>, rate: f64) {
        let (t, n) = (&s.timing, s.steps());
        let total = t.step_ns.max(1) as f64;
        for i in t.start.ids() {
            let stall = t.stall(i);
            if stall == 0 {
                continue;
            }
            let weight = rate * stall as f64 / total;
            let mut cause = t.cause[i];
            // A chain is as long as the copies without a pause between them.
            for _ in s.genotype.swaps.ids() {
                match cause {
                    Cause::Compute => break,
                    Cause::Out(g) => {
                        let at = StepPos::at(s.outs[g].min(n as i32));
                        self.out[s.anchor[at]] += weight;
                        cause = t.out_cause[g];
                    }
                    Cause::In(g) => {
                        let to = s.genotype.sequence.step_at(s.genotype.sequence.gaps[g].to);
                        self.back[s.anchor[to]] += weight;
                        cause = t.back_cause[g];
                    }
                }
            }
        }
    }
}
