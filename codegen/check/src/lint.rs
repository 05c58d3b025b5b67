//! Useless parts of a correct plan.

use std::collections::{BTreeMap, BTreeSet};

use memc_plan::{Action, Plan, Section};

use crate::error::Lint;
use crate::sink::{Execution, Sink};

/// Observations of the replay that lints need.
#[derive(Debug, Default)]
pub(crate) struct Lints {
    read: BTreeSet<(Section, usize)>,
    recorded: BTreeMap<u32, Execution>,
    waited: BTreeSet<u32>,
    /// Per wait, an execution of it, and whether any execution ordered something.
    waits: BTreeMap<(Section, usize), (Execution, bool)>,
}

impl Lints {
    /// Something reads what `writer` wrote.
    pub(crate) fn note_read(&mut self, writer: Execution) {
        self.read.insert(writer.command());
    }

    /// A record ran.
    pub(crate) fn note_record(&mut self, event: u32, at: Execution) {
        self.recorded.entry(event).or_insert(at);
    }

    /// A wait ran; `new` if it ordered something that was not ordered before.
    pub(crate) fn note_wait(&mut self, event: u32, at: Execution, new: bool) {
        self.waited.insert(event);
        self.waits.entry(at.command()).or_insert((at, false)).1 |= new;
    }

    /// The lints, in plan order.
    pub(crate) fn finish(&self, plan: &Plan, sink: &Sink<'_>) -> Vec<Lint> {
        let mut lints = Vec::new();
        for (section, index, command) in plan.commands() {
            let at = Execution { section, step: 0, index };
            match &command.action {
                Action::Copy { .. } if !self.read.contains(&at.command()) => {
                    lints.push(Lint::UnreadCopy { at: sink.site(at) });
                }
                Action::Wait { .. } => {
                    if let Some(&(at, false)) = self.waits.get(&at.command()) {
                        lints.push(Lint::RedundantWait { at: sink.site(at) });
                    }
                }
                _ => {}
            }
        }
        for (&event, &at) in self.recorded.iter().filter(|(event, _)| !self.waited.contains(event)) {
            lints.push(Lint::UnwaitedEvent { at: sink.site(at), event });
        }
        lints
    }
}
