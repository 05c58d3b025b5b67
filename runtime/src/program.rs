//! A plan made ready for replay: kernels checked, slices resolved, every access proved to be in bounds and
//! ordered.
//!
//! Contract: whoever holds a [`Program`] may rely on all of the following, whatever file the plan came from.
//!
//! - Places lie within the arenas; those of a launch have the size of their type and the kernels' alignment.
//! - The results and the workspace of a launch are disjoint from each other and from its operands, except
//!   that an operand may *be* a result where the op's row allows it.
//! - The two places of a copy are disjoint.
//! - No two commands access the same bytes at the same time, one of them writing, in any interleaving of the
//!   queues that the events allow, for any number of steps. Waits find their event recorded. [`check_order`]
//!   proves both.
//!
//! `memc check` proves in addition that the schedule computes the source graph.

mod prepare;

use std::ops::Deref;
use std::sync::Arc;

use memc_check::check_order;
use memc_ir::{OpKind, TensorType};
use memc_kernels::KernelError;
use memc_plan::{Kernel, Plan, Queue, Section, Space, Tuning};

use crate::Error;

/// A plan made ready for replay.
#[derive(Clone, Debug)]
pub struct Program {
    pub(crate) dev_bytes: usize,
    /// Name of the profile that the plan was made with.
    pub(crate) profile: String,
    /// Device memory that the plan was compiled for.
    pub(crate) budget_bytes: u64,
    /// Part of it that the plan sets aside for the driver, kernels and libraries.
    pub(crate) reserve_bytes: u64,
    pub(crate) host_bytes: usize,
    pub(crate) kernels: Vec<Kernel>,
    pub(crate) events: usize,
    /// Resident slots of the states.
    pub(crate) resident_slots: Vec<Place>,
    /// Staging slots of the inputs.
    pub(crate) slots: Vec<Place>,
    /// Slots of the outputs.
    pub(crate) results: Vec<Place>,
    /// Types of the states, inputs and outputs.
    pub(crate) types: Types,
    /// Algorithms of libraries for the kernels, where they were measured; nothing in it is checked.
    pub(crate) tuning: Option<Tuning>,
    prologue: Vec<Command>,
    body: Vec<Command>,
    epilogue: Vec<Command>,
}

/// Types of a plan's tables.
#[derive(Clone, Debug)]
pub(crate) struct Types {
    pub(crate) states: Vec<TensorType>,
    pub(crate) inputs: Vec<TensorType>,
    pub(crate) outputs: Vec<TensorType>,
}

/// The bytes `start..start + len` of an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) space: Space,
    pub(crate) start: usize,
    pub(crate) len: usize,
}

impl Place {
    /// One past the last byte.
    pub(crate) fn end(&self) -> usize {
        self.start.saturating_add(self.len)
    }

    /// Whether both places have a byte in common.
    pub(crate) fn overlaps(&self, other: &Place) -> bool {
        self.space == other.space
            && self.len > 0
            && other.len > 0
            && self.start < other.end()
            && other.start < self.end()
    }
}

/// Place of an operand of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    /// In bytes that it does not write.
    Place(Place),
    /// In the bytes of the result with this index.
    Result(usize),
}

/// One run of a kernel.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) kernel: usize,
    pub(crate) operands: Vec<Source>,
    pub(crate) results: Vec<Place>,
    /// Empty where the kernel needs none.
    pub(crate) workspace: Place,
    /// The command's label, for messages.
    pub(crate) label: String,
    /// For each operand, the name of the input that it holds, where that can be told.
    pub(crate) fed_by: Vec<Option<String>>,
}

impl Launch {
    /// Names the op, and the input whose contents a kernel refuses.
    pub(crate) fn refused(&self, op: &OpKind, error: &KernelError) -> Error {
        let at = if self.label.is_empty() { String::new() } else { format!("at {}: ", self.label) };
        match error {
            KernelError::Index { operand, .. } => {
                let position = op.def().operands.iter().position(|name| name == operand);
                let input = position.and_then(|i| self.fed_by.get(i)).and_then(Option::as_ref);
                let from = input.map(|name| format!(" (the operand is input `{name}`)")).unwrap_or_default();
                Error::Data(format!("{at}{error}{from}"))
            }
            KernelError::Call { .. } => Error::Internal(format!("{at}{error}")),
        }
    }
}

/// One entry of a section.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    pub(crate) queue: Queue,
    pub(crate) action: Action,
}

