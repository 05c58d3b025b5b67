//! The device arena during a walk over the step: the tensors in it, their offsets, and the holes.

use std::collections::{BTreeMap, BTreeSet};

use memc_planner::TensorId;

/// Who occupies a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Owner {
    /// A tensor of the problem.
    Tensor(TensorId),
    /// A workspace or an unwanted result, for the op that runs now.
    Scratch,
}

/// Blocks of `[base, capacity)`, by offset.
#[derive(Clone, Debug)]
pub(super) struct DeviceArena {
    base: u64,
    capacity: u64,
    blocks: BTreeMap<u64, (u64, Owner)>,
    /// Bytes and offset of every hole between them.
    holes: BTreeSet<(u64, u64)>,
}

impl DeviceArena {
    pub(super) fn new(base: u64, capacity: u64) -> DeviceArena {
        let mut arena = DeviceArena {
            base,
            capacity: capacity.max(base),
            blocks: BTreeMap::new(),
            holes: BTreeSet::new(),
        };
        arena.clear();
        arena
    }

    pub(super) fn insert(&mut self, at: u64, bytes: u64, owner: Owner) {
        let (low, high) = self.between(at);
        self.holes.remove(&(high - low, low));
        self.open(low, at);
        self.open(at + bytes, high);
        self.blocks.insert(at, (bytes, owner));
    }

    pub(super) fn remove(&mut self, at: u64) {
        if let Some((bytes, _)) = self.blocks.remove(&at) {
            let (low, high) = self.between(at);
            self.holes.remove(&(at - low, low));
            self.holes.remove(&(high - (at + bytes), at + bytes));
            self.open(low, high);
        }
    }

    pub(super) fn clear(&mut self) {
        self.blocks.clear();
        self.holes.clear();
        self.open(self.base, self.capacity);
    }

    /// End of the block before an offset, and start of the one after it.
    fn between(&self, at: u64) -> (u64, u64) {
        let before = self.blocks.range(..at).next_back().map_or(self.base, |(&at, &(bytes, _))| at + bytes);
        let after = self.blocks.range(at + 1..).next().map_or(self.capacity, |(&at, _)| at);
        (before, after)
    }

    fn open(&mut self, low: u64, high: u64) {
        if low < high {
            self.holes.insert((high - low, low));
        }
    }

    /// The tightest hole of at least `bytes`; the lowest of equals.
    pub(super) fn hole(&self, bytes: u64) -> Option<u64> {
        self.holes.range((bytes, 0)..).next().map(|&(_, at)| at)
    }

    /// The tensors to evict for a hole of at least `bytes`: the run of neighbours with the least total
    /// `cost`. A block whose cost is `None` stays.
    pub(super) fn cheapest_window(
        &self,
        bytes: u64,
        cost: impl Fn(TensorId) -> Option<f64>,
    ) -> Option<Vec<TensorId>> {
        // Blocks between walls, with the cost of removing each.
        let mut run: Vec<(u64, u64, TensorId, f64)> = Vec::new();
        let mut left = self.base;
        let mut best: Option<(f64, Vec<TensorId>)> = None;
        let end = (self.capacity, (0, Owner::Scratch));
        for (at, (size, owner)) in self.blocks.iter().map(|(&at, &b)| (at, b)).chain([end]) {
            let price = if let Owner::Tensor(t) = owner { cost(t).map(|c| (t, c)) } else { None };
            if let Some((t, c)) = price {
                run.push((at, at + size, t, c));
                continue;
            }
            scan(&run, left, at, bytes, &mut best);
            run.clear();
            left = at + size;
        }
        best.map(|(_, tensors)| tensors)
    }
}

/// Two pointers over one run of removable blocks between the walls `left` and `right`.
fn scan(
    run: &[(u64, u64, TensorId, f64)],
    left: u64,
    right: u64,
    bytes: u64,
    best: &mut Option<(f64, Vec<TensorId>)>,
) {
    let mut last = 0;
    let mut total = 0.0;
    for first in 0..run.len() {
        let from = if first == 0 { left } else { run[first - 1].1 };
        if last < first {
            (last, total) = (first, 0.0);
        }
        let room = |last: usize| if last < run.len() { run[last].0 } else { right }.saturating_sub(from);
        while last < run.len() && (last == first || room(last) < bytes) {
            total += run[last].3;
            last += 1;
        }
        if room(last) >= bytes && best.as_ref().is_none_or(|(cost, _)| total < *cost) {
            *best = Some((total, run[first..last].iter().map(|b| b.2).collect()));
        }
        total -= run[first].3;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `[0,64)` free, then tensors 1..=3 of 64 bytes each, scratch, and 64 bytes of tensor 4 at the end.
    fn arena() -> DeviceArena {
        let mut a = DeviceArena::new(0, 384);
        for t in 1..=3u32 {
            a.insert(u64::from(t) * 64, 64, Owner::Tensor(TensorId(t)));
        }
        a.insert(256, 64, Owner::Scratch);
        a.insert(320, 64, Owner::Tensor(TensorId(4)));
        a
    }

    #[test]
    fn the_tightest_hole_wins() {
        let mut a = arena();
        assert_eq!(a.hole(64), Some(0));
        assert_eq!(a.hole(65), None);
        a.remove(128);
        a.remove(192);
        assert_eq!(a.hole(64), Some(0), "the hole of 64 is tighter than the one of 128");
        assert_eq!(a.hole(128), Some(128));
    }

    #[test]
    fn the_cheapest_window_counts_the_free_bytes_beside_it() {
        let a = arena();
        // Two blocks are needed for 128 bytes anywhere but at the start, where 64 bytes are free.
        assert_eq!(a.cheapest_window(128, |t| Some(f64::from(t.0))), Some(vec![TensorId(1)]));
        assert_eq!(
            a.cheapest_window(128, |t| Some(if t == TensorId(1) { 9.0 } else { 1.0 })),
            Some([2, 3].map(TensorId).to_vec())
        );
        assert_eq!(a.cheapest_window(64, |t| (t == TensorId(4)).then_some(1.0)), Some(vec![TensorId(4)]));
    }

    #[test]
    fn blocks_without_a_cost_and_scratch_are_walls() {
        let a = arena();
        assert_eq!(a.cheapest_window(129, |t| (t != TensorId(2)).then_some(1.0)), None);
        assert_eq!(a.cheapest_window(257, |_| Some(1.0)), None);
        assert_eq!(a.cheapest_window(256, |_| Some(1.0)), Some([1, 2, 3].map(TensorId).to_vec()));
    }
}
