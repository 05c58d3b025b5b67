//! Swap tasks: the tensors of the memory peak, their feasible time regions, and the link that they share
//! (Sec. 4.1, 4.2, Algorithms 1 and 2).

use std::cmp::Reverse;

use memc_ir::Arena;
use memc_planner::{AccessSequence, GapIx, Genotype, Problem, StepPos, Swap, TensorId};

use super::link::Link;

/// Decisions so far, on the time axis of a step whose ops never wait.
pub(super) struct Tasks<'a> {
    p: &'a Problem,
    /// The gaps between tensor accesses, and the swap tasks of each.
    pub(super) genotype: Genotype,
    /// Start of every op, and the end of the step.
    start: Arena<StepPos, u64>,
    /// Gaps whose copy to the host has its time on the link.
    copied: Arena<GapIx, bool>,
    /// Tensors with swap tasks.
    pub(super) swapped: Arena<TensorId, bool>,
    link: Link,
}

impl<'a> Tasks<'a> {
    /// No tasks; inputs are there when the step begins.
    pub(super) fn new(p: &'a Problem) -> Tasks<'a> {
        let sequence = AccessSequence::of_order(p, p.ops.ids());
        let mut start = Arena::from(vec![0]);
        let mut now = 0;
        start.extend(sequence.ns.values().map(|ns| {
            now += ns;
            now
        }));
        let mut genotype = Genotype::keep_all(sequence);
        for (gap, swap) in genotype.sequence.gaps.values().zip(genotype.swaps.values_mut()) {
            if gap.arrives() {
                *swap = Some(Swap { drop: 0, back: 0 });
            }
        }
        let copied = Arena::filled(false, genotype.swaps.len());
        Tasks {
            p,
            genotype,
            start,
            copied,
            swapped: Arena::filled(false, p.tensors.len()),
            link: Link::new(now),
        }
    }

    fn steps(&self) -> i32 {
        self.genotype.sequence.steps.len() as i32
    }

    /// Bytes of a tensor that are copied.
    fn size(&self, t: TensorId) -> u64 {
        self.p.tensors[t].size
    }

    /// Start of a step in ns; counted on past the end in the next.
    pub(super) fn at(&self, step: i32) -> u64 {
        let n = self.steps();
        let ns = |i: i32| self.start.get(StepPos::at(i)).copied().unwrap_or_default();
        if step > n { ns(n) + ns(step - n) } else { ns(step) }
    }

    /// Steps whose start has a property that the first ones have.
    fn starts(&self, has: impl Fn(u64) -> bool) -> i32 {
        let end = self.start.partition_point(|&s| has(s)).position();
        end.min(self.steps())
    }

    /// The first step that starts at `ns` or later.
    fn first_from(&self, ns: u64) -> i32 {
        let n = self.steps();
        let first = |ns: u64| self.starts(|s| s < ns);
        let end = self.at(n);
        if ns > end { n + first(ns - end) } else { first(ns) }
    }

    /// The last step that starts at `ns` or earlier.
    fn last_until(&self, ns: u64) -> i32 {
        let n = self.steps();
        let last = |ns: u64| self.starts(|s| s <= ns) - 1;
        let end = self.at(n);
        if ns >= end { n + last(ns - end) } else { last(ns) }
    }

    /// Algorithm 2: the peak's step and bytes.
    pub(super) fn peak(&self) -> (StepPos, u64) {
        let usage = self.genotype.usage();
        let most = usage.iter().max_by_key(|&(i, &bytes)| (bytes, Reverse(i)));
        most.map_or((StepPos(0), 0), |(i, &bytes)| (i, bytes))
    }

    /// Tensors that lie unused on the device during a step and have no tasks, the largest first.
    pub(super) fn idle_at(&self, step: StepPos) -> Vec<TensorId> {
        let (step, n) = (step.position(), self.steps());
        let gaps = self.genotype.sequence.gaps.values().zip(self.genotype.swaps.values());
        let covers = gaps.filter(|(gap, swap)| {
            let now = (gap.from < step && step < gap.to) || step + n < gap.to;
            swap.is_none() && now && !self.swapped[gap.tensor]
        });
        let mut tensors: Vec<(Reverse<u64>, TensorId)> =
            covers.map(|(gap, _)| (Reverse(gap.bytes), gap.tensor)).collect();
        tensors.sort_unstable();
        tensors.into_iter().map(|(_, t)| t).collect()
    }

    /// Algorithm 1 for one tensor: finds room on the link for its swap tasks so that it is away in at least
    /// one gap.
    pub(super) fn schedule(&mut self, t: TensorId, peak: StepPos) -> bool {
        let gaps = self.genotype.sequence.gaps_of(t);
        let n = self.genotype.sequence.steps.len();
        let wraps = |g: GapIx, s: &Self| s.genotype.sequence.gaps[g].wraps(n);
        let latest = self.at(peak.position());
        let updated = gaps.clone().next_back().filter(|&g| wraps(g, self));
        let mut first = updated.filter(|&g| self.swap(g, u64::MAX));
        if first.is_none() {
            // Line 34: the next access, until the copy would end after the peak.
            first = gaps.clone().find(|&g| !wraps(g, self) && self.swap(g, latest));
        }
        if first.is_none() {
            return false;
        }
        self.swapped[t] = true;
        // Line 36: the rest of the accesses.
        for g in gaps {
            if Some(g) != first && !wraps(g, self) {
                self.swap(g, u64::MAX);
            }
        }
        true
    }

    /// Swap tasks for one gap: out as early as the link allows, ending by `latest`, and in as late as
    /// possible.
    fn swap(&mut self, g: GapIx, latest: u64) -> bool {
        let gap = self.genotype.sequence.gaps[g];
        let wraps = gap.wraps(self.genotype.sequence.steps.len());
        if self.genotype.swaps[g].is_some() || !(gap.open() || wraps) {
            return false;
        }
        self.genotype.swaps[g] = Some(Swap::longest(&gap, self.genotype.sequence.steps.len()));
        let tasks = self.regions(g, latest);
        self.genotype.swaps[g] = tasks.map(|(_, _, swap)| swap);
        let mut outs = Arena::filled(-1, self.copied.len());
        self.genotype.copies_out_of(self.p, gap.tensor, &mut outs);
        let gaps = self.genotype.sequence.gaps_of(gap.tensor);
        let unplanned = |k: GapIx| k != g && outs[k] >= 0 && !self.copied[k];
        let Some((out, back, _)) = tasks.filter(|_| !gaps.clone().any(unplanned)) else {
            self.genotype.swaps[g] = None;
            return false;
        };
        if let Some(at) = out {
            self.link.take(at, self.p.device.d2h_ns(self.size(gap.tensor)));
            self.copied[g] = true;
        }
        if let Some(at) = back {
            self.link.take(at, self.p.device.h2d_ns(self.size(gap.tensor)));
        }
        true
    }

    /// Starts of the copies of a gap that is tentatively swapped, and what they mean for the steps; nothing
    /// when there is no region for one of them or no step in which the tensor is away.
    fn regions(&self, g: GapIx, latest: u64) -> Option<(Option<u64>, Option<u64>, Swap)> {
        let gap = &self.genotype.sequence.gaps[g];
        let n = self.steps();
        let (begin, end) = (self.at(gap.from + 1), self.at(gap.to));
        let wraps = gap.wraps(self.genotype.sequence.steps.len());
        let mut outs = Arena::filled(-1, self.copied.len());
        self.genotype.copies_out_of(self.p, gap.tensor, &mut outs);
        let (mut out, mut gone) = (None, begin);
        let mut swap = Swap::longest(gap, self.genotype.sequence.steps.len());
        if outs[g] >= 0 {
            // The end of a step waits for the copies that are left.
            let limit = latest.min(if wraps { self.at(n) } else { end });
            let ns = self.p.device.d2h_ns(self.size(gap.tensor));
            let at = self.link.earliest(begin, limit, ns)?;
            (out, gone) = (Some(at), at + ns);
            swap.drop = self.first_from(gone).max(swap.drop);
        } else if begin >= latest {
            return None;
        }
        let mut back = None;
        if self.genotype.copies_in(g) {
            let from = if wraps { gone.max(self.at(n)) } else { gone };
            let at = self.link.latest(from, end, self.p.device.h2d_ns(self.size(gap.tensor)))?;
            back = Some(at);
            swap.back = self.last_until(at).min(gap.to);
        }
        (swap.drop < swap.back).then_some((out, back, swap))
    }
}
