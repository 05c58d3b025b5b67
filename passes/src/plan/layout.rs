//! Layout: offsets for the slots of a mem-phase module.
//!
//! This is offline dynamic storage allocation: every slot is a rectangle, its bytes by its live range, and no two
//! rectangles of one arena may overlap. Slots that already have an offset stay where they are.
//!
//! - `first-fit` places slots in the order they become live, each at the lowest offset that is free throughout.
//! - `best-fit` places the largest slot first, each in the tightest gap among the slots placed so far
//!   (greedy-by-size of Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020,
//!   which also is TensorFlow Lite's).
//! - `size-class` rounds sizes up to powers of two and reuses a freed block of the same class only
//!   (SwapAdvisor's memory pool, section 4.3, without its search).

use memc_ir::{Code, Id, Module, SLOT_ALIGN, SlotId, Space};

/// How offsets are chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Algorithm {
    /// By start of the live range, lowest offset.
    FirstFit,
    /// By size, tightest gap.
    BestFit,
    /// Pools of equal power-of-two blocks.
    SizeClass,
}

impl Algorithm {
    /// Every algorithm.
    pub const ALL: [Algorithm; 3] = [Algorithm::BestFit, Algorithm::FirstFit, Algorithm::SizeClass];

    /// Spelling in options.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::FirstFit => "first-fit",
            Algorithm::BestFit => "best-fit",
            Algorithm::SizeClass => "size-class",
        }
    }
}

/// A slot to place: its bytes are in use during the half-open range of order positions.
#[derive(Clone, Copy, Debug)]
struct Rect {
    slot: SlotId,
    first: usize,
    end: usize,
    bytes: u64,
}

/// Gives every slot without an offset one, and returns the heights of the device and host arenas in bytes.
pub fn layout(m: &mut Module, algorithm: Algorithm) -> (u64, u64) {
    let rects = live_ranges(m);
    for space in [Space::Dev, Space::Host] {
        let of_space = |r: &&Rect| m.slots[r.slot].space == space;
        let mine: Vec<Rect> = rects.iter().filter(of_space).copied().collect();
        for (slot, offset) in place(m, &mine, algorithm) {
            m.slots[slot].offset = Some(offset);
        }
    }
    (height(m, Space::Dev), height(m, Space::Host))
}

/// One past the last byte used in an arena.
pub fn height(m: &Module, space: Space) -> u64 {
    let ends = m.slots.values().filter(|s| s.space == space).map(|s| s.offset.unwrap_or(0) + s.bytes);
    ends.max().unwrap_or(0)
}

/// The most bytes live at once in an arena: no layout is lower.
pub fn load(m: &Module, space: Space) -> u64 {
    let mut delta = vec![0i128; m.order.len() + 2];
    for r in live_ranges(m).iter().filter(|r| m.slots[r.slot].space == space) {
        delta[r.first] += i128::from(r.bytes);
        delta[r.end] -= i128::from(r.bytes);
    }
    let mut live = 0i128;
    delta
        .iter()
        .map(|d| {
            live += d;
            live
        })
        .max()
        .unwrap_or(0)
        .max(0) as u64
}

fn live_ranges(m: &Module) -> Vec<Rect> {
    let end = m.order.len() + 1;
    let mut range: Vec<Option<(usize, usize)>> = vec![None; m.slots.len()];
    // A home keeps its place while its tensor is away.
    let mut home = vec![false; m.slots.len()];
    for slot in m.homes().filter_map(|(_, slot)| slot) {
        range[slot.index()] = Some((0, end));
        home[slot.index()] = true;
    }
    for (i, &op) in m.order.iter().enumerate() {
        match m.ops[op].code {
            Code::Alloc(s) | Code::Free(s) if home[s.index()] => {}
            Code::Alloc(s) => range[s.index()] = Some((i, end)),
            Code::Free(s) => range[s.index()] = range[s.index()].map(|(first, _)| (first, i)),
            _ => {}
        }
    }
    let rect = |(slot, place): (SlotId, &memc_ir::Slot)| {
        let (first, end) = range[slot.index()]?;
        Some(Rect { slot, first, end, bytes: memc_ir::aligned(place.bytes) })
    };
    m.slots.iter().filter_map(rect).collect()
}

fn place(m: &Module, rects: &[Rect], algorithm: Algorithm) -> Vec<(SlotId, u64)> {
    let (mut fixed, mut open): (Vec<(u64, Rect)>, Vec<Rect>) = (Vec::new(), Vec::new());
    for r in rects {
        match m.slots[r.slot].offset {
            Some(at) => fixed.push((at, *r)),
            None => open.push(*r),
        }
    }
    match algorithm {
        Algorithm::FirstFit => open.sort_by_key(|r| (r.first, r.slot)),
        Algorithm::BestFit => open.sort_by_key(|r| (std::cmp::Reverse(r.bytes), r.first, r.slot)),
        Algorithm::SizeClass => return size_classes(&fixed, &open),
    }
    // By offset, so that the gaps between obstacles in time come in order.
    let mut placed = fixed;
    placed.sort_by_key(|(at, r)| (*at, r.slot));
    let mut out = Vec::with_capacity(open.len());
    for r in open {
        let busy = placed.iter().filter(|(_, o)| o.first < r.end && r.first < o.end);
        let at = gap(busy.map(|(at, o)| (*at, at + o.bytes)), r.bytes, algorithm == Algorithm::BestFit);
        placed.insert(placed.partition_point(|(other, _)| *other <= at), (at, r));
        out.push((r.slot, at));
    }
    out
}

/// The lowest, or the tightest, gap of at least `bytes` between ranges by offset; above everything when there is none.
fn gap(busy: impl Iterator<Item = (u64, u64)>, bytes: u64, tightest: bool) -> u64 {
    let (mut best, mut top) = (None, 0);
    for (from, to) in busy {
        if from >= top && from - top >= bytes {
            if !tightest {
                return top;
            }
            if best.is_none_or(|(size, _)| from - top < size) {
                best = Some((from - top, top));
            }
        }
        top = top.max(to);
    }
    best.map_or(top, |(_, at)| at)
}

fn size_classes(fixed: &[(u64, Rect)], open: &[Rect]) -> Vec<(SlotId, u64)> {
    let mut top = fixed.iter().map(|(at, r)| at + r.bytes).max().unwrap_or(0);
    // Blocks as (class bytes, offset, free from this position on).
    let mut blocks: Vec<(u64, u64, usize)> = Vec::new();
    let mut order: Vec<&Rect> = open.iter().collect();
    order.sort_by_key(|r| (r.first, r.slot));
    let mut out = Vec::with_capacity(open.len());
    for r in order {
        let class = r.bytes.next_power_of_two().max(SLOT_ALIGN);
        let reuse = blocks.iter().position(|b| b.0 == class && b.2 <= r.first);
        let index = reuse.unwrap_or_else(|| {
            blocks.push((class, top, 0));
            top += class;
            blocks.len() - 1
        });
        blocks[index].2 = r.end;
        out.push((r.slot, blocks[index].1));
    }
    out
}
