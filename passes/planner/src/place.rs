//! Streams, slots and commands: what a script is in terms of memory and queues.

/// One of the device's queues.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stream {
    /// Kernels.
    Compute,
    /// Copies from device to host.
    DeviceToHost,
    /// Copies from host to device.
    HostToDevice,
}

/// Which memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Space {
    /// The device arena.
    Dev,
    /// The host arena.
    Host,
}

/// A place, and when it is taken: half-open intervals of script time, which counts allocations, releases and commands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Slot {
    /// Which memory.
    pub space: Space,
    /// Bytes, a multiple of the alignment.
    pub bytes: u64,
    /// Offset in the arena, once it is settled.
    pub offset: Option<u64>,
    /// When it is taken, ascending; more than one interval when a tensor returns to its home.
    pub live: Vec<(u32, u32)>,
    /// Where the offset is in the script.
    pub(crate) site: Site,
}

impl Slot {
    /// Whether it is a persistent tensor's home on the device.
    pub(crate) fn is_home(&self) -> bool {
        matches!(self.site, Site::Home(_))
    }
}

/// The part of a script that an offset belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Site {
    /// A persistent tensor's home on the device.
    Home(u32),
    /// `In` action.
    In(usize),
    /// An entry of a run's `at`.
    At(usize, usize),
    /// An entry of a run's `scratch`.
    Scratch(usize, usize),
    /// A run's workspace.
    Workspace(usize),
    /// Host memory, which scripts do not name.
    Host,
}

/// What a command is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// Runs the op.
    Run {
        /// The op's position in the problem.
        op: u32,
        /// Whether it has run before in this step.
        again: bool,
    },
    /// Copies a tensor to the device.
    In(u32),
    /// Copies a tensor to the host.
    Out(u32),
    /// Copies a result of the step to the host.
    Output {
        /// The tensor whose first bytes it is.
        tensor: u32,
        /// Bytes copied.
        bytes: u64,
    },
}

/// An entry of a stream's queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Command {
    /// What it is.
    pub what: What,
    /// Its queue.
    pub stream: Stream,
    /// Script time at which it is issued.
    pub at: u32,
    /// Its time in ns, undisturbed.
    pub ns: u64,
    /// Slots it reads.
    pub reads: Vec<u32>,
    /// Slots it writes.
    pub writes: Vec<u32>,
    /// A command that it comes after, whatever the two touch: the run that hands a result out.
    pub after: Option<u32>,
}

/// A script in terms of memory and streams.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Trace {
    /// The places.
    pub slots: Vec<Slot>,
    /// The commands in host issue order.
    pub commands: Vec<Command>,
    /// Script time at the end of a step.
    pub end: u32,
}
