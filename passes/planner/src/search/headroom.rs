//! Bytes that a genotype may use at every step, so that an allocation fits the capacity.

use memc_ir::{Arena, Id, Ids};
use rayon::prelude::*;

use super::duals::Duals;
use super::state::State;
use super::{Run, select};
use crate::error::DecisionsError;
use crate::evaluate::{Schedule, live};
use crate::ids::{StepPos, Tick};
use crate::place::{CommandKind, Space};

/// A choice that keeps to the capacity, whatever its layout.
#[derive(Clone)]
pub(super) struct First<'a> {
    /// Time of its step in ns.
    pub(super) value: u64,
    pub(super) state: State<'a>,
    pub(super) duals: Duals,
    /// Whether slots may also be objects of a pool with size classes.
    pub(super) pooled: bool,
}

/// Lays the best first choices out in another way, where no plan comes near them.
pub(super) fn refit(runs: &mut [Run<'_>]) -> Result<(), DecisionsError> {
    let best = runs.iter().filter_map(Run::step_ns).min();
    let lost = |first: &First<'_>| best.is_none_or(|best| first.value + first.value / LOSS < best);
    let mut recompute: Vec<&mut Run<'_>> =
        runs.iter_mut().filter(|run| run.first.as_ref().is_some_and(lost)).collect();
    recompute.sort_by_key(|run| run.first.as_ref().map(|first| first.value));
    recompute.truncate(REFITS);
    recompute.into_par_iter().try_for_each(Run::refit)
}

/// First choices that are laid out in another way.
const REFITS: usize = 2;

/// The part of a first choice's time that its layout may cost.
const LOSS: u64 = 200;

/// Rounds in a row that end by themselves with nothing better before the search does.
const IDLE: u32 = 2;

impl<'a> Run<'a> {
    /// Chooses again and again, with less room where the last layout was too high and more where it was not.
    pub(super) fn fit(
        &mut self,
        first: First<'a>,
        passing: bool,
        layouts: usize,
        until: u64,
    ) -> Result<(), DecisionsError> {
        let First { mut state, duals, .. } = first;
        let mut judged = (state.genotype.clone(), self.judge(&state, &state.genotype)?);
        let (mut key, mut idle) = (self.key(), 0);
        for left in (1..layouts as u64).rev() {
            if self.done() || (self.best.is_some() && self.work >= until) {
                break;
            }
            if judged.1.evaluation.dev_bytes > self.common.request.capacity {
                // Half of what is too high at a time, and all of it where that does not come to an end.
                let all = self.best.is_none() && 2 * left <= layouts as u64;
                self.tighten(&mut state, &judged.1, passing, if all { 1 } else { 2 });
                if !select::greedy(&mut state, &duals, &mut self.work) {
                    break;
                }
            } else {
                self.loosen(&mut state);
            }
            let share = self.work + until.saturating_sub(self.work) / left;
            state = self.lns(state, &duals, share)?.1;
            if judged.0 != state.genotype {
                judged = (state.genotype.clone(), self.judge(&state, &state.genotype)?);
            }
            let now = self.key();
            idle = if now == key { idle + 1 } else { 0 };
            key = now;
            // It came to an end of its own, again.
            if self.work < share && idle >= IDLE && key.is_some() {
                break;
            }
        }
        Ok(())
    }

    /// Layouts for the first choice again: only what is kept makes room for what is too high. Where links
    /// have time to spare that costs less than waiting for what is on its way.
    fn refit(&mut self) -> Result<(), DecisionsError> {
        let Some(first) = self.first.take().filter(|_| !self.done()) else { return Ok(()) };
        let until = self.work + self.common.limits.work / 8;
        self.fit(first, true, self.common.limits.layouts / 2, until)
    }

    /// Allows fewer bytes where much is live while slots that the layout put too high are: of what is kept,
    /// and unless `passing` says that it may take what there is, of what is on its way. `part` divides what a
    /// slot is too high.
    fn tighten(&self, s: &mut State<'a>, r: &Schedule, passing: bool, part: u64) {
        let (n, capacity) = (s.steps(), self.common.request.capacity);
        // For every moment of trace time the step that it belongs to.
        let mut step_at: Arena<Tick, StepPos> = Arena::filled(StepPos(0), r.trace.end.next().next().index());
        for c in r.trace.commands.values() {
            step_at[c.at.next()].0 = u32::from(matches!(c.kind, CommandKind::Run { .. }));
        }
        let mut step = 0;
        for at in step_at.values_mut() {
            step += at.0;
            at.0 = step;
        }
        let mut load = Arena::filled(0u64, n + 1);
        for (&live, &step) in live(&r.trace).values().zip(step_at.values()) {
            let load = &mut load[step];
            *load = live.max(*load);
        }
        let mut less = Arena::filled(0u64, n);
        for slot in r.trace.slots.values().filter(|s| s.space == Space::Dev) {
            let over = (slot.offset.unwrap_or(0) + slot.bytes).saturating_sub(capacity);
            if over == 0 {
                continue;
            }
            for &(from, to) in &slot.live {
                let end = less.next_id();
                let life = Ids::between(step_at[from].min(end), step_at[to].min(end));
                let most = life.clone().map(|i| load[i]).max().unwrap_or(0);
                for i in life.filter(|&i| load[i] + over > most) {
                    less[i] = less[i].max(over);
                }
            }
        }
        for (i, &less) in less.iter() {
            let floor = s.genotype.sequence.needs[i];
            let lists = [(&mut s.headroom.kept, &s.capacity.kept), (&mut s.headroom.all, &s.capacity.all)];
            for (headroom, now) in lists.into_iter().take(if passing { 1 } else { 2 }) {
                let Some(headroom) = headroom.get_mut(s.anchor[i]) else { continue };
                *headroom = (*headroom).min(now[i].saturating_sub(less / part).max(floor.min(now[i])));
            }
        }
        s.resize();
    }

    /// Allows more bytes again: half of what was taken away.
    pub(super) fn loosen(&self, s: &mut State<'a>) {
        let capacity = self.common.request.capacity;
        for headroom in s.headroom.kept.values_mut().chain(s.headroom.all.values_mut()) {
            *headroom += capacity.saturating_sub(*headroom) / 2;
        }
        s.resize();
    }
}

#[cfg(test)]
mod tests {
    use memc_ir::Id;

    use super::super::duals::Duals;
    use super::super::select;
    use super::super::state::{Permissions, State};
    use crate::access_sequence::AccessSequence;
    use crate::ids::{OpPos, StepPos};
    use crate::planner::Allow;
    use crate::problem::{Device, Problem, TensorKind};
    use crate::sample::{op, tensor};

    /// An op whose headroom is tightened to its own need still has a large op run again for it.
    #[test]
    fn a_recomputation_takes_what_it_needs_where_headroom_is_tight() {
        let sizes = [("y", 8192), ("z", 1024), ("big", 20480), ("dz", 1024), ("dx", 1024)];
        let results = sizes.map(|(name, size)| tensor(name, TensorKind::Transient, size));
        let wide = [tensor("x", TensorKind::Persistent, 1024), tensor("w", TensorKind::Persistent, 12288)];
        let tensors = wide.into_iter().chain(results).collect();
        let ops = vec![
            op("product", 100, &[0, 1], &[2]),
            op("sum", 10, &[2], &[3]),
            op("grow", 10, &[3], &[4]),
            op("shrink", 10, &[4], &[5]),
            op("gradient", 10, &[2, 5], &[6]),
            op("update", 10, &[0, 6], &[0]),
        ];
        let rate = 1_000_000_000;
        let device = Device { h2d_bytes_per_s: rate, d2h_bytes_per_s: rate, ..Device::default() };
        let p = Problem::new("tight", device, tensors, ops).expect("it is well-formed");
        let may = Permissions { allow: Allow::ALL, shadow: true };
        let duals = Duals::new(p.ops.len(), 1.0);
        let mut state = State::new(&p, AccessSequence::of_order(&p, p.ops.ids()), 36864, may);
        assert!(select::greedy(&mut state, &duals, &mut 0), "it fits");
        state.commit();
        let sequence = &state.genotype.sequence;
        let is_again = |&i: &StepPos| sequence.steps[i].recompute.is_some();
        let again: Vec<StepPos> = sequence.steps.ids().filter(is_again).collect();
        let [product] = again[..] else { panic!("the product alone runs again, not {again:?}") };
        let gradient = OpPos::new(4);
        let need = sequence.needs[state.ran[gradient]];
        assert!(state.anchor[product] == gradient && sequence.needs[product] > need);
        state.headroom.kept[gradient] = need;
        state.resize();
        assert!(select::greedy(&mut state, &duals, &mut 0), "it fits still");
    }
}
