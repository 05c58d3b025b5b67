//! Layout from the peak outwards, in time order on both sides.
//!
//! The buffers live in the fullest section are stacked without a gap. After that the two sides of the section are
//! independent: later buffers are placed in order of birth, each into a gap between those live at its birth, and earlier
//! ones likewise in reversed time. Nothing placed on one side and absent at the peak can meet the other side, so each
//! placement looks at the gaps of one instant only and a sweep takes `O(n g)` for `g` gaps at once.
//!
//! Holes in live ranges are not used, and instances with fixed offsets are not for it.

use crate::compact::Compact;

/// How the buffers at the peak are stacked, from the bottom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stack {
    /// Those that live longest first: activations of a training step nest like brackets.
    Longest,
    /// Those born first.
    Oldest,
    /// Those that die last.
    LastToDie,
}

/// Which gap a newborn takes.
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

struct Side<'a> {
    c: &'a Compact,
    rule: Rule,
    target: u64,
    sections: u32,
    /// Live blocks by offset: (offset, end, buffer).
    blocks: Vec<(u64, u64, u32)>,
    /// Death of every buffer in this side's time.
    death: Vec<u32>,
}

impl Side<'_> {
    /// Index in `blocks` to insert at, and the offset.
    fn choose(&self, b: usize) -> (usize, u64) {
        let (size, align) = (self.c.size[b], self.c.align[b]);
        let up = |at: u64| if align == 1 { at } else { at.div_ceil(align) * align };
        let short = match self.rule {
            Rule::TwoEnded(share) => u64::from(self.death[b]) * u64::from(share) < u64::from(self.sections),
            _ => false,
        };
        let mut best: Option<(u64, usize, u64)> = None;
        for i in 0..=self.blocks.len() {
            let low = if i == 0 { 0 } else { self.blocks[i - 1].1 };
            let end = self.blocks.get(i).map(|x| x.0);
            let at = up(low);
            let high = end.unwrap_or_else(|| self.target.max(at + size));
            if high < at || high - at < size {
                continue;
            }
            let over = end.is_none() && at + size > self.target;
            let top = (high - size) / align * align;
            let (score, at) = match self.rule {
                _ if over => (u64::MAX, at),
                Rule::Best => (high - low - size, at),
                Rule::TwoEnded(_) if short => ((self.blocks.len() - i) as u64, top),
                Rule::TwoEnded(_) => (i as u64, at),
                Rule::Mates => {
                    let apart = |j: Option<usize>| {
                        let mate = j.and_then(|j| self.blocks.get(j));
                        let edge = if j.is_none() { self.sections } else { 0 };
                        let mate = mate.map_or(edge, |m| self.death[m.2 as usize]);
                        u64::from(mate.abs_diff(self.death[b]))
                    };
                    let exact = high - low == size;
                    let (below, above) = (apart(i.checked_sub(1)), apart(Some(i)));
                    match (exact, below <= above) {
                        (true, _) => (below.min(above) / 2, at),
                        (false, true) => (below, at),
                        (false, false) => (above, top),
                    }
                }
            };
            if best.is_none_or(|b| score < b.0) {
                best = Some((score, i, at));
            }
        }
        best.map_or((self.blocks.len(), up(self.blocks.last().map_or(0, |b| b.1))), |(_, i, at)| (i, at))
    }

    fn place(&mut self, b: usize) -> u64 {
        let (i, at) = self.choose(b);
        self.blocks.insert(i, (at, at + self.c.size[b], b as u32));
        at
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
    let mut stacked = Vec::with_capacity(at_peak.len());
    let mut top = 0u64;
    for &b in &at_peak {
        let at = top.div_ceil(c.align[b as usize]) * c.align[b as usize];
        offsets[b as usize] = at;
        top = at + c.size[b as usize];
        stacked.push((at, top, b));
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
        let mut side =
            Side { c, rule: plan.rule, target: c.max_load(), sections, blocks: stacked.clone(), death };
        let mut now = 0;
        for b in births {
            let born = distance(b).0;
            if born > now {
                now = born;
                let death = &side.death;
                side.blocks.retain(|x| death[x.2 as usize] > now);
            }
            offsets[b as usize] = side.place(b as usize);
        }
    }
    offsets
}
