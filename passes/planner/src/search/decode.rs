//! Times at which swapped tensors leave and return: as close to their uses as all copies allow, within a
//! capacity.
//!
//! Copies to the host are done in the order in which they are issued. So where memory runs short, whatever is
//! first in that order goes first: it holds a step up for the shortest time. Copies to the device are the
//! same backwards.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use memc_ir::{Arena, Id, Ids};

use super::state::State;
use crate::genotype::Swap;
use crate::ids::{GapIx, StepPos};
use crate::timing::Cause;

/// Workspace of decoding.
#[derive(Clone, Debug, Default)]
pub(super) struct Decoder {
    /// Bytes in use during every step.
    used: Arena<StepPos, u64>,
    /// For every step, time in ns that it waits for copies to the device.
    waits: Arena<StepPos, u64>,
    /// Start of every step in ns, and of the next one.
    start: Arena<StepPos, u64>,
    /// Copies to the host by the order in which they are issued: step, end of the gap, gap.
    outs: Vec<(i32, i32, GapIx)>,
    /// Gaps with copies to the device, the last first.
    backs: Vec<GapIx>,
    staying: Staying,
}

/// Tensors that are on the device though they could be away. Copies have places, in the order in which they
/// are done.
#[derive(Clone, Debug, Default)]
struct Staying {
    /// By place: when its copy is done in ns, and its bytes.
    copies: Vec<(i64, u64)>,
    /// By place.
    stays: Vec<bool>,
    /// Places, the first on top; those that stay no more are left out when they come up.
    first: BinaryHeap<Reverse<usize>>,
    /// Where stays begin and have to end: position, place.
    begins: BinaryHeap<Reverse<(i32, usize)>>,
    ends: BinaryHeap<Reverse<(i32, usize)>>,
    /// Of those that stay.
    bytes: u64,
}

impl Staying {
    fn clear(&mut self) {
        self.copies.clear();
        self.stays.clear();
        self.first.clear();
        self.begins.clear();
        self.ends.clear();
        self.bytes = 0;
    }

    /// The next copy, whose tensor may stay from one position to another.
    fn push(&mut self, done: i64, bytes: u64, from: i32, to: i32) {
        let place = self.copies.len();
        self.copies.push((done, bytes));
        self.stays.push(false);
        if from < to {
            self.begins.push(Reverse((from, place)));
            self.ends.push(Reverse((to, place)));
        }
    }

    /// The place of those that come up at a position.
    fn due(heap: &mut BinaryHeap<Reverse<(i32, usize)>>, position: i32) -> Option<usize> {
        let &Reverse((at, place)) = heap.peek()?;
        if at > position {
            return None;
        }
        heap.pop();
        Some(place)
    }

    /// Comes to a position at a time: whatever need not stay longer goes, and so does what has no room, once
    /// its copy is done. Tells the places of both.
    fn pass(&mut self, position: i32, now: &mut i64, headroom: u64, mut goes: impl FnMut(usize)) {
        while let Some(place) = Self::due(&mut self.begins, position) {
            self.stays[place] = true;
            self.first.push(Reverse(place));
            self.bytes += self.copies[place].1;
        }
        let mut end = |this: &mut Self, place: usize| {
            if std::mem::take(&mut this.stays[place]) {
                this.bytes -= this.copies[place].1;
                goes(place);
            }
        };
        while let Some(place) = Self::due(&mut self.ends, position) {
            end(self, place);
        }
        while let Some(&Reverse(place)) = self.first.peek() {
            if self.stays[place] {
                if self.copies[place].0 > *now && self.bytes <= headroom {
                    break;
                }
                *now = (*now).max(self.copies[place].0);
                end(self, place);
            }
            self.first.pop();
        }
    }
}

