//! Decisions of the learning search: the lowest buffer of those of a section that are not yet stacked.

use super::trail::{Lit, Neighbour, OPEN, Trail};
use crate::compact::Compact;
use crate::exact::insertion_sort;
use crate::random::Random;

/// Of so many rounds, one chooses sections and buffers in another way.
const OTHERS: u64 = 8;

/// State of a section as the search sees it.
#[derive(Clone, Copy, Default)]
struct View {
    /// The first member, by offset, that is not stacked; none when all are.
    open: Option<usize>,
    slack: i64,
    low: i64,
}

pub(super) struct Branch {
    /// Members of every section by offset, current where the section is not touched.
    sorted: Vec<Vec<u32>>,
    views: Vec<View>,
    /// Ranks of buffers for ties.
    ranks: Vec<u64>,
    random: Random,
    other: bool,
    /// The buffer that is laid below the others of a section, until all decisions for it are made.
    midway: Option<(u32, usize)>,
}

impl Branch {
    pub(super) fn new(t: &Trail, seed: u64) -> Branch {
        Branch {
            sorted: t.sections.clone(),
            views: vec![View::default(); t.sections.len()],
            ranks: vec![0; t.p.len()],
            random: Random::new(seed),
            other: false,
            midway: None,
        }
    }

    /// Ranks the buffers of a round: those that live longest first, with some chance.
    pub(super) fn begin(&mut self, c: &Compact, round: u64) {
        self.other = round.is_multiple_of(OTHERS);
        let mut list: Vec<u32> = (0..c.len() as u32).collect();
        let hull = |b: u32| c.hull(b as usize);
        match self.other {
            true => list.sort_by_key(|&b| std::cmp::Reverse(c.area(b as usize))),
            false => list.sort_by_key(|&b| std::cmp::Reverse(hull(b).1 - hull(b).0)),
        }
        for (rank, b) in list.into_iter().enumerate() {
            self.ranks[b as usize] = rank as u64 * 8 + (self.random.next() >> 58);
        }
    }

    /// Whether a buffer was laid below some of the others, and more are left.
    pub(super) fn is_midway(&self) -> bool {
        self.midway.is_some()
    }

    /// Leaves the rest of the decisions for a buffer.
    pub(super) fn leave(&mut self) {
        self.midway = None;
    }

    /// The first decision for a buffer; none when all buffers are stacked.
    pub(super) fn decide(&mut self, t: &mut Trail) -> Option<Lit> {
        let mut best: Option<(f64, usize)> = None;
        for s in 0..self.views.len() {
            if std::mem::take(&mut t.touched[s]) {
                self.views[s] = self.view(t, s);
            }
            let view = self.views[s];
            let Some(open) = view.open else { continue };
            let (slack, low) = (view.slack as f64, view.low as f64);
            let score = match self.other {
                true => (slack + 1.0) / (self.sorted[s].len() - open) as f64,
                false => slack + low * 0.2,
            };
            if best.is_none_or(|(least, _)| score < least) {
                best = Some((score, s));
            }
        }
        let (_, section) = best?;
        let rest = &self.sorted[section][self.views[section].open?..];
        let low = t.bound[2 * rest[0] as usize];
        let mut lowest: Vec<u32> =
            rest.iter().copied().take_while(|&b| t.bound[2 * b as usize] == low).collect();
        lowest.sort_by_key(|&b| self.ranks[b as usize]);
        lowest.into_iter().find_map(|b| {
            self.midway = Some((b, section));
            self.further(t)
        })
    }

    /// The next decision for a buffer: it lies below another one of its section.
    pub(super) fn further(&self, t: &Trail) -> Option<Lit> {
        let (b, section) = self.midway?;
        let rest = &self.sorted[section][self.views[section].open?..];
        let open = |n: &&Neighbour| t.value[n.below as usize] == OPEN && rest.contains(&n.other);
        let key = |n: &&Neighbour| (t.bound[2 * n.other as usize], self.ranks[n.other as usize]);
        t.neighbours[b as usize].iter().filter(open).min_by_key(key).map(|n| n.below)
    }

    fn view(&mut self, t: &mut Trail, section: usize) -> View {
        let sorted = &mut self.sorted[section];
        t.steps += sorted.len() as u64 / 2;
        insertion_sort(sorted, |b| t.bound[2 * b as usize]);
        let end = |b: u32| t.bound[2 * b as usize] + t.p[b as usize];
        let overlaps = |w: &[u32]| end(w[0]) > t.bound[2 * w[1] as usize];
        let Some(open) = sorted.windows(2).position(overlaps) else { return View::default() };
        let rest = &sorted[open..];
        let bytes: i64 = rest.iter().map(|&b| t.p[b as usize]).sum();
        let top = rest.iter().map(|&b| t.end(b as usize, 0)).max().unwrap_or(0);
        let low = t.bound[2 * rest[0] as usize];
        View { open: Some(open), slack: top - low - bytes, low }
    }
}