impl Command {
    /// Whether it moves or computes anything within a body.
    pub(crate) fn takes_time(&self) -> bool {
        matches!(self.action, Action::Launch(_) | Action::Copy { .. } | Action::Write(_) | Action::Read(_))
    }
}

/// Effect of a command; indices are in range.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    Launch(Launch),
    Copy { src: Place, dst: Place },
    Free(Place),
    Record(usize),
    Wait(usize),
    Load(usize),
    Store(usize),
    Write(usize),
    Read(usize),
}

impl Program {
    /// Prepares a plan without buckets.
    ///
    /// # Errors
    /// [`Error::Plan`] naming the first command or table entry that breaks the contract, and
    /// [`Error::Usage`] for a plan with buckets.
    pub fn new(plan: &Plan) -> Result<Program, Error> {
        if !plan.buckets.is_empty() {
            return Err(Error::Usage(
                "the plan has buckets for several sizes, and only a run takes such a plan; compile one with \
                 one size for each --dim"
                    .to_owned(),
            ));
        }
        plan.validate().map_err(|error| Error::Plan(error.to_string()))?;
        Program::prepare(plan)
    }

    /// Prepares a validated plan; its buckets are left out.
    fn prepare(plan: &Plan) -> Result<Program, Error> {
        let program = prepare::prepare(plan)?;
        check_order(plan).map_err(|disorder| {
            let (section, index) = disorder.at();
            let command = plan.section(section).get(index).map(ToString::to_string).unwrap_or_default();
            Error::Plan(format!(
                "{section} command {index} `{command}` {}; the plan is wrong, compile the model again",
                disorder.describe(plan)
            ))
        })?;
        Ok(program)
    }

    /// Whether kernels run on the host.
    pub(crate) fn has_host_kernels(&self) -> bool {
        self.body.iter().any(|c| c.queue == Queue::CPU && matches!(c.action, Action::Launch(_)))
    }

    /// The prologue's copies of a state's bytes, in order: its own copies of the resident slot, and the
    /// copies of those.
    pub(crate) fn copies_of(&self, state: usize) -> Vec<(Queue, Place, Place)> {
        let mut holders: Vec<Place> = self.resident_slots.get(state).copied().into_iter().collect();
        let mut copies = Vec::new();
        for command in &self.prologue {
            if let Action::Copy { src, dst } = command.action
                && holders.iter().any(|place| place.overlaps(&src))
            {
                holders.push(dst);
                copies.push((command.queue, src, dst));
            }
        }
        copies
    }

    /// The commands of one section.
    pub(crate) fn section(&self, section: Section) -> &[Command] {
        match section {
            Section::Prologue => &self.prologue,
            Section::Body => &self.body,
            Section::Epilogue => &self.epilogue,
        }
    }

    /// The same program with another body, other places of inputs, and a host arena of so many bytes.
    pub(crate) fn with_body(&self, body: Vec<Command>, slots: Vec<Place>, host_bytes: usize) -> Program {
        Program { body, slots, host_bytes, ..self.clone() }
    }

    /// The commands of the body, to make them wrong on purpose.
    #[cfg(test)]
    pub(crate) fn body_mut(&mut self) -> &mut Vec<Command> {
        &mut self.body
    }
}

/// The programs of a plan and of its buckets, which share states and arenas. There is at least one.
#[derive(Clone, Debug)]
pub struct Programs(Vec<Arc<Program>>);

impl Programs {
    /// Prepares a plan and its buckets.
    ///
    /// # Errors
    /// [`Error::Plan`] naming the first command or table entry that breaks the contract.
    pub fn new(plan: &Plan) -> Result<Programs, Error> {
        plan.validate().map_err(|error| Error::Plan(error.to_string()))?;
        let programs = plan.with_buckets().map(|plan| Program::prepare(plan).map(Arc::new));
        Ok(Programs(programs.collect::<Result<_, _>>()?))
    }

    /// The program of the plan (0) or of one of its buckets.
    pub(crate) fn of(&self, bucket: usize) -> Option<&Arc<Program>> {
        self.0.get(bucket)
    }

    /// The program of the plan itself.
    pub(crate) fn first(&self) -> Result<&Arc<Program>, Error> {
        self.0.first().ok_or_else(|| Error::Internal("a plan has no program".to_owned()))
    }
}

impl From<Arc<Program>> for Programs {
    fn from(program: Arc<Program>) -> Programs {
        Programs(vec![program])
    }
}

impl Deref for Programs {
    type Target = [Arc<Program>];

    fn deref(&self) -> &[Arc<Program>] {
        &self.0
    }
}
