//! Errors of lowering an op.

use std::fmt;

use memc_ir::TypeError;

/// Error of lowering an op.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CudaError {
    /// The operand types do not satisfy the op's type rule.
    Types {
        /// Name of the op in the text form.
        op: &'static str,
        /// The violation, in the words of the rule.
        reason: TypeError,
    },
    /// The op has no kernel.
    Missing {
        /// Name of the op in the text form.
        op: &'static str,
    },
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CudaError::Types { op, reason } => write!(f, "{op}: {reason}"),
            CudaError::Missing { op } => {
                write!(f, "{op} has no CUDA kernel; run the plan on the CPU device, or train without this op")
            }
        }
    }
}

impl std::error::Error for CudaError {}
