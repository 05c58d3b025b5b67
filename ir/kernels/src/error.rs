//! Errors of running an op.

use std::fmt;

/// Reason why an op did not run. Its results hold unspecified (but initialised) bytes afterwards.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KernelError {
    /// The call does not satisfy the op's contract: operand count, byte lengths, alignment or types.
    Call {
        /// Name of the op in the text form.
        op: &'static str,
        /// Description of the fault.
        reason: String,
    },
    /// An index operand holds a value that is out of range.
    Index {
        /// Name of the op in the text form.
        op: &'static str,
        /// Name of the operand.
        operand: &'static str,
        /// Flat position of the value in the operand.
        position: usize,
        /// The value.
        value: i64,
        /// Smallest legal value.
        low: i64,
        /// One past the largest legal value.
        high: i64,
    },
}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KernelError::Call { op, reason } => write!(f, "{op}: {reason}"),
            KernelError::Index { op, operand, position, value, low, high } => write!(
                f,
                "{op}: {operand} holds {value} at flat position {position}, which is not in {low}..{high}; \
                 check the data that feeds this operand"
            ),
        }
    }
}

impl std::error::Error for KernelError {}
