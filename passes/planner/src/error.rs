//! The error of decisions: where they are wrong, and why.

use std::fmt;

use crate::planner::NoPlan;

/// Place of an error in decisions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    /// Index of an action.
    Action(usize),
    /// Line of the text form, from 1.
    Line(usize),
}

/// Decisions that cannot be read, carried out or laid out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DecisionsError {
    /// The place; `None`: how a step begins or ends, or the decisions as a whole.
    pub at: Option<At>,
    /// The reason, for the user.
    pub why: String,
}

impl DecisionsError {
    /// The error, with its place where it has none yet.
    pub(crate) fn at(self, at: At) -> DecisionsError {
        DecisionsError { at: self.at.or(Some(at)), ..self }
    }
}

impl fmt::Display for DecisionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            Some(At::Action(i)) => write!(f, "action {} of the decisions: {}", i + 1, self.why),
            Some(At::Line(line)) => write!(f, "line {line}: {}", self.why),
            None => f.write_str(&self.why),
        }
    }
}

impl std::error::Error for DecisionsError {}

impl From<String> for DecisionsError {
    fn from(why: String) -> DecisionsError {
        DecisionsError { at: None, why }
    }
}

impl From<&str> for DecisionsError {
    fn from(why: &str) -> DecisionsError {
        why.to_owned().into()
    }
}

/// Decisions of a planner's own that are wrong are a bug in the planner.
impl From<DecisionsError> for NoPlan {
    fn from(error: DecisionsError) -> NoPlan {
        NoPlan::Failed(error.to_string())
    }
}
