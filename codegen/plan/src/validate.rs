//! The rules that every plan in a file satisfies.
//!
//! Contract: a reader of a validated plan may follow any index and form any slice within the arenas without a check
//! of its own. Whether the schedule is *right* is not asked here; that is the checker's work.

use std::collections::BTreeSet;

use crate::{Action, Command, DATA_ALIGN, Feed, Init, Plan, PlanError, Section, Slice, Space, Stream};

/// Most entries of any one table or command list.
pub(crate) const MAX_ENTRIES: usize = 1 << 22;

impl Plan {
    /// Gives every state with [`Init::Data`] its place in the data section, in state order without gaps beyond
    /// [`DATA_ALIGN`], and returns the length of the section in bytes.
    ///
    /// # Errors
    /// [`PlanError::Invalid`] if the section would exceed the range of `u64`.
    pub fn layout_data(&mut self) -> Result<u64, PlanError> {
        let mut end = 0u64;
        for state in &mut self.states {
            if let Init::Data { offset, bytes, .. } = &mut state.init {
                (*offset, end) = next_place(end, *bytes).ok_or_else(|| too_much_data(&state.name))?;
            }
        }
        Ok(end)
    }

    /// Length of the data section in bytes.
    ///
    /// # Errors
    /// [`PlanError::Invalid`] if a state's data is not where [`Plan::layout_data`] would put it.
    pub fn data_bytes(&self) -> Result<u64, PlanError> {
        let mut end = 0u64;
        for state in &self.states {
            if let Init::Data { offset, bytes, .. } = &state.init {
                let (place, next) = next_place(end, *bytes).ok_or_else(|| too_much_data(&state.name))?;
                if *offset != place {
                    let what = format!("data at offset {offset}; its place in the data section is {place}");
                    return Err(PlanError::invalid(format!("state `{}`", state.name), what));
                }
                end = next;
            }
        }
        Ok(end)
    }

    /// Checks the rules that a plan in a file satisfies: indices and events in range, no more
    /// events than commands, slices within the arenas, one
    /// slice per operand and result, equal lengths in copies, host commands on the host, unique state names, initial
    /// data of the home's length and in its place, the source's hash, and ways of the tuning section that no launch lacks
    /// the workspace for.
    ///
    /// # Errors
    /// [`PlanError::Invalid`] with the first violation.
    pub fn validate(&self) -> Result<(), PlanError> {
        self.check_tables()?;
        self.data_bytes()?;
        for (section, index, command) in self.commands() {
            self.check_command(section, command)
                .map_err(|what| PlanError::invalid(format!("{section} command {index} `{command}`"), what))?;
        }
        self.check_tuning().map_err(|what| PlanError::invalid("tuning", what))?;
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
        let commands = self.commands().count();
        if usize::try_from(self.events).map_or(true, |events| events > commands) {
            let what =
                format!("{} declared for {commands} commands; every event is recorded by one", self.events);
            return Err(PlanError::invalid("events", what));
        }
        let mut names = BTreeSet::new();
        for state in &self.states {
            let at = || format!("state `{}`", state.name);
            self.check_slice(&state.home).map_err(|what| PlanError::invalid(at(), what))?;
            if !names.insert(state.name.as_str()) {
                return Err(PlanError::invalid(at(), "two states have this name"));
            }
            if let Init::Data { bytes, .. } = state.init
                && bytes != state.home.bytes
            {
                let what = format!("{bytes} bytes of initial data for a home of {} bytes", state.home.bytes);
                return Err(PlanError::invalid(at(), what));
            }
        }
        for input in &self.inputs {
            let at = || format!("input `{}`", input.name);
            self.check_slice(&input.slot).map_err(|what| PlanError::invalid(at(), what))?;
            if input.slot.space != Space::Host {
                return Err(PlanError::invalid(at(), "the staging slot is not in the host arena"));
            }
            match input.feed {
                Feed::LearningRate { default } if !default.is_finite() => {
                    return Err(PlanError::invalid(at(), "the default learning rate is not finite"));
                }
                Feed::Data { low, high, .. } if low >= high && (low, high) != (0, 0) => {
                    return Err(PlanError::invalid(at(), format!("the range {low}..{high} is empty")));
                }
                _ => {}
            }
        }
        for output in &self.outputs {
            self.check_slice(&output.slot)
                .map_err(|what| PlanError::invalid(format!("output `{}`", output.name), what))?;
        }
        Ok(())
    }

