//! Diagnostics: description, place and rule of a violation.

use std::fmt;

use crate::entity::{OpId, SlotId, StateId, ValueId};

/// The thing a diagnostic is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Anchor {
    /// The module as a whole.
    Module,
    /// The line that declares a value that no op defines.
    Value(ValueId),
    /// A slot's line.
    Slot(SlotId),
    /// An op's line.
    Op(OpId),
    /// The `yield` line of the given output.
    Output(usize),
    /// A state's `carry` line.
    Carry(StateId),
    /// A line of a text, from 1.
    Line(usize),
}

/// One violation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diag {
    /// Rule, as `M3`.
    pub code: &'static str,
    /// Description of the violation.
    pub message: String,
    /// Place of the violation.
    pub at: Anchor,
}

impl Diag {
    /// A diagnostic from its parts.
    pub fn new(code: &'static str, at: Anchor, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), at }
    }
}

impl fmt::Display for Diag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Anchor::Line(n) = self.at {
            write!(f, "line {n}: ")?;
        }
        write!(f, "{}: {}", self.code, self.message)
    }
}

/// All violations found, never empty when used as an error.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Diags(pub Vec<Diag>);

impl fmt::Display for Diags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, d) in self.0.iter().enumerate() {
            write!(f, "{}{d}", if i == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for Diags {}

impl From<Diag> for Diags {
    fn from(d: Diag) -> Self {
        Diags(vec![d])
    }
}
