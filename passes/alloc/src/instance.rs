//! The problem: buffers with live ranges and sizes, and the offsets that answer it.
//!
//! An [`Instance`] is valid by construction: live ranges are non-empty, sorted and disjoint, alignments are
//! positive, fixed offsets are aligned, and all sums of sizes fit far below `u64::MAX`, so that nothing
//! downstream overflows.

use std::fmt;

/// Most bytes of all buffers of an instance together, each rounded up to its alignment. Offsets and heights
/// stay below twice this number.
pub const MAX_TOTAL_BYTES: u64 = 1 << 61;

/// A half-open range of abstract time, `[start, end)`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Range {
    /// First instant of the range.
    pub start: u64,
    /// First instant after it.
    pub end: u64,
}

/// Bytes that need one address for as long as they live.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Buffer {
    /// Time in which its bytes are in use: one range, or several with holes between them in which others may
    /// use the bytes. The address is the same in all of them.
    pub live: Vec<Range>,
    /// Size in bytes.
    pub bytes: u64,
    /// The offset is a multiple of this.
    pub align: u64,
    /// The offset, where it is fixed.
    pub offset: Option<u64>,
}

impl Buffer {
    /// A buffer that lives in `[start, end)`, at any offset.
    pub fn new(start: u64, end: u64, bytes: u64) -> Buffer {
        Buffer { live: vec![Range { start, end }], bytes, align: 1, offset: None }
    }
}

/// A checked set of buffers.
#[derive(Clone, Debug)]
pub struct Instance {
    buffers: Vec<Buffer>,
}

/// Reason why a set of buffers is no instance. Buffers are named by their index.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum InstanceError {
    /// A buffer has no live range.
    NeverLive(usize),
    /// A live range ends where it starts, or before.
    EmptyRange(usize, Range),
    /// Live ranges of one buffer overlap or are out of order.
    Unordered(usize, Range, Range),
    /// An alignment of zero.
    ZeroAlign(usize),
    /// A fixed offset that is no multiple of the alignment.
    Misaligned(usize, u64),
    /// Two fixed buffers share bytes while both live.
    Overlap(usize, usize),
    /// Sizes or a fixed offset that exceed [`MAX_TOTAL_BYTES`].
    TooLarge(usize),
}

impl InstanceError {
    /// The faulty buffer.
    pub fn buffer(&self) -> usize {
        match *self {
            InstanceError::NeverLive(i)
            | InstanceError::EmptyRange(i, _)
            | InstanceError::Unordered(i, ..)
            | InstanceError::ZeroAlign(i)
            | InstanceError::Misaligned(i, _)
            | InstanceError::Overlap(_, i)
            | InstanceError::TooLarge(i) => i,
        }
    }
}

impl fmt::Display for InstanceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InstanceError::NeverLive(i) => write!(f, "buffer {i} has no live range"),
            InstanceError::EmptyRange(i, r) => {
                write!(f, "the live range [{}, {}) of buffer {i} is empty", r.start, r.end)
            }
            InstanceError::Unordered(i, a, b) => write!(
                f,
                "the live ranges [{}, {}) and [{}, {}) of buffer {i} overlap or are out of order",
                a.start, a.end, b.start, b.end
            ),
            InstanceError::ZeroAlign(i) => write!(f, "buffer {i} has an alignment of zero"),
            InstanceError::Misaligned(i, at) => {
                write!(f, "the offset {at} of buffer {i} is no multiple of its alignment")
            }
            InstanceError::Overlap(i, j) => {
                write!(f, "the fixed offsets of buffers {i} and {j} let them share bytes while both live")
            }
            InstanceError::TooLarge(i) => {
                write!(f, "with buffer {i} the sizes add up to more than {MAX_TOTAL_BYTES} bytes")
            }
        }
    }
}

impl std::error::Error for InstanceError {}

