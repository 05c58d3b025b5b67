//! Placing buffers one after the other, each into a gap between those placed so far.
//!
//! With few buffers, those placed so far are in two lists, by start and by end, and a table tells which pairs
//! live at once: reading a list past the table is the fastest way. With many, they are in a centred interval
//! tree over sections, flattened. A live range lies in the one node that is the most even section it
//! contains. So a query meets the nodes inside its range, all of whose members it overlaps, and at most two
//! per level outside. Lists of nodes are sorted by offset, so that putting the obstacles of a buffer in order
//! is a merge of a few runs. With `k` obstacles a placement takes about `O(k log log n)`. A buffer that lives
//! so long that it meets most of the placed ones reads a list of all by offset instead, where there is one.

use crate::compact::Compact;

/// Rule by which a buffer picks its gap.
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
    flat: Option<Flat<'a>>,
    sorted: Option<Sorted>,
    obstacles: Vec<Obstacle>,
    order: Order,
}

/// Memory for putting obstacles in order, kept between calls.
#[derive(Default)]
struct Order {
    keys: Vec<u64>,
    before: Vec<Obstacle>,
}

impl Order {
    /// Sorts by offset; of equals, the first stays the first.
    fn by_start(&mut self, list: &mut Vec<Obstacle>) {
        let bits = usize::BITS - list.len().leading_zeros();
        if list.iter().any(|o| o.at.leading_zeros() < bits) {
            return list.sort_by_key(|o| o.at);
        }
        // Numbers that hold the offset and the place in the list are sorted faster.
        self.keys.clear();
        self.keys.extend(list.iter().zip(0..).map(|(o, i): (_, u64)| o.at << bits | i));
        self.keys.sort_unstable();
        self.before.clone_from(list);
        list.clear();
        list.extend(self.keys.iter().map(|key| self.before[(key & ((1 << bits) - 1)) as usize]));
    }

    /// Sorts by end; of equals, by buffer.
    fn by_end(&mut self, list: &mut Vec<Obstacle>, c: &Compact) {
        let bits = usize::BITS - c.len().leading_zeros();
        if list.iter().any(|o| o.end.leading_zeros() < bits) {
            return list.sort_unstable_by_key(|o| (o.end, o.buffer));
        }
        self.keys.clear();
        self.keys.extend(list.iter().map(|o| o.end << bits | u64::from(o.buffer)));
        self.keys.sort_unstable();
        list.clear();
        list.extend(self.keys.iter().map(|key| {
            let (end, buffer) = (key >> bits, (key & ((1 << bits) - 1)) as u32);
            Obstacle { at: end - c.size[buffer as usize], end, buffer }
        }));
    }
}

/// All live ranges with offsets, by offset, in chunks of at most [`CHUNK`].
#[derive(Default)]
struct Sorted(Vec<Vec<Member>>);

/// Live ranges in a chunk, at most.
const CHUNK: usize = 512;

/// The part of the component's sections from which on a buffer reads the list of all.
const LONG: usize = 8;

impl Sorted {
    fn insert(&mut self, m: Member) {
        let after = self.0.partition_point(|chunk| chunk.first().is_some_and(|first| first.at <= m.at));
        let i = after.saturating_sub(1);
        let Some(chunk) = self.0.get_mut(i) else { return self.0.push(vec![m]) };
        chunk.insert(chunk.partition_point(|other| other.at <= m.at), m);
        if chunk.len() > CHUNK {
            let upper = chunk.split_off(CHUNK / 2);
            self.0.insert(i + 1, upper);
        }
    }

    /// Those that overlap one of the ranges, by offset.
    fn meeting(&self, live: &[(u32, u32)]) -> impl Iterator<Item = Obstacle> {
        let meets = |m: &&Member| live.iter().any(|l| m.live.0 < l.1 && l.0 < m.live.1);
        self.0.iter().flatten().filter(meets).map(Member::obstacle)
    }
}

/// All buffers with offsets, by start and by end, and the pairs that live at once.
struct Flat<'a> {
    by_start: Vec<Obstacle>,
    by_end: Vec<Obstacle>,
    /// For every pair of buffers whether they live at once.
    meets: &'a [bool],
}

impl Flat<'_> {
    /// Those of a list that meet `b`, in its order.
    fn meeting(&self, list: &[Obstacle], b: usize, out: &mut Vec<Obstacle>) {
        let n = self.meets.len().isqrt();
        let row = &self.meets[b * n..(b + 1) * n];
        // No branch for each buffer: the outcome is hard to predict.
        out.resize(list.len(), Obstacle { at: 0, end: 0, buffer: 0 });
        let mut kept = 0;
        for o in list {
            out[kept] = *o;
            kept += usize::from(row[o.buffer as usize]);
        }
        out.truncate(kept);
    }
}

/// The section of `[first, end)` that is divisible by the largest power of two.
fn centre(first: u32, end: u32) -> u32 {
    let Some(before) = first.checked_sub(1) else { return 0 };
    let last = end - 1;
    last & !((1u32 << (before ^ last).ilog2()) - 1)
}

