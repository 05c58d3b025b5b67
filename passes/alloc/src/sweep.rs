//! Allocation from the peak outwards, in time order on both sides.
//!
//! The buffers live in the fullest section are stacked without a gap. After that the two sides of the section
//! are independent. Later buffers are placed in order of birth, each into a gap between those live at its
//! birth. Earlier ones are placed likewise in reversed time. A buffer placed on one side and absent at the
//! peak never meets the other side. So each placement looks at the gaps of one instant only, and a sweep
//! takes `O(n g)` for `g` gaps at once. Blocks that touch have none between them.
//!
//! Holes in live ranges are not used, and fixed offsets are not supported.

use std::collections::BTreeMap;

use crate::compact::Compact;

/// Order of the buffers at the peak, from the bottom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stack {
    /// Those that live longest first: activations of a training step nest like brackets.
    Longest,
    /// Those born first.
    Oldest,
    /// Those that die last.
    LastToDie,
}

/// Rule by which a newborn buffer picks its gap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rule {
    /// The tightest.
    Best,
    /// The lowest for those that outlive the share `1/n` of the side, the highest for all others.
    TwoEnded(u32),
    /// Beside the neighbour whose death is nearest to its own, so that gaps merge.
    Mates,
}

/// One way to sweep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) stack: Stack,
    pub(crate) rule: Rule,
}

/// Free bytes between two live blocks that do not touch, or below the first one.
#[derive(Clone, Copy)]
struct Gap {
    low: u64,
    high: u64,
    /// The buffer that ends at `low`, and the one that begins at `high`.
    below: Option<u32>,
    above: u32,
}

struct Side<'a> {
    c: &'a Compact,
    rule: Rule,
    target: u64,
    sections: u32,
    /// Live blocks by offset: end and buffer.
    blocks: BTreeMap<u64, (u64, u32)>,
    /// Gaps between the blocks, by offset; the space above the last block is not among them.
    gaps: Vec<Gap>,
    /// Death of every buffer in this side's time.
    death: Vec<u32>,
}

impl Side<'_> {
    /// The offset, and the gap that it is in; none above the last block.
    fn choose(&self, b: usize) -> (Option<usize>, u64) {
        let (size, align) = (self.c.size[b], self.c.align[b]);
        let up = |at: u64| if align == 1 { at } else { at.div_ceil(align) * align };
        let short = match self.rule {
            Rule::TwoEnded(share) => u64::from(self.death[b]) * u64::from(share) < u64::from(self.sections),
            _ => false,
        };
        let apart = |mate: Option<u32>, edge: u32| {
            u64::from(mate.map_or(edge, |m| self.death[m as usize]).abs_diff(self.death[b]))
        };
        let (end, last) = self.last();
        let mut best: Option<(u64, Option<usize>, u64)> = None;
        for i in 0..=self.gaps.len() {
            let gap = self.gaps.get(i);
            let low = gap.map_or(end, |g| g.low);
            let at = up(low);
            let high = gap.map_or_else(|| self.target.max(at + size), |g| g.high);
            if high < at || high - at < size {
                continue;
            }
            let over = gap.is_none() && at + size > self.target;
            let top = (high - size) / align * align;
            let (score, at) = match self.rule {
                _ if over => (u64::MAX, at),
                Rule::Best => (high - low - size, at),
                Rule::TwoEnded(_) if short => ((self.gaps.len() - i) as u64, top),
                Rule::TwoEnded(_) => (i as u64, at),
                Rule::Mates => {
                    let below = apart(gap.map_or(last, |g| g.below), self.sections);
                    let above = apart(gap.map(|g| g.above), 0);
                    match (high - low == size, below <= above) {
                        (true, _) => (below.min(above) / 2, at),
                        (false, true) => (below, at),
                        (false, false) => (above, top),
                    }
                }
            };
            if best.is_none_or(|b| score < b.0) {
                best = Some((score, gap.map(|_| i), at));
            }
        }
        best.map_or((None, up(end)), |(_, i, at)| (i, at))
    }

    /// End of the last block, and its buffer.
    fn last(&self) -> (u64, Option<u32>) {
        self.blocks.last_key_value().map_or((0, None), |(_, &(end, b))| (end, Some(b)))
    }

    fn place(&mut self, b: usize) -> u64 {
        let (gap, at) = self.choose(b);
        let (end, me) = (at + self.c.size[b], b as u32);
        let (low, below) = self.last();
        let (i, low, below, above) = match gap {
            Some(i) => {
                let g = self.gaps.remove(i);
                (i, g.low, g.below, Some((g.high, g.above)))
            }
            None => (self.gaps.len(), low, below, None),
        };
        if let Some((high, above)) = above.filter(|a| end < a.0) {
            self.gaps.insert(i, Gap { low: end, high, below: Some(me), above });
        }
        if low < at {
            self.gaps.insert(i, Gap { low, high: at, below, above: me });
        }
        self.blocks.insert(at, (end, me));
        at
    }

    /// Frees the block at an offset.
    fn free(&mut self, at: u64) {
        let Some((end, _)) = self.blocks.remove(&at) else { return };
        let before = self.blocks.range(..at).next_back().map(|(_, &block)| block);
        let after = self.blocks.range(end..).next().map(|(&at, &(_, b))| (at, b));
        let (low, below) = before.map_or((0, None), |(end, b)| (end, Some(b)));
        let first = self.gaps.partition_point(|g| g.low < low);
        let beside = self.gaps[first..].iter().take_while(|g| after.is_none_or(|a| g.high <= a.0)).count();
        let merged = after.map(|(high, above)| Gap { low, high, below, above });
        self.gaps.splice(first..first + beside, merged);
    }
}

