//! Errors of passes: the kind says who has to act, and decides the exit code of a command.

use std::fmt;

use memc_ir::{Diags, TypeError};

use crate::plan::Infeasible;

/// Reason why a pipeline stopped.
#[derive(Debug)]
pub enum PassError {
    /// The pipeline text is wrong, or an option is.
    Usage(String),
    /// The module cannot be brought within the budget.
    Infeasible(Box<Infeasible>),
    /// The module breaks verifier rules before any pass.
    Invalid(Diags),
    /// The module asks for more than passes can do.
    Unsupported(String),
    /// The pass contradicts itself: a bug.
    Failed(String),
    /// A pass of a pipeline failed or left an invalid module: a bug.
    Bug {
        /// The pass, and why it failed.
        text: String,
        /// Content of a file that `memc opt` runs to show the failure again.
        reproducer: String,
    },
}

impl fmt::Display for PassError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PassError::Usage(text)
            | PassError::Unsupported(text)
            | PassError::Failed(text)
            | PassError::Bug { text, .. } => f.write_str(text),
            PassError::Infeasible(i) => write!(f, "{i}"),
            PassError::Invalid(diags) => write!(f, "invalid module after input:\n{diags}"),
        }
    }
}

impl std::error::Error for PassError {}

/// A state that no verified module leads to: a bug of the pass, or decisions that do not fit the step.
#[derive(Debug)]
pub struct Contradiction(String);

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Contradiction {}

impl From<String> for Contradiction {
    fn from(sentence: String) -> Self {
        Contradiction(sentence)
    }
}

impl From<&str> for Contradiction {
    fn from(sentence: &str) -> Self {
        Contradiction(sentence.into())
    }
}

impl From<TypeError> for Contradiction {
    fn from(error: TypeError) -> Self {
        Contradiction(error.to_string())
    }
}

impl From<Contradiction> for PassError {
    fn from(bug: Contradiction) -> Self {
        PassError::Failed(bug.0)
    }
}