impl<'a> Placed<'a> {
    pub(crate) fn new(c: &'a Compact) -> Placed<'a> {
        let flat = c.meets().map(|meets| Flat { by_start: Vec::new(), by_end: Vec::new(), meets });
        let nodes = if flat.is_some() { 0 } else { c.load.len() };
        Placed {
            c,
            nodes: vec![Vec::new(); nodes],
            flat,
            sorted: None,
            obstacles: Vec::new(),
            order: Order::default(),
        }
    }

    /// With the list of all by offset, for placing every buffer once: nothing can be removed.
    fn once(c: &'a Compact) -> Placed<'a> {
        let placed = Placed::new(c);
        Placed { sorted: placed.flat.is_none().then(Sorted::default), ..placed }
    }

    pub(crate) fn insert(&mut self, b: usize, at: u64) {
        let end = at + self.c.size[b];
        if let Some(flat) = &mut self.flat {
            let o = Obstacle { at, end, buffer: b as u32 };
            flat.by_start.insert(flat.by_start.partition_point(|other| other.at <= at), o);
            flat.by_end.insert(flat.by_end.partition_point(|other| other.end <= end), o);
            return;
        }
        for &live in &self.c.live[b] {
            let node = &mut self.nodes[centre(live.0, live.1) as usize];
            let member = Member { at, end, live, buffer: b as u32 };
            node.insert(node.partition_point(|m| m.at <= at), member);
            if let Some(sorted) = &mut self.sorted {
                sorted.insert(member);
            }
        }
    }

    pub(crate) fn remove(&mut self, b: usize, at: u64) {
        if let Some(flat) = &mut self.flat {
            let end = at + self.c.size[b];
            remove(&mut flat.by_start, b, |o| o.at < at);
            remove(&mut flat.by_end, b, |o| o.end < end);
            return;
        }
        for &live in &self.c.live[b] {
            let node = &mut self.nodes[centre(live.0, live.1) as usize];
            let from = node.partition_point(|m| m.at < at);
            if let Some(i) = node[from..].iter().position(|m| m.buffer == b as u32 && m.live == live) {
                node.remove(from + i);
            }
        }
    }

    /// Offset for a buffer; above all obstacles when no gap is large enough.
    pub(crate) fn find(&mut self, b: usize, fit: Fit) -> u64 {
        let (size, align) = (self.c.size[b], self.c.align[b]);
        if let Some(sorted) = self.sorted.as_ref().filter(|_| self.long(b)) {
            return gap(sorted.meeting(&self.c.live[b]), size, align, fit);
        }
        let mut obstacles = std::mem::take(&mut self.obstacles);
        self.obstacles(b, &mut obstacles);
        let at = gap(obstacles.iter().copied(), size, align, fit);
        self.obstacles = obstacles;
        at
    }

    /// End of the highest buffer that lives at the same time as `b`.
    fn top(&self, b: usize, obstacles: &mut Vec<Obstacle>) -> u64 {
        match &self.flat {
            Some(flat) => flat.meeting(&flat.by_end, b, obstacles),
            None => self.gather(b, obstacles),
        }
        obstacles.iter().map(|o| o.end).max().unwrap_or(0)
    }

    /// Whether a buffer lives so long that it probably meets most of the placed ones.
    fn long(&self, b: usize) -> bool {
        let sections: usize = self.c.live[b].iter().map(|l| (l.1 - l.0) as usize).sum();
        sections * LONG >= self.c.load.len()
    }

    /// All placed buffers that live at the same time as a buffer, by offset. One that meets it in several
    /// live ranges is there several times.
    pub(crate) fn obstacles(&mut self, b: usize, obstacles: &mut Vec<Obstacle>) {
        if let Some(flat) = &self.flat {
            return flat.meeting(&flat.by_start, b, obstacles);
        }
        self.gather(b, obstacles);
        self.order.by_start(obstacles);
    }

    /// Content of the nodes that lives at the same time as a buffer, by node.
    fn gather(&self, b: usize, obstacles: &mut Vec<Obstacle>) {
        obstacles.clear();
        for &(first, end) in &self.c.live[b] {
            self.above(first, end, obstacles);
            for node in &self.nodes[first as usize..end as usize] {
                obstacles.extend(node.iter().map(Member::obstacle));
            }
        }
    }

    /// The obstacles of a buffer by their ends.
    pub(crate) fn ends(&mut self, b: usize, obstacles: &[Obstacle], ends: &mut Vec<Obstacle>) {
        if let Some(flat) = &self.flat {
            return flat.meeting(&flat.by_end, b, ends);
        }
        ends.clear();
        ends.extend_from_slice(obstacles);
        self.order.by_end(ends, self.c);
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

/// Removes a buffer that lies behind all obstacles that are `before`.
fn remove(list: &mut Vec<Obstacle>, b: usize, before: impl Fn(&Obstacle) -> bool) {
    let from = list.partition_point(before);
    if let Some(i) = list[from..].iter().position(|o| o.buffer == b as u32) {
        list.remove(from + i);
    }
}

/// The gap that `fit` chooses between obstacles sorted by offset.
pub(crate) fn gap(obstacles: impl Iterator<Item = Obstacle>, bytes: u64, align: u64, fit: Fit) -> u64 {
    let up = |at: u64| if align == 1 { at } else { at.div_ceil(align) * align };
    let (mut top, mut best) = (0u64, None);
    for Obstacle { at: from, end: to, .. } in obstacles {
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

/// Moves all buffers without a fixed offset down onto those below them, in order of offsets. None rises.
pub(crate) fn sink(c: &Compact, offsets: &[u64]) -> Vec<u64> {
    let mut order: Vec<usize> = (0..c.len()).collect();
    order.sort_by_key(|&b| (offsets[b], b));
    let (mut placed, mut below) = (Placed::new(c), Vec::new());
    let mut sunk = offsets.to_vec();
    for b in order {
        if c.fixed[b].is_none() {
            sunk[b] = placed.top(b, &mut below).div_ceil(c.align[b]) * c.align[b];
        }
        placed.insert(b, sunk[b]);
    }
    sunk
}

/// Places all buffers in the given order, those with a fixed offset before all others.
pub(crate) fn in_order(c: &Compact, order: &[u32], fit: Fit) -> Vec<u64> {
    let mut placed = Placed::once(c);
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
