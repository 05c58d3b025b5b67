//! Reports of the checker: typed errors with stable codes, and lints.

use std::fmt;

use memc_plan::{Queue, Section, Slice};

/// Most errors that one check reports.
pub const MAX_ERRORS: usize = 100;

/// A command of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The command list.
    pub section: Section,
    /// Which execution of the body, from 0; how many executions came before, for the epilogue.
    pub step: u32,
    /// Index in the list.
    pub index: usize,
    /// Queue that runs the command.
    pub queue: Queue,
    /// The command in the plan's text form.
    pub command: String,
    /// The command's label.
    pub label: String,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.section, self.step) {
            (Section::Body, step) => write!(f, "body {} of step {step}", self.index)?,
            (Section::Epilogue, 0) => write!(f, "epilogue {} right after the prologue", self.index)?,
            (Section::Epilogue, 1) => write!(f, "epilogue {} after one step", self.index)?,
            (Section::Epilogue, n) => write!(f, "epilogue {} after {n} steps", self.index)?,
            (Section::Prologue, _) => write!(f, "prologue {}", self.index)?,
        }
        write!(f, " `{}`", self.command)?;
        if self.label.is_empty() { Ok(()) } else { write!(f, " ({})", self.label) }
    }
}

/// Subject of an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A command.
    Command(Site),
    /// An entry of the plan's tables, as ``state `w` ``.
    Table(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Command(site) => site.fmt(f),
            Place::Table(entry) => f.write_str(entry),
        }
    }
}

/// Which two accesses conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RaceKind {
    /// A read that may run before the write it needs.
    ReadAfterWrite,
    /// A write that may run before an earlier read.
    WriteAfterRead,
    /// Two writes that may run in either order.
    WriteAfterWrite,
}

impl RaceKind {
    /// `RAW`, `WAR` or `WAW`.
    pub const fn name(self) -> &'static str {
        match self {
            RaceKind::ReadAfterWrite => "RAW",
            RaceKind::WriteAfterRead => "WAR",
            RaceKind::WriteAfterWrite => "WAW",
        }
    }
}

/// A reason why a plan is not proved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckError {
    /// C01: two accesses of the same bytes, at least one a write, that nothing orders.
    Race {
        /// Which accesses conflict.
        kind: RaceKind,
        /// The access that is issued first.
        first: Site,
        /// The access that is issued second.
        second: Site,
        /// The bytes both touch.
        bytes: Slice,
    },
    /// C02: a read of bytes that hold no value.
    UndefRead {
        /// The reader.
        at: Site,
        /// The bytes without a value.
        bytes: Slice,
    },
    /// C03: a value that the step delivers is not the one the source says.
    WrongValue {
        /// The command that delivers it.
        at: Site,
        /// The value delivered, such as ``output `loss` of step 0``.
        what: String,
        /// The symbolic value of the source, the first difference between `«` and `»`.
        expected: String,
        /// The symbolic value of the plan, marked alike.
        actual: String,
    },
    /// C04: a read that covers parts of several values, or part of one.
    TornRead {
        /// The reader.
        at: Site,
        /// The bytes read.
        bytes: Slice,
        /// Their contents.
        what: String,
    },
    /// C05: a slice that is not within its arena.
    OutOfBounds {
        /// The user of the slice.
        at: Place,
        /// The slice.
        slice: Slice,
        /// Size of the arena in bytes.
        arena_bytes: u64,
    },
    /// C06: an offset that is not a multiple of 64.
    Misaligned {
        /// The user of the slice.
        at: Place,
        /// The slice.
        slice: Slice,
    },
    /// C07: a wait for an event that was not recorded before, which a device treats as no wait at all.
    WaitUnrecorded {
        /// The wait.
        at: Site,
        /// The event.
        event: u32,
    },
    /// C08: bytes that the body reads before it writes them do not hold, after the body, what the next body
    /// expects.
    NotSteady {
        /// The first reader.
        reader: Site,
        /// The command of the body that wrote the bytes last, if any did.
        writer: Option<Site>,
        /// The bytes.
        bytes: Slice,
        /// Contents that the next step expects.
        expected: String,
        /// Contents that the body leaves.
        actual: String,
    },
    /// C09: the device arena and the reserve exceed the budget.
    OverBudget {
        /// Device arena, bytes.
        dev_bytes: u64,
        /// Reserve, bytes.
        reserve_bytes: u64,
        /// Budget, bytes.
        budget_bytes: u64,
    },
    /// C10: a statement of the header that is not true.
    HeaderMismatch {
        /// Which statement.
        what: String,
        /// Statement of the plan.
        claimed: String,
        /// The truth.
        actual: String,
    },
    /// C11: slices of one launch overlap where the operator does not allow it.
    BadInPlace {
        /// The launch.
        at: Site,
        /// Which slices, and why not.
        what: String,
    },
    /// C12: an output that is not read exactly once per step, or a state that is not stored exactly once at
    /// the end.
    OutputMissing {
        /// Section of the delivery: the body or the epilogue.
        section: Section,
        /// The output or state.
        what: String,
        /// Number of deliveries.
        times: usize,
    },
    /// C13: a kernel that is no operator of the table at these types, or a launch that does not fit its
    /// kernel.
    BadKernel {
        /// The kernel or the launch.
        at: Place,
        /// The defect.
        what: String,
    },
    /// C14: the table of states, inputs or outputs disagrees with the source.
    BadState {
        /// Which entry.
        at: String,
        /// The defect.
        what: String,
    },
    /// C15: a command that has no meaning: an index out of range, a wrong queue or section, copies of unequal
    /// length.
    BadCommand {
        /// The command.
        at: Site,
        /// The defect.
        what: String,
    },
    /// C16: a command that writes where another bucket of the plan keeps a constant.
    Disturbed {
        /// The command.
        at: Site,
        /// The constant and its bytes.
        what: String,
    },
}

