//! Reading a plan: names, iteration over sections, and counts.

use memc_ir::{Slice, Space};

use crate::{Action, Claims, Command, Meta, NoBucket, Plan, State, StateRole};

/// One of a plan's three command lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Section {
    /// Runs once before the first step.
    Prologue,
    /// Runs once per step.
    Body,
    /// Runs once after the last step.
    Epilogue,
}

impl Section {
    /// The sections in the order they run.
    pub const ALL: [Section; 3] = [Section::Prologue, Section::Body, Section::Epilogue];

    /// Name in the text form.
    pub const fn name(self) -> &'static str {
        match self {
            Section::Prologue => "prologue",
            Section::Body => "body",
            Section::Epilogue => "epilogue",
        }
    }
}

impl Action {
    /// Name in the text form.
    pub const fn name(&self) -> &'static str {
        match self {
            Action::Launch { .. } => "launch",
            Action::Copy { .. } => "copy",
            Action::Record { .. } => "record",
            Action::Wait { .. } => "wait",
            Action::Free { .. } => "free",
            Action::Load { .. } => "load",
            Action::Store { .. } => "store",
            Action::HostWrite { .. } => "write",
            Action::HostRead { .. } => "read",
        }
    }

    /// The slices the command itself spells out: reads, then writes, then workspace of a launch; source, then
    /// destination of a copy. Loads, stores and host accesses name theirs through a table and yield none.
    pub fn slices(&self) -> impl Iterator<Item = &Slice> {
        let (first, second, rest): (&[Slice], &[Slice], [Option<&Slice>; 2]) = match self {
            Action::Launch { reads, writes, workspace, .. } => (reads, writes, [workspace.as_ref(), None]),
            Action::Copy { src, dst } => (&[], &[], [Some(src), Some(dst)]),
            Action::Free { slice } => (&[], &[], [Some(slice), None]),
            _ => (&[], &[], [None, None]),
        };
        first.iter().chain(second).chain(rest.into_iter().flatten())
    }
}

/// Counts of a command list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Commands of any kind.
    pub commands: u64,
    /// Launches.
    pub launches: u64,
    /// Copies from the device arena to the host arena.
    pub copies_out: u64,
    /// Their bytes; saturates.
    pub bytes_out: u64,
    /// Copies from the host arena to the device arena.
    pub copies_in: u64,
    /// Their bytes; saturates.
    pub bytes_in: u64,
    /// Records of events.
    pub records: u64,
    /// Waits for events.
    pub waits: u64,
}

impl Claims {
    /// All claims with their names, in the order of their declaration.
    pub fn fields(&self) -> [(&'static str, u64); 9] {
        [
            ("peak_bytes", self.peak_bytes),
            ("unplanned_peak_bytes", self.unplanned_peak_bytes),
            ("ideal_ns", self.ideal_ns),
            ("step_ns", self.step_ns),
            ("swap_out_bytes", self.swap_out_bytes),
            ("swap_in_bytes", self.swap_in_bytes),
            ("recompute_ns", self.recompute_ns),
            ("recompute_ops", self.recompute_ops),
            ("ops", self.ops),
        ]
    }

    /// The claim with this name, to be changed.
    pub fn field_mut(&mut self, name: &str) -> Option<&mut u64> {
        Some(match name {
            "peak_bytes" => &mut self.peak_bytes,
            "unplanned_peak_bytes" => &mut self.unplanned_peak_bytes,
            "ideal_ns" => &mut self.ideal_ns,
            "step_ns" => &mut self.step_ns,
            "swap_out_bytes" => &mut self.swap_out_bytes,
            "swap_in_bytes" => &mut self.swap_in_bytes,
            "recompute_ns" => &mut self.recompute_ns,
            "recompute_ops" => &mut self.recompute_ops,
            "ops" => &mut self.ops,
            _ => return None,
        })
    }
}

impl Meta {
    /// Replaces the source text and its hash.
    pub fn set_source(&mut self, source: impl Into<String>) {
        self.source = source.into();
        self.source_hash = crate::hash(self.source.as_bytes());
    }
}

impl State {
    /// Whether it is saved and compared. No step changes a constant.
    pub fn is_variable(&self) -> bool {
        self.role != StateRole::Const
    }
}

impl Plan {
    /// The plan itself, then its buckets.
    pub fn with_buckets(&self) -> impl Iterator<Item = &Plan> {
        std::iter::once(self).chain(&self.buckets)
    }

