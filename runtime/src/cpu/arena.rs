//! The two arenas, and the only raw memory access of this crate.
//!
//! Contract: each own arena is one allocation of exactly the size asked for, aligned to a cache line, whose
//! pages are touched before use. The functions that give out slices check bounds themselves. That no two
//! threads hold overlapping slices, one of them mutable, is the caller's doing, not theirs: see the `SAFETY`
//! comments.
//!
//! The functions are to be called for the places of one command of a [`crate::Program`], from the thread of
//! the command's stream, in the order that the program's events prescribe. A device that decides while it
//! runs calls them after `Copies::settle` for these places; its copy threads, for the copies that were issued
//! to them. Between two steps, when all streams have run what was issued, the issuing thread may call them
//! for the places of states.

use std::{
    alloc::{Layout, alloc, dealloc},
    ptr::NonNull,
    slice,
};

use memc_ir::Bytes;
use memc_kernels::{ALIGN, Operand};
use memc_plan::Space;

use crate::Error;
use crate::program::{Launch, Place, Source};

/// The memory of a program.
pub(crate) struct Arenas {
    dev: Arena,
    host: Arena,
}

impl Arenas {
    /// Reserves both arenas and fills them with `fill`.
    pub(crate) fn reserve(dev_bytes: usize, host_bytes: usize, fill: u8) -> Result<Arenas, Error> {
        let reserve = |bytes, what: &str| {
            Arena::reserve(bytes, fill).ok_or_else(|| {
                Error::Memory(format!(
                    "the system refuses {} for the {what} arena; compile for a smaller --gpu-mem, or free \
                     memory",
                    Bytes(bytes as u64)
                ))
            })
        };
        Ok(Arenas { dev: reserve(dev_bytes, "device")?, host: reserve(host_bytes, "host")? })
    }

    /// The host arena of another device, which outlives every use of this; the device arena is empty.
    pub(crate) fn of_host(host: &mut [u8]) -> Arenas {
        let arena = |bytes: &mut [u8]| Arena {
            start: NonNull::from(&mut *bytes).cast(),
            bytes: bytes.len(),
            is_owned: false,
        };
        Arenas { dev: arena(&mut []), host: arena(host) }
    }

    fn arena(&self, space: Space) -> &Arena {
        match space {
            Space::Dev => &self.dev,
            Space::Host => &self.host,
        }
    }

    /// The bytes of a place that the current command reads and no running command writes.
    #[allow(unsafe_code, reason = "slices of the arenas are given out by offset")]
    pub(crate) fn read(&self, place: Place) -> &[u8] {
        let start = self.arena(place.space).at(place);
        // SAFETY: `at` has checked that the place is within the arena, whose bytes are initialised.
        // `Program::new` has proved that commands which write any of these bytes are ordered before or after
        // the current command by the streams' order and events, and the streams keep that order. Without such
        // a program, copies in flight that write them have been waited for.
        unsafe { slice::from_raw_parts(start, place.len) }
    }

    /// The bytes of a place that the current command writes and no other running command touches.
    #[allow(unsafe_code, reason = "slices of the arenas are given out by offset")]
    #[allow(clippy::mut_from_ref, reason = "exclusive access is proved by the program, see SAFETY")]
    pub(crate) fn write(&self, place: Place) -> &mut [u8] {
        let start = self.arena(place.space).at(place);
        // SAFETY: `at` has checked that the place is within the arena, whose bytes are initialised.
        // `Program::new` has proved that commands which touch any of these bytes are ordered before or after
        // the current command by the streams' order and events, which the streams keep, and that the places
        // which one command writes are disjoint from each other and from those it reads. Without such a
        // program, the places come from one list of free bytes, and copies in flight that touch them have
        // been waited for.
        unsafe { slice::from_raw_parts_mut(start, place.len) }
    }

    /// Address of a place's first byte, for whoever reads and writes it between two steps.
    pub(crate) fn address(&self, place: Place) -> usize {
        self.arena(place.space).at(place).expose_provenance()
    }

    /// Calls `f` with the operands, results and workspace of a launch, in lists that `scratch` keeps room
    /// for.
    pub(super) fn with_launch<R>(
        &self,
        launch: &Launch,
        scratch: &mut Scratch,
        f: impl FnOnce(&[Operand], &mut [&mut [u8]], &mut [u8]) -> R,
    ) -> R {
        let mut operands = recycle(std::mem::take(&mut scratch.operands));
        operands.extend(launch.operands.iter().map(|source| match *source {
            Source::Place(place) => Operand::Bytes(self.read(place)),
            Source::Result(j) => Operand::Result(j),
        }));
        let mut results = recycle(std::mem::take(&mut scratch.results));
        results.extend(launch.results.iter().map(|place| self.write(*place)));
        let value = f(&operands, &mut results, self.write(launch.workspace));
        scratch.operands = recycle(operands);
        scratch.results = recycle(results);
        value
    }
}

/// Room for the lists of a launch, kept from one launch to the next.
#[derive(Default)]
pub(super) struct Scratch {
    operands: Vec<Operand<'static>>,
    results: Vec<&'static mut [u8]>,
}

/// The empty vector with the room of `items`, for items of the same layout.
fn recycle<A, B>(mut items: Vec<A>) -> Vec<B> {
    items.clear();
    // Collecting in place keeps the allocation; there is nothing to convert.
    items.into_iter().filter_map(|_| None).collect()
}

/// One allocation of initialised bytes, or those of another device.
struct Arena {
    start: NonNull<u8>,
    bytes: usize,
    /// Whether the allocation is its own.
    is_owned: bool,
}

// SAFETY: the arena owns its bytes, and they are plain data.
#[allow(unsafe_code, reason = "the arena is shared by the stream threads")]
unsafe impl Send for Arena {}
// SAFETY: sharing the arena shares no bytes; slices of them are given out by `Arenas`, under the conditions
// there.
#[allow(unsafe_code, reason = "the arena is shared by the stream threads")]
unsafe impl Sync for Arena {}

impl Arena {
    /// Reserves `bytes` bytes and fills them; `None` if the system refuses.
    #[allow(unsafe_code, reason = "an aligned allocation of an exact size that may fail")]
    fn reserve(bytes: usize, fill: u8) -> Option<Arena> {
        let layout = Layout::from_size_align(bytes, ALIGN).ok()?;
        if bytes == 0 {
            return Some(Arena { start: NonNull::dangling(), bytes, is_owned: true });
        }
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc(layout) })?;
        // SAFETY: the allocation has `bytes` bytes.
        unsafe { start.as_ptr().write_bytes(fill, bytes) };
        Some(Arena { start, bytes, is_owned: true })
    }

    /// Address of the first byte of a place.
    #[allow(unsafe_code, reason = "an offset within the allocation")]
    fn at(&self, place: Place) -> *mut u8 {
        assert!(
            place.start <= self.bytes && place.len <= self.bytes - place.start,
            "invariant: places are in bounds"
        );
        // SAFETY: the offset is within the allocation, or zero.
        unsafe { self.start.as_ptr().add(place.start) }
    }
}

impl Drop for Arena {
    #[allow(unsafe_code, reason = "returns the allocation")]
    fn drop(&mut self) {
        if let Ok(layout) = Layout::from_size_align(self.bytes, ALIGN)
            && self.bytes > 0
            && self.is_owned
        {
            // SAFETY: `reserve` allocated these bytes with this layout.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}
