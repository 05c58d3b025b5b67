//! Inputs of the next step arrive while this one ends, where their bytes are free by then.
//!
//! A choice knows of one step alone: what an input takes when the step begins may be in use until the step
//! before ends, and the first ops wait for its copy. So layouts are tried that leave its slot free for as
//! long as the copy takes; where the input is used again late in the step, it leaves in between and comes
//! back to another slot.

use std::collections::BTreeSet;

use memc_alloc::Options;
use memc_ir::Arena;
use rayon::prelude::*;

use super::state::State;
use super::{DECODES, Run};
use crate::decisions::{Action, Decisions};
use crate::error::DecisionsError;
use crate::evaluate::{Schedule, evaluate_prefetched};
use crate::ids::{CommandIx, GapIx, StepPos, TensorId};
use crate::place::CommandKind;
use crate::problem::TensorKind;

/// Lengths of the tail that are tried, in halves of the time that the copies of all inputs take.
const TAILS: [u64; 4] = [1, 2, 4, 8];

impl<'a> Run<'a> {
    /// Has inputs that ops of the best plan wait for arrive in the step before, if that makes it faster.
    pub(super) fn prefetch(&mut self, s: State<'a>) -> Result<(), DecisionsError> {
        let Some(best) = self.best.as_ref().filter(|_| !self.done()) else { return Ok(()) };
        if !self.waits_for_input(best) {
            return Ok(());
        }
        let inputs = self.inputs();
        let mut away = s.clone();
        // For inputs that are used again, the longest time between two uses.
        let mut gaps = Vec::new();
        for &t in &inputs {
            let own = away.genotype.sequence.gaps_of(t);
            let long = |&g: &GapIx| away.genotype.sequence.gaps[g].to - away.genotype.sequence.gaps[g].from;
            if let Some(g) = own.filter(|&g| away.open[g]).max_by_key(long) {
                if !away.swapped(g) {
                    away.set(g, true);
                }
                gaps.push(g);
            }
        }
        away.decode(DECODES);
        let mut trials: Vec<(State<'a>, StepPos)> = Vec::new();
        for mut choice in [s, away] {
            choice.time();
            for times in TAILS {
                let mut choice = choice.clone();
                let from = self.tail(&choice.timing.end, &inputs, times);
                // Back before the next step's copies begin, which they would hold up.
                let before = self.tail(&choice.timing.end, &inputs, times + 2).position();
                let arrivals = inputs.iter().flat_map(|&t| choice.genotype.sequence.gaps_of(t).take(1));
                let early: Vec<(GapIx, i32)> =
                    arrivals.map(|g| (g, 0)).chain(gaps.iter().map(|&g| (g, before))).collect();
                for (g, at) in early {
                    if let Some(swap) = &mut choice.genotype.swaps[g] {
                        swap.back = swap.back.min(at).max(swap.drop);
                    }
                }
                let same = |(other, at): &(State<'a>, StepPos)| {
                    (*at, &other.genotype.swaps) == (from, &choice.genotype.swaps)
                };
                if !trials.iter().any(same) {
                    trials.push((choice, from));
                }
            }
        }
        let tried: Vec<Option<Schedule>> = trials
            .par_iter()
            .map(|(choice, from)| self.arriving(choice, &inputs, *from))
            .collect::<Result<_, _>>()?;
        self.take(tried);
        Ok(())
    }

    /// Moves the slots that inputs of the best plan arrive in, and no other, to bytes that are free while
    /// the step before ends, if that makes it faster.
    pub(super) fn arrive_early(&mut self) -> Result<(), DecisionsError> {
        let best = self.best.as_ref().filter(|best| !self.done() && self.waits_for_input(best));
        let Some(best) = best else { return Ok(()) };
        let inputs = self.inputs();
        let mut decisions = best.decisions.clone();
        for &t in &inputs {
            let mut arrivals = decisions.actions.iter_mut().filter_map(|action| match action {
                Action::In((tensor, offset)) if *tensor == t => Some(offset),
                _ => None,
            });
            arrivals.next().into_iter().for_each(|offset| *offset = None);
        }
        let runs = best.trace.commands.iter().filter(|(_, c)| matches!(c.kind, CommandKind::Run { .. }));
        let ends: Arena<StepPos, u64> = runs.map(|(c, _)| best.timeline.spans[c].end).collect();
        let from: BTreeSet<StepPos> = TAILS.map(|times| self.tail(&ends, &inputs, times)).into();
        let tried: Vec<Option<Schedule>> = from
            .par_iter()
            .map(|&from| self.with_room(decisions.clone(), &inputs, from))
            .collect::<Result<_, _>>()?;
        self.take(tried);
        Ok(())
    }

    /// Takes the plans that are faster than the best one so far.
    fn take(&mut self, tried: Vec<Option<Schedule>>) {
        self.evaluations += tried.len() as u64;
        for r in tried.into_iter().flatten() {
            if self.best.as_ref().is_none_or(|best| r.key() < best.key()) {
                self.found(r);
            }
        }
    }

    fn inputs(&self) -> Vec<TensorId> {
        let tensors = self.common.p.tensors.iter();
        tensors.filter(|(_, tensor)| tensor.kind == TensorKind::Input).map(|(t, _)| t).collect()
    }

    /// Whether an op waits for an input's copy.
    fn waits_for_input(&self, r: &Schedule) -> bool {
        let input = |c: CommandIx| match r.trace.commands[c].kind {
            CommandKind::In(t) => self.common.p.tensors[t].kind == TensorKind::Input,
            _ => false,
        };
        r.timeline.spans.values().any(|s| s.stall > 0 && s.cause.is_some_and(input))
    }

    /// The step from which on some times as long is left as half of the copies of all inputs take. `ends` are
    /// the ends of all steps in ns.
    fn tail(&self, ends: &Arena<StepPos, u64>, inputs: &[TensorId], times: u64) -> StepPos {
        let p = self.common.p;
        let copies: u64 = inputs.iter().map(|&t| p.device.h2d_ns(p.tensors[t].size)).sum();
        let end = ends.last().copied().unwrap_or(0);
        ends.partition_point(|&at| at.saturating_add(copies.saturating_mul(times) / 2) <= end)
    }

    /// The plan of a choice with the slots of inputs free from a step on, if it fits.
    fn arriving(
        &self,
        s: &State<'a>,
        inputs: &[TensorId],
        from: StepPos,
    ) -> Result<Option<Schedule>, DecisionsError> {
        if (self.common.request.stop)() {
            return Ok(None);
        }
        self.with_room(s.genotype.decisions(self.common.p), inputs, from)
    }

    /// The plan of decisions with the slots of inputs free from a step on, if it fits.
    fn with_room(
        &self,
        decisions: Decisions,
        inputs: &[TensorId],
        from: StepPos,
    ) -> Result<Option<Schedule>, DecisionsError> {
        let (capacity, work) = (self.common.request.capacity, self.common.limits.layout_work);
        let options = Options { capacity: Some(capacity), work, seed: 0, all: true };
        let from: Vec<(TensorId, StepPos)> = inputs.iter().map(|&t| (t, from)).collect();
        let r = evaluate_prefetched(self.common.p, decisions, (&options, self.common.request.stop), &from)?;
        Ok(r.filter(|r| r.evaluation.dev_bytes <= capacity))
    }
}

#[cfg(test)]
mod tests {
    use crate::{Allow, Decisions, Request, Starts, evaluate, plan};

