//! Memory of a device without a GPU.

/// Places start at a line, as in memory of a device.
#[repr(align(256))]
#[derive(Clone, Copy)]
struct Line(#[allow(dead_code, reason = "read through pointers")] [u8; 256]);

/// One arena, which queues and host share like threads of a GPU do.
pub(crate) struct Bytes {
    start: *mut u8,
    pub(crate) len: usize,
    _lines: Vec<Line>,
}

// SAFETY: the bytes are plain data; who touches which when is what the schedule orders.
#[allow(unsafe_code, reason = "queues share the arenas")]
unsafe impl Send for Bytes {}
// SAFETY: as above.
#[allow(unsafe_code, reason = "queues share the arenas")]
unsafe impl Sync for Bytes {}

impl Bytes {
    pub(crate) fn new(len: usize, fill: u8) -> Bytes {
        let mut lines = vec![Line([fill; 256]); len.div_ceil(256)];
        Bytes { start: lines.as_mut_ptr().cast(), len, _lines: lines }
    }

    #[allow(unsafe_code, reason = "an offset within the allocation")]
    pub(crate) fn at(&self, start: usize) -> *mut u8 {
        assert!(start <= self.len);
        // SAFETY: the offset is within the allocation.
        unsafe { self.start.add(start) }
    }
}
