//! Answer to an instance.

use crate::compact::Compact;
use crate::instance::Instance;

/// An allocation and its proven figures.
#[derive(Clone, Debug)]
pub struct Solution {
    /// For every buffer its offset in bytes.
    pub offsets: Vec<u64>,
    /// One past the last byte in use.
    pub height: u64,
    /// The most bytes live at once.
    pub load: u64,
    /// A height that no allocation is below: at least the load.
    pub bound: u64,
}

impl Solution {
    /// Joins the allocations of components.
    pub(crate) fn assemble<'a>(
        instance: &Instance,
        parts: impl Iterator<Item = (&'a Compact, &'a Vec<u64>)>,
        bound: u64,
    ) -> Solution {
        let mut offsets: Vec<u64> = instance.buffers().iter().map(|b| b.offset.unwrap_or(0)).collect();
        for (c, chosen) in parts {
            for (&i, &at) in c.index.iter().zip(chosen) {
                offsets[i] = at;
            }
        }
        let ends = instance.buffers().iter().zip(&offsets).map(|(b, at)| at + b.bytes);
        let height = ends.max().unwrap_or(0);
        Solution { height, load: instance.load(), bound: bound.max(instance.lower_bound()), offsets }
    }

    /// Whether no allocation is lower.
    pub fn optimal(&self) -> bool {
        self.height == self.bound
    }
}
