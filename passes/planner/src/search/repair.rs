//! The last mile of a plan: bytes that its layout turns out to have room for hide copies that a kernel still
//! waits for.
//!
//! A choice is decoded within a capacity for every step, which falls where layouts are too high. Around one
//! wait at a time the whole capacity is allowed again: if a layout fits, and the step is faster, it stays.

use memc_ir::Arena;
use rayon::prelude::*;

use super::state::State;
use super::{DECODES, Run};
use crate::error::DecisionsError;
use crate::evaluate::Schedule;
use crate::ids::{CommandIx, StepPos};
use crate::place::{CommandKind, Stream};

/// Waits looked at in one round, the longest first.
const WAITS: usize = 32;

/// Rounds at most.
const ROUNDS: usize = 32;

/// Steps during which more bytes would spare a kernel a wait of so many ns, half-open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Wait {
    ns: u64,
    from: StepPos,
    to: StepPos,
}

impl<'a> Run<'a> {
    /// Allows more bytes around waits of the best plan for as long as that makes it faster.
    pub(super) fn repair(&mut self, mut s: State<'a>) -> Result<State<'a>, DecisionsError> {
        for _ in 0..ROUNDS {
            let Some(best) = self.best.as_ref().filter(|_| !self.done()) else { break };
            let mut waits = waits(best);
            waits.sort_by_key(|w| (std::cmp::Reverse(w.ns), w.from));
            waits.truncate(WAITS);
            // All at once, and each by itself.
            let sets = std::iter::once(waits.as_slice()).chain(waits.chunks(1)).filter(|set| !set.is_empty());
            let trials: Vec<(&[Wait], u64)> = sets.flat_map(|set| [(set, 1), (set, 2), (set, 4)]).collect();
            let choices: Vec<State<'a>> =
                trials.par_iter().filter_map(|&(set, part)| self.allow(&s, set, part)).collect();
            // Many come to the same.
            let mut distinct: Vec<State<'a>> = Vec::new();
            for choice in choices {
                if distinct.iter().all(|other| other.genotype.swaps != choice.genotype.swaps) {
                    distinct.push(choice);
                }
            }
            let tried: Vec<Option<Schedule>> =
                distinct.par_iter().map(|choice| self.fitting(choice)).collect::<Result<_, _>>()?;
            self.evaluations += tried.len() as u64;
            let fits = tried.into_iter().zip(distinct).filter_map(|(r, state)| Some((r?, state)));
            let Some((r, state)) = fits.min_by_key(|(r, _)| r.key()) else { break };
            if self.best.as_ref().is_some_and(|b| b.key() <= r.key()) {
                break;
            }
            self.found(r);
            s = state;
        }
        Ok(s)
    }

    /// The choice with a part of what capacity holds back given free around some waits, if that changes it.
    fn allow(&self, s: &State<'a>, waits: &[Wait], part: u64) -> Option<State<'a>> {
        let capacity = self.common.request.capacity;
        let mut s = s.clone();
        for w in waits {
            for headroom in s.capacity.all.range_mut(w.from, w.to) {
                *headroom += capacity.saturating_sub(*headroom) / part;
            }
        }
        let before = s.genotype.swaps.clone();
        s.decode(DECODES);
        (s.genotype.swaps != before).then_some(s)
    }

    /// The plan of a choice, if it fits.
    fn fitting(&self, s: &State<'a>) -> Result<Option<Schedule>, DecisionsError> {
        if (self.common.request.stop)() {
            return Ok(None);
        }
        let r = self.lay_out(&s.genotype)?;
        Ok((r.evaluation.dev_bytes <= self.common.request.capacity).then_some(r))
    }
}

/// Waits of a plan's kernels, as far as more bytes could help.
fn waits(r: &Schedule) -> Vec<Wait> {
    let (commands, spans) = (&r.trace.commands, &r.timeline.spans);
    let runs: Arena<StepPos, CommandIx> =
        commands.ids().filter(|&c| matches!(commands[c].kind, CommandKind::Run { .. })).collect();
    let mut before: Arena<CommandIx, Option<CommandIx>> = Arena::filled(None, commands.len());
    let mut last = None;
    for (c, _) in commands.iter().filter(|(_, c)| c.stream == Stream::HostToDevice) {
        before[c] = last;
        last = Some(c);
    }
    // Steps that run in a time, half-open.
    let between = |from: u64, to: u64| {
        let first = runs.partition_point(|&c| spans[c].end <= from);
        (first, runs.partition_point(|&c| spans[c].start < to).max(first))
    };
    let mut out = Vec::new();
    for (i, &c) in runs.iter() {
        let span = &spans[c];
        let Some(cause) = span.cause.filter(|_| span.stall > 0) else { continue };
        let (from, to) = match commands[cause].kind {
            // A tensor that leaves would have to stay until it has left.
            CommandKind::Out(_) | CommandKind::Send(_) | CommandKind::Output { .. } => {
                (i, between(span.start, spans[cause].end + span.stall).1.max(i.next()))
            }
            // The first of the copies that follow on each other would have to begin earlier.
            CommandKind::In(_) => {
                let mut first = cause;
                while spans[first].stall == 0
                    && let Some(earlier) = before[first]
                {
                    first = earlier;
                }
                let start = spans[first].start;
                between(start.saturating_sub(span.stall), start.max(1))
            }
            CommandKind::Run { .. } | CommandKind::HostRun(_) => continue,
        };
        out.push(Wait { ns: span.stall, from, to });
    }
    out
}
