//! The optimum of small problems by branch and bound, to measure planners and bounds against.
//!
//! Optimal over: every order of the first runs that the problem allows (or its own), every insertion of at
//! most [`RUNS_AGAIN`] repeated runs, and for every gap between touches keep or swap, copied back in before
//! the touch that ends it and out when it begins or, with all others, as soon as the content is there; states
//! that are swapped start a step on one side or all on both. Not searched: giving bytes up later or claiming
//! them earlier, as when a copy begins is up to the streams and not to its place in the decisions; more than
//! eight results of a repeated run, or several of an op that updates in place. Times are those of the event
//! simulation, with addresses or without ([`Judge`]): a layout may need more bytes than are ever live, or
//! make a command wait for bytes that it happens to reuse.

mod bytes;
mod runs;

use crate::bound;
use crate::decisions::Decisions;
use memc_ir::Arena;

use crate::access_sequence::{AccessSequence, Step};
use crate::evaluate::{Schedule, evaluate, load};
use crate::genotype::{Genotype, Swap};
use crate::ids::{GapIx, TensorId};
use crate::planner::Allow;
use crate::problem::Problem;
use crate::trace::trace;

/// Most recomputations in decisions.
pub const RUNS_AGAIN: usize = 3;

/// Judge of decisions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Judge {
    /// The better of its time as laid out, where that fits, and its time with bytes that have no addresses:
    /// for bounds.
    Bytes,
    /// Its time as laid out; a layout that is too high is out: for planners, whose plans have one.
    Layout,
}

/// The best decisions of a small problem.
#[derive(Clone, PartialEq, Debug)]
pub struct Optimum {
    /// Time from one step to the next in ns.
    pub step_ns: u64,
    /// The decisions, without offsets.
    pub decisions: Decisions,
    /// Whether the search was complete, or met a bound.
    pub proven: bool,
    /// Decisions evaluated.
    pub evaluations: u64,
}

/// The fastest decisions with at most `capacity` bytes on the device; `None` where none was found.
///
/// Evaluates at most `limit` decisions; time grows exponentially with the number of gaps.
pub fn optimum(
    p: &Problem,
    capacity: u64,
    (allow, judge): (Allow, Judge),
    fixed_order: bool,
    limit: u64,
) -> Option<Optimum> {
    let bound = bound::bound(p, capacity, allow).ok()?;
    let stop = if fixed_order { bound.fixed_order.ok()? } else { bound.order_free_ns };
    let allow = allow.on(&p.device);
    let mut x = Exact { p, capacity, allow, judge, stop, limit, evaluations: 0, best: None };
    let most = if allow.recompute { RUNS_AGAIN } else { 0 };
    for recompute in 0..=most {
        runs::sequences(p, fixed_order, recompute, &mut |steps| x.sequence(steps));
        if x.done() {
            break;
        }
    }
    let (evaluations, over) = (x.evaluations, x.evaluations >= limit);
    let (step_ns, decisions) = x.best?;
    Some(Optimum { step_ns, decisions, proven: !over || step_ns <= stop, evaluations })
}

struct Exact<'a> {
    p: &'a Problem,
    capacity: u64,
    allow: Allow,
    judge: Judge,
    /// No decisions are faster.
    stop: u64,
    limit: u64,
    evaluations: u64,
    best: Option<(u64, Decisions)>,
}

