//! Times on the device, and what it is.

use crate::{Driver, GpuError, Stream};

/// Facts of a device for its profile.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Facts {
    /// The maker's name.
    pub name: String,
    /// Multiprocessors.
    pub processors: u32,
    /// Bytes of its memory that nobody has taken now.
    pub free_bytes: u64,
    /// All bytes of its memory.
    pub total_bytes: u64,
    /// Bytes that the driver's context took when the device was opened; `None` where nothing tells.
    pub context_bytes: Option<u64>,
}

/// A driver that tells times.
pub trait Clock: Driver {
    /// Makes room for marks `0..marks`, in place of former ones.
    ///
    /// # Errors
    /// The error of this or an earlier command.
    fn reserve_marks(&mut self, marks: usize) -> Result<(), GpuError>;

    /// Notes the time at which a queue has run what was issued to it before, in a capture at every launch of the graph.
    ///
    /// # Errors
    /// The error of this or an earlier command.
    fn mark(&mut self, queue: Stream, mark: usize) -> Result<(), GpuError>;

    /// Time in ns from one mark to another, of any queues; negative where the second was passed first.
    ///
    /// # Errors
    /// The error of an earlier command, or of a mark that was not passed.
    fn elapsed_ns(&mut self, from: usize, to: usize) -> Result<i64, GpuError>;

    /// The device as it is now.
    ///
    /// # Errors
    /// The error of an earlier command.
    fn facts(&self) -> Result<Facts, GpuError>;
}
