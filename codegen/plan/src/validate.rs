//! The rules that every plan in a file satisfies.
//!
//! Contract: a reader of a validated plan may follow any index and form any slice within the arenas without a
//! check of its own. The checker, not this module, proves that the schedule is *right*.

use std::collections::BTreeSet;

use crate::{Action, Command, Feed, Init, Plan, PlanError, Queue, Section, Slice, Space};

/// Most entries of any one table or command list.
pub(crate) const MAX_ENTRIES: usize = 1 << 22;

/// Most bytes of an arena: what a process of 64 bits can address.
const MAX_ARENA: u64 = 1 << 56;

impl Plan {
    /// Checks the rules that a plan in a file satisfies:
    /// - Indices and events are in range, and there are no more events than commands.
    /// - Slices are within the arenas, with one slice per operand and result, and equal lengths in copies.
    /// - Host commands are on the host; kernels are on a queue that runs them, with slices of its arena.
    /// - State names are unique; initial data has the length of the state's slot and is in its place.
    /// - The hash of the source is that of its text.
    /// - Every launch has the workspace that the tuning section asks for.
    /// - Each bucket keeps these rules, but for the place of initial data, which [`Plan::layout_data`] of the
    ///   whole gives. It has the plan's arenas and limits, and its states but for constants; in all of them
    ///   constants come last. There are at most [`crate::MAX_BUCKETS`], without buckets and tuning sections.
    ///
    /// # Errors
    /// [`PlanError::Invalid`] with the first violation.
    pub fn validate(&self) -> Result<(), PlanError> {
        self.check_own()?;
        self.check_buckets()?;
        self.data_bytes().map(|_| ())
    }

    /// Checks the rules of a plan by itself, but for the place of initial data.
    pub(crate) fn check_own(&self) -> Result<(), PlanError> {
        self.check_tables()?;
        for (section, index, command) in self.commands() {
            self.check_command(section, index, command)?;
        }
        self.check_tuning()?;
        if crate::hash(self.meta.source.as_bytes()) != self.meta.source_hash {
            return Err(PlanError::invalid("source", "the hash is not that of the text"));
        }
        Ok(())
    }

    fn check_tables(&self) -> Result<(), PlanError> {
        let lengths = [
            ("kernels", self.kernels.len()),
            ("states", self.states.len()),
            ("inputs", self.inputs.len()),
            ("outputs", self.outputs.len()),
            ("prologue", self.prologue.len()),
            ("body", self.body.len()),
            ("epilogue", self.epilogue.len()),
        ];
        for (table, length) in lengths {
            if length > MAX_ENTRIES {
                return Err(PlanError::invalid(
                    table,
                    format!("{length} entries; at most {MAX_ENTRIES} are allowed"),
                ));
            }
        }
        for (arena, bytes) in [("device", self.meta.dev_bytes), ("host", self.meta.host_bytes)] {
            if bytes > MAX_ARENA {
                let what = format!("{bytes} bytes; no address space has more than {MAX_ARENA}");
                return Err(PlanError::invalid(format!("{arena} arena"), what));
            }
        }
        let commands = self.commands().count();
        if usize::try_from(self.events).map_or(true, |events| events > commands) {
            let what =
                format!("{} declared for {commands} commands; every event is recorded by one", self.events);
            return Err(PlanError::invalid("events", what));
        }
        let mut names = BTreeSet::new();
        for state in &self.states {
            let at = || format!("state `{}`", state.name);
            self.check_slice(&state.resident, at)?;
            if !names.insert(state.name.as_str()) {
                return Err(PlanError::invalid(at(), "two states have this name"));
            }
            if let Init::Data { bytes, .. } = state.init
                && bytes != state.resident.bytes
            {
                let what = format!(
                    "{bytes} bytes of initial data for a resident slot of {} bytes",
                    state.resident.bytes
                );
                return Err(PlanError::invalid(at(), what));
            }
        }
        for input in &self.inputs {
            let at = || format!("input `{}`", input.name);
            self.check_slice(&input.slot, at)?;
            if input.slot.space != Space::Host {
                return Err(PlanError::invalid(at(), "the staging slot is not in the host arena"));
            }
            match input.feed {
                Feed::LearningRate { default, .. } if !default.is_finite() => {
                    return Err(PlanError::invalid(at(), "the default learning rate is not finite"));
                }
                Feed::LearningRate { turn, .. } | Feed::Step { turn } if turn.index >= turn.count => {
                    let what = format!("turn {} of {} in a round", turn.index, turn.count);
                    return Err(PlanError::invalid(at(), what));
                }
                Feed::Data { low, high, .. } if low >= high && (low, high) != (0, 0) => {
                    return Err(PlanError::invalid(at(), format!("the range {low}..{high} is empty")));
                }
                _ => {}
            }
        }
        for output in &self.outputs {
            self.check_slice(&output.slot, || format!("output `{}`", output.name))?;
        }
        Ok(())
    }

