//! Free bytes of an arena, given out by best fit.

use std::collections::BTreeMap;

/// Alignment of all blocks, at least that of kernels.
const ALIGN: usize = 256;

/// Free bytes of an arena: blocks that do not touch, by their start.
#[derive(Debug)]
pub(super) struct Space {
    free: BTreeMap<usize, usize>,
    used: usize,
}

impl Space {
    /// The bytes from `start` to `end`, all free.
    pub(super) fn new(start: usize, end: usize) -> Space {
        let start = start.next_multiple_of(ALIGN);
        let bytes = end.saturating_sub(start) / ALIGN * ALIGN;
        let free = (bytes > 0).then_some((start, bytes));
        Space { free: free.into_iter().collect(), used: 0 }
    }

    /// Bytes given out.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Bytes that a block of this length takes.
    pub(super) fn size(bytes: usize) -> usize {
        bytes.checked_next_multiple_of(ALIGN).unwrap_or(usize::MAX)
    }

    /// Takes the smallest free block that is long enough; of equals the first.
    pub(super) fn take(&mut self, bytes: usize) -> Option<usize> {
        let bytes = Space::size(bytes);
        if bytes == 0 {
            return Some(0);
        }
        let fitting = self.free.iter().filter(|&(_, &len)| len >= bytes);
        let (&start, &len) = fitting.min_by_key(|&(&start, &len)| (len, start))?;
        self.free.remove(&start);
        if len > bytes {
            self.free.insert(start.saturating_add(bytes), len - bytes);
        }
        self.used = self.used.saturating_add(bytes);
        Some(start)
    }

    /// Gives back what [`Space::take`] gave for so many bytes.
    pub(super) fn give(&mut self, mut start: usize, bytes: usize) {
        let mut len = Space::size(bytes);
        if len == 0 {
            return;
        }
        self.used = self.used.saturating_sub(len);
        if let Some(after) = self.free.remove(&start.saturating_add(len)) {
            len = len.saturating_add(after);
        }
        if let Some((&before, &bytes)) = self.free.range(..start).next_back()
            && before.saturating_add(bytes) == start
        {
            (start, len) = (before, bytes.saturating_add(len));
        }
        self.free.insert(start, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The smallest hole that is long enough is taken, and neighbours become one again.
    #[test]
    fn best_fit_and_merging() {
        let mut space = Space::new(0, 4096);
        let blocks: Vec<usize> = (0..4).map(|_| space.take(1000).unwrap()).collect();
        assert_eq!(blocks, [0, 1024, 2048, 3072]);
        assert_eq!(space.take(1), None);
        space.give(blocks[0], 1000);
        space.give(blocks[2], 1000);
        assert_eq!((space.take(256), space.take(256)), (Some(0), Some(256)));
        assert_eq!(space.take(1024), Some(2048));
        space.give(2048, 1024);
        space.give(blocks[1], 1000);
        space.give(blocks[3], 1000);
        assert_eq!(space.used(), 512);
        assert_eq!(space.take(4096 - 512), Some(512), "the rest is one block");
        assert_eq!(space.take(0), Some(0), "nothing takes no room");
    }
}
