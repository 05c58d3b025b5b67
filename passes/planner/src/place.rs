//! Streams, slots and commands: decisions in terms of memory and queues.

use memc_ir::Arena;
pub use memc_ir::{Space, Stream};

use crate::ids::{CommandIx, HostOpIx, OpPos, SlotIx, TensorId, Tick};

/// A place, and when it is taken: half-open intervals of trace time, which counts allocations, releases and
/// commands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Slot {
    /// Which memory.
    pub space: Space,
    /// Bytes, a multiple of the alignment.
    pub bytes: u64,
    /// Offset in the arena, once it is settled.
    pub offset: Option<u64>,
    /// Intervals in which it is taken, ascending; several when a tensor returns to its resident slot.
    pub live: Vec<(Tick, Tick)>,
    /// Tensor whose content it holds; none for scratch and workspace.
    pub tensor: Option<TensorId>,
    /// Role of the slot, and the part of the decisions that names its offset.
    pub site: Site,
}

impl Slot {
    /// Whether it is a persistent tensor's resident slot.
    pub(crate) fn is_resident(&self) -> bool {
        matches!(self.site, Site::Resident(_))
    }
}

/// Role of a slot, and the part of the decisions that names its offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Site {
    /// A persistent tensor's resident slot.
    Resident(TensorId),
    /// `In` action.
    In(usize),
    /// An entry of a run's `at`.
    At(usize, usize),
    /// An entry of a run's `scratch`.
    Scratch(usize, usize),
    /// A run's workspace.
    Workspace(usize),
    /// A tensor's place in host memory from step to step; decisions name no offset.
    HostResident(TensorId),
    /// The host copy made by one `Out` action, or for ops on the host; decisions name no offset.
    Copy,
    /// A result of the step in host memory; decisions name no offset.
    Output,
}

impl Site {
    /// Memory that the slot is in.
    pub fn space(self) -> Space {
        match self {
            Site::HostResident(_) | Site::Copy | Site::Output => Space::Host,
            Site::Resident(_) | Site::In(_) | Site::At(..) | Site::Scratch(..) | Site::Workspace(_) => {
                Space::Dev
            }
        }
    }
}

/// Kind of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommandKind {
    /// Runs the op.
    Run {
        /// The op's position in the problem.
        op: OpPos,
        /// Whether it has run before in this step.
        recompute: bool,
    },
    /// Copies a tensor to the device.
    In(TensorId),
    /// Copies a tensor to the host.
    Out(TensorId),
    /// Copies a tensor to the host for ops there.
    Send(TensorId),
    /// Runs an op on the host.
    HostRun(HostOpIx),
    /// Copies a result of the step to the host.
    Output {
        /// The tensor whose first bytes it is.
        tensor: TensorId,
        /// Bytes copied.
        bytes: u64,
    },
}

/// An entry of a stream's queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Command {
    /// Kind of the command.
    pub kind: CommandKind,
    /// Its queue.
    pub stream: Stream,
    /// Trace time at which it is issued.
    pub at: Tick,
    /// Its time in ns, undisturbed.
    pub ns: u64,
    /// Slots it reads.
    pub reads: Vec<SlotIx>,
    /// Slots it writes.
    pub writes: Vec<SlotIx>,
    /// A command that it comes after, whatever the two touch: the run that hands a result out.
    pub after: Option<CommandIx>,
}

/// Decisions in terms of memory and streams.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Trace {
    /// The places.
    pub slots: Arena<SlotIx, Slot>,
    /// The commands in host issue order.
    pub commands: Arena<CommandIx, Command>,
    /// Trace time of the first action; slots taken earlier hold the tensors that the step begins with.
    pub start: Tick,
    /// Trace time at the end of a step.
    pub end: Tick,
}

/// One tick of trace time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The slot is taken.
    Alloc(SlotIx),
    /// The slot is given back.
    Free(SlotIx),
    /// The command is issued.
    Command(CommandIx),
}

impl Trace {
    /// Allocations, releases and commands of the actions in order: one for every tick from `start` to `end`.
    ///
    /// The allocations of an action come right before its command, its releases after it.
    pub fn events(&self) -> Vec<Event> {
        let commands = self.commands.iter().map(|(i, c)| (c.at, Event::Command(i)));
        let slots = self.slots.iter().flat_map(|(i, slot)| {
            let ticks = move |&(from, to): &(Tick, Tick)| [(from, Event::Alloc(i)), (to, Event::Free(i))];
            slot.live.iter().flat_map(ticks)
        });
        let range = self.start..self.end;
        let mut events: Vec<(Tick, Event)> =
            commands.chain(slots).filter(|(tick, _)| range.contains(tick)).collect();
        events.sort_unstable_by_key(|&(tick, _)| tick);
        events.into_iter().map(|(_, event)| event).collect()
    }
}