    fn check_slice(&self, slice: &Slice, at: impl FnOnce() -> String) -> Result<(), PlanError> {
        let arena = match slice.space {
            Space::Dev => self.meta.dev_bytes,
            Space::Host => self.meta.host_bytes,
        };
        match slice.end() {
            Some(end) if end <= arena => Ok(()),
            _ => {
                let what = format!("{slice} is not within the {} arena of {arena} bytes", slice.space);
                Err(PlanError::invalid(at(), what))
            }
        }
    }

    fn check_command(&self, section: Section, index: usize, command: &Command) -> Result<(), PlanError> {
        let at = || format!("{section} command {index} `{command}`");
        let rule = |holds: bool, what: &dyn Fn() -> String| match holds {
            true => Ok(()),
            false => Err(PlanError::invalid(at(), what())),
        };
        let in_table = |index: u32, length: usize, entry: &str| {
            let in_range = usize::try_from(index).is_ok_and(|index| index < length);
            rule(in_range, &|| format!("no {entry} {index}; the plan has {length}"))
        };
        for slice in command.action.slices() {
            self.check_slice(slice, at)?;
        }
        let action = &command.action;
        let on_host = command.queue == Queue::Host;
        match action {
            Action::Launch { .. } => {
                let arena = command.queue.kernels_in();
                rule(arena.is_some(), &|| format!("no kernel runs on `{}`", command.queue))?;
                let other = action.slices().find(|slice| Some(slice.space) != arena);
                rule(other.is_none(), &|| {
                    format!(
                        "a kernel on `{}` cannot reach the {} arena",
                        command.queue,
                        other.map_or("", |slice| slice.space.name())
                    )
                })?;
            }
            Action::Record { .. } => {
                rule(!on_host, &|| format!("`{}` cannot run on the host", action.name()))?;
            }
            Action::Load { .. }
            | Action::Store { .. }
            | Action::HostWrite { .. }
            | Action::HostRead { .. } => {
                rule(on_host, &|| format!("`{}` belongs on the host", action.name()))?;
            }
            Action::Copy { .. } | Action::Wait { .. } | Action::Free { .. } => {}
        }
        match action {
            Action::Launch { kernel, reads, writes, workspace } => {
                in_table(*kernel, self.kernels.len(), "kernel")?;
                let entry = usize::try_from(*kernel).ok().and_then(|index| self.kernels.get(index));
                let Some(kernel) = entry else { return Ok(()) };
                let (operands, results) = (kernel.operands.len(), kernel.results.len());
                let (r, w) = (reads.len(), writes.len());
                rule(r == operands && w == results, &|| {
                    format!("{r} reads and {w} writes for {operands} operands and {results} results")
                })?;
                let (supplied, needed) = (workspace.map_or(0, |slice| slice.bytes), kernel.workspace_bytes);
                rule(supplied >= needed, &|| {
                    format!("workspace of {supplied} bytes where {needed} are needed")
                })
            }
            Action::Copy { src, dst } => {
                rule(src.bytes == dst.bytes, &|| format!("copies {} bytes into {}", src.bytes, dst.bytes))
            }
            Action::Free { .. } => Ok(()),
            Action::Record { event } | Action::Wait { event } => {
                rule(*event < self.events, &|| format!("no event {event}; the plan has {}", self.events))
            }
            Action::Load { state } => {
                rule(section == Section::Prologue, &|| "loads belong in the prologue".to_owned())?;
                in_table(*state, self.states.len(), "state")
            }
            Action::Store { state } => {
                rule(section == Section::Epilogue, &|| "stores belong in the epilogue".to_owned())?;
                in_table(*state, self.states.len(), "state")
            }
            Action::HostWrite { input } => in_table(*input, self.inputs.len(), "input"),
            Action::HostRead { output } => in_table(*output, self.outputs.len(), "output"),
        }
    }
}
