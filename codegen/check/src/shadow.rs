//! Contents and last accesses of each byte of an arena.
//!
//! A map of disjoint half-open byte ranges, each with one content and one access history. Memory is
//! proportional to the number of accesses, not to the arena: an access splits at most two ranges, and a write
//! replaces all it covers. Bytes that no range covers were never touched.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::clock::{AXES, Clock, Stamp};
use crate::error::RaceKind;
use crate::symbolic::SymbolicId;

/// Contents of a range of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Content {
    /// No value.
    Undef,
    /// The bytes of `value` from byte `at` on.
    Part {
        /// The value.
        value: SymbolicId,
        /// Position within the value of the range's first byte.
        at: u64,
    },
}

impl Content {
    /// The content `by` bytes further on.
    pub(crate) fn skip(self, by: u64) -> Content {
        match self {
            Content::Undef => Content::Undef,
            Content::Part { value, at } => Content::Part { value, at: at.saturating_add(by) },
        }
    }
}

/// A range of bytes with one content and one history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cell {
    end: u64,
    /// Its contents.
    pub(crate) content: Content,
    /// The last write.
    pub(crate) write: Stamp,
    /// Time of the last read since then, per axis; 0 for none.
    reads: [u32; AXES],
}

impl Cell {
    /// Earlier accesses that conflict with one whose clock is `clock`: that nothing orders before it.
    pub(crate) fn conflicts(&self, clock: Clock, writes: bool) -> impl Iterator<Item = (RaceKind, Stamp)> {
        let kind = if writes { RaceKind::WriteAfterWrite } else { RaceKind::ReadAfterWrite };
        let reads = self.reads().filter(move |_| writes).map(|read| (RaceKind::WriteAfterRead, read));
        let all = std::iter::once((kind, self.write)).chain(reads);
        all.filter(move |&(_, stamp)| !clock.covers(stamp))
    }

    /// The last read on each axis.
    pub(crate) fn reads(&self) -> impl Iterator<Item = Stamp> {
        self.reads
            .into_iter()
            .enumerate()
            .filter(|&(_, time)| time > 0)
            .map(|(axis, time)| Stamp { axis, time })
    }
}

/// The cells of one arena.
#[derive(Clone, Default, Debug)]
pub(crate) struct Shadow {
    cells: BTreeMap<u64, Cell>,
}

impl Shadow {
    /// Calls `visit` for the pieces of `range` in order: a cell clipped to the range, or `None` for untouched
    /// bytes.
    pub(crate) fn visit(&self, range: Range<u64>, mut visit: impl FnMut(Range<u64>, Option<Cell>)) {
        let mut at = range.start;
        let before = self.cells.range(..range.start).next_back();
        let within = self.cells.range(range.clone());
        for (&start, cell) in before.into_iter().chain(within) {
            let (from, to) = (start.max(range.start), cell.end.min(range.end));
            if from >= to {
                continue;
            }
            if at < from {
                visit(at..from, None);
            }
            visit(from..to, Some(Cell { content: cell.content.skip(from - start), ..*cell }));
            at = to;
        }
        if at < range.end {
            visit(at..range.end, None);
        }
    }

    /// Notes a read of all touched bytes of `range`.
    pub(crate) fn read(&mut self, range: Range<u64>, by: Stamp) {
        if range.is_empty() {
            return;
        }
        self.split(range.start);
        self.split(range.end);
        for (_, cell) in self.cells.range_mut(range) {
            if let Some(time) = cell.reads.get_mut(by.axis) {
                *time = by.time;
            }
        }
    }

    /// Replaces content and history of `range`.
    pub(crate) fn write(&mut self, range: Range<u64>, content: Content, by: Stamp) {
        if range.is_empty() {
            return;
        }
        self.split(range.start);
        self.split(range.end);
        while let Some((&start, _)) = self.cells.range(range.clone()).next() {
            self.cells.remove(&start);
        }
        self.cells.insert(range.start, Cell { end: range.end, content, write: by, reads: [0; AXES] });
    }