/// Every error code with what it means, in order.
pub const CODES: &[(&str, &str)] = &[
    ("C01", "two accesses of the same bytes that nothing orders"),
    ("C02", "a read of bytes that hold no value"),
    ("C03", "an output or final state is not the value the source says"),
    ("C04", "a read of parts of several values, or of part of one"),
    ("C05", "a slice outside its arena"),
    ("C06", "an offset that is not a multiple of 64"),
    ("C07", "a wait for an event that was not recorded before"),
    ("C08", "the body does not leave what the next body expects"),
    ("C09", "device arena and reserve exceed the budget"),
    ("C10", "the header states something that is not true"),
    ("C11", "slices of one launch overlap where the operator forbids it"),
    ("C12", "an output or state is not delivered exactly once"),
    ("C13", "a kernel or launch is not an operator of the table at these types"),
    ("C14", "the tables of states, inputs and outputs disagree with the source"),
    ("C15", "a command without meaning"),
    ("C16", "a write to bytes in which another bucket keeps a constant"),
];

impl CheckError {
    /// The stable code, `C01` to `C16`.
    pub const fn code(&self) -> &'static str {
        match self {
            CheckError::Race { .. } => "C01",
            CheckError::UndefRead { .. } => "C02",
            CheckError::WrongValue { .. } => "C03",
            CheckError::TornRead { .. } => "C04",
            CheckError::OutOfBounds { .. } => "C05",
            CheckError::Misaligned { .. } => "C06",
            CheckError::WaitUnrecorded { .. } => "C07",
            CheckError::NotSteady { .. } => "C08",
            CheckError::OverBudget { .. } => "C09",
            CheckError::HeaderMismatch { .. } => "C10",
            CheckError::BadInPlace { .. } => "C11",
            CheckError::OutputMissing { .. } => "C12",
            CheckError::BadKernel { .. } => "C13",
            CheckError::BadState { .. } => "C14",
            CheckError::BadCommand { .. } => "C15",
            CheckError::Disturbed { .. } => "C16",
        }
    }
}

