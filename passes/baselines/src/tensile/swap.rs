//! Swap tasks: the tensors of the memory peak, their feasible time regions, and the link that they share
//! (Sec. 4.1, 4.2, Algorithms 1 and 2).

use memc_planner::{Problem, Scheme, Sequence, Swap};

use super::link::Link;

/// Decisions so far, on the time axis of a step whose ops never wait.
pub(super) struct Tasks<'a> {
    p: &'a Problem,
    /// The gaps between tensor accesses, and the swap tasks of each.
    pub(super) scheme: Scheme,
    /// Start of every op, and the end of the step.
    start: Vec<u64>,
    /// Gaps whose copy to the host has its time on the link.
    copied: Vec<bool>,
    /// Tensors with swap tasks.
    pub(super) swapped: Vec<bool>,
    link: Link,
}

impl<'a> Tasks<'a> {
    /// No tasks; inputs are there when the step begins.
    pub(super) fn new(p: &'a Problem) -> Tasks<'a> {
        let sequence = Sequence::of_order(p, 0..p.ops.len() as u32);
        let mut start = vec![0];
        let mut now = 0;
        start.extend(sequence.ns.iter().map(|ns| {
            now += ns;
            now
        }));
        let mut scheme = Scheme::keep_all(sequence);
        for (gap, swap) in scheme.sequence.gaps.iter().zip(&mut scheme.swaps) {
            if gap.arrives() {
                *swap = Some(Swap { drop: 0, back: 0 });
            }
        }
        let copied = vec![false; scheme.swaps.len()];
        Tasks { p, scheme, start, copied, swapped: vec![false; p.tensors.len()], link: Link::new(now) }
    }

    fn steps(&self) -> i32 {
        self.scheme.sequence.steps.len() as i32
    }

    /// Bytes of a tensor that are copied.
    fn size(&self, t: u32) -> u64 {
        self.p.tensors[t as usize].size
    }

    /// Start of a step in ns; counted on past the end in the next.
    pub(super) fn at(&self, step: i32) -> u64 {
        let n = self.steps();
        let ns = |i: i32| self.start.get(i.max(0) as usize).copied().unwrap_or_default();
        if step > n { ns(n) + ns(step - n) } else { ns(step) }
    }

    /// The first step that starts at `ns` or later.
    fn first_from(&self, ns: u64) -> i32 {
        let n = self.steps();
        let first = |ns: u64| self.start[..n as usize].partition_point(|&s| s < ns) as i32;
        let end = self.at(n);
        if ns > end { n + first(ns - end) } else { first(ns) }
    }

    /// The last step that starts at `ns` or earlier.
    fn last_until(&self, ns: u64) -> i32 {
        let n = self.steps();
        let last = |ns: u64| self.start[..n as usize].partition_point(|&s| s <= ns) as i32 - 1;
        let end = self.at(n);
        if ns >= end { n + last(ns - end) } else { last(ns) }
    }

    /// Algorithm 2: the peak's step and bytes.
    pub(super) fn peak(&self) -> (usize, u64) {
        let usage = self.scheme.usage();
        let most = usage.iter().enumerate().max_by_key(|&(i, &bytes)| (bytes, usize::MAX - i));
        most.map_or((0, 0), |(i, &bytes)| (i, bytes))
    }

    /// Tensors that lie unused on the device during a step and have no tasks, the largest first.
    pub(super) fn idle_at(&self, step: usize) -> Vec<u32> {
        let (step, n) = (step as i32, self.steps());
        let gaps = self.scheme.sequence.gaps.iter().zip(&self.scheme.swaps);
        let covers = gaps.filter(|(gap, swap)| {
            let now = (gap.from < step && step < gap.to) || step + n < gap.to;
            swap.is_none() && now && !self.swapped[gap.tensor as usize]
        });
        let mut tensors: Vec<(std::cmp::Reverse<u64>, u32)> =
            covers.map(|(gap, _)| (std::cmp::Reverse(gap.bytes), gap.tensor)).collect();
        tensors.sort_unstable();
        tensors.into_iter().map(|(_, t)| t).collect()
    }

    /// Algorithm 1 for one tensor: finds room on the link for its swap tasks so that it is away in at least
    /// one gap.
    pub(super) fn schedule(&mut self, t: u32, peak: usize) -> bool {
        let gaps = self.scheme.sequence.gaps_of(t);
        let n = self.steps() as usize;
        let wraps = |g: usize, s: &Self| s.scheme.sequence.gaps[g].wraps(n);
        let latest = self.at(peak as i32);
        let updated = gaps.clone().next_back().filter(|&g| wraps(g, self));
        let mut first = updated.filter(|&g| self.swap(g, u64::MAX));
        if first.is_none() {
            // Line 34: the next access, until the copy would end after the peak.
            first = gaps.clone().find(|&g| !wraps(g, self) && self.swap(g, latest));
        }
        if first.is_none() {
            return false;
        }
        self.swapped[t as usize] = true;
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
    fn swap(&mut self, g: usize, latest: u64) -> bool {
        let gap = self.scheme.sequence.gaps[g];
        let n = self.steps();
        let wraps = gap.wraps(n as usize);
        if self.scheme.swaps[g].is_some() || !(gap.open() || wraps) {
            return false;
        }
        self.scheme.swaps[g] = Some(Swap::longest(&gap, n as usize));
        let tasks = self.regions(g, latest);
        self.scheme.swaps[g] = tasks.map(|(_, _, swap)| swap);
        let mut outs = vec![-1; self.copied.len()];
        self.scheme.copies_out_of(self.p, gap.tensor, &mut outs);
        let gaps = self.scheme.sequence.gaps_of(gap.tensor);
        let unplanned = |k: usize| k != g && outs[k] >= 0 && !self.copied[k];
        let Some((out, back, _)) = tasks.filter(|_| !gaps.clone().any(unplanned)) else {
            self.scheme.swaps[g] = None;
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
    fn regions(&self, g: usize, latest: u64) -> Option<(Option<u64>, Option<u64>, Swap)> {
        let gap = &self.scheme.sequence.gaps[g];
        let n = self.steps();
        let (begin, end) = (self.at(gap.from + 1), self.at(gap.to));
        let wraps = gap.wraps(n as usize);
        let mut outs = vec![-1; self.copied.len()];
        self.scheme.copies_out_of(self.p, gap.tensor, &mut outs);
        let (mut out, mut gone) = (None, begin);
        let mut swap = Swap::longest(gap, n as usize);
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
        if self.scheme.copies_in(g) {
            let from = if wraps { gone.max(self.at(n)) } else { gone };
            let at = self.link.latest(from, end, self.p.device.h2d_ns(self.size(gap.tensor)))?;
            back = Some(at);
            swap.back = self.last_until(at).min(gap.to);
        }
        (swap.drop < swap.back).then_some((out, back, swap))
    }
}