    /// Makes `at` a boundary between cells.
    fn split(&mut self, at: u64) {
        let Some((&start, cell)) = self.cells.range_mut(..at).next_back() else { return };
        if cell.end <= at {
            return;
        }
        let right = Cell { content: cell.content.skip(at - start), ..*cell };
        cell.end = at;
        self.cells.insert(at, right);
    }
}

/// A set of disjoint byte ranges, each with a tag; the first tag that claims a byte keeps it.
#[derive(Clone, Debug)]
pub(crate) struct Ranges<T> {
    map: BTreeMap<u64, (u64, T)>,
}

impl<T> Default for Ranges<T> {
    fn default() -> Self {
        Ranges { map: BTreeMap::new() }
    }
}

impl<T: Copy> Ranges<T> {
    /// Claims the bytes of `range` that are not claimed yet.
    pub(crate) fn claim(&mut self, range: Range<u64>, tag: T) {
        let mut at = match self.map.range(..=range.start).next_back() {
            Some((_, &(end, _))) => end.max(range.start),
            None => range.start,
        };
        while at < range.end {
            let next = self.map.range(at..range.end).next().map(|(&start, &(end, _))| (start, end));
            let (stop, resume) = next.unwrap_or((range.end, range.end));
            if at < stop {
                self.map.insert(at, (stop, tag));
            }
            at = resume;
        }
    }

    /// The ranges with their tags, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Range<u64>, T)> {
        self.map.iter().map(|(&start, &(end, tag))| (start..end, tag))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 48;

    /// One byte of the naive shadow: content, last write, reads.
    type Byte = Option<(Content, Stamp, [u32; AXES])>;

    fn bytes_of(shadow: &Shadow) -> Vec<Byte> {
        let mut out = Vec::new();
        shadow.visit(0..BYTES as u64, |range, cell| {
            for i in 0..range.end - range.start {
                out.push(cell.map(|c| (c.content.skip(i), c.write, c.reads)));
            }
        });
        out
    }

    #[test]
    fn the_interval_map_agrees_with_an_array_of_bytes() {
        arbtest::arbtest(|u| {
            let mut fast = Shadow::default();
            let mut naive: Vec<Byte> = vec![None; BYTES];
            for time in 1..=u.int_in_range(0..=40u32)? {
                let start = u.int_in_range(0..=BYTES)?;
                let end = u.int_in_range(start..=BYTES)?;
                let by = Stamp { axis: u.int_in_range(0..=AXES - 1)?, time };
                let range = start as u64..end as u64;
                if u.arbitrary()? {
                    fast.read(range, by);
                    for (_, _, reads) in naive[start..end].iter_mut().flatten() {
                        reads[by.axis] = time;
                    }
                } else {
                    let content = match u.int_in_range(0..=2u32)? {
                        0 => Content::Undef,
                        n => Content::Part { value: SymbolicId::new(n), at: u64::from(n) * 8 },
                    };
                    fast.write(range, content, by);
                    for (i, byte) in naive[start..end].iter_mut().enumerate() {
                        *byte = Some((content.skip(i as u64), by, [0; AXES]));
                    }
                }
                assert_eq!(bytes_of(&fast), naive);
            }
            Ok(())
        });
    }

    #[test]
    fn claims_agree_with_an_array_of_bytes() {
        arbtest::arbtest(|u| {
            let mut fast = Ranges::default();
            let mut naive: Vec<Option<u32>> = vec![None; BYTES];
            for tag in 0..u.int_in_range(0..=20u32)? {
                let start = u.int_in_range(0..=BYTES)?;
                let end = u.int_in_range(start..=BYTES)?;
                fast.claim(start as u64..end as u64, tag);
                for byte in &mut naive[start..end] {
                    byte.get_or_insert(tag);
                }
                let mut seen: Vec<Option<u32>> = vec![None; BYTES];
                for (range, tag) in fast.iter() {
                    for byte in &mut seen[range.start as usize..range.end as usize] {
                        assert!(byte.replace(tag).is_none(), "ranges overlap");
                    }
                }
                assert_eq!(seen, naive);
            }
            Ok(())
        });
    }
}
