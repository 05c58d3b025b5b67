//! The default planner's search: gaps chosen by prices that stalls teach, until the step fits and the layout does.

mod improve;
mod prices;
mod select;
mod state;

use rayon::prelude::*;

use crate::place::What;
use crate::problem::Problem;
use crate::realise::{Realised, realise_within};
use crate::scheme::Scheme;
use crate::sequence::Sequence;
use improve::Random;
use prices::Prices;
use state::State;

/// What a search may spend.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Gaps and steps looked at while choosing, for each of [`RATES`].
    pub work: u64,
    /// Layouts tried for one choice.
    pub layouts: usize,
    /// Work on one layout, in the unit of [`memc_layout::Options`].
    pub layout_work: u64,
}

impl Limits {
    /// Limits for an effort from 0 to 5.
    pub fn effort(effort: u32) -> Limits {
        let (work, layouts, layout_work) = match effort {
            0 => (0, 4, 100_000),
            1 => (20_000_000, 8, 200_000),
            2 => (200_000_000, 16, 400_000),
            3 => (1_000_000_000, 32, 2_000_000),
            4 => (5_000_000_000, 64, 10_000_000),
            _ => (25_000_000_000, 128, 50_000_000),
        };
        Limits { work, layouts, layout_work }
    }
}

/// How fast prices learn; each is tried on its own.
pub const RATES: [f64; 4] = [1.0, 4.0, 16.0, 64.0];

/// What a search found.
pub struct Outcome {
    /// The best plan that fits, if any.
    pub best: Option<Realised>,
    /// Plans that were evaluated.
    pub evaluations: u64,
}

/// Searches for swaps over one sequence; `stop` ends it early.
pub fn swaps(
    p: &Problem,
    sequence: &Sequence,
    capacity: u64,
    limits: Limits,
    seed: u64,
    stop: &(dyn Fn() -> bool + Sync),
) -> Result<Outcome, String> {
    let runs: Vec<Result<Outcome, String>> = RATES
        .par_iter()
        .map(|&rate| {
            let state = State::new(p, sequence.clone(), vec![capacity; sequence.steps.len()], true);
            let mut run = Run {
                p,
                capacity,
                rate,
                limits,
                stop,
                state,
                random: Random(seed ^ rate.to_bits()),
                evaluations: 0,
                work: 0,
            };
            let best = run.search()?;
            Ok(Outcome { best, evaluations: run.evaluations })
        })
        .collect();
    let mut out = Outcome { best: None, evaluations: 0 };
    for run in runs {
        let run = run?;
        out.evaluations += run.evaluations;
        if let Some(r) = run.best
            && out.best.as_ref().is_none_or(|b| r.key() < b.key())
        {
            out.best = Some(r);
        }
    }
    Ok(out)
}

struct Run<'a> {
    p: &'a Problem,
    capacity: u64,
    rate: f64,
    limits: Limits,
    stop: &'a (dyn Fn() -> bool + Sync),
    state: State<'a>,
    random: Random,
    evaluations: u64,
    work: u64,
}

/// Choices in a row that are no better before prices are given up.
const PATIENCE: u32 = 40;

