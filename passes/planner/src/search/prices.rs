//! Prices of link time, learned from stalls: what a copy at a busy time costs beyond its own.

use super::state::State;
use crate::problem::{Kind, Problem};
use crate::timing::Cause;

/// For every op, how many times its duration a copy there costs, besides the copy itself.
#[derive(Clone, Debug)]
pub(crate) struct Prices {
    /// Of copies to the host that begin before the op.
    pub(crate) out: Vec<f64>,
    /// Of copies to the device that the op needs.
    pub(crate) back: Vec<f64>,
    /// What running an op again costs in terms of its duration.
    pub(crate) again: Vec<f64>,
    /// Which operands are made again with a content that needs them: those that take at most this part of their copies' time.
    pub(crate) reach: f64,
    /// Gaps that stay swapped even where there is room: tensor, and id of the step they follow.
    pub(crate) pinned: Vec<(u32, u32)>,
}

impl Prices {
    pub(crate) fn new(ops: usize, again: f64) -> Prices {
        Prices {
            out: vec![0.0; ops + 1],
            back: vec![0.0; ops + 1],
            again: vec![again; ops],
            reach: 1.0,
            pinned: Vec::new(),
        }
    }

    /// What running ops again costs, in the measure of [`Prices::cost`].
    pub(crate) fn redo(&self, p: &Problem, ops: &[u32]) -> f64 {
        ops.iter().map(|&op| p.ops[op as usize].time_ns as f64 * self.again[op as usize]).sum()
    }

    /// What the copies of a tensor cost in ns when the gaps in `flipped` are swapped otherwise than they are, and it is
    /// mirrored or not.
    pub(crate) fn cost(&self, s: &State<'_>, t: u32, flipped: &[usize], mirrored: bool) -> f64 {
        let (sequence, n) = (&s.scheme.sequence, s.steps());
        let gaps = sequence.gaps_of(t);
        let swapped = |g: usize| s.swapped(g) != flipped.contains(&g);
        let on_host = |g: usize| sequence.gaps[g].wraps(n) && swapped(g);
        // See `Scheme::mirrors`.
        let mut unchanged = gaps.clone().take_while(|&g| !sequence.gaps[g].dirty);
        let mirrored = mirrored && unchanged.any(|g| swapped(g) && !sequence.gaps[g].dead);
        let mut dirty = match s.p.tensors[t as usize].kind {
            Kind::Transient => gaps.clone().next().map(|g| sequence.gaps[g].from + 1),
            Kind::Input => None,
            Kind::Persistent if mirrored || gaps.clone().next_back().is_some_and(on_host) => None,
            Kind::Persistent => Some(0),
        };
        let mut cost = 0.0;
        for g in gaps {
            let gap = &sequence.gaps[g];
            if gap.dirty {
                dirty = Some(gap.from + 1);
            }
            let wraps = gap.wraps(n);
            let wanted = if swapped(g) { !gap.dead || wraps } else { wraps && mirrored };
            if let Some(at) = dirty.filter(|_| wanted) {
                cost += (s.copies.out[g] as f64 + s.each_ns)
                    * (1.0 + self.out[s.anchor[(at as usize).min(n)] as usize]);
                dirty = None;
            }
            if swapped(g) && !gap.dead {
                let to = if wraps { gap.to as usize - n } else { gap.to as usize };
                cost += (s.copies.back[g] as f64 + s.each_ns) * (1.0 + self.back[s.anchor[to] as usize]);
            }
        }
        cost
    }

    /// Raises the prices of a gap's copies.
    pub(crate) fn dearer(&mut self, s: &State<'_>, g: usize) {
        let (gap, n) = (&s.scheme.sequence.gaps[g], s.steps());
        let to = if gap.wraps(n) { gap.to as usize - n } else { gap.to as usize };
        let back = &mut self.back[s.anchor[to] as usize];
        *back = 2.0 * *back + 0.5;
        if s.outs[g] >= 0 {
            let out = &mut self.out[s.anchor[(s.outs[g] as usize).min(n)] as usize];
            *out = 2.0 * *out + 0.5;
        }
    }

    /// Raises the prices where copies made steps wait in the last evaluation.
    pub(crate) fn learn(&mut self, s: &State<'_>, rate: f64) {
        let (t, n) = (&s.timing, s.steps());
        let total = t.step_ns.max(1) as f64;
        for i in 0..n {
            let before = if i == 0 { 0 } else { t.end[i - 1] };
            let stall = t.start[i].saturating_sub(before);
            if stall == 0 {
                continue;
            }
            let weight = rate * stall as f64 / total;
            let mut cause = t.cause[i];
            // A chain is as long as the copies without a pause between them.
            for _ in 0..s.scheme.swaps.len() {
                match cause {
                    Cause::Compute => break,
                    Cause::Out(g) => {
                        let at = s.outs[g as usize].clamp(0, n as i32) as usize;
                        self.out[s.anchor[at] as usize] += weight;
                        cause = t.out_cause[g as usize];
                    }
                    Cause::In(g) => {
                        let gap = &s.scheme.sequence.gaps[g as usize];
                        let to = if gap.to >= n as i32 { gap.to - n as i32 } else { gap.to };
                        self.back[s.anchor[to as usize] as usize] += weight;
                        cause = t.back_cause[g as usize];
                    }
                }
            }
        }
    }
}
