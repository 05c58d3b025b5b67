//! Interface of a device that replays a schedule: two arenas, streams, events, launches, work on the host.
//!
//! [`Cuda`](crate::Cuda) implements it with NVIDIA's driver; tests implement it without a GPU. The contract
//! is CUDA's: commands of a queue run in the order of issue, a wait binds to the last record before it, and
//! nothing else orders queues. Calls return when a command is issued; an error of a command may be returned
//! by any later call, and none succeeds after it.
//!
//! Places are offsets in the arenas, so that no address leaves an implementation; it checks that they are in
//! bounds. That no two commands touch the same bytes at the same time is up to the caller, and that kernels
//! keep to their buffers is up to their text.

use std::fmt;
use std::sync::Arc;

use memc_cuda::LibraryCall;
use memc_ir::{Space, Stream};

use crate::{Arch, Component, GpuError};

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

/// Work on the host: it calls nothing of the driver, and does not panic.
#[derive(Clone)]
pub struct HostWork(pub Arc<dyn Fn() + Send + Sync>);

impl fmt::Debug for HostWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HostWork")
    }
}

/// Work on the host that was given, by a number of the implementation's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostCall(pub usize);

/// Answer of a library to a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It computes the call.
    Taken(LibraryOp),
    /// It is there and does not, or not in so little workspace: a kernel has to.
    Refused(Refused),
    /// No library is asked.
    NotAsked,
}

/// Refusal of a library that is there.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Refused {
    /// The library.
    pub component: Component,
    /// Its reason.
    pub reason: Reason,
}

/// Reason for which a library does not compute a call.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Reason {
    /// All algorithms that the options allow take more workspace than there is; the one that takes least
    /// takes so many bytes.
    Workspace(u64),
    /// It offers no algorithm that the options allow.
    Nothing,
    /// A function of the library does not take the call.
    Status {
        /// Name of the function.
        function: &'static str,
        /// The library's words.
        text: String,
    },
}

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

    /// Compiles and loads the one program of this device, of several texts that know nothing of each other.
    /// No kernel is in two of them.
    ///
    /// # Errors
    /// Those of compiling, and of a device that refuses the result.
    fn build(&mut self, texts: &[String]) -> Result<(), GpuError>;

    /// A kernel of the program.
    ///
    /// # Errors
    /// [`GpuError::Call`] without one of this name.
    fn function(&mut self, name: &str) -> Result<Function, GpuError>;

    /// Reserves both arenas and the reports, filled with `fill`, and events `0..events`. Where the host arena
    /// cannot be page-locked it is pageable memory.
    ///
    /// # Errors
    /// [`GpuError::Memory`] where an arena is refused.
    fn reserve(&mut self, sizes: Sizes, events: usize, fill: u8) -> Result<(), GpuError>;

    /// Whether the host arena is page-locked. Copies of pageable memory are staged by the driver: they are
    /// slow, hold up the issuing thread, and cannot be captured.
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

    /// Chooses how a library computes a call, given so many bytes of workspace, for good: from the call and
    /// this number alone.
    ///
    /// # Errors
    /// Those that [`GpuError::lacks`] names without a library that can be used; that of an earlier command.
    fn plan_library(&mut self, call: &LibraryCall, workspace: usize) -> Result<Answer, GpuError>;

    /// Makes a call on the compute queue: the places of the operands, in the op's order, and of the result,
    /// and a workspace of at least as many bytes as it was planned with.
    ///
    /// # Errors
    /// The error of this or an earlier command.
    fn call(&mut self, op: LibraryOp, places: &[Region], workspace: Region) -> Result<(), GpuError>;

    /// Takes work that a queue may come to, for good.
    fn take_work(&mut self, work: HostWork) -> HostCall;

    /// Has a thread of the host do work when the queue comes to it. The queue goes on once it is done.
    ///
    /// # Errors
    /// The error of this or an earlier command.
    fn call_host(&mut self, queue: Stream, call: HostCall) -> Result<(), GpuError>;

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

    /// Address of bytes of the device arena, in the memory of the device.
    ///
    /// # Errors
    /// [`GpuError::Bounds`].
    fn device_address(&mut self, start: usize, len: usize) -> Result<usize, GpuError>;

    /// Bytes of the host arena.
    ///
    /// # Errors
    /// [`GpuError::Bounds`].
    fn host(&mut self, start: usize, len: usize) -> Result<&mut [u8], GpuError>;

    /// All bytes of the reports.
    fn reports(&mut self) -> &mut [u8];
}

/// A captured graph, by a number of the implementation's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Graph(pub usize);

/// A driver that captures commands once and replays them as a whole.
///
/// The contract is that of CUDA's stream capture, over all queues. While capturing nothing runs. A
/// command becomes a node that comes after the node before it on its queue, and after the records that it
/// waits for. Within a capture only records of the same capture can be waited for, and they mean nothing
/// outside of it. For all others there are [`Graphs::record_outside`] and [`Graphs::wait_outside`].
pub trait Graphs: Driver {
    /// From now on commands of all queues are captured.
    ///
    /// # Errors
    /// The driver cannot capture, or is capturing.
    fn begin_capture(&mut self) -> Result<(), GpuError>;

    /// Ends the capture, also where a command was refused in it, and makes its graph ready to be launched.
    ///
    /// # Errors
    /// A command was refused, or the driver takes no such graph.
    fn end_capture(&mut self) -> Result<Graph, GpuError>;

