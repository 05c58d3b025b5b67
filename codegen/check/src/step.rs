//! Effect of each command on the state of the replay, and its obligations.

use memc_plan::{Action, Command, Queue, Section, Slice, Space};

use crate::Checker;
use crate::access::{Actor, Part};
use crate::error::{CheckError, Place};
use crate::machine::Machine;
use crate::shadow::Content;
use crate::sink::Execution;
use crate::symbolic::{Symbolic, SymbolicId};

impl Checker<'_> {
    /// Runs one command list. `outputs` and `states` are the symbolic values that reads and stores must
    /// deliver.
    pub(crate) fn run(
        &mut self,
        m: &mut Machine,
        section: Section,
        step: u32,
        outputs: &[SymbolicId],
        states: &[SymbolicId],
    ) {
        let plan = self.plan;
        for (index, command) in plan.section(section).iter().enumerate() {
            let at = Execution { section, step, index };
            let (stamp, clock) = m.begin(command.queue, at);
            self.command(m, Actor { at, stamp, clock }, command, outputs, states);
        }
    }

    fn command(
        &mut self,
        m: &mut Machine,
        actor: Actor,
        command: &Command,
        outputs: &[SymbolicId],
        states: &[SymbolicId],
    ) {
        if let Some(what) = misplaced(command, actor.at.section) {
            return self.bad(actor.at, what);
        }
        match &command.action {
            Action::Launch { kernel, reads, writes, workspace } => {
                self.launch(m, actor, *kernel, reads, writes, workspace.as_ref());
            }
            Action::Copy { src, dst } => self.copy(m, actor, src, dst, outputs),
            Action::Record { event } => {
                if self.event_exists(actor.at, *event) {
                    m.record(command.queue, *event);
                    self.lints.note_record(*event, actor.at);
                }
            }
            Action::Wait { event } => self.wait(m, actor.at, command.queue, *event),
            Action::Free { slice } => self.write(m, actor, slice, Content::Undef),
            Action::Load { state } => {
                let (plan, value) = (self.plan, entry(&self.tables.initial, *state).copied());
                match (entry(&plan.states, *state), value) {
                    (Some(state), Some(value)) => {
                        self.write(m, actor, &state.resident, Part { value, at: 0 }.content());
                    }
                    _ => self.bad(actor.at, &format!("no state s{state}")),
                }
            }
            Action::Store { state } => {
                let Some(entry) = entry(&self.plan.states, *state) else {
                    return self.bad(actor.at, &format!("no state s{state}"));
                };
                let actual = self.read_value(m, actor, &entry.resident);
                let expected = self.tables.after(*state, states);
                let what = || match actor.at.step {
                    0 => format!("state `{}` before the first step", entry.name),
                    n => format!("state `{}` after step {}", entry.name, n - 1),
                };
                self.deliver(actor.at, expected, actual, what);
            }
            Action::HostWrite { input } => {
                let Some(entry) = entry(&self.plan.inputs, *input) else {
                    return self.bad(actor.at, &format!("no input i{input}"));
                };
                let value = match self.tables.input(*input) {
                    Some(input) => {
                        self.values.leaf(Symbolic::Input { input, step: actor.at.step }, entry.slot.bytes)
                    }
                    None => SymbolicId::POISON,
                };
                self.write(m, actor, &entry.slot, Part { value, at: 0 }.content());
            }
            Action::HostRead { output } => {
                let Some(entry) = entry(&self.plan.outputs, *output) else {
                    return self.bad(actor.at, &format!("no output o{output}"));
                };
                let actual = self.read_value(m, actor, &entry.slot);
                let expected = usize::try_from(*output).ok().and_then(|o| outputs.get(o)).copied();
                let what = || format!("output `{}` of step {}", entry.name, actor.at.step);
                self.deliver(actor.at, expected.unwrap_or(SymbolicId::POISON), actual, what);
            }
        }
    }

    fn bad(&mut self, at: Execution, what: &str) {
        self.sink.at(at, what, |at| CheckError::BadCommand { at, what: what.to_owned() });
    }

    fn event_exists(&mut self, at: Execution, event: u32) -> bool {
        let exists = event < self.plan.events;
        if !exists {
            self.bad(at, &format!("no event e{event}; the plan has {}", self.plan.events));
        }
        exists
    }

    fn wait(&mut self, m: &mut Machine, at: Execution, queue: Queue, event: u32) {
        if !self.event_exists(at, event) {
            return;
        }
        match m.wait(queue, event) {
            Some(new) => self.lints.note_wait(event, at, new),
            None => self.sink.at(at, "", |at| CheckError::WaitUnrecorded { at, event }),
        }
    }

    fn deliver(
        &mut self,
        at: Execution,
        expected: SymbolicId,
        actual: SymbolicId,
        what: impl Fn() -> String,
    ) {
        if expected == actual || expected == SymbolicId::POISON || actual == SymbolicId::POISON {
            return;
        }
        if self.sink.is_full() {
            return;
        }
        let what = what();
        let (expected, actual) = self.shower().difference(expected, actual);
        self.sink.at(at, "", |at| CheckError::WrongValue { at, what, expected, actual });
    }

    fn copy(&mut self, m: &mut Machine, actor: Actor, src: &Slice, dst: &Slice, outputs: &[SymbolicId]) {
        if src.bytes != dst.bytes {
            self.bad(actor.at, &format!("copies {} bytes into {}", src.bytes, dst.bytes));
            return self.write(m, actor, dst, Part::of(SymbolicId::POISON).content());
        }
        if src.overlaps(dst) {
            self.bad(actor.at, "source and destination overlap");
        }
        let part = self.read_part(m, actor, src);
        self.write(m, actor, dst, part.content());
        let Some(tally) = &mut self.tally else { return };
        let whole = |value: &SymbolicId| part == Part::of(*value);
        match (src.space, dst.space) {
            (Space::Dev, Space::Host) => {
                let mut slots = self.plan.outputs.iter().zip(outputs);
                let output = slots.position(|(output, value)| output.slot == *dst && whole(value));
                // Of several copies of the value to that place one brings the output; the others swap.
                if !output.is_some_and(|output| tally.brought.insert(output)) {
                    tally.swap_out_bytes = tally.swap_out_bytes.saturating_add(src.bytes);
                }
            }
            (Space::Host, Space::Dev) => {
                let is_input = matches!(self.values.get(part.value).0, Symbolic::Input { .. });
                if !(is_input && self.plan.inputs.iter().any(|input| input.slot == *src)) {
                    tally.swap_in_bytes = tally.swap_in_bytes.saturating_add(src.bytes);
                }
            }
            (Space::Dev, Space::Dev) | (Space::Host, Space::Host) => {}
        }
    }

    fn launch(
        &mut self,
        m: &mut Machine,
        actor: Actor,
        kernel: u32,
        reads: &[Slice],
        writes: &[Slice],
        workspace: Option<&Slice>,
    ) {
        let Some(known) = entry(&self.kernels, kernel) else {
            return self.bad(actor.at, &format!("no kernel k{kernel}"));
        };
        let known = known.clone();
        if let Some(kernel) = &known {
            let mut wrong = Vec::new();
            sizes("reads", reads, &kernel.reads, &mut wrong);
            sizes("writes", writes, &kernel.writes, &mut wrong);
            let scratch = workspace.map_or(0, |slice| slice.bytes);
            if scratch < kernel.workspace {
                wrong.push(format!("a workspace of {scratch} bytes, {} are needed", kernel.workspace));
            }
            for what in wrong {
                let detail = what.clone();
                self.sink.at(actor.at, &detail, |at| CheckError::BadKernel { at: Place::Command(at), what });
            }
        }
        if let Some(kernel) = &known
            && (kernel.reads.len(), kernel.writes.len()) == (reads.len(), writes.len())
        {
            self.overlaps(actor.at, &kernel.inplace, reads, writes, workspace);
        }
        let args: Vec<SymbolicId> = reads.iter().map(|slice| self.read_value(m, actor, slice)).collect();
        let results = match &known {
            Some(kernel) if kernel.reads.len() == args.len() => {
                self.tally_launch(kernel.sig, kernel.identity, &args);
                self.values.apply(kernel.sig, &args)
            }
            _ => Vec::new(),
        };
        for (i, slice) in writes.iter().enumerate() {
            let value = results.get(i).copied().unwrap_or(SymbolicId::POISON);
            // A symbolic value of another size than its slice was reported above and must not be read as if
            // it fitted.
            let fits = value == SymbolicId::POISON || self.values.get(value).1 == slice.bytes;
            let value = if fits { value } else { SymbolicId::POISON };
            self.write(m, actor, slice, Part::of(value).content());
        }
        if let Some(slice) = workspace {
            self.write(m, actor, slice, Content::Undef);
        }
    }

    /// Reports overlaps of a launch's slices other than the operator's in-place pairs.
    fn overlaps(
        &mut self,
        at: Execution,
        inplace: &[(usize, usize)],
        reads: &[Slice],
        writes: &[Slice],
        workspace: Option<&Slice>,
    ) {
        let mut wrong = Vec::new();
        for (j, write) in writes.iter().enumerate() {
            for (i, read) in reads.iter().enumerate().filter(|(_, read)| read.overlaps(write)) {
                if read != write {
                    wrong.push(format!("read {i} {read} and write {j} {write} overlap in part"));
                } else if !inplace.contains(&(i, j)) {
                    wrong.push(format!(
                        "write {j} is in place of read {i} at {read}, which the operator does not allow"
                    ));
                }
            }
            if let Some((i, other)) =
                writes.iter().enumerate().take(j).find(|(_, other)| other.overlaps(write))
            {
                wrong.push(format!("write {i} {other} and write {j} {write} overlap"));
            }
            if let Some(scratch) = workspace.filter(|scratch| scratch.overlaps(write)) {
                wrong.push(format!("write {j} {write} overlaps the workspace {scratch}"));
            }
        }
        for (i, read) in reads.iter().enumerate() {
            if let Some(scratch) = workspace.filter(|scratch| scratch.overlaps(read)) {
                wrong.push(format!("read {i} {read} overlaps the workspace {scratch}"));
            }
        }
        for what in wrong {
            let detail = what.clone();
            self.sink.at(at, &detail, |at| CheckError::BadInPlace { at, what });
        }
    }
}

