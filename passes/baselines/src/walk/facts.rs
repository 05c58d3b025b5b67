//! Lifetimes that the order of a problem implies: the last position at which each content can be recomputed.

use memc_planner::{Kind, Problem, Scheme, Sequence};

/// Position after the last op.
pub(crate) const NEVER: u32 = u32::MAX;

/// Facts of the given order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    /// The op with the most bytes on the device when nothing leaves early, which parts the forward from the
    /// backward pass.
    pub(crate) split: u32,
    /// Those bytes.
    pub(crate) peak: u64,
    /// By tensor and content (how many writes it has seen): the last position just before which it can be
    /// computed.
    limits: Vec<Vec<u32>>,
}

impl Facts {
    /// Of a problem's order.
    pub(crate) fn new(p: &Problem) -> Facts {
        let order = Sequence::of_order(p, 0..p.ops.len() as u32);
        let live = Scheme::keep_all(order).usage();
        let split = (0..live.len()).max_by_key(|&i| (live[i], std::cmp::Reverse(i))).unwrap_or(0) as u32;
        let peak = live.get(split as usize).copied().unwrap_or(0);
        let mut limits: Vec<Vec<u32>> = p.tensors.iter().map(|t| vec![0; t.writes.len() + 1]).collect();
        for (i, op) in p.ops.iter().enumerate() {
            let limit = if op.repeatable { recompute_limit(p, &limits, i as u32) } else { 0 };
            for &t in op.writes.iter().filter(|&t| !op.reads.contains(t)) {
                limits[t as usize][content(p, t, i as u32) as usize + 1] = limit;
            }
        }
        Facts { split, peak, limits }
    }

    /// True if a content can be recomputed just before `position`, from contents that are there or can be
    /// recomputed then.
    pub(crate) fn recomputable(&self, t: u32, content: u32, position: u32) -> bool {
        let limits = &self.limits[t as usize];
        position < NEVER && limits.get(content as usize).is_some_and(|&l| l > 0 && position <= l)
    }
}

/// Number of writes that a tensor has seen just before a position.
pub(crate) fn content(p: &Problem, t: u32, position: u32) -> u32 {
    p.tensors[t as usize].writes.partition_point(|&w| w < position) as u32
}

/// The op whose run gives a tensor a content; none for the content that it starts with.
pub(crate) fn writer(p: &Problem, t: u32, content: u32) -> Option<u32> {
    p.tensors[t as usize].writes.get((content as usize).checked_sub(1)?).copied()
}

/// Until when an op can run again: as long as each operand has the content that it had, or can have it again.
fn recompute_limit(p: &Problem, limits: &[Vec<u32>], w: u32) -> u32 {
    let op = &p.ops[w as usize];
    let operand = |&r: &u32| {
        let tensor = &p.tensors[r as usize];
        let had = content(p, r, w) as usize;
        let overwritten = tensor.writes.get(had).copied().unwrap_or(NEVER);
        // Once nothing reads a content any more it is gone, but for what a step begins or ends with.
        let end = match tensor.writes.get(had) {
            Some(_) if tensor.kind == Kind::Input && had == 0 => overwritten,
            Some(&o) if p.ops[o as usize].reads.contains(&r) => o,
            Some(&o) => tensor.touches[..tensor.touches.partition_point(|&x| x < o)].last().map_or(0, |&x| x),
            None if tensor.kind == Kind::Persistent || tensor.kind == Kind::Input && had == 0 => NEVER,
            None => tensor.touches.last().copied().unwrap_or(0),
        };
        overwritten.min(end.max(limits[r as usize][had]))
    };
    op.reads.iter().map(operand).min().unwrap_or(NEVER)
}
