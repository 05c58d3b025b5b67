//! Memory of the host that a GPU copies from and to.

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::null_mut;

use cudarc::driver::sys;

use crate::GpuError;
use crate::api::done;

/// Alignment of pageable memory: that of a page.
const PAGE: usize = 4096;

/// Bytes of the host, page-locked or not.
#[derive(Debug)]
pub(crate) struct HostMemory {
    start: *mut u8,
    len: usize,
    /// Of pageable memory.
    layout: Option<Layout>,
}

impl HostMemory {
    /// No bytes.
    pub(crate) fn none() -> HostMemory {
        HostMemory { start: null_mut(), len: 0, layout: None }
    }

    /// Page-locked bytes, filled.
    ///
    /// # Errors
    /// The driver does not lock so much.
    #[allow(unsafe_code, reason = "the driver is a C library")]
    pub(crate) fn locked(len: usize, fill: u8) -> Result<HostMemory, GpuError> {
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
        Ok(HostMemory { start: start.cast(), len, layout: None })
    }

    /// Pageable bytes, filled; `None` where there is not so much.
    #[allow(unsafe_code, reason = "memory that the driver and the host share is raw")]
    pub(crate) fn pageable(len: usize, fill: u8) -> Option<HostMemory> {
        let layout = Layout::from_size_align(len.max(1), PAGE).ok()?;
        // SAFETY: the layout has a size.
        let start = unsafe { alloc(layout) };
        if start.is_null() {
            return None;
        }
        // SAFETY: the bytes were just reserved, and nothing else knows of them.
        unsafe { start.write_bytes(fill, len) };
        Some(HostMemory { start, len, layout: Some(layout) })
    }

    /// Whether the pages are locked, so that copies of them need not be staged.
    pub(crate) fn is_locked(&self) -> bool {
        self.layout.is_none()
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

impl Drop for HostMemory {
    #[allow(unsafe_code, reason = "the driver is a C library")]
    fn drop(&mut self) {
        match self.layout {
            // SAFETY: reserved with this layout, and freed once.
            Some(layout) => unsafe { dealloc(self.start, layout) },
            None if self.len > 0 => {
                // SAFETY: reserved by the driver, and freed once. An error has nobody to go to.
                unsafe { sys::cuMemFreeHost(self.start.cast()) };
            }
            None => {}
        }
    }
}
