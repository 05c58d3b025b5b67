//! An allocator with a limit, and the most bytes in use at once.

#![allow(unsafe_code, reason = "a global allocator is unsafe to implement")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The system's allocator, which refuses what would exceed a limit: an unbounded allocation ends the process.
pub struct Limit {
    most: usize,
    used: AtomicUsize,
    peak: AtomicUsize,
}

impl Limit {
    /// An allocator of at most so many bytes.
    pub const fn new(most: usize) -> Limit {
        Limit { most, used: AtomicUsize::new(0), peak: AtomicUsize::new(0) }
    }

    /// Most bytes in use at once.
    pub fn peak(&self) -> usize {
        self.peak.load(Relaxed)
    }

    fn take(&self, bytes: usize) -> bool {
        let used = self.used.fetch_add(bytes, Relaxed).saturating_add(bytes);
        if used > self.most {
            self.used.fetch_sub(bytes, Relaxed);
            return false;
        }
        self.peak.fetch_max(used, Relaxed);
        true
    }
}

// SAFETY: every block is the system allocator's. Null in its place stands for no memory.
unsafe impl GlobalAlloc for Limit {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !self.take(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        let block = unsafe { System.alloc(layout) };
        if block.is_null() {
            self.used.fetch_sub(layout.size(), Relaxed);
        }
        block
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !self.take(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: as above.
        let block = unsafe { System.alloc_zeroed(layout) };
        if block.is_null() {
            self.used.fetch_sub(layout.size(), Relaxed);
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        self.used.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the block came from the system's allocator with this layout.
        unsafe { System.dealloc(block, layout) }
    }
}
