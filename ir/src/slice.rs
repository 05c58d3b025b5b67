//! Byte ranges of the two arenas, as text forms have them.

use std::fmt;

use crate::module::Space;

impl fmt::Display for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The bytes `[offset, offset + bytes)` of one arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slice {
    /// The arena.
    pub space: Space,
    /// First byte, from the start of the arena.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

impl Slice {
    /// A slice of the device arena.
    pub const fn dev(offset: u64, bytes: u64) -> Slice {
        Slice { space: Space::Dev, offset, bytes }
    }

    /// A slice of the page-locked host arena.
    pub const fn host(offset: u64, bytes: u64) -> Slice {
        Slice { space: Space::Host, offset, bytes }
    }

    /// One past the last byte, or `None` where that is not representable.
    pub const fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.bytes)
    }

    /// Whether both slices have a byte in common. An empty slice overlaps nothing.
    pub const fn overlaps(&self, other: &Slice) -> bool {
        let (a_end, b_end) =
            (self.offset.saturating_add(self.bytes), other.offset.saturating_add(other.bytes));
        let same_space =
            matches!((self.space, other.space), (Space::Dev, Space::Dev) | (Space::Host, Space::Host));
        same_space && self.bytes > 0 && other.bytes > 0 && self.offset < b_end && other.offset < a_end
    }
}

/// `dev+512:256` is the bytes `[512, 768)` of the device arena.
impl fmt::Display for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}:{}", self.space, self.offset, self.bytes)
    }
}