    /// The bucket with an index; 0 is the plan itself.
    pub fn bucket(&self, index: usize) -> Option<&Plan> {
        self.with_buckets().nth(index)
    }

    /// Names of the plan and its buckets by the sizes that are not the same in all, as `seq=128`; empty ones
    /// where there is one plan.
    pub fn bucket_names(&self) -> Vec<String> {
        let sizes = |plan: &Plan| -> Vec<String> {
            let dims = plan.meta.options.iter().filter(|(name, _)| name == "dim");
            dims.map(|(_, size)| size.clone()).collect()
        };
        let all: Vec<Vec<String>> = self.with_buckets().map(sizes).collect();
        let differs = |size: &&String| all.iter().any(|own| !own.contains(size));
        all.iter().map(|own| own.iter().filter(differs).cloned().collect::<Vec<_>>().join(",")).collect()
    }

    /// Ending of a text about a bucket, such as `, bucket seq=128`; empty for a plan of one size.
    pub fn bucket_suffix(&self, index: usize) -> String {
        let names = self.bucket_names();
        let name = names.get(index).filter(|_| !self.buckets.is_empty());
        name.map_or_else(String::new, |name| format!(", bucket {name}"))
    }

    /// Index of the bucket with a name as [`Plan::bucket_names`] has it, or without one of the bucket that
    /// needs most memory unplanned.
    ///
    /// # Errors
    /// There is no such bucket.
    pub fn find_bucket(&self, name: Option<&str>) -> Result<usize, NoBucket> {
        let Some(name) = name else {
            let need = |(index, plan): &(usize, &Plan)| {
                (plan.meta.claims.unplanned_peak_bytes, std::cmp::Reverse(*index))
            };
            return Ok(self.with_buckets().enumerate().max_by_key(need).map_or(0, |(index, _)| index));
        };
        let known = if self.buckets.is_empty() { Vec::new() } else { self.bucket_names() };
        match known.iter().position(|known| known == name) {
            Some(index) => Ok(index),
            None => Err(NoBucket { name: name.to_owned(), known }),
        }
    }

    /// Format version of the plan's file and text: the oldest whose readers know all that the plan has.
    pub const fn version(&self) -> u32 {
        if !self.buckets.is_empty() {
            crate::BUCKETS_VERSION
        } else if self.tuning.is_some() {
            crate::TUNED_VERSION
        } else {
            crate::FORMAT_VERSION
        }
    }

    /// The commands of one section, in issue order.
    pub fn section(&self, section: Section) -> &[Command] {
        match section {
            Section::Prologue => &self.prologue,
            Section::Body => &self.body,
            Section::Epilogue => &self.epilogue,
        }
    }

    /// The commands of one section, to be changed.
    pub fn section_mut(&mut self, section: Section) -> &mut Vec<Command> {
        match section {
            Section::Prologue => &mut self.prologue,
            Section::Body => &mut self.body,
            Section::Epilogue => &mut self.epilogue,
        }
    }

    /// All commands with their section and their index within it.
    pub fn commands(&self) -> impl Iterator<Item = (Section, usize, &Command)> {
        Section::ALL
            .into_iter()
            .flat_map(|s| self.section(s).iter().enumerate().map(move |(index, command)| (s, index, command)))
    }

    /// Host shadow of a state: the slice of host memory to which the prologue copies it from its resident
    /// slot, if any. A step then begins with the content in both.
    pub fn host_shadow(&self, state: &State) -> Option<Slice> {
        self.prologue.iter().find_map(|command| match command.action {
            Action::Copy { src, dst } if src == state.resident && dst.space == Space::Host => Some(dst),
            _ => None,
        })
    }

    /// Counts of a section.
    pub fn counts(&self, section: Section) -> Counts {
        let mut counts = Counts::default();
        for command in self.section(section) {
            counts.commands += 1;
            match &command.action {
                Action::Launch { .. } => counts.launches += 1,
                Action::Copy { src, dst } => match (src.space, dst.space) {
                    (Space::Dev, Space::Host) => {
                        counts.copies_out += 1;
                        counts.bytes_out = counts.bytes_out.saturating_add(src.bytes);
                    }
                    (Space::Host, Space::Dev) => {
                        counts.copies_in += 1;
                        counts.bytes_in = counts.bytes_in.saturating_add(src.bytes);
                    }
                    (Space::Dev, Space::Dev) | (Space::Host, Space::Host) => {}
                },
                Action::Record { .. } => counts.records += 1,
                Action::Wait { .. } => counts.waits += 1,
                _ => {}
            }
        }
        counts
    }
}
