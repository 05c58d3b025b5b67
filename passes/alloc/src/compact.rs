//! An instance as the algorithms see it: time is numbered, and parts that never meet are separate.
//!
//! Time is cut into *sections*, one for each maximal set of buffers that live at once. A section is a phase
//! of births followed by deaths, so two buffers share a section exactly if they live at the same time.

use std::sync::OnceLock;

use crate::instance::Instance;

/// One component: buffers connected through time, those of zero bytes left out.
#[derive(Clone, Debug)]
pub(crate) struct Compact {
    /// Index in the instance.
    pub(crate) index: Vec<usize>,
    /// Bytes, positive.
    pub(crate) size: Vec<u64>,
    /// Offsets are multiples of this.
    pub(crate) align: Vec<u64>,
    /// Fixed offsets.
    pub(crate) fixed: Vec<Option<u64>>,
    /// Half-open ranges of sections of every buffer, in order.
    pub(crate) live: Vec<Vec<(u32, u32)>>,
    /// Bytes live in every section.
    pub(crate) load: Vec<u64>,
    meets: OnceLock<Vec<bool>>,
}

/// Most buffers for which a table of pairs is made.
const FEW: usize = 1024;

impl Compact {
    /// Number of buffers.
    pub(crate) fn len(&self) -> usize {
        self.size.len()
    }

    /// For every pair of buffers (first times [`Compact::len`] plus second) whether they live at once, if
    /// they are few.
    pub(crate) fn meets(&self) -> Option<&[bool]> {
        let n = self.len();
        let table = || {
            let mut alive: Vec<Vec<u32>> = vec![Vec::new(); self.load.len()];
            for (b, live) in self.live.iter().enumerate() {
                for section in live.iter().flat_map(|r| r.0..r.1) {
                    alive[section as usize].push(b as u32);
                }
            }
            let mut meets = vec![false; n * n];
            for members in &alive {
                for &a in members {
                    for &b in members.iter().filter(|&&b| b != a) {
                        meets[a as usize * n + b as usize] = true;
                    }
                }
            }
            meets
        };
        (n <= FEW).then(|| self.meets.get_or_init(table).as_slice())
    }

    /// From the first to one past the last section of a buffer, holes included.
    pub(crate) fn hull(&self, b: usize) -> (u32, u32) {
        let live = &self.live[b];
        (live.first().map_or(0, |r| r.0), live.last().map_or(0, |r| r.1))
    }

    /// Most bytes live at once.
    pub(crate) fn max_load(&self) -> u64 {
        self.load.iter().copied().max().unwrap_or(0)
    }

    /// Lower bound of the height: the load, and the end of the fixed buffers.
    pub(crate) fn bound(&self) -> u64 {
        let fixed = self.fixed.iter().zip(&self.size).filter_map(|(at, size)| at.map(|at| at + size));
        self.max_load().max(fixed.max().unwrap_or(0))
    }

    /// One past the last byte of an allocation.
    pub(crate) fn height(&self, offsets: &[u64]) -> u64 {
        offsets.iter().zip(&self.size).map(|(at, size)| at + size).max().unwrap_or(0)
    }

    /// Bytes times sections.
    pub(crate) fn area(&self, b: usize) -> u128 {
        let sections: u64 = self.live[b].iter().map(|r| u64::from(r.1 - r.0)).sum();
        u128::from(self.size[b]) * u128::from(sections)
    }

    /// Whether an offset is fixed.
    pub(crate) fn has_fixed(&self) -> bool {
        self.fixed.iter().any(Option::is_some)
    }

    /// For every buffer the most bytes live at once during its life.
    pub(crate) fn contention(&self) -> Vec<u64> {
        // Maxima of 1, 2, 4, ... sections from each on.
        let mut table = vec![self.load.clone()];
        while let Some(last) = table.last().filter(|t| t.len() > 1 << (table.len() - 1)) {
            let half = 1 << (table.len() - 1);
            table.push((0..last.len() - half).map(|i| last[i].max(last[i + half])).collect());
        }
        let most = |&(first, end): &(u32, u32)| {
            let level = (end - first).ilog2() as usize;
            table[level][first as usize].max(table[level][end as usize - (1 << level)])
        };
        self.live.iter().map(|live| live.iter().map(most).max().unwrap_or(0)).collect()
    }
}

/// The components of an instance, in order of time.
pub(crate) fn components(instance: &Instance) -> Vec<Compact> {
    let buffers = instance.buffers();
    let mut events: Vec<(u64, bool, usize)> = Vec::with_capacity(2 * buffers.len());
    for (i, b) in buffers.iter().enumerate().filter(|(_, b)| b.bytes > 0) {
        for r in &b.live {
            events.push((r.start, true, i));
            events.push((r.end, false, i));
        }
    }
    events.sort_unstable();
    let mut live: Vec<Vec<(u32, u32)>> = vec![Vec::new(); buffers.len()];
    let mut left: Vec<usize> = buffers.iter().map(|b| b.live.len()).collect();
    let (mut out, mut members): (Vec<Compact>, Vec<usize>) = (Vec::new(), Vec::new());
    let (mut section, mut died, mut open) = (0u32, false, 0usize);
    for (_, starts, i) in events {
        if !starts {
            died = true;
            left[i] -= 1;
            if let Some(last) = live[i].last_mut() {
                last.1 = section + 1;
            }
            if left[i] == 0 {
                open -= 1;
            }
            continue;
        }
        if died {
            (section, died) = (section + 1, false);
            if open == 0 {
                out.push(component(instance, std::mem::take(&mut members), &mut live, section));
                section = 0;
            }
        }
        if live[i].is_empty() {
            members.push(i);
            open += 1;
        }
        live[i].push((section, section + 1));
    }
    if !members.is_empty() {
        out.push(component(instance, members, &mut live, section + 1));
    }
    out
}

fn component(
    instance: &Instance,
    mut members: Vec<usize>,
    live: &mut [Vec<(u32, u32)>],
    sections: u32,
) -> Compact {
    members.sort_unstable();
    let buffers = instance.buffers();
    let live: Vec<Vec<(u32, u32)>> = members.iter().map(|&i| std::mem::take(&mut live[i])).collect();
    let mut change = vec![0i128; sections as usize + 1];
    for (ranges, &i) in live.iter().zip(&members) {
        for r in ranges {
            change[r.0 as usize] += i128::from(buffers[i].bytes);
            change[r.1 as usize] -= i128::from(buffers[i].bytes);
        }
    }
    let mut now = 0i128;
    let load = change[..sections as usize]
        .iter()
        .map(|c| {
            now += c;
            now as u64
        })
        .collect();
    Compact {
        size: members.iter().map(|&i| buffers[i].bytes).collect(),
        align: members.iter().map(|&i| buffers[i].align).collect(),
        fixed: members.iter().map(|&i| buffers[i].offset).collect(),
        index: members,
        live,
        load,
        meets: OnceLock::new(),
    }
}