impl Exact<'_> {
    fn done(&self) -> bool {
        self.evaluations >= self.limit || self.least() <= self.stop
    }

    /// The best step time so far in ns.
    fn least(&self) -> u64 {
        self.best.as_ref().map_or(u64::MAX, |b| b.0)
    }

    /// Tries all swaps of a sequence, or of a prefix's completions; `false` when none can be better, or to
    /// end it all.
    fn sequence(&mut self, steps: &[Step]) -> bool {
        if self.done() {
            return false;
        }
        let ns: u64 = steps.iter().map(|s| self.p.ops[s.op].time_ns).sum();
        let full = steps.iter().filter(|s| s.recompute.is_none()).count() == self.p.ops.len();
        let rest: u64 = if full { 0 } else { self.rest(steps) };
        if ns + rest >= self.least() {
            return false;
        }
        if full {
            self.swaps(AccessSequence::new(self.p, steps.to_vec()));
        }
        true
    }

    /// Time in ns of the ops that a prefix has not run yet.
    fn rest(&self, steps: &[Step]) -> u64 {
        let ran: u64 = steps.iter().filter(|s| s.recompute.is_none()).map(|s| self.p.ops[s.op].time_ns).sum();
        self.p.compute_ns() - ran
    }

    fn swaps(&mut self, sequence: AccessSequence) {
        if sequence.needs.values().any(|&b| b > self.capacity) {
            return;
        }
        let steps = sequence.steps.len();
        let mut open: Vec<GapIx> = sequence
            .gaps
            .ids()
            .filter(|&g| {
                let gap = &sequence.gaps[g];
                // A content that is overwritten is given up at once, unless the next step begins with it.
                let free = gap.dead && !gap.wraps(steps);
                (self.allow.swap || free) && !gap.is_forced() && (gap.open() || gap.wraps(steps))
            })
            .collect();
        open.sort_by_key(|&g| (std::cmp::Reverse(sequence.gaps[g].bytes), g));
        let mut genotype = Genotype::keep_all(sequence);
        self.branch(&mut genotype, &open);
    }

    /// Swaps or keeps the first of the open gaps.
    fn branch(&mut self, genotype: &mut Genotype, open: &[GapIx]) {
        if self.done() || self.copies(genotype) >= self.least() {
            return;
        }
        // With all open gaps away, what is there is least.
        let steps = genotype.sequence.steps.len();
        let mut least = genotype.clone();
        for &g in open {
            least.swaps[g] = Some(Swap::longest(&least.sequence.gaps[g], steps));
        }
        if least.usage().values().any(|&b| b > self.capacity) {
            return;
        }
        let Some((&g, rest)) = open.split_first() else {
            self.evaluate(genotype);
            return;
        };
        let longest = Swap::longest(&genotype.sequence.gaps[g], steps);
        for swap in [None, Some(longest)] {
            genotype.swaps[g] = swap;
            self.branch(genotype, rest);
        }
        genotype.swaps[g] = None;
    }

    /// Least step time in ns by the copies that a genotype makes so far, whichever tensors start a step on
    /// both sides.
    fn copies(&self, genotype: &Genotype) -> u64 {
        let mut both = genotype.clone();
        both.shadowed.fill(true);
        let mut outs = Arena::filled([0u64; 2], self.p.tensors.len());
        let mut back = 0;
        for (k, genotype) in [genotype, &both].into_iter().enumerate() {
            for (gap, &out) in genotype.sequence.gaps.values().zip(genotype.copies_out(self.p).values()) {
                let size = self.p.tensors[gap.tensor].size;
                outs[gap.tensor][k] += if out >= 0 { self.p.device.d2h_ns(size) } else { 0 };
            }
        }
        for (g, gap) in genotype.sequence.gaps.iter() {
            let size = self.p.tensors[gap.tensor].size;
            back += if genotype.copies_in(g) { self.p.device.h2d_ns(size) } else { 0 };
        }
        let out: u64 = outs.values().map(|o| o[0].min(o[1])).sum();
        back.max(out + genotype.sequence.output_ns.values().sum::<u64>())
    }

    /// Judges a genotype with its copies to the host at either time, and states on both sides or not.
    fn evaluate(&mut self, genotype: &Genotype) {
        self.evaluations += 1;
        let swapped = |t: TensorId| genotype.sequence.gaps_of(t).any(|g| genotype.swaps[g].is_some());
        let states: Arena<TensorId, bool> =
            self.p.tensors.ids().map(|t| self.p.tensors[t].persistent() && swapped(t)).collect();
        let none = Arena::filled(false, states.len());
        let shadowed = if states == none { vec![none] } else { vec![none, states] };
        for shadowed in shadowed {
            for early in [true, false] {
                self.judge(&Genotype { shadowed: shadowed.clone(), early, ..genotype.clone() });
            }
        }
    }

    fn judge(&mut self, genotype: &Genotype) {
        let decisions = genotype.decisions(self.p);
        let Ok(trace) = trace(self.p, &decisions) else { return };
        if load(&trace) > self.capacity {
            return;
        }
        let apart =
            (self.judge == Judge::Bytes).then(|| bytes::step_ns(self.p, &trace, self.capacity)).flatten();
        let fits = |r: &Schedule| r.evaluation.dev_bytes <= self.capacity;
        let laid_out = evaluate(self.p, decisions.clone()).ok().filter(fits).map(|r| r.evaluation.step_ns);
        if let Some(ns) = apart.into_iter().chain(laid_out).min()
            && ns < self.least()
        {
            self.best = Some((ns, decisions));
        }
    }
}