impl State<'_> {
    /// Chooses when tensors leave and return, and returns the time of a step in ns.
    ///
    /// Releases are put off until copies to the host are done, copies to the device begin as early as they
    /// have to for the steps to find them done, both as far as memory allows; then again with the waits that
    /// come out.
    pub(crate) fn decode(&mut self, rounds: usize) -> u64 {
        let n = self.steps();
        let ideal = self.genotype.sequence.compute_ns();
        let mut best: Option<(u64, Arena<GapIx, Option<Swap>>)> = None;
        self.decoder.waits.clear();
        self.decoder.waits.resize(n, 0);
        let gaps = &self.genotype.sequence.gaps;
        self.decoder.outs.clear();
        let outs = self.outs.iter().filter(|(_, at)| **at >= 0);
        self.decoder.outs.extend(outs.map(|(g, &at)| (at, gaps[g].to, g)));
        self.decoder.outs.sort_unstable();
        for _ in 0..rounds {
            let mut decoder = std::mem::take(&mut self.decoder);
            self.put_off(&mut decoder);
            self.fetch_early(&mut decoder);
            let step = self.trial.evaluate(&self.genotype, &self.copies, &self.outs);
            let same = best.as_ref().is_some_and(|b| step == b.0);
            if best.as_ref().is_none_or(|b| step < b.0) {
                best = Some((step, self.genotype.swaps.clone()));
            }
            for (i, wait) in decoder.waits.iter_mut() {
                let waits = matches!(self.trial.cause[i], Cause::In(_));
                *wait = if waits { self.trial.stall(i) } else { 0 };
            }
            self.decoder = decoder;
            if step == ideal || same {
                break;
            }
        }
        let Some((step, swaps)) = best else { return u64::MAX };
        self.genotype.swaps = swaps;
        step
    }

    /// Releases: as late as the copies to the host take.
    fn put_off(&mut self, d: &mut Decoder) {
        let (n, s) = (self.steps(), &mut self.genotype);
        let gaps = &s.sequence.gaps;
        for (gap, swap) in gaps.values().zip(s.swaps.values_mut()) {
            *swap = swap.map(|_| Swap::longest(gap, n));
        }
        d.staying.clear();
        d.used.clone_from(&self.least);
        d.start.clear();
        let (mut now, mut free) = (0i64, 0i64);
        for i in Ids::<StepPos>::first(n + 1) {
            while let Some(&(_, to, g)) = d.outs.get(d.staying.copies.len()).filter(|x| x.0 <= i.position()) {
                free = free.max(now) + self.copies.out[g] as i64;
                let from = s.swaps[g].map_or(i32::MAX, |swap| swap.drop);
                d.staying.push(free, gaps[g].bytes, from, to.min(n as i32));
            }
            let headroom = self.capacity.all.get(i).map_or(u64::MAX, |c| c.saturating_sub(self.least[i]));
            d.staying.pass(i.position(), &mut now, headroom, |place| {
                if let Some(swap) = &mut s.swaps[d.outs[place].2] {
                    swap.drop = i.position();
                }
            });
            if i.index() < n {
                d.used[i] += d.staying.bytes;
                now += d.waits[i] as i64;
            }
            d.start.push(now as u64);
            if i.index() < n {
                now += s.sequence.ns[i] as i64;
                free =
                    free.max(now * i64::from(s.sequence.output_ns[i] > 0)) + s.sequence.output_ns[i] as i64;
            }
        }
    }

    /// Copies to the device: as early as they and those behind them take. Time and positions are counted
    /// backwards.
    fn fetch_early(&mut self, d: &mut Decoder) {
        let (n, s) = (self.steps(), &mut self.genotype);
        let gaps = &s.sequence.gaps;
        d.backs.clear();
        let moved = |g: &GapIx| s.swaps[*g].is_some() && !gaps[*g].dead;
        d.backs.extend(self.copies.order.iter().rev().copied().filter(moved));
        d.staying.clear();
        let end = n as i32;
        let period = d.start[StepPos::at(end)] as i64;
        let at = |i: i32| d.start[s.sequence.step_at(i)] as i64 + if i >= end { period } else { 0 };
        let last = d.backs.first().map_or(0, |&g| gaps[g].to.max(0));
        // Delay of every earlier step by the waits so far.
        let mut late = 0i64;
        let mut free = i64::MIN;
        for i in (0..=last).rev() {
            let mut now = late - at(i);
            while let Some(&g) = d.backs.get(d.staying.copies.len()).filter(|g| gaps[**g].to >= i) {
                let gap = &gaps[g];
                free = free.max(now) + self.copies.back[g] as i64;
                let first = if gap.arrives() { 0 } else { s.swaps[g].map_or(gap.to, |swap| swap.drop) };
                d.staying.push(free, gap.bytes, -gap.to, -first);
            }
            let before = (i > 0).then(|| s.sequence.step_at(i - 1));
            let headroom = before.map_or(u64::MAX, |i| self.capacity.all[i].saturating_sub(d.used[i]));
            d.staying.pass(-i, &mut now, headroom, |place| {
                if let Some(swap) = &mut s.swaps[d.backs[place]] {
                    swap.back = i;
                }
            });
            if let Some(i) = before {
                d.used[i] += d.staying.bytes;
            }
            late = now + at(i);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three copies done at 10, 20 and 30; without room for all, the first goes, once it is done, and the
    /// others stay until theirs are.
    #[test]
    fn where_room_is_short_the_first_in_the_queue_goes_first() {
        let mut staying = Staying::default();
        for done in [10, 20, 30] {
            staying.push(done, 100, 0, 9);
        }
        let mut now = 5;
        let mut pass = |position, now: &mut i64, headroom| {
            let mut gone: Vec<usize> = Vec::new();
            staying.pass(position, now, headroom, |place| gone.push(place));
            gone
        };
        assert!(pass(0, &mut now, 300).is_empty());
        assert_eq!((pass(1, &mut now, 250), now), (vec![0], 10));
        assert!(pass(2, &mut now, 250).is_empty());
        now = 20;
        assert_eq!((pass(3, &mut now, 250), now), (vec![1], 20));
        // It has to go, done or not.
        assert_eq!((pass(9, &mut now, 250), now), (vec![2], 20));
    }
}
