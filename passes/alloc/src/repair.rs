//! Local search for an allocation of a given height: buffers that lie too high go where they do least harm,
//! and the buffers in their way move elsewhere in turn.
//!
//! Buffers above the target are taken out and put back. A buffer that fits into no gap takes the place whose
//! occupants cost least to move. A buffer costs its area, and more each time it has taken a place from
//! others. So no few of them displace each other for ever (as in breakout local search, U. Benlic and J.-K.
//! Hao, 2013). The search proves nothing.

use crate::compact::Compact;
use crate::place::{Fit, Obstacle, Placed, gap};
use crate::random::Random;
use crate::work::Work;

/// Order and place in which buffers are put back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Style {
    /// The largest first, nearly always at the cheapest place: for allocations that are wrong in few places.
    Careful,
    /// In random order, prices varied at random: for allocations that need a new arrangement.
    Restless,
}

impl Style {
    /// Share of its area by which a buffer's cost grows when it displaces others.
    fn growth(self) -> f64 {
        match self {
            Style::Careful => 0.5,
            Style::Restless => 0.25,
        }
    }

    /// Largest relative random change of a price.
    fn noise(self) -> f64 {
        match self {
            Style::Careful => 0.05,
            Style::Restless => 1.0,
        }
    }
}

/// A search for an allocation of one height, which can be continued.
pub(crate) struct Repair<'a> {
    c: &'a Compact,
    target: u64,
    at: Vec<u64>,
    placed: Placed<'a>,
    /// Buffers without a place: their sizes first, in order for [`Style::Careful`].
    open: Vec<(u64, u32)>,
    style: Style,
    area: Vec<f64>,
    cost: Vec<f64>,
    random: Random,
}

impl<'a> Repair<'a> {
    /// A search for an allocation no higher than `target`, which is at least the component's bound, from
    /// another allocation.
    pub(crate) fn new(c: &'a Compact, offsets: &[u64], target: u64, style: Style, seed: u64) -> Repair<'a> {
        let area: Vec<f64> = (0..c.len()).map(|b| c.area(b) as f64).collect();
        let cost = |b: usize| if c.fixed[b].is_some() { f64::INFINITY } else { area[b] };
        let mut search = Repair {
            c,
            target,
            at: offsets.to_vec(),
            placed: Placed::new(c),
            open: Vec::new(),
            style,
            cost: (0..c.len()).map(cost).collect(),
            random: Random::new(seed),
            area,
        };
        for (b, &at) in offsets.iter().enumerate() {
            if at + c.size[b] <= target {
                search.placed.insert(b, at);
            } else {
                search.open.push((c.size[b], b as u32));
            }
        }
        search.open.sort_unstable();
        search
    }

    /// Continues the search; an allocation if one is found.
    pub(crate) fn run(&mut self, work: &mut Work<'_>) -> Option<Vec<u64>> {
        let (mut obstacles, mut ends) = (Vec::new(), Vec::new());
        while !self.open.is_empty() {
            if work.left() == 0 {
                return None;
            }
            let (size, b) = self.next()?;
            let b = b as usize;
            self.placed.obstacles(b, &mut obstacles);
            work.spend(obstacles.len() as u64 + 16);
            let free = gap(obstacles.iter().copied(), size, self.c.align[b], Fit::Best);
            if free + size <= self.target {
                self.put(b, free);
                continue;
            }
            let Some(at) = self.cheapest(b, &mut obstacles, &mut ends) else {
                self.reopen((size, b as u32));
                return None;
            };
            for o in obstacles.iter().filter(|o| o.at < at + size && o.end > at) {
                self.placed.remove(o.buffer as usize, o.at);
                self.reopen((o.end - o.at, o.buffer));
            }
            self.cost[b] += self.style.growth() * self.area[b];
            self.put(b, at);
        }
        Some(self.at.clone())
    }

    fn next(&mut self) -> Option<(u64, u32)> {
        if self.style == Style::Careful || self.open.is_empty() {
            return self.open.pop();
        }
        let any = self.random.next() % self.open.len() as u64;
        Some(self.open.swap_remove(any as usize))
    }

    fn reopen(&mut self, buffer: (u64, u32)) {
        let at = match self.style {
            Style::Careful => self.open.partition_point(|other| *other < buffer),
            Style::Restless => self.open.len(),
        };
        self.open.insert(at, buffer);
    }

    fn put(&mut self, b: usize, at: u64) {
        self.placed.insert(b, at);
        self.at[b] = at;
    }

    /// The place below the target whose occupants cost least: one that begins where an obstacle or the arena
    /// does, or ends there. `None` when a fixed buffer is in every such place.
    fn cheapest(&mut self, b: usize, obstacles: &mut Vec<Obstacle>, ends: &mut Vec<Obstacle>) -> Option<u64> {
        let (size, align) = (self.c.size[b], self.c.align[b]);
        let highest = self.target.checked_sub(size)? / align * align;
        obstacles.dedup_by_key(|o| (o.at, o.buffer));
        self.placed.ends(b, obstacles, ends);
        let mut scan = Scan {
            obstacles,
            ends,
            cost: &self.cost,
            size,
            highest,
            noise: self.style.noise(),
            random: &mut self.random,
            best: None,
        };
        // Divisions would take most of the time.
        let up = |at: u64| if align == 1 { at } else { at.div_ceil(align) * align };
        let down = |at: u64| if align == 1 { at } else { at / align * align };
        scan.rising(std::iter::once(0).chain(ends.iter().map(|e| up(e.end))));
        let below = obstacles.iter().filter(|o| o.at >= size).map(|o| down(o.at - size));
        scan.rising(below.chain([highest]));
        scan.best.map(|(_, at)| at)
    }
}

/// The prices of places for one buffer.
struct Scan<'s> {
    /// By start, and by end.
    obstacles: &'s [Obstacle],
    ends: &'s [Obstacle],
    cost: &'s [f64],
    size: u64,
    highest: u64,
    noise: f64,
    random: &'s mut Random,
    /// Price and offset.
    best: Option<(f64, u64)>,
}

impl Scan<'_> {
    /// Visits places from low to high. Of all obstacles that begin below the end of a place, those cost that
    /// do not end below its start.
    fn rising(&mut self, places: impl Iterator<Item = u64>) {
        let (mut begun, mut ended) = (self.obstacles.iter().peekable(), self.ends.iter().peekable());
        let (mut fixed, mut sum) = (0i64, 0.0);
        for at in places.take_while(|at| *at <= self.highest) {
            while let Some(o) = begun.next_if(|o| o.at < at + self.size) {
                let price = self.cost[o.buffer as usize];
                if price.is_finite() { sum += price } else { fixed += 1 }
            }
            while let Some(o) = ended.next_if(|o| o.end <= at) {
                let price = self.cost[o.buffer as usize];
                if price.is_finite() { sum -= price } else { fixed -= 1 }
            }
            if fixed > 0 || self.best.is_some_and(|(least, _)| sum >= least) {
                continue;
            }
            let price = sum * (1.0 + self.noise * self.random.unit());
            if self.best.is_none_or(|(least, _)| price < least) {
                self.best = Some((price, at));
            }
        }
    }
}