/// Offsets of one sweep.
pub(crate) fn sweep(c: &Compact, plan: Plan) -> Vec<u64> {
    let peak = (0..c.load.len()).max_by_key(|&s| (c.load[s], std::cmp::Reverse(s))).unwrap_or(0) as u32;
    let mut at_peak: Vec<u32> = Vec::new();
    for b in 0..c.len() {
        let (first, end) = c.hull(b);
        if first <= peak && peak < end {
            at_peak.push(b as u32);
        }
    }
    let hull = |b: u32| c.hull(b as usize);
    match plan.stack {
        Stack::Longest => at_peak.sort_by_key(|&b| (u32::MAX - (hull(b).1 - hull(b).0), b)),
        Stack::Oldest => at_peak.sort_by_key(|&b| (hull(b).0, u32::MAX - hull(b).1, b)),
        Stack::LastToDie => at_peak.sort_by_key(|&b| (u32::MAX - hull(b).1, hull(b).0, b)),
    }
    let mut offsets = vec![0; c.len()];
    let (mut stacked, mut gaps) = (BTreeMap::new(), Vec::new());
    let mut below = None;
    let mut top = 0u64;
    for &b in &at_peak {
        let at = top.div_ceil(c.align[b as usize]) * c.align[b as usize];
        if top < at {
            gaps.push(Gap { low: top, high: at, below, above: b });
        }
        offsets[b as usize] = at;
        top = at + c.size[b as usize];
        stacked.insert(at, (top, b));
        below = Some(b);
    }
    let total = c.load.len() as u32;
    for forward in [true, false] {
        // Births and deaths on this side, in distance from the peak.
        let distance = |b: u32| match forward {
            true => (hull(b).0.saturating_sub(peak), hull(b).1 - peak.min(hull(b).1)),
            false => ((peak + 1).saturating_sub(hull(b).1), (peak + 1).saturating_sub(hull(b).0)),
        };
        let sections = if forward { total - peak } else { peak + 1 };
        let death: Vec<u32> = (0..c.len() as u32).map(|b| distance(b).1).collect();
        let mut births: Vec<u32> = (0..c.len() as u32).filter(|&b| distance(b).0 > 0).collect();
        births.sort_by_key(|&b| {
            (distance(b).0, u64::MAX - c.size[b as usize], u32::MAX - death[b as usize], b)
        });
        let mut dying: Vec<u32> = at_peak.iter().chain(&births).copied().collect();
        dying.sort_by_key(|&b| death[b as usize]);
        let mut dying = dying.into_iter().peekable();
        let (target, blocks) = (c.max_load(), stacked.clone());
        let mut side = Side { c, rule: plan.rule, target, sections, blocks, gaps: gaps.clone(), death };
        let mut now = 0;
        for b in births {
            let born = distance(b).0;
            if born > now {
                now = born;
                while let Some(gone) = dying.next_if(|&b| side.death[b as usize] <= now) {
                    side.free(offsets[gone as usize]);
                }
            }
            offsets[b as usize] = side.place(b as usize);
        }
    }
    offsets
}
