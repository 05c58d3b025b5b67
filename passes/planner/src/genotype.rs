//! Which gaps of a sequence are swapped, and when: what searches work on, and its translation into decisions.

use std::collections::BTreeMap;

use memc_ir::{Arena, Id, Ids};

use crate::access_sequence::{AccessSequence, Gap, Step};
use crate::decisions::{Action, Decisions, Resident, Run};
use crate::ids::{GapIx, StepPos, TensorId};
use crate::problem::{Problem, TensorKind};

/// Swap of a gap. Positions are steps before which something happens; in a gap that wraps around, they
/// count on past the end, and the number of steps itself is the end of the step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Swap {
    /// The tensor's bytes on the device are given up before this step.
    pub drop: i32,
    /// The copy to the device may begin before this step.
    pub back: i32,
}

impl Swap {
    /// Away as long as possible.
    pub fn longest(gap: &Gap, steps: usize) -> Swap {
        let drop = if gap.wraps(steps) { (gap.from + 1).min(steps as i32) } else { gap.from + 1 };
        Swap { drop, back: gap.to }
    }
}

/// A sequence and what is done in its gaps; `None` keeps the tensor on the device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Genotype {
    /// The steps.
    pub sequence: AccessSequence,
    /// For every gap of the sequence.
    pub swaps: Arena<GapIx, Option<Swap>>,
    /// For every tensor, whether it is on both sides when a step begins, if that saves it a copy and it is
    /// not on the host alone.
    pub shadowed: Arena<TensorId, bool>,
    /// Whether copies to the host begin as soon as the content is there, rather than with the gap.
    pub early: bool,
}

impl Genotype {
    /// Swaps nothing but what has to be: inputs arrive just before they are needed, and what ops on the host
    /// read leaves.
    pub fn keep_all(sequence: AccessSequence) -> Genotype {
        let steps = sequence.steps.len();
        let swap = |g: &Gap| g.is_forced().then(|| Swap::longest(g, steps));
        let swaps = sequence.gaps.values().map(swap).collect();
        let shadowed = Arena::filled(false, sequence.tensors());
        Genotype { sequence, swaps, shadowed, early: false }
    }

    /// The same gaps swapped, each away as long as possible.
    pub fn longest(mut self) -> Genotype {
        let steps = self.sequence.steps.len();
        for (gap, swap) in self.sequence.gaps.values().zip(self.swaps.values_mut()) {
            *swap = swap.map(|_| Swap::longest(gap, steps));
        }
        self
    }

    /// For every gap, the step before which a copy to the host is issued for it; negative: there is none.
    ///
    /// A swap needs one where the host has no valid copy. A tensor on both sides needs one after its
    /// last change.
    pub fn copies_out(&self, p: &Problem) -> Arena<GapIx, i32> {
        let mut out = Arena::filled(-1, self.swaps.len());
        for t in p.tensors.ids() {
            self.copies_out_of(p, t, &mut out);
        }
        out
    }

    /// [`Genotype::copies_out`] for the gaps of one tensor.
    pub fn copies_out_of(&self, p: &Problem, t: TensorId, out: &mut Arena<GapIx, i32>) {
        let (s, tensor) = (&self.sequence, &p.tensors[t]);
        let (gaps, n, needs_shadow) = (s.gaps_of(t), s.steps.len(), self.needs_shadow(t));
        let mut dirty = match tensor.kind {
            TensorKind::Transient => gaps.clone().next().map(|g| s.gaps[g].from + 1),
            TensorKind::Input | TensorKind::Hosted => None,
            TensorKind::Persistent if self.home_on_host(gaps.clone()) || needs_shadow => None,
            TensorKind::Persistent => Some(0),
        };
        for g in gaps {
            let gap = &s.gaps[g];
            if gap.dirty {
                dirty = Some(gap.from + 1);
            }
            let wraps = gap.wraps(n);
            let wanted = match self.swaps[g] {
                Some(_) => !gap.dead || wraps,
                None => wraps && needs_shadow,
            };
            out[g] = match dirty {
                Some(at) if wanted => {
                    dirty = None;
                    if self.early { at } else { gap.from + 1 }
                }
                _ => -1,
            };
        }
    }

    /// Whether a tensor is on both sides when a step begins: it leaves and returns before it changes.
    fn needs_shadow(&self, t: TensorId) -> bool {
        let mut unchanged = self.sequence.gaps_of(t).take_while(|&g| !self.sequence.gaps[g].dirty);
        self.shadowed[t] && unchanged.any(|g| self.copies_in(g))
    }

    /// Whether the tensor of these gaps is in host memory alone when a step begins.
    fn home_on_host(&self, mut gaps: Ids<GapIx>) -> bool {
        let n = self.sequence.steps.len();
        gaps.next_back().is_some_and(|g| {
            self.sequence.gaps[g].wraps(n) && self.swaps[g].is_some_and(|s| s.back >= n as i32)
        })
    }

    /// Whether the swap of a gap ends with a copy to the device.
    pub fn copies_in(&self, g: GapIx) -> bool {
        self.swaps[g].is_some() && !self.sequence.gaps[g].dead
    }

