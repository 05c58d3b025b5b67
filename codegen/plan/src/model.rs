//! The plan as plain data: arenas, tables, and three command lists.
//!
//! Contract: a plan carries all a runtime needs to replay one training step, and all a checker needs to
//! relate that step to its source graph. Ops and types are those of the IR. Nothing else is validated: a
//! checker's tests need wrong plans. [`Plan::validate`] checks the rules that a file satisfies.

use memc_ir::{OpKind, OutputRole, Role, Slice, Stream, TensorType, Turn};

use crate::Tuning;

/// A static schedule for one training step within fixed arenas.
///
/// `prologue` runs once, `body` once per step, `epilogue` once at the end. Commands are in host issue order;
/// commands of one stream run in that order, and events order commands of different streams.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Origin, limits and claims.
    pub meta: Meta,
    /// Operators; launches name them by index.
    pub kernels: Vec<Kernel>,
    /// Tensors that live from step to step: parameters, optimizer state, statistics.
    pub states: Vec<State>,
    /// Tensors that the host supplies at each step.
    pub inputs: Vec<Input>,
    /// Tensors that the host reads at each step.
    pub outputs: Vec<Output>,
    /// Number of events; commands name events `0..events`.
    pub events: u32,
    /// Runs once before the first step: brings the states to their resident slots.
    pub prologue: Vec<Command>,
    /// Runs once per step.
    pub body: Vec<Command>,
    /// Runs once after the last step: makes the states readable.
    pub epilogue: Vec<Command>,
    /// Algorithms of libraries for kernels, where they were measured on the device.
    pub tuning: Option<Tuning>,
    /// Plans of the same step at other extents of its dimensions, with the same states and arenas; none of
    /// them has buckets.
    pub buckets: Vec<Plan>,
}

/// Origin, limits and claims of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Program and version that made the plan, such as `memc 0.1.0`.
    pub producer: String,
    /// Name of the model, for humans.
    pub model: String,
    /// IR text of the source graph, the reference of the checker.
    pub source: String,
    /// blake3 of `source`.
    pub source_hash: [u8; 32],
    /// Planner that chose order, swaps and recomputation.
    pub planner: String,
    /// Device profile that the cost claims are based on.
    pub profile: String,
    /// Seed of the planner.
    pub seed: u64,
    /// Import options as name and value: enough to import the source model again.
    pub options: Vec<(String, String)>,
    /// Hard limit on device memory, bytes.
    pub budget_bytes: u64,
    /// Part of the budget that the plan leaves to the driver and libraries, bytes.
    pub reserve_bytes: u64,
    /// Size of the device arena, bytes.
    pub dev_bytes: u64,
    /// Size of the pinned host arena, bytes.
    pub host_bytes: u64,
    /// Statements of the planner about one execution of the body.
    pub claims: Claims,
}

/// Name of the import option of plans that evaluate a model.
pub const EVALUATION: &str = "evaluation";

/// Name of the import option of plans that compute a model's outputs alone.
pub const INFERENCE: &str = "inference";

/// Name of the import option that tells a job of a plan of several: `name:steps`. The options of a job have
/// its name and a slash in front, as have its tensors, inputs and outputs.
pub const JOB: &str = "job";

/// Names of the jobs that options tell, and the steps of each in a round; none in a plan of one model.
pub fn jobs(options: &[(String, String)]) -> impl Iterator<Item = (&str, u32)> {
    options.iter().filter(|(name, _)| name == JOB).filter_map(|(_, value)| {
        let (name, steps) = value.rsplit_once(':')?;
        Some((name, steps.parse().ok()?))
    })
}

impl Meta {
    /// Whether the step is of one model that it evaluates, with a loss or without, and changes no state.
    pub fn is_evaluation(&self) -> bool {
        self.options.iter().any(|(name, _)| name == EVALUATION || name == INFERENCE)
    }

    /// Whether the step computes outputs alone, of the model or of every job.
    pub fn is_inference(&self) -> bool {
        let records = |option: &str| self.options.iter().any(|(name, _)| name == option);
        let mut jobs = jobs(&self.options).peekable();
        match jobs.peek() {
            None => records(INFERENCE),
            Some(_) => jobs.all(|(job, _)| records(&format!("{job}/{INFERENCE}"))),
        }
    }
}

/// Statements of the planner about one execution of the body. The byte and operator counts can be recomputed
/// from the plan and its source; the times come from the cost model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// Most bytes of the device arena live at once.
    pub peak_bytes: u64,
    /// The same for the source graph in its own order, with neither swap nor recompute.
    pub unplanned_peak_bytes: u64,
    /// Predicted makespan of the unplanned step, ns.
    pub ideal_ns: u64,
    /// Predicted makespan of the planned step, ns.
    pub step_ns: u64,
    /// Bytes copied from the device to the host by swap-out.
    pub swap_out_bytes: u64,
    /// Bytes copied from the host to the device by swap-in.
    pub swap_in_bytes: u64,
    /// Predicted time of the recomputed operators, ns.
    pub recompute_ns: u64,
    /// Number of launches that repeat an earlier operator.
    pub recompute_ops: u64,
    /// Number of launches.
    pub ops: u64,
}