impl Run<'_> {
    fn search(&mut self) -> Result<Option<Realised>, String> {
        let mut prices = Prices::new(self.state.steps());
        let mut best: Option<Realised> = None;
        let share = self.limits.work / (self.limits.layouts as u64 + 1);
        for round in 0..self.limits.layouts {
            // Half of the work goes into the first choice, the rest into those that a layout made necessary.
            let until = if round == 0 { self.limits.work / 2 } else { self.work + share / 2 };
            let Some(scheme) = self.learn(&mut prices, self.work + (until - self.work.min(until)) / 4) else {
                break;
            };
            let scheme = self.improve(scheme, &prices, until);
            let r = realise_within(
                self.p,
                scheme.decisions(self.p),
                Some(self.capacity),
                self.limits.layout_work,
            )?;
            self.evaluations += 1;
            if r.evaluation.dev_bytes <= self.capacity {
                if best.as_ref().is_none_or(|b| r.key() < b.key()) {
                    best = Some(r);
                }
                break;
            }
            self.tighten(&r);
            if (self.stop)() {
                break;
            }
        }
        Ok(best)
    }

    /// Chooses gaps again and again, each time with what the last choice's stalls taught, and keeps the fastest.
    fn learn(&mut self, prices: &mut Prices, until: u64) -> Option<Scheme> {
        let mut best: Option<(u64, Scheme)> = None;
        let mut stale = 0;
        loop {
            self.state.clear();
            if !select::greedy(&mut self.state, prices, &mut self.work) {
                return best.map(|b| b.1);
            }
            let step = self.state.decode(DECODES);
            self.evaluations += DECODES as u64;
            self.work += (DECODES * 2 * (self.state.steps() + self.state.open.len())) as u64;
            stale += 1;
            if best.as_ref().is_none_or(|b| step < b.0) {
                best = Some((step, self.state.scheme.clone()));
                stale = 0;
            }
            if step <= self.state.scheme.sequence.compute_ns()
                || stale > PATIENCE
                || self.work >= until
                || (self.stop)()
            {
                return best.map(|b| b.1);
            }
            self.state.timing.evaluate(&self.state.scheme, &self.state.copies, &self.state.outs);
            prices.learn(&self.state, self.rate);
        }
    }

    /// Moves on from a choice while that makes it faster.
    fn improve(&mut self, from: Scheme, prices: &Prices, until: u64) -> Scheme {
        let s = &mut self.state;
        s.clear();
        for (t, &mirrored) in from.mirrored.iter().enumerate() {
            s.mirror(t as u32, mirrored);
        }
        for (g, swap) in from.swaps.iter().enumerate() {
            s.set(g, swap.is_some());
        }
        let mut present = s.decode(DECODES);
        s.timing.evaluate(&s.scheme, &s.copies, &s.outs);
        let mut best = (present, s.scheme.clone());
        s.commit();
        let compute = s.scheme.sequence.compute_ns();
        while self.work < until && best.0 > compute && !(self.stop)() {
            let moved = improve::step(s, prices, &mut self.random, DECODES, &mut self.work);
            self.work += (DECODES * 2 * (s.steps() + s.open.len())) as u64;
            self.evaluations += DECODES as u64;
            // Slightly worse is good enough to go on from.
            let accepted = moved.filter(|&step| step <= present + (present - compute) / SLACK);
            let Some(step) = accepted else {
                s.rollback();
                s.commit();
                continue;
            };
            s.commit();
            present = step;
            s.timing.evaluate(&s.scheme, &s.copies, &s.outs);
            if step < best.0 {
                best = (step, s.scheme.clone());
            }
        }
        best.1
    }

    /// Allows fewer bytes while slots that the layout put too high are live.
    fn tighten(&mut self, r: &Realised) {
        let mut step_at = vec![0u32; r.trace.end as usize + 2];
        for c in &r.trace.commands {
            step_at[c.at as usize + 1] = u32::from(matches!(c.what, What::Run { .. }));
        }
        for i in 1..step_at.len() {
            step_at[i] += step_at[i - 1];
        }
        let n = self.state.steps();
        let mut less = vec![0u64; n];
        for slot in r.trace.slots.iter().filter(|s| s.space == crate::Space::Dev) {
            let over = (slot.offset.unwrap_or(0) + slot.bytes).saturating_sub(self.capacity);
            if over == 0 {
                continue;
            }
            for &(from, to) in &slot.live {
                let (a, b) = (step_at[from as usize] as usize, step_at[to as usize] as usize);
                for less in &mut less[a.min(n)..b.min(n)] {
                    *less = (*less).max(over);
                }
            }
        }
        for (i, less) in less.into_iter().enumerate() {
            let floor = self.state.scheme.sequence.needs[i];
            let capacity = &mut self.state.capacity[i];
            *capacity = capacity.saturating_sub(less).max(floor.min(*capacity));
        }
    }
}

/// A move is accepted when it adds at most this part of the time above the ideal.
const SLACK: u64 = 200;

/// Rounds of decoding one choice.
const DECODES: usize = 4;
