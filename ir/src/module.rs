//! The module: one training step, in one of two phases.
//!
//! Computation (`ops`, `values`) is separate from time (`order`): an order pass permutes `order` and touches
//! nothing else. An op that is not in `order` does not exist for any reader.

use indexmap::IndexMap;

use crate::attr::F32;
use crate::data::Data;
use crate::entity::{Arena, ConstId, HostShadowId, InputId, OpId, SlotId, StateId, ValueId};
use crate::init::Init;
use crate::ops::{Class, OpKind};
use crate::types::TensorType;

words! {
    /// Stage of lowering.
    pub enum Phase {
        /// Values only: no slots, no copies.
        Graph = "graph",
        /// Every result has a slot; copies between device and host are explicit.
        Mem = "mem",
    }
}

/// One tensor content.
#[derive(Clone, PartialEq, Debug)]
pub struct Value {
    /// Unique name; the source model's name where there is one.
    pub name: String,
    /// Element type and shape.
    pub ty: TensorType,
    /// Source of the content.
    pub def: Def,
}

/// Source of a value's content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Def {
    /// Fed every step.
    Input(InputId),
    /// Content of a persistent tensor when the step starts.
    State(StateId),
    /// The same in every step.
    Const(ConstId),
    /// Mem phase: content of a state or constant, read from its second resident slot.
    HostShadow(HostShadowId),
    /// The given result of an op.
    Op(OpId, u32),
}

/// Source of an input's content.
#[derive(Clone, PartialEq, Debug)]
pub enum Feed {
    /// Training data the user supplies under the name `source`.
    Data {
        /// Name of the source model's input.
        source: String,
        /// Index, from 0, of the micro-step that consumes it in an accumulated step.
        micro: u32,
        /// Half-open range of legal integers, where consumers imply one.
        range: Option<(i64, i64)>,
    },
    /// The learning rate of a step.
    LearningRate {
        /// Value without one from the user.
        default: F32,
        /// The step.
        turn: Turn,
    },
    /// The number of the optimizer step, from 1.
    Step {
        /// The step.
        turn: Turn,
    },
}

/// One of the steps of a job in a round of several jobs. A module of one job has one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turn {
    /// Which of them, from 0.
    pub index: u32,
    /// Steps of the job in a round.
    pub count: u32,
}

impl Default for Turn {
    fn default() -> Turn {
        Turn { index: 0, count: 1 }
    }
}

impl Turn {
    /// The number of the job's step, from 1, in a round, from 1.
    pub fn step(self, round: u64) -> u64 {
        let before = round.saturating_sub(1).saturating_mul(u64::from(self.count));
        before.saturating_add(u64::from(self.index)).saturating_add(1)
    }
}

/// A per-step input.
#[derive(Clone, PartialEq, Debug)]
pub struct Input {
    /// The value it defines.
    pub value: ValueId,
    /// Source of the content.
    pub feed: Feed,
    /// Mem phase: the host slot that holds it when the step starts.
    pub slot: Option<SlotId>,
}

words! {
    /// Purpose of a persistent tensor.
    pub enum Role {
        /// A trained parameter.
        Param = "param",
        /// A parameter that is not trained.
        Frozen = "frozen",
        /// Optimizer state.
        Optimizer = "optimizer",
        /// A gradient accumulation buffer.
        Gradient = "gradient",
        /// Other state, as BatchNorm statistics.
        Buffer = "buffer",
    }
}

/// A tensor that persists between steps.
#[derive(Clone, PartialEq, Debug)]
pub struct State {
    /// The value at the start of the step.
    pub value: ValueId,
    /// Purpose.
    pub role: Role,
    /// Content before the first step.
    pub init: Init,
    /// The value it holds after the step; `None` when the step does not change it.
    pub next: Option<ValueId>,
    /// Mem phase: the slot, device or host, where it starts and ends every step.
    pub slot: Option<SlotId>,
}

/// A constant tensor.
#[derive(Clone, PartialEq, Debug)]
pub struct Const {
    /// The value it defines.
    pub value: ValueId,
    /// Dense little-endian row-major payload.
    pub data: Data,
    /// Mem phase: the slot, device or host, where it stays.
    pub slot: Option<SlotId>,
}

/// Mem phase: a second resident slot, in host memory, of a state or constant whose resident slot is on the
/// device. When a step starts and when it ends, both hold the same content.
#[derive(Clone, PartialEq, Debug)]
pub struct HostShadow {
    /// The content at the start of the step, as read from host memory.
    pub value: ValueId,
    /// The value that the state or constant defines.
    pub of: ValueId,
    /// The slot in host memory.
    pub slot: SlotId,
}

/// Action of an op.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Code {
    /// A row of the op table.
    Compute(OpKind),
    /// Mem phase: copies its operand from device to host.
    SwapOut,
    /// Mem phase: copies its operand from host to device.
    SwapIn,
    /// Mem phase: the slot's bytes become usable, contents undefined.
    Alloc(SlotId),
    /// Mem phase: the slot's bytes are given back.
    Free(SlotId),
}

