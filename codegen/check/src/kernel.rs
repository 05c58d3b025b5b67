//! Kernels of the plan as operators: signature, sizes, legal overlaps.

use std::fmt;

use memc_ir::TensorType;
use memc_ir::ops::Class;

use crate::symbolic::{SigId, SymbolicValues, Untyped};

/// An entry of the kernel table that an operator's row accepts.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    /// Operator and operand types.
    pub(crate) sig: SigId,
    /// Bytes of each operand.
    pub(crate) reads: Vec<u64>,
    /// Bytes of each result.
    pub(crate) writes: Vec<u64>,
    /// Pairs (operand, result) that may share bytes.
    pub(crate) inplace: Vec<(usize, usize)>,
    /// Scratch bytes that a launch must supply.
    pub(crate) workspace: u64,
    /// Whether the result is the operand, byte for byte.
    pub(crate) identity: bool,
}

/// Reason for which no launch may run a kernel.
#[derive(Clone, Debug)]
pub(crate) enum BadKernel {
    /// The operator is a view.
    View { op: &'static str },
    /// The operator's row rejects the operand types.
    Untyped(Untyped),
    /// The row implies other result types.
    Results(Vec<TensorType>),
    /// The kernel states less workspace than the operator needs.
    Workspace { op: &'static str, stated: u64, needed: u64 },
}

impl fmt::Display for BadKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadKernel::View { op } => write!(f, "{op} only renames bytes and is never launched"),
            BadKernel::Untyped(why) => why.fmt(f),
            BadKernel::Results(inferred) => {
                let list: Vec<String> = inferred.iter().map(ToString::to_string).collect();
                write!(f, "the result types are ({})", list.join(", "))
            }
            BadKernel::Workspace { op, stated, needed } => {
                write!(f, "a workspace of {stated} bytes is stated, {op} needs {needed}")
            }
        }
    }
}

/// Resolves a kernel.
///
/// # Errors
/// The first rule that the kernel breaks.
pub(crate) fn resolve(kernel: &memc_plan::Kernel, values: &mut SymbolicValues) -> Result<Kernel, BadKernel> {
    let op = kernel.op.mnemonic();
    if kernel.op.def().class == Class::View {
        return Err(BadKernel::View { op });
    }
    let operands: Vec<&TensorType> = kernel.operands.iter().collect();
    let results: Vec<&TensorType> = kernel.results.iter().collect();
    let sig = values.signature(&kernel.op, &operands).map_err(BadKernel::Untyped)?;
    let inferred = values.sig(sig).map(|sig| sig.results.as_slice()).unwrap_or_default();
    if inferred != kernel.results {
        return Err(BadKernel::Results(inferred.to_vec()));
    }
    let (stated, needed) = (kernel.workspace_bytes, kernel.op.cost(&operands, &results).workspace);
    if stated < needed {
        return Err(BadKernel::Workspace { op, stated, needed });
    }
    Ok(Kernel {
        sig,
        reads: operands.iter().map(|ty| ty.bytes()).collect(),
        writes: results.iter().map(|ty| ty.bytes()).collect(),
        inplace: kernel.op.inplace_pairs(&operands, &results),
        workspace: stated,
        identity: crate::symbolic::is_identity(&kernel.op),
    })
}
