//! Errors of passes: the kind says who has to act, and decides the exit code of a command.

use std::fmt;

use memc_ir::{Bytes, Diags, TypeError};

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

/// Reason why a budget is too small, and a sufficient one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Infeasible {
    /// The budget in bytes, the driver's reserve included.
    pub budget_bytes: u64,
    /// Bytes of either budget outside the arena: driver, libraries and code.
    pub reserve_bytes: u64,
    /// The smallest such budget for which a plan was found.
    pub smallest_bytes: u64,
    /// The op with the largest working set.
    pub op: String,
    /// Whether that op is an optimizer's, so that its size is not the batch's.
    pub updates: bool,
    /// Bytes that op needs at once.
    pub working_set_bytes: u64,
    /// Largest tensors of that op: name, type (empty where there is none), bytes.
    pub tensors: Vec<(String, String, u64)>,
}

impl fmt::Display for Infeasible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "no plan fits {}", Bytes(self.budget_bytes))?;
        writeln!(f, "  smallest feasible: {}", Bytes(self.smallest_bytes))?;
        if self.reserve_bytes > 0 {
            let reserve = Bytes(self.reserve_bytes);
            writeln!(f, "  both include the device's reserve for driver, libraries and code: {reserve}")?;
        }
        writeln!(f, "  working set peaks at {}: {}", quoted(&self.op), Bytes(self.working_set_bytes))?;
        for (name, ty, bytes) in &self.tensors {
            let ty = if ty.is_empty() { String::new() } else { format!(" : {ty}") };
            writeln!(f, "    {:>12}  {}{ty}", Bytes(*bytes).short(), quoted(name))?;
        }
        let batch = if self.reserve_bytes > 0 && self.budget_bytes <= self.reserve_bytes {
            "; a smaller batch does not help, since the reserve alone takes as much"
        } else if self.updates {
            "; a smaller batch does not help, since that op updates a parameter"
        } else {
            ", or a smaller batch"
        };
        write!(f, "hint: pass --gpu-mem {}B or more{batch}", self.smallest_bytes)
    }
}

/// A name inside a sentence: quoted where it has blanks or characters that cannot be seen.
fn quoted(name: &str) -> String {
    let plain = name.chars().all(|c| !c.is_whitespace() && !c.is_control());
    if plain { name.to_string() } else { format!("{name:?}") }
}

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
