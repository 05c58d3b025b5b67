//! Errors of lowering.

use std::{error, fmt};

use memc_plan::PlanError;

/// Reason for which a module cannot be lowered. The pipeline before rules all of them out.
#[derive(Debug)]
pub enum LowerError {
    /// The modules are not a mem-phase module and its graph-phase source.
    Phase,
    /// A slot has no offset.
    NoOffset {
        /// Number of the slot.
        slot: u32,
    },
    /// A value has no slot.
    NoSlot {
        /// Name of the value.
        value: String,
    },
    /// The initial bytes of a state are known by their hash only.
    NoData {
        /// Name of the state.
        state: String,
    },
    /// An op without a stream is waited for.
    NoStream,
    /// An op is neither computed nor a copy.
    NotACopy {
        /// Name of its first result.
        value: String,
    },
    /// A kernel is asked for an op that computes nothing.
    NoKernel,
    /// The plan breaks a rule of its format.
    Plan(PlanError),
}

impl fmt::Display for LowerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LowerError::Phase => f.write_str("lowering needs a mem-phase module and its graph-phase source"),
            LowerError::NoOffset { slot } => write!(f, "slot {slot} has no offset"),
            LowerError::NoSlot { value } => write!(f, "%{value} has no slot"),
            LowerError::NoData { state } => {
                write!(f, "the initial value of %{state} is known by its hash only")
            }
            LowerError::NoStream => f.write_str("an op without a stream is waited for"),
            LowerError::NotACopy { value } => write!(f, "%{value} is not a copy"),
            LowerError::NoKernel => f.write_str("only compute ops have kernels"),
            LowerError::Plan(error) => error.fmt(f),
        }
    }
}

impl error::Error for LowerError {}

impl From<PlanError> for LowerError {
    fn from(error: PlanError) -> LowerError {
        LowerError::Plan(error)
    }
}
