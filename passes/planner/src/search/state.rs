//! A set of swapped gaps, decoded into a scheme whose copies are hidden as well as memory allows.

use crate::problem::Problem;
use crate::scheme::{Scheme, Swap};
use crate::sequence::Sequence;
use crate::timing::{Copies, Timing};

/// A change of a choice; made again, it is undone.
#[derive(Clone, Copy, Debug)]
enum Change {
    Swap(usize),
    Mirror(u32),
}

/// A choice of gaps to swap over one sequence within a capacity, and its decoding.
#[derive(Clone, Debug)]
pub(crate) struct State<'a> {
    pub(crate) p: &'a Problem,
    pub(crate) scheme: Scheme,
    pub(crate) copies: Copies,
    /// Bytes that may be in use during every step.
    pub(crate) capacity: Vec<u64>,
    /// Bytes every step needs when swapped tensors are away as long as possible.
    pub(crate) least: Vec<u64>,
    /// Whether each gap may be swapped.
    pub(crate) open: Vec<bool>,
    /// For every gap, when its copy to the host is issued.
    pub(crate) outs: Vec<i32>,
    pub(crate) timing: Timing,
    /// What [`State::set`] and [`State::mirror`] changed since the last [`State::commit`].
    journal: Vec<Change>,
    used: Vec<u64>,
    /// Copies to the host by the order in which they are issued: step, end of the gap, gap.
    queue: Vec<(i32, i32, u32)>,
}

