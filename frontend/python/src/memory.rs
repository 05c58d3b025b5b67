//! Memory of the caller, given as an address and a length.
//!
//! Contract: nothing here can tell whether an address is right. The package's Python files pass those of
//! contiguous tensors and arrays that live, and that nobody else changes, until the call returns; whoever
//! calls `memc._native` by hand answers for the same. No address is kept beyond the call that it came with.

use pyo3::prelude::*;

use crate::error;

/// Bytes that the caller vouches for while a call lasts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    address: usize,
    len: usize,
}

impl Region {
    /// The bytes of an argument `(address, nbytes)`.
    pub(crate) fn new(py: Python<'_>, name: &str, (address, len): (usize, usize)) -> PyResult<Region> {
        let is_whole = isize::try_from(len).is_ok() && address.checked_add(len).is_some();
        if is_whole && (address != 0 || len == 0) {
            return Ok(Region { address, len });
        }
        Err(error::data(py, format!("`{name}`: {len} bytes at address {address} are no memory")))
    }

    /// Their number.
    pub(crate) fn len(self) -> usize {
        self.len
    }

    /// The bytes, to be read within the call that they came with.
    #[allow(unsafe_code, reason = "Python hands over addresses")]
    pub(crate) fn bytes<'a>(self) -> &'a [u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: the caller vouches for the bytes, see the module, and `new` has checked address and length.
        // Bytes have no alignment and no invalid values.
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(self.address), self.len) }
    }

    /// The bytes, to be written within the call that they came with.
    #[allow(unsafe_code, reason = "Python hands over addresses")]
    pub(crate) fn bytes_mut<'a>(self) -> &'a mut [u8] {
        if self.len == 0 {
            return &mut [];
        }
        let start = std::ptr::with_exposed_provenance_mut(self.address);
        // SAFETY: as in `bytes`; a call has one region that it writes, and the caller changes nothing
        // meanwhile.
        unsafe { std::slice::from_raw_parts_mut(start, self.len) }
    }
}