    /// Bytes on the device during every step.
    pub fn usage(&self) -> Arena<StepPos, u64> {
        let n = self.sequence.steps.len() as i32;
        let mut delta: Arena<StepPos, i128> = Arena::filled(0, self.sequence.steps.len() + 1);
        let mut add = |from: i32, to: i32, bytes: u64| {
            // Half-open, counted on past the end of the step.
            for (a, b) in [(from.min(n), to.min(n)), (from - n, to - n)] {
                let (a, b) = (StepPos::at(a), StepPos::at(b.min(n)));
                if a < b {
                    delta[a] += i128::from(bytes);
                    delta[b] -= i128::from(bytes);
                }
            }
        };
        for (gap, swap) in self.sequence.gaps.values().zip(self.swaps.values()) {
            match swap {
                None => add(gap.from + 1, gap.to, gap.bytes),
                Some(s) => {
                    add(gap.from + 1, s.drop, gap.bytes);
                    add(s.back, gap.to, gap.bytes);
                }
            }
        }
        let mut live = 0i128;
        let usage = self.sequence.needs.values().zip(delta.values()).map(|(&needs, d)| {
            live += d;
            needs + live.max(0) as u64
        });
        usage.collect()
    }

    /// The decisions that do it, without offsets.
    pub fn decisions(&self, p: &Problem) -> Decisions {
        let s = &self.sequence;
        let n = s.steps.len();
        let outs = self.copies_out(p);
        let mut x = Builder { d: Decisions::default(), here: Arena::filled(false, p.tensors.len()), p };
        // Events before every step, and at the end.
        let mut events: Arena<StepPos, Vec<(u8, i32, GapIx)>> = Arena::filled(Vec::new(), n + 1);
        for ((g, gap), swap) in s.gaps.iter().zip(self.swaps.values()) {
            if outs[g] >= 0 {
                events[StepPos::at(outs[g].min(n as i32))].push((0, gap.to, g));
            }
            let Some(swap) = swap else { continue };
            let at =
                |position: i32| StepPos::at(if position > n as i32 { position - n as i32 } else { position });
            if !gap.arrives() {
                events[at(swap.drop)].push((1, gap.to, g));
            }
            if self.copies_in(g) {
                let back = if swap.back == n as i32 && gap.wraps(n) { StepPos(0) } else { at(swap.back) };
                events[back].push((2, gap.to, g));
            }
        }
        for t in p.tensors.ids() {
            if p.tensors[t].persistent() {
                let gaps = s.gaps_of(t);
                let host = gaps.is_empty() || self.home_on_host(gaps);
                let resident = match self.needs_shadow(t) {
                    _ if host => Resident::Host,
                    true => Resident::Both(None),
                    false => Resident::Dev(None),
                };
                x.d.residents.insert(t, resident);
                x.here[t] = !host;
            }
        }
        let last = last_touches(p, s);
        for ((i, step), events) in s.steps.iter().zip(events.values_mut()) {
            x.events(s, events);
            x.run(*step);
            for &t in &last[i] {
                if !p.tensors[t].persistent() {
                    x.drop(t);
                }
            }
        }
        x.events(s, &mut events[StepPos::new(n)]);
        x.d
    }
}

/// For every step, the tensors whose content dies with it: nothing reads it later.
fn last_touches(p: &Problem, s: &AccessSequence) -> Arena<StepPos, Vec<TensorId>> {
    let mut out = Arena::filled(Vec::new(), s.steps.len());
    let mut last: BTreeMap<TensorId, StepPos> = BTreeMap::new();
    for (i, step) in s.steps.iter() {
        let op = &p.ops[step.op];
        for &t in op.reads.iter().chain(&op.writes) {
            if !op.writes.contains(&t) || step.makes(p, t) || op.reads.contains(&t) {
                let fresh = op.writes.contains(&t) && !op.reads.contains(&t);
                if let Some(before) = last.insert(t, i)
                    && fresh
                    && before != i
                {
                    out[before].push(t);
                }
            }
        }
    }
    // A tensor that is sent to the host is given up with its copy.
    let sent = |t: TensorId| s.gaps_of(t).next_back().is_some_and(|g| s.gaps[g].sent);
    for (t, i) in last {
        if !sent(t) {
            out[i].push(t);
        }
    }
    out
}

struct Builder<'a> {
    p: &'a Problem,
    d: Decisions,
    here: Arena<TensorId, bool>,
}

impl Builder<'_> {
    /// Copies out, then releases, then copies in; the most urgent first.
    fn events(&mut self, s: &AccessSequence, events: &mut [(u8, i32, GapIx)]) {
        events.sort_unstable();
        for &(what, _, g) in events.iter() {
            let t = s.gaps[g].tensor;
            match what {
                0 => self.d.actions.push(Action::Out(t)),
                1 => self.drop(t),
                _ => {
                    self.here[t] = true;
                    self.d.actions.push(Action::In((t, None)));
                }
            }
        }
    }

    fn drop(&mut self, t: TensorId) {
        if std::mem::take(&mut self.here[t]) {
            self.d.actions.push(Action::Drop(t));
        }
    }

    fn run(&mut self, step: Step) {
        let o = &self.p.ops[step.op];
        let mut run = Run { op: step.op, recompute: step.recompute.is_some(), ..Run::default() };
        let touched = o.reads.iter().chain(o.writes.iter().filter(|t| !o.reads.contains(t)));
        for &t in touched {
            let wanted = !o.writes.contains(&t) || o.reads.contains(&t) || step.makes(self.p, t);
            if !wanted {
                run.scratch.push(None);
            } else if !std::mem::replace(&mut self.here[t], true) {
                run.at.push((t, None));
            }
        }
        run.workspace = (o.workspace > 0).then_some(None);
        self.d.actions.push(Action::Run(run));
    }
}