impl Instance {
    /// Checks the buffers.
    pub fn new(buffers: Vec<Buffer>) -> Result<Instance, InstanceError> {
        let mut total: u64 = 0;
        for (i, b) in buffers.iter().enumerate() {
            if b.live.is_empty() {
                return Err(InstanceError::NeverLive(i));
            }
            if let Some(r) = b.live.iter().find(|r| r.start >= r.end) {
                return Err(InstanceError::EmptyRange(i, *r));
            }
            if let Some(w) = b.live.windows(2).find(|w| w[0].end > w[1].start) {
                return Err(InstanceError::Unordered(i, w[0], w[1]));
            }
            if b.align == 0 {
                return Err(InstanceError::ZeroAlign(i));
            }
            if b.offset.is_some_and(|at| at % b.align != 0) {
                return Err(InstanceError::Misaligned(i, b.offset.unwrap_or(0)));
            }
            // Between two buffers alignment may waste up to `align` bytes.
            let room = b.bytes.checked_add(b.align).and_then(|r| r.checked_add(b.offset.unwrap_or(0)));
            total = match room.and_then(|r| total.checked_add(r)) {
                Some(sum) if sum <= MAX_TOTAL_BYTES => sum,
                _ => return Err(InstanceError::TooLarge(i)),
            };
        }
        let fixed: Vec<usize> = (0..buffers.len()).filter(|&i| buffers[i].offset.is_some()).collect();
        let alone = Instance { buffers: fixed.iter().map(|&i| buffers[i].clone()).collect() };
        let offsets: Vec<u64> = fixed.iter().filter_map(|&i| buffers[i].offset).collect();
        match check(&alone, &offsets) {
            Err(Conflict::Overlap(i, j)) => Err(InstanceError::Overlap(fixed[i], fixed[j])),
            _ => Ok(Instance { buffers }),
        }
    }

    /// The buffers, in the order they were given.
    pub fn buffers(&self) -> &[Buffer] {
        &self.buffers
    }

    /// The most bytes live at once. No allocation is lower.
    pub fn load(&self) -> u64 {
        let mut events: Vec<(u64, bool, u64)> = Vec::with_capacity(2 * self.buffers.len());
        for b in &self.buffers {
            for r in &b.live {
                events.push((r.start, true, b.bytes));
                events.push((r.end, false, b.bytes));
            }
        }
        // Ends sort before starts of the same instant.
        events.sort_unstable();
        let (mut live, mut most) = (0u64, 0u64);
        for (_, starts, bytes) in events {
            live = if starts { live + bytes } else { live - bytes };
            most = most.max(live);
        }
        most
    }

    /// A height that no allocation is below: the load, and the end of the fixed buffers.
    pub fn lower_bound(&self) -> u64 {
        let fixed = self.buffers.iter().filter_map(|b| b.offset.map(|at| at + b.bytes));
        self.load().max(fixed.max().unwrap_or(0))
    }
}

/// Reason why offsets are no allocation of an instance.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Conflict {
    /// There are more or fewer offsets than buffers.
    Count,
    /// An offset is not a multiple of the alignment, or not the fixed one, or so high that it has no end.
    Offset(usize),
    /// Two buffers share bytes while both live.
    Overlap(usize, usize),
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Conflict::Count => write!(f, "the number of offsets is not that of the buffers"),
            Conflict::Offset(i) => write!(f, "buffer {i} is at an offset where it must not be"),
            Conflict::Overlap(i, j) => write!(f, "buffers {i} and {j} share bytes while both live"),
        }
    }
}

impl std::error::Error for Conflict {}

/// The height of an allocation, one past its last byte; or its fault.
///
/// Sweeps over time with the live buffers by offset. Shares no code with the algorithms that choose offsets.
/// Takes `O(n log n)`.
pub fn check(instance: &Instance, offsets: &[u64]) -> Result<u64, Conflict> {
    let buffers = instance.buffers();
    if offsets.len() != buffers.len() {
        return Err(Conflict::Count);
    }
    let mut events: Vec<(u64, bool, usize)> = Vec::with_capacity(2 * buffers.len());
    let mut height = 0;
    for (i, (b, &at)) in buffers.iter().zip(offsets).enumerate() {
        let end = at.checked_add(b.bytes).ok_or(Conflict::Offset(i))?;
        if at % b.align != 0 || b.offset.is_some_and(|fixed| fixed != at) {
            return Err(Conflict::Offset(i));
        }
        height = height.max(end);
        if b.bytes > 0 {
            for r in &b.live {
                events.push((r.start, true, i));
                events.push((r.end, false, i));
            }
        }
    }
    events.sort_unstable();
    // Disjoint so far, so only the two neighbours of a new one can meet it.
    let mut live: std::collections::BTreeMap<u64, usize> = std::collections::BTreeMap::new();
    for (_, starts, i) in events {
        if !starts {
            live.remove(&offsets[i]);
            continue;
        }
        let end = offsets[i] + buffers[i].bytes;
        if let Some((&at, &j)) = live.range(..end).next_back()
            && at + buffers[j].bytes > offsets[i]
        {
            return Err(Conflict::Overlap(i.min(j), i.max(j)));
        }
        live.insert(offsets[i], i);
    }
    Ok(height)
}