/// Issuer of commands in order: a stream of the device, or the host itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Queue {
    /// A stream, of the device or of kernels on the host.
    Device(Stream),
    /// The issuing host thread: a command is complete before the next one is issued.
    Host,
}

/// An operator at fixed types.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Operator with its attributes.
    pub op: OpKind,
    /// Operand types; a launch has one read per operand.
    pub operands: Vec<TensorType>,
    /// Result types; a launch has one write per result.
    pub results: Vec<TensorType>,
    /// Scratch bytes that a launch must supply; 0 for none.
    pub workspace_bytes: u64,
}

/// A tensor that lives from step to step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Name in the source graph.
    pub name: String,
    /// Role in the source graph.
    pub role: StateRole,
    /// Type.
    pub ty: TensorType,
    /// Resident slot: where the state lives at the start and at the end of the body.
    pub resident: Slice,
    /// Contents before the first step.
    pub init: Init,
}

/// Role of a state in the source graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StateRole {
    /// A constant.
    Const,
    /// A state of the graph.
    Variable(Role),
}

/// Contents of a state before the first step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Init {
    /// All bytes zero.
    Zeros,
    /// Bytes of the plan's data section.
    Data {
        /// First byte, from the start of the data section; a multiple of [`DATA_ALIGN`].
        offset: u64,
        /// Length in bytes.
        bytes: u64,
        /// blake3 of the bytes.
        hash: [u8; 32],
    },
    /// Generated by the runtime.
    Random {
        /// Seed of the generator.
        seed: u64,
        /// Distribution, in the runtime's terms.
        kind: String,
    },
}

/// Most buckets of a plan.
pub const MAX_BUCKETS: usize = 64;

/// Alignment in bytes of each state's bytes within the data section.
pub const DATA_ALIGN: u64 = 64;

/// A tensor that the host supplies at each step.
#[derive(Clone, Debug, PartialEq)]
pub struct Input {
    /// Name in the source graph.
    pub name: String,
    /// Type.
    pub ty: TensorType,
    /// Staging bytes in the pinned host arena.
    pub slot: Slice,
    /// Source of the contents.
    pub feed: Feed,
}

/// Source of an input's contents.
#[derive(Clone, Debug, PartialEq)]
pub enum Feed {
    /// The user's data.
    Data {
        /// Name under which the user feeds it.
        source: String,
        /// Micro-step within the step, counted from 0, where gradients accumulate over several.
        micro: u32,
        /// Lowest integer of synthetic data.
        low: i64,
        /// One past the highest integer of synthetic data; `low == high == 0` where the range is unknown.
        high: i64,
    },
    /// The learning rate of a step.
    LearningRate {
        /// Value where the user gives none.
        default: f32,
        /// The step.
        turn: Turn,
    },
    /// The number of the optimizer step, counted from 1.
    Step {
        /// The step.
        turn: Turn,
    },
}

/// A tensor that the host reads at each step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Name in the source graph.
    pub name: String,
    /// Type.
    pub ty: TensorType,
    /// Slot that the host reads.
    pub slot: Slice,
    /// Role in the source graph.
    pub role: OutputRole,
}

/// One entry of a command list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Queue that runs the command.
    pub queue: Queue,
    /// Its effect.
    pub action: Action,
    /// Comment for humans, such as the name of the value produced; never trusted.
    pub label: String,
}

/// Effect of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Runs a kernel. An in-place operator has a read slice identical to a write slice.
    Launch {
        /// Index into [`Plan::kernels`].
        kernel: u32,
        /// One slice per operand.
        reads: Vec<Slice>,
        /// One slice per result.
        writes: Vec<Slice>,
        /// Scratch bytes; undefined afterwards.
        workspace: Option<Slice>,
    },
    /// Copies bytes; both slices have the same length.
    Copy {
        /// Source.
        src: Slice,
        /// Destination.
        dst: Slice,
    },
    /// The event stands for all work issued so far on the stream, in place of what it stood for before.
    Record {
        /// Event, below [`Plan::events`].
        event: u32,
    },
    /// Later commands of the stream run after the event's most recent record at the time of this call. On
    /// [`Queue::Host`] the host blocks.
    Wait {
        /// Event, below [`Plan::events`].
        event: u32,
    },
    /// The contents of the slice become undefined.
    Free {
        /// The bytes.
        slice: Slice,
    },
    /// Prologue, on the host: brings a state's initial bytes to its resident slot.
    Load {
        /// Index into [`Plan::states`].
        state: u32,
    },
    /// Epilogue, on the host: a state's resident slot becomes readable to the user.
    Store {
        /// Index into [`Plan::states`].
        state: u32,
    },
    /// The host fills an input's staging slot.
    HostWrite {
        /// Index into [`Plan::inputs`].
        input: u32,
    },
    /// The host reads an output's slot.
    HostRead {
        /// Index into [`Plan::outputs`].
        output: u32,
    },
}
