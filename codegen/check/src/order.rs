//! Order alone: no two commands touch the same bytes at the same time, one of them writing.
//!
//! The same replay as that of [`crate::check`], without a source and without contents, for a runtime that
//! must not start a plan with a race, whatever file it came from. The sequences with no, one and two bodies
//! between prologue and epilogue stand for all: an access conflicts with one of an earlier body only if it
//! conflicts with the same command's repetition in the body just before.

use memc_plan::{Action, Plan, Queue, Section, Slice, Space};

use crate::clock::Stamp;
use crate::machine::Machine;
use crate::shadow::{Cell, Content};
use crate::sink::Execution;
use crate::step::entry;

/// First violation of the order. Commands are given by their section and their index in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disorder {
    /// Two accesses of the same bytes, at least one a write, that nothing orders.
    Race {
        /// The command that is issued first.
        first: (Section, usize),
        /// The command that is issued second.
        second: (Section, usize),
        /// Bytes that the second one accesses.
        bytes: Slice,
    },
    /// A wait for an event that was not recorded before.
    Unrecorded {
        /// The command that waits.
        at: (Section, usize),
    },
}

impl Disorder {
    /// The command that the violation shows at.
    pub fn at(&self) -> (Section, usize) {
        match *self {
            Disorder::Race { second, .. } => second,
            Disorder::Unrecorded { at } => at,
        }
    }

    /// The violation in words, to follow the command that it shows at.
    pub fn describe(&self, plan: &Plan) -> String {
        match self {
            Disorder::Unrecorded { .. } => "waits for an event that nothing has recorded".to_owned(),
            Disorder::Race { first: (section, index), bytes, .. } => {
                let end = bytes.offset.saturating_add(bytes.bytes);
                let first = plan.section(*section).get(*index).map(ToString::to_string).unwrap_or_default();
                format!(
                    "touches bytes {}..{end} of the {} arena at the same time as {section} command {index} \
                     `{first}`: no event orders them",
                    bytes.offset, bytes.space
                )
            }
        }
    }
}

/// Proves that every conflicting pair of accesses is ordered, in any interleaving of the queues that the
/// events allow and for any number of steps, and that waits find their event recorded. The plan is a valid
/// one.
///
/// # Errors
/// The first violation in issue order.
pub fn check_order(plan: &Plan) -> Result<(), Disorder> {
    use Section::{Body, Epilogue, Prologue};
    let sequences =
        [&[Prologue, Body, Epilogue][..], &[Prologue, Body, Body, Epilogue], &[Prologue, Epilogue]];
    sequences.into_iter().try_for_each(|sequence| replay(plan, sequence))
}

fn replay(plan: &Plan, sequence: &[Section]) -> Result<(), Disorder> {
    let mut m = Machine::default();
    // Shadows keep no reads of bytes that nobody wrote: here all bytes are written before the first command.
    let origin = Stamp { axis: Queue::Host.index(), time: 0 };
    m.shadow_mut(Space::Dev).write(0..plan.meta.dev_bytes, Content::Undef, origin);
    m.shadow_mut(Space::Host).write(0..plan.meta.host_bytes, Content::Undef, origin);
    for (step, &section) in (0u32..).zip(sequence) {
        for (index, command) in plan.section(section).iter().enumerate() {
            let at = Execution { section, step, index };
            let (stamp, clock) = m.begin(command.queue, at);
            match command.action {
                Action::Record { event } => m.record(command.queue, event),
                Action::Wait { event } if m.wait(command.queue, event).is_none() => {
                    return Err(Disorder::Unrecorded { at: at.command() });
                }
                _ => {}
            }
            for (bytes, writes) in accesses(plan, &command.action) {
                let range = bytes.offset..bytes.offset.saturating_add(bytes.bytes);
                let mut first = None;
                m.shadow(bytes.space).visit(range.clone(), |_, cell: Option<Cell>| {
                    let conflicts = cell.iter().flat_map(|cell| cell.conflicts(clock, writes));
                    first = first.or(conflicts.map(|(_, stamp)| stamp).next());
                });
                if let Some(first) = first.and_then(|stamp| m.which(stamp)) {
                    return Err(Disorder::Race { first: first.command(), second: at.command(), bytes });
                }
                let shadow = m.shadow_mut(bytes.space);
                if writes { shadow.write(range, Content::Undef, stamp) } else { shadow.read(range, stamp) }
            }
        }
    }
    Ok(())
}

/// Slices that a command accesses, and whether it writes them; reads first.
fn accesses(plan: &Plan, action: &Action) -> Vec<(Slice, bool)> {
    let one = |slice: Option<Slice>, writes: bool| slice.map(|slice| (slice, writes)).into_iter().collect();
    match action {
        Action::Launch { reads, writes, workspace, .. } => {
            let written = writes.iter().chain(workspace).map(|&slice| (slice, true));
            reads.iter().map(|&slice| (slice, false)).chain(written).collect()
        }
        Action::Copy { src, dst } => vec![(*src, false), (*dst, true)],
        Action::Free { slice } => one(Some(*slice), true),
        Action::Load { state } => one(entry(&plan.states, *state).map(|state| state.resident), true),
        Action::Store { state } => one(entry(&plan.states, *state).map(|state| state.resident), false),
        Action::HostWrite { input } => one(entry(&plan.inputs, *input).map(|input| input.slot), true),
        Action::HostRead { output } => one(entry(&plan.outputs, *output).map(|output| output.slot), false),
        Action::Record { .. } | Action::Wait { .. } => Vec::new(),
    }
}
