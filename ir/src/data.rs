//! Bytes of tensors.

use std::fmt;
use std::ops::{Deref, Range};

use bytes::Bytes;

/// Bytes of a tensor, owned or mapped from a file. Clones and slices share them.
#[derive(Clone, Default)]
pub struct Data(Bytes);

impl PartialEq for Data {
    /// Bytes in one place are equal without being read: they may be a file of many gigabytes.
    fn eq(&self, other: &Data) -> bool {
        std::ptr::eq::<[u8]>(&*self.0, &*other.0) || self.0 == other.0
    }
}

impl Eq for Data {}

impl Data {
    /// The bytes in `range`.
    ///
    /// `None` where it leaves them.
    pub fn slice(&self, range: Range<usize>) -> Option<Data> {
        (range.start <= range.end && range.end <= self.0.len()).then(|| Data(self.0.slice(range)))
    }

    /// The same bytes as `part`, shared where they are a part of these.
    pub fn share(&self, part: &[u8]) -> Data {
        let start = (part.as_ptr() as usize).checked_sub(self.0.as_ptr() as usize);
        let shared = start.and_then(|at| self.slice(at..at.checked_add(part.len())?));
        shared.filter(|shared| shared.0.as_ptr() == part.as_ptr()).unwrap_or_else(|| part.into())
    }
}

impl Deref for Data {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl From<Bytes> for Data {
    fn from(bytes: Bytes) -> Self {
        Data(bytes)
    }
}

impl From<Vec<u8>> for Data {
    fn from(bytes: Vec<u8>) -> Self {
        Data(bytes.into())
    }
}

impl From<&[u8]> for Data {
    fn from(bytes: &[u8]) -> Self {
        Data(Bytes::copy_from_slice(bytes))
    }
}

impl<const N: usize> From<[u8; N]> for Data {
    fn from(bytes: [u8; N]) -> Self {
        bytes.as_slice().into()
    }
}

impl FromIterator<u8> for Data {
    fn from_iter<I: IntoIterator<Item = u8>>(bytes: I) -> Self {
        bytes.into_iter().collect::<Vec<u8>>().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parts share the whole's memory, other bytes are copied, and nothing leaves the whole.
    #[test]
    fn parts_are_shared() {
        let whole = Data::from(vec![1, 2, 3, 4]);
        let part = whole.share(&whole[1..3]);
        assert!(part[..] == [2, 3] && part.as_ptr() == whole[1..].as_ptr());
        let other = whole.share(&[2, 3]);
        assert!(other == part && other.as_ptr() != part.as_ptr());
        assert_eq!((whole.slice(2..5), whole.slice(4..4).as_deref()), (None, Some(&[][..])));
    }
}
