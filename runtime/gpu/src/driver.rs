//! Interface of a device that replays a schedule: two arenas, three streams, events, launches.
//!
//! [`Cuda`](crate::Cuda) implements it with NVIDIA's driver; tests implement it without a GPU. The contract is CUDA's:
//! commands of a queue run in the order of issue, a wait binds to the last record before it, and nothing else orders
//! queues. Calls return when a command is issued; an error of a command may be returned by any later call, and none
//! succeeds after it.
//!
//! Places are offsets in the arenas, so that no address leaves an implementation; it checks that they are in bounds. That
//! no two commands touch the same bytes at the same time is up to the caller, and that kernels keep to their buffers is
//! up to their text.

use memc_cuda::LibraryCall;
use memc_ir::{Space, Stream};

use crate::GpuError;

/// The bytes `start..start + len` of an arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// The arena.
    pub arena: Space,
    /// The first byte.
    pub start: usize,
    /// Number of bytes.
    pub len: usize,
}

/// A kernel of the program that was built, by a number of the implementation's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Function(pub usize);

/// A library call that was planned, by a number of the implementation's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LibraryOp(pub usize);

/// Memory that a program takes, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sizes {
    /// The device arena.
    pub device: usize,
    /// The host arena.
    pub host: usize,
    /// Reports of kernels to the host, in page-locked memory that they reach, if slowly.
    pub reports: usize,
}

/// A parameter of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Word {
    /// The address of this byte of the device arena.
    Address(usize),
    /// The address of this byte of the reports.
    Report(usize),
    /// A number.
    Int(i64),
}

/// A device that replays schedules; see the module.
pub trait Driver {
    /// Name for humans.
    fn name(&self) -> String;

    /// Compiles and loads the one program of this device.
    ///
    /// # Errors
    /// Those of compiling, and of a device that refuses the result.
    fn build(&mut self, text: &str) -> Result<(), GpuError>;

    /// A kernel of the program.
    ///
    /// # Errors
    /// [`GpuError::Call`] without one of this name.
    fn function(&mut self, name: &str) -> Result<Function, GpuError>;

    /// Reserves both arenas and the reports, filled with `fill`, and events `0..events`. Where the host arena cannot be
    /// page-locked it is pageable memory.
    ///
    /// # Errors
    /// [`GpuError::Memory`] where an arena is refused.
    fn reserve(&mut self, sizes: Sizes, events: usize, fill: u8) -> Result<(), GpuError>;

    /// Whether the host arena is page-locked. Copies of pageable memory are staged by the driver: they are slow, hold up
    /// the issuing thread, and cannot be captured.
    fn is_page_locked(&self) -> bool;

    /// Launches on the compute queue, with blocks of `block` threads along x.
    ///
    /// # Errors
    /// The error of this or an earlier command.
    fn launch(
        &mut self,
        function: Function,
        grid: [u32; 3],
        block: u32,
        words: &[Word],
    ) -> Result<(), GpuError>;

    /// Chooses how a library computes a call, given so many bytes of workspace, for good: from the call and this number
    /// alone. None where it does not, or not in so little, and a kernel has to.
    ///
    /// # Errors
    /// Those that [`GpuError::lacks`] names without a library that can be used; that of the library where it fails.
    fn plan_library(&mut self, call: &LibraryCall, workspace: usize) -> Result<Option<LibraryOp>, GpuError>;

    /// Makes a call on the compute queue: the places of the operands, in the op's order, and of the result, and a
    /// workspace of at least as many bytes as it was planned with.
    ///
    /// # Errors
    /// The error of this or an earlier command.
    fn call(&mut self, op: LibraryOp, places: &[Region], workspace: Region) -> Result<(), GpuError>;

    /// Copies between places of the same length.
    ///
    /// # Errors
    /// The error of this or an earlier command.
    fn copy(&mut self, queue: Stream, from: Region, to: Region) -> Result<(), GpuError>;

    /// Sets every byte of a place of the device arena.
    ///
    /// # Errors
    /// The error of this or an earlier command.
    fn fill(&mut self, queue: Stream, start: usize, len: usize, byte: u8) -> Result<(), GpuError>;

    /// Records an event.
    ///
    /// # Errors
    /// The error of this or an earlier command.
    fn record(&mut self, queue: Stream, event: usize) -> Result<(), GpuError>;

    /// Makes a queue wait for an event.
    ///
    /// # Errors
    /// The error of this or an earlier command.
    fn wait(&mut self, queue: Stream, event: usize) -> Result<(), GpuError>;

    /// Blocks the caller until an event has happened.
    ///
    /// # Errors
    /// The error of an earlier command.
    fn await_event(&mut self, event: usize) -> Result<(), GpuError>;

    /// Blocks the caller until all queues are empty.
    ///
    /// # Errors
    /// The error of an earlier command.
    fn synchronize(&mut self) -> Result<(), GpuError>;

    /// Copies to the device arena at once, in no queue.
    ///
    /// # Errors
    /// The error of this or an earlier command.
    fn upload(&mut self, start: usize, bytes: &[u8]) -> Result<(), GpuError>;

    /// Copies from the device arena at once, in no queue.
    ///
    /// # Errors
    /// The error of this or an earlier command.
    fn download(&mut self, start: usize, bytes: &mut [u8]) -> Result<(), GpuError>;

    /// Bytes of the host arena.
    ///
    /// # Errors
    /// [`GpuError::Bounds`].
    fn host(&mut self, start: usize, len: usize) -> Result<&mut [u8], GpuError>;

    /// All bytes of the reports.
    fn reports(&mut self) -> &mut [u8];
}

/// Checks that a place is within an arena of so many bytes.
///
/// # Errors
/// [`GpuError::Bounds`].
pub fn check_region(start: usize, len: usize, arena: usize) -> Result<(), GpuError> {
    if start <= arena && len <= arena - start { Ok(()) } else { Err(GpuError::Bounds { start, len, arena }) }
}