impl fmt::Display for CheckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.code())?;
        match self {
            CheckError::Race { kind, first, second, bytes } => race(f, *kind, first, second, bytes),
            CheckError::UndefRead { at, bytes } => {
                write!(f, "undefined read: {at} reads {bytes}, which holds no value")
            }
            CheckError::WrongValue { at, what, expected, actual } => {
                write!(f, "wrong value: {what} is delivered by {at}")?;
                write!(f, "\n  expected: {expected}\n  actual:   {actual}")
            }
            CheckError::TornRead { at, bytes, what } => {
                write!(f, "torn read: {at} reads {bytes}, which holds {what}")
            }
            CheckError::OutOfBounds { at, slice, arena_bytes } => {
                write!(
                    f,
                    "out of bounds: {at} uses {slice}; the {} arena has {arena_bytes} bytes",
                    slice.space
                )
            }
            CheckError::Misaligned { at, slice } => {
                write!(f, "misaligned: {at} uses {slice}; offsets are multiples of 64")
            }
            CheckError::WaitUnrecorded { at, event } => write!(
                f,
                "wait for an unrecorded event: {at} waits for e{event}, which no earlier command records; \
                 devices take that for no wait at all"
            ),
            CheckError::NotSteady { reader, writer, bytes, expected, actual } => {
                write!(f, "not steady: {reader} reads {bytes} before the body writes it, but ")?;
                match writer {
                    Some(writer) => write!(f, "{writer} leaves another value there")?,
                    None => write!(f, "the body does not bring the next step's value there")?,
                }
                write!(f, "\n  expected: {expected}\n  actual:   {actual}")
            }
            CheckError::OverBudget { dev_bytes, reserve_bytes, budget_bytes } => write!(
                f,
                "over budget: a device arena of {dev_bytes} bytes and a reserve of {reserve_bytes} bytes \
                 exceed the budget of {budget_bytes} bytes"
            ),
            CheckError::HeaderMismatch { what, claimed, actual } => {
                write!(f, "header mismatch: {what} is {actual}, not {claimed}")
            }
            CheckError::BadInPlace { at, what } => write!(f, "bad overlap: {at}: {what}"),
            CheckError::OutputMissing { section, what, times: 0 } => {
                write!(f, "not delivered: the {section} delivers {what} nowhere")
            }
            CheckError::OutputMissing { section, what, times } => {
                write!(f, "delivered more than once: the {section} delivers {what} {times} times")
            }
            CheckError::BadKernel { at, what } => write!(f, "bad kernel: {at}: {what}"),
            CheckError::BadState { at, what } => write!(f, "tables disagree with the source: {at}: {what}"),
            CheckError::BadCommand { at, what } => write!(f, "bad command: {at}: {what}"),
            CheckError::Disturbed { at, what } => {
                write!(f, "another bucket's constant is overwritten: {at}: {what}")
            }
        }
    }
}

fn race(
    f: &mut fmt::Formatter<'_>,
    kind: RaceKind,
    first: &Site,
    second: &Site,
    bytes: &Slice,
) -> fmt::Result {
    let (does, did) = match kind {
        RaceKind::ReadAfterWrite => ("reads", "may still be writing it"),
        RaceKind::WriteAfterRead => ("overwrites", "may still be reading it"),
        RaceKind::WriteAfterWrite => ("overwrites", "may still be writing it"),
    };
    write!(f, "{} race: {second} {does} {bytes} while {first} {did}; ", kind.name())?;
    let waiter = if second.queue == Queue::Host { "the host".to_owned() } else { second.queue.to_string() };
    write!(
        f,
        "no event orders them: {} must record one after the first and {waiter} must wait for it \
                     before the second",
        first.queue
    )
}

/// All errors of one check, at most [`MAX_ERRORS`]; never empty when returned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckErrors(pub Vec<CheckError>);

impl fmt::Display for CheckErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.0.iter().enumerate() {
            write!(f, "{}{error}", if i == 0 { "" } else { "\n" })?;
        }
        if self.0.len() >= MAX_ERRORS { write!(f, "\nstopped after {MAX_ERRORS} errors") } else { Ok(()) }
    }
}

impl std::error::Error for CheckErrors {}

/// Something in a correct plan that costs time for nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lint {
    /// A wait for work that was already ordered before it, each time it ran.
    RedundantWait {
        /// The wait.
        at: Site,
    },
    /// A copy whose destination is never read.
    UnreadCopy {
        /// The copy.
        at: Site,
    },
    /// An event that is recorded and never waited for.
    UnwaitedEvent {
        /// The first command that records it.
        at: Site,
        /// The event.
        event: u32,
    },
}

impl fmt::Display for Lint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lint::RedundantWait { at } => {
                write!(f, "redundant wait: {at} waits for what is already ordered before it")
            }
            Lint::UnreadCopy { at } => write!(f, "unread copy: nothing reads what {at} copies"),
            Lint::UnwaitedEvent { at, event } => {
                write!(f, "unused event: {at} records e{event}, which nothing waits for")
            }
        }
    }
}