impl<'a> State<'a> {
    /// Nothing swapped but what has to be.
    pub(crate) fn new(p: &'a Problem, sequence: Sequence, capacity: Vec<u64>, swap: bool) -> State<'a> {
        let copies = Copies::new(p, &sequence.gaps);
        let n = sequence.steps.len();
        let may = swap && p.device.can_swap();
        let open = sequence.gaps.iter().map(|g| may && (g.open() || g.wraps(n)) && !g.arrives()).collect();
        let scheme = Scheme { early: true, ..Scheme::keep_all(sequence) };
        let (least, outs) = (scheme.usage(), scheme.copies_out(p));
        let used = least.clone();
        State {
            p,
            scheme,
            copies,
            capacity,
            least,
            open,
            outs,
            timing: Timing::default(),
            used,
            journal: Vec::new(),
            queue: Vec::new(),
        }
    }

    /// Steps of the sequence.
    pub(crate) fn steps(&self) -> usize {
        self.scheme.sequence.steps.len()
    }

    /// Positions that a swapped gap frees at most, half-open; the second range is in the next step.
    pub(crate) fn freed(&self, g: usize) -> [(usize, usize); 2] {
        let (gap, n) = (&self.scheme.sequence.gaps[g], self.steps());
        let (a, b) = ((gap.from + 1).max(0) as usize, gap.to as usize);
        [(a.min(n), b.min(n)), (0, b.saturating_sub(n))]
    }

    pub(crate) fn swapped(&self, g: usize) -> bool {
        self.scheme.swaps[g].is_some()
    }

    /// Has a persistent tensor on both sides when a step begins, or not.
    pub(crate) fn mirror(&mut self, t: u32, mirrored: bool) {
        if self.scheme.mirrored[t as usize] == mirrored {
            return;
        }
        self.journal.push(Change::Mirror(t));
        self.scheme.mirrored[t as usize] = mirrored;
        self.scheme.copies_out_of(self.p, t, &mut self.outs);
    }

    /// Swaps nothing that need not be.
    pub(crate) fn clear(&mut self) {
        for g in 0..self.open.len() {
            if self.open[g] {
                self.set(g, false);
            }
        }
        for t in 0..self.scheme.mirrored.len() as u32 {
            if self.scheme.mirrored[t as usize] {
                self.mirror(t, false);
            }
        }
    }

    /// Swaps a gap, or keeps it.
    pub(crate) fn set(&mut self, g: usize, swapped: bool) {
        if self.swapped(g) == swapped {
            return;
        }
        self.journal.push(Change::Swap(g));
        let gap = self.scheme.sequence.gaps[g];
        for (from, to) in self.freed(g) {
            for least in &mut self.least[from..to] {
                *least = if swapped { *least - gap.bytes } else { *least + gap.bytes };
            }
        }
        self.scheme.swaps[g] = swapped.then(|| Swap::longest(&gap, self.steps()));
        self.scheme.copies_out_of(self.p, gap.tensor, &mut self.outs);
    }

    /// Forgets how to go back.
    pub(crate) fn commit(&mut self) {
        self.journal.clear();
    }

    /// Undoes all that changed since the last [`State::commit`].
    pub(crate) fn rollback(&mut self) {
        while let Some(change) = self.journal.pop() {
            match change {
                Change::Swap(g) => self.set(g, !self.swapped(g)),
                Change::Mirror(t) => self.mirror(t, !self.scheme.mirrored[t as usize]),
            }
            self.journal.pop();
        }
    }

    /// Chooses when tensors leave and return, and returns the time of a step in ns.
    ///
    /// Releases are put off until copies to the host are done, copies to the device begin as early as they have to for
    /// the steps to find them done, both as far as memory allows: by the steps' times without stalls first, then by
    /// those that come out.
    pub(crate) fn decode(&mut self, rounds: usize) -> u64 {
        let n = self.steps();
        let mut best: Option<(u64, Vec<Option<Swap>>)> = None;
        let mut start = vec![0u64; n + 1];
        for i in 0..n {
            start[i + 1] = start[i] + self.scheme.sequence.ns[i];
        }
        for _ in 0..rounds {
            self.stretch(&start);
            let step = self.timing.evaluate(&self.scheme, &self.copies, &self.outs);
            let better = best.as_ref().is_none_or(|b| step < b.0);
            let same = best.as_ref().is_some_and(|b| step == b.0);
            if better {
                best = Some((step, self.scheme.swaps.clone()));
            }
            if step == start[n] || same {
                break;
            }
            start[..n].copy_from_slice(&self.timing.start);
            start[n] = step;
        }
        let Some((step, swaps)) = best else { return u64::MAX };
        self.scheme.swaps = swaps;
        step
    }

    fn stretch(&mut self, start: &[u64]) {
        let n = self.steps();
        self.used.clone_from(&self.least);
        for (gap, swap) in self.scheme.sequence.gaps.iter().zip(&mut self.scheme.swaps) {
            if swap.is_some() {
                *swap = Some(Swap::longest(gap, n));
            }
        }
        self.put_off(start);
        self.fetch_early(start);
    }

    /// Releases: as late as the copy to the host takes.
    fn put_off(&mut self, start: &[u64]) {
        let n = self.steps();
        let mut free = 0u64;
        self.queue.clear();
        for (g, &at) in self.outs.iter().enumerate().filter(|(_, at)| **at >= 0) {
            self.queue.push((at, self.scheme.sequence.gaps[g].to, g as u32));
        }
        self.queue.sort_unstable();
        for &(at, _, g) in &self.queue {
            let g = g as usize;
            free = free.max(start[at.min(n as i32) as usize]) + self.copies.out[g];
            let gap = &self.scheme.sequence.gaps[g];
            let Some(swap) = &mut self.scheme.swaps[g] else { continue };
            let limit = gap.to.min(n as i32);
            while swap.drop < limit && start[swap.drop as usize] < free {
                let used = &mut self.used[swap.drop as usize];
                if *used + gap.bytes > self.capacity[swap.drop as usize] {
                    break;
                }
                *used += gap.bytes;
                swap.drop += 1;
            }
        }
    }

    /// Copies to the device: as early as they and those behind them take.
    fn fetch_early(&mut self, start: &[u64]) {
        let n = self.steps() as i32;
        let period = start[n as usize];
        let at = |i: i32| if i >= n { start[(i - n) as usize] + period } else { start[i as usize] };
        let mut latest = u64::MAX;
        for &g in self.copies.order.iter().rev() {
            let g = g as usize;
            let (gap, Some(swap)) = (&self.scheme.sequence.gaps[g], &mut self.scheme.swaps[g]) else {
                continue;
            };
            if gap.dead {
                continue;
            }
            latest = latest.min(at(gap.to)).saturating_sub(self.copies.back[g]);
            let limit = if gap.arrives() { 0 } else { swap.drop };
            while swap.back > limit && at(swap.back) > latest {
                let i = swap.back - 1;
                let i = if i >= n { i - n } else { i } as usize;
                let used = &mut self.used[i];
                if *used + gap.bytes > self.capacity[i] {
                    break;
                }
                *used += gap.bytes;
                swap.back -= 1;
            }
        }
    }
}
