//! AutoSwap: swap by priority scores around the load peak (Zhang et al., Efficient Memory Management for
//! GPU-based Deep Learning Systems, section IV).
//!
//! As published: candidates are variables of at least 1 MB that live across the peak (IV-A). They are ranked
//! by a priority score (IV-B, equation 3) and join the swap list in that order until the peak load is within
//! the limit (IV-D). [`schedule`] schedules copies (IV-E). The four scores are planners of their own;
//! `autoswap` combines them with weights that Bayesian optimisation tunes for the least overhead (IV-C,
//! [`bayes`]).
//!
//! SmartPool chooses the offsets ([`super::smartpool`]; section V: swapping first, since it changes live
//! ranges).
//!
//! The paper is silent on these points:
//! - Absences of a variable with several gaps between accesses: the one that contains the peak counts, and
//!   for variables that outlive the step also the one into the next iteration (VI-B.3 says that those are
//!   caught).
//! - A limit below load_min, the load with all candidates away: the paper says that other variables can be
//!   swapped then. Here candidates are sought anew around the new peak, as often as it moves, at last without
//!   the 1 MB threshold.
//! - The load shrinks by the variable's bytes, over the whole time between its two accesses.
//! - Copies that are not needed because the host has the content are scored, but not made.
//! - Overhead during the search: by the model that searches use. The decisions are judged by the evaluator
//!   like any other.
//! - Number of tries for the weights: 30 (effort 2), and 10 less or more per level of effort. The four scores
//!   on their own are among the first tries, since the paper says that the combined score is never worse than
//!   they are.
//! - A pool larger than the limit, which is a limit on the load: its offsets are left open for a better
//!   allocation.
//! - Ties: the earlier candidate by tensor.

mod bayes;
mod schedule;
mod score;

use memc_ir::Bytes;
use memc_planner::{
    AccessSequence, Alive, Copies, Found, Genotype, NoPlan, Planner, Problem, Request, Timing,
};

use super::smartpool;
use score::Weights;

/// Weights tuned by Bayesian optimisation.
pub(super) const COMBINED: Planner = Planner {
    name: "autoswap",
    summary: "swaps around the load peak by a combination of four scores, tuned by Bayesian optimisation",
    source: "Zhang et al., Efficient Memory Management for GPU-based Deep Learning Systems, 2019, section IV",
    swaps: true,
    recomputes: false,
    plan: combined,
};

macro_rules! single {
    ($item:ident, $name:literal, $what:literal, $weights:expr) => {
        #[doc = concat!("Swaps by ", $what, " alone.")]
        pub(super) const $item: Planner = Planner {
            name: $name,
            summary: concat!("swaps around the load peak by ", $what),
            source: "Zhang et al., Efficient Memory Management for GPU-based Deep Learning Systems, \
                     2019, section IV-B",
            swaps: true,
            recomputes: false,
            plan: |p, request| {
                let mut search = Search::new(p, request);
                search.try_weights(&$weights, request)?;
                search.found()
            },
        };
    };
}

single!(DOA, "autoswap-doa", "duration of absence", [0.0, 1.0, 0.0, 0.0]);
single!(AOA, "autoswap-aoa", "area of absence", [1.0, 0.0, 0.0, 0.0]);
single!(WDOA, "autoswap-wdoa", "weighted duration of absence", [0.0, 0.0, 1.0, 0.0]);
single!(SWDOA, "autoswap-swdoa", "submodular weighted duration of absence", [0.0, 0.0, 0.0, 1.0]);

fn combined(p: &Problem, request: &Request<'_>) -> Result<Found, NoPlan> {
    let mut search = Search::new(p, request);
    if !search.fits() {
        let tries = 10 + 10 * request.effort.min(5) as usize;
        let unit = |k: usize| std::array::from_fn(|i| f64::from(u8::from(i == k)));
        let mut bayes = bayes::Bayes::new(request.seed);
        for k in 0..tries {
            let weights: Weights = if k < 4 { unit(k) } else { bayes.next() };
            let overhead = search.try_weights(&weights, request)?;
            bayes.observe(weights, overhead);
            if overhead <= 0.0 || (request.stop)() {
                break;
            }
        }
    }
    search.found()
}

struct Search<'a> {
    p: &'a Problem,
    capacity: u64,
    swap: bool,
    keep: Genotype,
    copies: Copies,
    timing: Timing,
    ideal_ns: u64,
    best: Option<(u64, Genotype)>,
    evaluations: u64,
}

impl<'a> Search<'a> {
    fn new(p: &'a Problem, request: &Request<'_>) -> Search<'a> {
        let keep = Genotype::keep_all(AccessSequence::of_order(p, p.ops.ids()));
        Search {
            p,
            capacity: request.capacity,
            swap: request.allow.on(&p.device).swap,
            copies: Copies::new(p, &keep.sequence),
            timing: Timing::default(),
            ideal_ns: keep.sequence.compute_ns(),
            keep,
            best: None,
            evaluations: 0,
        }
    }

    /// True if nothing has to be swapped.
    fn fits(&self) -> bool {
        self.keep.usage().into_values().all(|used| used <= self.capacity)
    }

    /// Swaps by the scores' combination; returns the overhead as a fraction of the step.
    fn try_weights(&mut self, weights: &Weights, request: &Request<'_>) -> Result<f64, NoPlan> {
        let mut genotype = self.keep.clone();
        if let Err(load) = score::select(&mut genotype, &self.copies, self.capacity, weights, self.swap) {
            return Err(NoPlan::Infeasible(format!(
                "autoswap comes down to a load of {} with every candidate away",
                Bytes(load)
            )));
        }
        let outs = genotype.copies_out(self.p);
        schedule::schedule(&mut genotype, &self.copies, &outs, self.capacity);
        let step = self.timing.evaluate(&genotype, &self.copies, &outs);
        self.evaluations += 1;
        (request.alive)(&Alive { evaluations: self.evaluations, step_ns: vec![step] });
        if self.best.as_ref().is_none_or(|b| step < b.0) {
            self.best = Some((step, genotype));
        }
        Ok(step.saturating_sub(self.ideal_ns) as f64 / self.ideal_ns.max(1) as f64)
    }

    fn found(self) -> Result<Found, NoPlan> {
        let genotype = self.best.map_or(self.keep, |b| b.1);
        let made = genotype.decisions(self.p);
        let (laid_out, height) = smartpool::lay_out(self.p, made.clone())?;
        let decisions = if height <= self.capacity { laid_out } else { made };
        Ok(Found { decisions, evaluations: self.evaluations })
    }
}

#[cfg(test)]
mod tests;