    fn check_slice(&self, slice: &Slice) -> Result<(), String> {
        let arena = match slice.space {
            Space::Dev => self.meta.dev_bytes,
            Space::Host => self.meta.host_bytes,
        };
        match slice.end() {
            Some(end) if end <= arena => Ok(()),
            _ => Err(format!("{slice} is not within the {} arena of {arena} bytes", slice.space.name())),
        }
    }

    fn check_command(&self, section: Section, command: &Command) -> Result<(), String> {
        for slice in command.action.slices() {
            self.check_slice(slice)?;
        }
        let on_host = command.stream == Stream::Host;
        let expect_host = |expected: bool| match (expected, on_host) {
            (true, false) => Err(format!("`{}` belongs on the host", command.action.name())),
            (false, true) => Err(format!("`{}` cannot run on the host", command.action.name())),
            _ => Ok(()),
        };
        match &command.action {
            Action::Launch { kernel, reads, writes, workspace } => {
                expect_host(false)?;
                let k = entry(&self.kernels, *kernel, "kernel")?;
                let (operands, results) = (k.operands.len(), k.results.len());
                if reads.len() != operands || writes.len() != results {
                    let (r, w) = (reads.len(), writes.len());
                    return Err(format!(
                        "{r} reads and {w} writes for {operands} operands and {results} results"
                    ));
                }
                let supplied = workspace.map_or(0, |slice| slice.bytes);
                if supplied < k.workspace_bytes {
                    return Err(format!(
                        "workspace of {supplied} bytes where {} are needed",
                        k.workspace_bytes
                    ));
                }
                Ok(())
            }
            Action::Copy { src, dst } if src.bytes != dst.bytes => {
                Err(format!("copies {} bytes into {}", src.bytes, dst.bytes))
            }
            Action::Copy { .. } | Action::Free { .. } => Ok(()),
            Action::Record { event } => {
                expect_host(false)?;
                self.check_event(*event)
            }
            Action::Wait { event } => self.check_event(*event),
            Action::Load { state } => {
                expect_host(true)?;
                if section != Section::Prologue {
                    return Err("loads belong in the prologue".to_owned());
                }
                entry(&self.states, *state, "state").map(|_| ())
            }
            Action::Store { state } => {
                expect_host(true)?;
                if section != Section::Epilogue {
                    return Err("stores belong in the epilogue".to_owned());
                }
                entry(&self.states, *state, "state").map(|_| ())
            }
            Action::HostWrite { input } => {
                expect_host(true)?;
                entry(&self.inputs, *input, "input").map(|_| ())
            }
            Action::HostRead { output } => {
                expect_host(true)?;
                entry(&self.outputs, *output, "output").map(|_| ())
            }
        }
    }

    fn check_event(&self, event: u32) -> Result<(), String> {
        if event < self.events {
            Ok(())
        } else {
            Err(format!("no event {event}; the plan has {}", self.events))
        }
    }
}

fn entry<'a, T>(table: &'a [T], index: u32, what: &str) -> Result<&'a T, String> {
    usize::try_from(index)
        .ok()
        .and_then(|index| table.get(index))
        .ok_or_else(|| format!("no {what} {index}; the plan has {}", table.len()))
}

/// Offset and end of `bytes` bytes placed after `end`.
fn next_place(end: u64, bytes: u64) -> Option<(u64, u64)> {
    let offset = end.checked_next_multiple_of(DATA_ALIGN)?;
    Some((offset, offset.checked_add(bytes)?))
}

fn too_much_data(state: &str) -> PlanError {
    PlanError::invalid(format!("state `{state}`"), "the data section is too large")
}
