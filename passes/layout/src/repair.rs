//! Local search for a layout of a given height: what lies too high is put where it does least harm, and what is in its
//! way is put elsewhere in turn.
//!
//! Buffers above the target are taken out and put back, the largest first. One that fits into no gap takes the place
//! whose occupants cost least to move: a buffer costs its area, and more each time it has taken a place from others, so
//! that no few of them displace each other for ever (breakout local search, U. Benlic and J.-K. Hao, 2013). Good where
//! a layout is wrong in few places; it proves nothing.

use std::collections::BTreeSet;

use crate::compact::Compact;
use crate::place::{Fit, Obstacle, Placed, gap};
use crate::random::Random;
use crate::work::Work;

/// How much of its area a buffer's cost grows when it displaces others.
const GROWTH: f64 = 0.5;

/// Largest relative change of a price by chance.
const NOISE: f64 = 0.05;

/// A layout no higher than `target`, made from another one; `None` when the work ends first.
pub(crate) fn repair(
    c: &Compact,
    offsets: &[u64],
    target: u64,
    seed: u64,
    work: &mut Work<'_>,
) -> Option<Vec<u64>> {
    if target < c.bound() {
        return None;
    }
    let mut search = Search {
        c,
        target,
        at: offsets.to_vec(),
        placed: Placed::new(c),
        open: BTreeSet::new(),
        cost: (0..c.len())
            .map(|b| if c.fixed[b].is_some() { f64::INFINITY } else { c.area(b) as f64 })
            .collect(),
        random: Random::new(seed),
    };
    for (b, &at) in offsets.iter().enumerate() {
        if at + c.size[b] <= target {
            search.placed.insert(b, at);
        } else {
            search.open.insert((c.size[b], b as u32));
        }
    }
    search.run(work).then_some(search.at)
}

struct Search<'a> {
    c: &'a Compact,
    target: u64,
    at: Vec<u64>,
    placed: Placed<'a>,
    /// Buffers without a place, by size.
    open: BTreeSet<(u64, u32)>,
    cost: Vec<f64>,
    random: Random,
}

impl Search<'_> {
    fn run(&mut self, work: &mut Work<'_>) -> bool {
        let (mut obstacles, mut ends) = (Vec::new(), Vec::new());
        while let Some((size, b)) = self.open.pop_last() {
            let b = b as usize;
            self.placed.obstacles(b, &mut obstacles);
            if !work.spend(obstacles.len() as u64 + 16) {
                return false;
            }
            let free = gap(&obstacles, size, self.c.align[b], Fit::Best);
            if free + size <= self.target {
                self.put(b, free);
                continue;
            }
            let Some(at) = self.cheapest(b, &mut obstacles, &mut ends) else { return false };
            for o in obstacles.iter().filter(|o| o.at < at + size && o.end > at) {
                self.placed.remove(o.buffer as usize, o.at);
                self.open.insert((o.end - o.at, o.buffer));
            }
            self.cost[b] += GROWTH * self.c.area(b) as f64;
            self.put(b, at);
        }
        true
    }

    fn put(&mut self, b: usize, at: u64) {
        self.placed.insert(b, at);
        self.at[b] = at;
    }

    /// The place below the target whose occupants cost least: one that begins where an obstacle or the arena does, or
    /// ends there. `None` when a fixed buffer is always in the way.
    fn cheapest(
        &mut self,
        b: usize,
        obstacles: &mut Vec<Obstacle>,
        ends: &mut Vec<(u64, f64)>,
    ) -> Option<u64> {
        let (size, align) = (self.c.size[b], self.c.align[b]);
        let highest = self.target.checked_sub(size)? / align * align;
        obstacles.dedup_by_key(|o| (o.at, o.buffer));
        ends.clear();
        ends.extend(obstacles.iter().map(|o| (o.end, self.cost[o.buffer as usize])));
        ends.sort_unstable_by_key(|e| e.0);
        let (cost, random) = (&self.cost, &mut self.random);
        let mut best: Option<(f64, u64)> = None;
        let mut scan = |places: &mut dyn Iterator<Item = u64>| {
            // Of all obstacles that begin below the end of a place, those count that do not end below its start.
            let (mut begun, mut ended) = (0, 0);
            let (mut fixed, mut sum) = (0i64, 0.0);
            for at in places.take_while(|at| *at <= highest) {
                while begun < obstacles.len() && obstacles[begun].at < at + size {
                    let price = cost[obstacles[begun].buffer as usize];
                    if price.is_finite() {
                        sum += price
                    } else {
                        fixed += 1
                    }
                    begun += 1;
                }
                while ended < ends.len() && ends[ended].0 <= at {
                    if ends[ended].1.is_finite() {
                        sum -= ends[ended].1
                    } else {
                        fixed -= 1
                    }
                    ended += 1;
                }
                let price = sum * (1.0 + NOISE * random.unit());
                if fixed == 0 && best.is_none_or(|(least, _)| price < least) {
                    best = Some((price, at));
                }
            }
        };
        let above: Vec<u64> = ends.iter().map(|e| e.0.div_ceil(align) * align).collect();
        scan(&mut std::iter::once(0).chain(above));
        let below = obstacles.iter().filter(|o| o.at >= size).map(|o| (o.at - size) / align * align);
        scan(&mut below.chain([highest]));
        best.map(|(_, at)| at)
    }
}