impl Part {
    /// All of a value.
    pub(crate) fn of(value: SymbolicId) -> Part {
        Part { value, at: 0 }
    }
}

/// The entry of a table.
pub(crate) fn entry<T>(table: &[T], index: u32) -> Option<&T> {
    table.get(usize::try_from(index).ok()?)
}

/// Reason for which a command has no meaning in its section or on its queue.
fn misplaced(command: &Command, section: Section) -> Option<&'static str> {
    let on_host = command.queue == Queue::Host;
    match (&command.action, section) {
        (Action::Launch { .. }, _) if command.queue.kernels_in().is_none() => {
            Some("a launch runs on `compute` or `cpu`")
        }
        (action @ Action::Launch { .. }, _)
            if action.slices().any(|slice| Some(slice.space) != command.queue.kernels_in()) =>
        {
            Some("a launch on `compute` reaches device memory alone, one on `cpu` host memory alone")
        }
        (Action::Record { .. }, _) if on_host => Some("an event is recorded on a stream"),
        (
            Action::Load { .. } | Action::Store { .. } | Action::HostWrite { .. } | Action::HostRead { .. },
            _,
        ) if !on_host => Some("this runs on the host"),
        (Action::Load { .. }, Section::Body | Section::Epilogue) => Some("loads belong in the prologue"),
        (Action::Store { .. }, Section::Prologue | Section::Body) => Some("stores belong in the epilogue"),
        (Action::HostWrite { .. }, Section::Prologue | Section::Epilogue) => {
            Some("inputs are written in the body")
        }
        (Action::HostRead { .. }, Section::Prologue | Section::Epilogue) => {
            Some("outputs are read in the body")
        }
        _ => None,
    }
}

/// Compares the slices of a launch with the sizes that its kernel asks for.
fn sizes(what: &str, slices: &[Slice], bytes: &[u64], wrong: &mut Vec<String>) {
    if slices.len() != bytes.len() {
        wrong.push(format!("{} {what} where the kernel has {}", slices.len(), bytes.len()));
    }
    for (i, (slice, bytes)) in slices.iter().zip(bytes).enumerate() {
        if slice.bytes != *bytes {
            wrong.push(format!("{what} {i} {slice} where the type has {bytes} bytes"));
        }
    }
}
