//! Placing buffers one after the other, each into a gap between those placed so far.
//!
//! The buffers placed so far are in a centred interval tree over sections, flattened: a live range lies in the one node
//! that is the most even section it contains, so a query meets the nodes inside its range, all of whose members it
//! overlaps, and at most two per level outside. Lists of nodes are sorted by offset, which makes putting the obstacles of
//! a buffer in order a merge of a few runs. With `k` obstacles a placement takes `O(k log log n)` or so.

use crate::compact::Compact;

/// Which gap a buffer takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fit {
    /// The lowest.
    First,
    /// The tightest, the lowest of equals.
    Best,
}

#[derive(Clone, Copy)]
struct Member {
    at: u64,
    end: u64,
    live: (u32, u32),
    buffer: u32,
}

/// A placed buffer that lives at the same time as another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Obstacle {
    /// First byte.
    pub(crate) at: u64,
    /// One past the last byte.
    pub(crate) end: u64,
    /// The buffer.
    pub(crate) buffer: u32,
}

impl Member {
    fn obstacle(&self) -> Obstacle {
        Obstacle { at: self.at, end: self.end, buffer: self.buffer }
    }
}

/// Buffers with offsets.
pub(crate) struct Placed<'a> {
    c: &'a Compact,
    nodes: Vec<Vec<Member>>,
    obstacles: Vec<Obstacle>,
}

/// The section of `[first, end)` that is divisible by the largest power of two.
fn centre(first: u32, end: u32) -> u32 {
    let Some(before) = first.checked_sub(1) else { return 0 };
    let last = end - 1;
    last & !((1u32 << (before ^ last).ilog2()) - 1)
}

impl<'a> Placed<'a> {
    pub(crate) fn new(c: &'a Compact) -> Placed<'a> {
        Placed { c, nodes: vec![Vec::new(); c.load.len()], obstacles: Vec::new() }
    }

    pub(crate) fn insert(&mut self, b: usize, at: u64) {
        let end = at + self.c.size[b];
        for &live in &self.c.live[b] {
            let node = &mut self.nodes[centre(live.0, live.1) as usize];
            node.insert(node.partition_point(|m| m.at <= at), Member { at, end, live, buffer: b as u32 });
        }
    }

    pub(crate) fn remove(&mut self, b: usize, at: u64) {
        for &live in &self.c.live[b] {
            let node = &mut self.nodes[centre(live.0, live.1) as usize];
            let from = node.partition_point(|m| m.at < at);
            if let Some(i) = node[from..].iter().position(|m| m.buffer == b as u32 && m.live == live) {
                node.remove(from + i);
            }
        }
    }

    /// Where a buffer goes; above all obstacles when no gap is large enough.
    pub(crate) fn find(&mut self, b: usize, fit: Fit) -> u64 {
        let mut obstacles = std::mem::take(&mut self.obstacles);
        self.obstacles(b, &mut obstacles);
        let at = gap(&obstacles, self.c.size[b], self.c.align[b], fit);
        self.obstacles = obstacles;
        at
    }

    /// All that lives at the same time as a buffer, by offset. What meets it in several live ranges is there several times.
    pub(crate) fn obstacles(&self, b: usize, obstacles: &mut Vec<Obstacle>) {
        obstacles.clear();
        for &(first, end) in &self.c.live[b] {
            self.above(first, end, obstacles);
            for node in &self.nodes[first as usize..end as usize] {
                obstacles.extend(node.iter().map(Member::obstacle));
            }
        }
        // Stable sorting finds the runs.
        obstacles.sort_by_key(|o| o.at);
    }

    /// Obstacles in the nodes outside `[first, end)` that can hold ranges reaching into it.
    fn above(&self, first: u32, end: u32, obstacles: &mut Vec<Obstacle>) {
        let mut visit = |node: u32| {
            if let Some(members) = self.nodes.get(node as usize) {
                let overlaps = |m: &&Member| m.live.0 < end && first < m.live.1;
                obstacles.extend(members.iter().filter(overlaps).map(Member::obstacle));
            }
        };
        let (low, high) = (first, end - 1);
        if low > 0 {
            visit(0);
        }
        // Ancestors of the ends: at level `l` the nodes are the odd multiples of 2^l.
        for level in 0..32 {
            let bit = 1u64 << level;
            let ancestor = |s: u32| ((u64::from(s) & !(2 * bit - 1)) | bit) as u32;
            if bit > u64::from(u32::MAX) / 2 || bit > self.nodes.len() as u64 {
                break;
            }
            let (a, b) = (ancestor(low), ancestor(high));
            if a < first || a >= end {
                visit(a);
            }
            if b != a && (b < first || b >= end) {
                visit(b);
            }
        }
    }
}

/// The gap that `fit` chooses between obstacles sorted by offset.
pub(crate) fn gap(obstacles: &[Obstacle], bytes: u64, align: u64, fit: Fit) -> u64 {
    let up = |at: u64| if align == 1 { at } else { at.div_ceil(align) * align };
    let (mut top, mut best) = (0u64, None);
    for &Obstacle { at: from, end: to, .. } in obstacles {
        let at = up(top);
        if from >= at && from - at >= bytes {
            if fit == Fit::First {
                return at;
            }
            if best.is_none_or(|(room, _)| from - top < room) {
                best = Some((from - top, at));
            }
        }
        top = top.max(to);
    }
    best.map_or(up(top), |(_, at)| at)
}

/// Places all buffers in the given order, those with a fixed offset before all others.
pub(crate) fn in_order(c: &Compact, order: &[u32], fit: Fit) -> Vec<u64> {
    let mut placed = Placed::new(c);
    let mut offsets: Vec<u64> = c.fixed.iter().map(|at| at.unwrap_or(0)).collect();
    for (b, &at) in offsets.iter().enumerate().filter(|(b, _)| c.fixed[*b].is_some()) {
        placed.insert(b, at);
    }
    for b in order.iter().map(|&b| b as usize).filter(|&b| c.fixed[b].is_none()) {
        let at = placed.find(b, fit);
        placed.insert(b, at);
        offsets[b] = at;
    }
    offsets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_centre_is_the_most_even_section() {
        for first in 0u32..40 {
            for end in first + 1..41 {
                let best = (first..end).max_by_key(|s| if *s == 0 { 32 } else { s.trailing_zeros() });
                assert_eq!(Some(centre(first, end)), best, "[{first}, {end})");
            }
        }
    }
}