words! {
    /// A queue. Ops of one stream run in order; streams run side by side.
    pub enum Stream {
        /// Kernels.
        Compute = "compute",
        /// Copies from device to host.
        DeviceToHost = "d2h",
        /// Copies from host to device.
        HostToDevice = "h2d",
        /// Kernels on the host, on values in host memory.
        HostCompute = "cpu",
    }
}

/// A dependence on the completion of another op.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Wait {
    /// The op that must have completed.
    pub op: OpId,
    /// Whether the execution in the previous step is meant.
    pub previous: bool,
}

/// An operation.
#[derive(Clone, PartialEq, Debug)]
pub struct Op {
    /// Action.
    pub code: Code,
    /// Values read.
    pub operands: Vec<ValueId>,
    /// Values defined.
    pub results: Vec<ValueId>,
    /// Name of the source node; empty when there is none.
    pub origin: String,
    /// Mem phase: one slot per result.
    pub slots: Vec<SlotId>,
    /// Mem phase: the slot of the op's scratch bytes.
    pub workspace: Option<SlotId>,
    /// Mem phase: whether the op, a compute op, runs on the host.
    pub on_host: bool,
    /// Mem phase: the op that this one recomputes. A claim for readers; nothing relies on it.
    pub clone_of: Option<OpId>,
    /// Mem phase: completions on other streams to wait for before starting.
    pub waits: Vec<Wait>,
}

impl Op {
    /// The stream that runs the op, or `None` for a slot's alloc and free.
    pub fn stream(&self) -> Option<Stream> {
        match self.code {
            Code::Compute(_) if self.on_host => Some(Stream::HostCompute),
            Code::Compute(_) => Some(Stream::Compute),
            Code::SwapOut => Some(Stream::DeviceToHost),
            Code::SwapIn => Some(Stream::HostToDevice),
            Code::Alloc(_) | Code::Free(_) => None,
        }
    }
    /// The row, for a compute op.
    pub fn kind(&self) -> Option<&OpKind> {
        if let Code::Compute(kind) = &self.code { Some(kind) } else { None }
    }
    /// Whether the op is a view: it never runs, its result shares the operand's bytes.
    pub fn is_view(&self) -> bool {
        self.kind().is_some_and(|k| k.def().class == Class::View)
    }
}

words! {
    /// An arena.
    pub enum Space {
        /// Device arena.
        Dev = "dev",
        /// Page-locked host arena.
        Host = "host",
    }
}

/// Half-open range of bytes in one arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ByteRange {
    /// Arena.
    pub space: Space,
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
}

/// A place: a range of bytes in one arena. Contents are values.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Slot {
    /// Arena.
    pub space: Space,
    /// Size in bytes.
    pub bytes: u64,
    /// First byte in the arena, once allocated; a multiple of [`SLOT_ALIGN`].
    pub offset: Option<u64>,
}

/// Alignment of every slot in bytes.
pub const SLOT_ALIGN: u64 = 64;

/// `bytes` rounded up to [`SLOT_ALIGN`].
pub fn aligned(bytes: u64) -> u64 {
    bytes.div_ceil(SLOT_ALIGN) * SLOT_ALIGN
}

words! {
    /// Purpose of an output.
    pub enum OutputRole {
        /// The training loss.
        Loss = "loss",
        /// A parameter's gradient, where the module has no optimizer.
        Gradient = "gradient",
        /// Anything else.
        Other = "output",
    }
}

/// A result of the step that the user sees.
#[derive(Clone, PartialEq, Debug)]
pub struct Output {
    /// The value; in the mem phase it is in a host slot.
    pub value: ValueId,
    /// Name in the source model.
    pub name: String,
    /// Purpose.
    pub role: OutputRole,
}

/// One training step.
#[derive(Clone, PartialEq, Debug)]
pub struct Module {
    /// Name of the model.
    pub name: String,
    /// Stage of lowering.
    pub phase: Phase,
    /// Per-step inputs.
    pub inputs: Arena<InputId, Input>,
    /// Persistent tensors.
    pub states: Arena<StateId, State>,
    /// Constants.
    pub consts: Arena<ConstId, Const>,
    /// Second resident slots of states and constants.
    pub host_shadows: Arena<HostShadowId, HostShadow>,
    /// Values.
    pub values: Arena<ValueId, Value>,
    /// Operations, live or not.
    pub ops: Arena<OpId, Op>,
    /// Slots.
    pub slots: Arena<SlotId, Slot>,
    /// Live operations, in execution order.
    pub order: Vec<OpId>,
    /// Results the user sees.
    pub outputs: Vec<Output>,
    pub(crate) names: IndexMap<String, ValueId>,
}