    /// Launches a graph. Launches of one graph run one after another; nothing orders them with queues and
    /// with launches of other graphs but events that are recorded or waited for outside.
    ///
    /// # Errors
    /// The error of this or an earlier command.
    fn replay(&mut self, graph: Graph) -> Result<(), GpuError>;

    /// Within a capture: every launch of the graph records the event, for whoever waits for it afterwards.
    ///
    /// # Errors
    /// The error of this or an earlier command.
    fn record_outside(&mut self, queue: Stream, event: usize) -> Result<(), GpuError>;

    /// Within a capture: every launch of the graph waits for the last record of the event before the launch.
    ///
    /// # Errors
    /// The error of this or an earlier command.
    fn wait_outside(&mut self, queue: Stream, event: usize) -> Result<(), GpuError>;
}

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
    /// Bytes that the driver's context took when the device was opened; `None` where that is unknown.
    pub context_bytes: Option<u64>,
}

/// A driver that measures times.
pub trait Clock: Driver {
    /// Reserves marks `0..marks`, in place of former ones. A mark is an event with a time.
    ///
    /// # Errors
    /// The error of this or an earlier command.
    fn reserve_marks(&mut self, marks: usize) -> Result<(), GpuError>;

    /// Records the time at which a queue has run all commands issued before, in a capture at every launch of
    /// the graph.
    ///
    /// # Errors
    /// The error of this or an earlier command.
    fn mark(&mut self, queue: Stream, mark: usize) -> Result<(), GpuError>;

    /// Time in ns from one mark to another, of any queues; negative where the second was recorded first.
    ///
    /// # Errors
    /// The error of an earlier command, or of a mark that was not recorded.
    fn elapsed_ns(&mut self, from: usize, to: usize) -> Result<i64, GpuError>;

    /// The device as it is now.
    ///
    /// # Errors
    /// The error of an earlier command.
    fn facts(&self) -> Result<Facts, GpuError>;
}

/// Most candidates for one call.
pub const MOST_ALGORITHMS: usize = 8;

/// An algorithm of a library for a call, in the library's terms.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LibraryAlgorithm {
    /// cuBLASLt's algorithm (`cublasLtMatmulAlgo_t`), which "can be serialized and later restored for use
    /// with the same version of the library" (cuBLAS documentation).
    Product(Box<[u8; 64]>),
    /// cuDNN's algorithm of the pass, and its kind of arithmetic (`cudnnMathType_t`).
    Convolution {
        /// Number of the algorithm.
        algorithm: u32,
        /// Number of the kind of arithmetic.
        math: u32,
    },
}

impl LibraryAlgorithm {
    /// The library that has it.
    pub fn component(&self) -> Component {
        match self {
            LibraryAlgorithm::Product(_) => Component::CublasLt,
            LibraryAlgorithm::Convolution { .. } => Component::Cudnn,
        }
    }
}

/// An algorithm that a library's heuristic proposes for a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// The algorithm.
    pub algorithm: LibraryAlgorithm,
    /// Bytes of workspace that it takes, from an aligned place on.
    pub workspace: usize,
}

/// Rounding of `f32` operands that libraries may do before they multiply them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Rounding {
    /// Nothing.
    #[default]
    Exact,
    /// TF32, with 10 bits of mantissa.
    Tf32,
    /// BF16, with 7 bits, in matrix products; cuDNN has no such algorithm, and its products are exact.
    Bf16,
}

/// Permissions of the libraries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LibraryOptions {
    /// None: everything is generated.
    pub is_off: bool,
    /// Rounding of `f32`.
    pub rounding: Rounding,
    /// Also algorithms that may give other bits in every run.
    pub allow_nondeterminism: bool,
}

/// Facts that the candidates for a call depend on, besides the call and its workspace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setting {
    /// The maker's name for the device.
    pub device: String,
    /// Its architecture.
    pub arch: Arch,
    /// Each library that can be used, with its version.
    pub libraries: Vec<(Component, String)>,
    /// Permissions of the libraries.
    pub options: LibraryOptions,
}

/// A driver that lists the algorithms of its libraries, to be measured and chosen.
///
/// A tuned algorithm may come from anywhere. It is taken only where it is, bit for bit, a candidate of the
/// library's heuristic now: for the call, in the workspace that there is, and within the rules of
/// [`LibraryOptions`]. A library never sees other bytes than its own.
pub trait LibraryAlgorithms: Driver {
    /// Candidates for a call within so many bytes of workspace, at most [`MOST_ALGORITHMS`]. The first is
    /// that of [`plan_library`](Driver::plan_library); there are none where this has none.
    ///
    /// # Errors
    /// Those of [`plan_library`](Driver::plan_library).
    fn algorithms(&mut self, call: &LibraryCall, workspace: usize) -> Result<Vec<Candidate>, GpuError>;

    /// [`plan_library`](Driver::plan_library) with a given algorithm; none where that is no candidate.
    ///
    /// # Errors
    /// Those of [`plan_library`](Driver::plan_library).
    fn plan_tuned(
        &mut self,
        call: &LibraryCall,
        workspace: usize,
        algorithm: &LibraryAlgorithm,
    ) -> Result<Option<LibraryOp>, GpuError>;

    /// Facts that candidates on this device depend on.
    fn setting(&self) -> Setting;
}

/// Checks that a place is within an arena of so many bytes.
///
/// # Errors
/// [`GpuError::Bounds`].
pub fn check_region(start: usize, len: usize, arena: usize) -> Result<(), GpuError> {
    if start <= arena && len <= arena - start { Ok(()) } else { Err(GpuError::Bounds { start, len, arena }) }
}
