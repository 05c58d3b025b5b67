//! Collection of errors, each once and at most [`MAX_ERRORS`].

use std::collections::BTreeSet;

use memc_plan::{Plan, Queue, Section};

use crate::error::{CheckError, MAX_ERRORS, Place, Site};

/// Longest command text in a message, in characters.
const MAX_COMMAND: usize = 200;
/// Longest label in a message, in characters.
const MAX_LABEL: usize = 80;

/// One execution of one command.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Execution {
    /// The list.
    pub(crate) section: Section,
    /// See [`Site::step`].
    pub(crate) step: u32,
    /// Index in the list.
    pub(crate) index: usize,
}

impl Execution {
    /// The command, whichever time it runs.
    pub(crate) fn command(self) -> (Section, usize) {
        (self.section, self.index)
    }
}

/// Identity of an error: its code, its command, and a detail that tells errors of one code at one command
/// apart.
type Key = (&'static str, (Section, usize), String);

/// Collects errors.
#[derive(Debug)]
pub(crate) struct Sink<'a> {
    plan: &'a Plan,
    errors: Vec<CheckError>,
    seen: BTreeSet<Key>,
}

impl<'a> Sink<'a> {
    pub(crate) fn new(plan: &'a Plan) -> Sink<'a> {
        Sink { plan, errors: Vec::new(), seen: BTreeSet::new() }
    }

    /// Whether nothing is wrong so far.
    pub(crate) fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }

    /// Whether further errors are dropped.
    pub(crate) fn is_full(&self) -> bool {
        self.errors.len() >= MAX_ERRORS
    }

    /// The errors.
    pub(crate) fn into_errors(self) -> Vec<CheckError> {
        self.errors
    }

    /// Adds an error that is not about a command.
    pub(crate) fn push(&mut self, error: CheckError) {
        if !self.is_full() {
            self.errors.push(error);
        }
    }

    /// Adds an error about a command unless the same is known from another execution; `detail` tells errors
    /// of one code at one command apart.
    pub(crate) fn at(&mut self, at: Execution, detail: &str, make: impl FnOnce(Site) -> CheckError) {
        if self.is_full() {
            return;
        }
        let error = make(self.site(at));
        if self.seen.insert((error.code(), at.command(), detail.to_owned())) {
            self.errors.push(error);
        }
    }

    /// The same for an error whose subject is a place.
    pub(crate) fn at_place(&mut self, at: Execution, detail: &str, make: impl FnOnce(Place) -> CheckError) {
        self.at(at, detail, |site| make(Place::Command(site)));
    }

    /// The command with its text.
    pub(crate) fn site(&self, at: Execution) -> Site {
        let Execution { section, step, index } = at;
        let command = self.plan.section(section).get(index);
        Site {
            section,
            step,
            index,
            queue: command.map_or(Queue::Host, |c| c.queue),
            command: command.map_or_else(String::new, |c| shorten(&c.to_string(), MAX_COMMAND)),
            label: command.map_or_else(String::new, |c| shorten(&c.label, MAX_LABEL)),
        }
    }
}

fn shorten(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}