    /// Ten ops of 1,000 ns, the first and, if so said, the last of which read an input whose copy takes 2,048
    /// ns.
    fn step(late: bool) -> crate::Problem {
        let kind = |t: usize| if t == 0 { "input" } else { "transient" };
        let tensor = |t: usize| format!(r#"{{"id": {t}, "bytes": 2048, "kind": "{}"}}"#, kind(t));
        let reads = |i: usize| match i {
            0 => "0".to_string(),
            9 if late => "0, 9".to_string(),
            _ => i.to_string(),
        };
        let op = |i: usize| {
            let (reads, write) = (reads(i), i + 1);
            format!(
                r#"{{"id": {i}, "name": "op", "time_ns": 1000, "reads": [{reads}], "writes": [{write}]}}"#
            )
        };
        let tensors: Vec<String> = (0..=10).map(tensor).collect();
        let ops: Vec<String> = (0..10).map(op).collect();
        let text = format!(
            r#"{{"format": "memc-problem/1", "device": {{"memory_bytes": 65536, "h2d_bytes_per_s": 1e9,
                "d2h_bytes_per_s": 1e9, "duplex_total_bytes_per_s": 2e9, "copy_latency_ns": 0}},
                "tensors": [{}], "ops": [{}]}}"#,
            tensors.join(","),
            ops.join(",")
        );
        crate::json::parse(&text).expect("the problem is well-formed")
    }

    /// Three tensors' room is one more than two ops in a row need: the input's slot stays free at the end of
    /// the step. Read by the last op, too, it takes a fourth, to come back to while the next step's arrives.
    #[test]
    fn an_input_arrives_while_the_step_before_ends() {
        for (late, tensors) in [(false, 3), (true, 4)] {
            let p = step(late);
            let allow = Allow { recompute: false, reorder: false, ..Allow::ALL };
            let request = Request { allow, ..Request::new(tensors * 2048) };
            let found = plan(&p, &request, &Starts::NONE).expect("there is a plan");
            let took = |decisions| evaluate(&p, decisions).expect("it runs").evaluation.step_ns;
            assert!(took(Decisions::keep_all(&p)) > 10_000);
            assert_eq!(took(found.decisions), 10_000, "late: {late}");
        }
    }
}
