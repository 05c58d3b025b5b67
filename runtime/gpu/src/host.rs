//! Memory of the host that a GPU copies from and to.
//!
//! A large arena is mapped, touched by several threads at once, and then page-locked as a whole: the driver
//! alone would bring in page after page. Copies may not cross from one locked range to another, so that the
//! pieces are those of touching, not of locking. Where the driver does not lock it, the memory stays as it
//! is: pageable.

use std::ptr::null_mut;

use cudarc::driver::sys;
use memmap2::MmapMut;

use crate::GpuError;
use crate::api::done;
use crate::threads::side_by_side;

/// Bytes that are touched by one write: the smallest page.
const PAGE: usize = 4096;
/// Bytes that a thread touches at a time, a multiple of large pages.
const PIECE: usize = 64 << 20;
/// Most threads that touch memory.
const THREADS: usize = 16;

/// Owner of memory of the host.
#[derive(Debug)]
enum Owner {
    /// Nobody: there are no bytes.
    None,
    /// The driver.
    Driver,
    /// A map of this process, page-locked or not.
    Map { map: MmapMut, is_locked: bool },
}

/// Bytes of the host.
#[derive(Debug)]
pub(crate) struct HostMemory {
    start: *mut u8,
    len: usize,
    owner: Owner,
}

impl HostMemory {
    /// No bytes.
    pub(crate) fn none() -> HostMemory {
        HostMemory { start: null_mut(), len: 0, owner: Owner::None }
    }

    /// A few page-locked bytes, filled, that kernels reach by the same addresses.
    ///
    /// # Errors
    /// The driver does not lock so much.
    #[allow(unsafe_code, reason = "the driver is a C library")]
    pub(crate) fn words(len: usize, fill: u8) -> Result<HostMemory, GpuError> {
        if len == 0 {
            return Ok(HostMemory::none());
        }
        let mut start = null_mut();
        // SAFETY: an address to write; freed once, on drop.
        done("cuMemHostAlloc", unsafe {
            sys::cuMemHostAlloc(&mut start, len, sys::CU_MEMHOSTALLOC_PORTABLE)
        })?;
        // SAFETY: the bytes were just reserved, and nothing else knows of them.
        unsafe { start.cast::<u8>().write_bytes(fill, len) };
        Ok(HostMemory { start: start.cast(), len, owner: Owner::Driver })
    }

    /// Bytes to copy from and to, filled; page-locked where the driver does that.
    ///
    /// # Errors
    /// [`GpuError::HostMemory`] where the system does not have so much.
    #[allow(unsafe_code, reason = "the driver is a C library")]
    pub(crate) fn arena(len: usize, fill: u8) -> Result<HostMemory, GpuError> {
        if len == 0 {
            return Ok(HostMemory::none());
        }
        let refused =
            |error: std::io::Error| GpuError::HostMemory { needs: len as u64, error: error.to_string() };
        let mut map = MmapMut::map_anon(len).map_err(refused)?;
        #[cfg(target_os = "linux")]
        // Where there are no large pages, small ones do.
        let _ = map.advise(memmap2::Advice::HugePage);
        touch(&mut map, fill);
        let start = map.as_mut_ptr();
        // SAFETY: the bytes are mapped, and unregistered before they are unmapped.
        let locked = done("cuMemHostRegister", unsafe {
            sys::cuMemHostRegister_v2(start.cast(), len, sys::CU_MEMHOSTREGISTER_PORTABLE)
        });
        Ok(HostMemory { start, len, owner: Owner::Map { map, is_locked: locked.is_ok() } })
    }

    /// Whether the pages are locked, so that copies of them need not be staged.
    pub(crate) fn is_locked(&self) -> bool {
        !matches!(self.owner, Owner::Map { is_locked: false, .. })
    }

    /// Its address and its bytes.
    pub(crate) fn range(&self) -> (sys::CUdeviceptr, usize) {
        (self.start as sys::CUdeviceptr, self.len)
    }

    /// The bytes from `start` on, which must be within it.
    ///
    /// # Errors
    /// [`GpuError::Bounds`].
    #[allow(unsafe_code, reason = "slices are given out by offset")]
    pub(crate) fn bytes(&mut self, start: usize, len: usize) -> Result<&mut [u8], GpuError> {
        crate::check_region(start, len, self.len)?;
        if len == 0 {
            return Ok(&mut []);
        }
        // SAFETY: the place is within the memory, whose bytes are initialised; the slice borrows it. Whoever
        // issues commands that touch these bytes has ordered them before or after the use of the slice.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) })
    }
}

/// Brings in every page of fresh memory, which is zero, and fills it.
fn touch(memory: &mut [u8], fill: u8) {
    let bring = |piece: &mut [u8]| match fill {
        0 => piece.chunks_mut(PAGE).filter_map(|page| page.first_mut()).for_each(|byte| *byte = 0),
        _ => piece.fill(fill),
    };
    let threads = THREADS.min(memory.len().div_ceil(PIECE));
    side_by_side(memory.chunks_mut(PIECE), threads, bring);
}

impl Drop for HostMemory {
    #[allow(unsafe_code, reason = "the driver is a C library")]
    fn drop(&mut self) {
        match &mut self.owner {
            // SAFETY: reserved by the driver, and freed once. An error has nobody to go to.
            Owner::Driver => unsafe {
                sys::cuMemFreeHost(self.start.cast());
            },
            // SAFETY: locked once, and still mapped.
            Owner::Map { is_locked: true, map } => unsafe {
                sys::cuMemHostUnregister(map.as_mut_ptr().cast());
            },
            Owner::Map { is_locked: false, .. } | Owner::None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All bytes get the value, also those of a last piece that is shorter.
    #[test]
    fn every_byte_is_filled() {
        for fill in [0, 0xff] {
            let mut map = MmapMut::map_anon(2 * PIECE + 3).unwrap();
            touch(&mut map, fill);
            assert!(map.iter().all(|byte| *byte == fill));
        }
    }
}
