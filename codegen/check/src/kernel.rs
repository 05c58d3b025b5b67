//! Kernels of the plan, parsed back into operators.

use memc_ir::ops::Class;
use memc_ir::{TensorType, parse_op, parse_type};

use crate::term::{SigId, Terms};

/// An entry of the kernel table that is an operator of the op table.
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

/// Parses a kernel, or says why it is none.
pub(crate) fn resolve(kernel: &memc_plan::Kernel, terms: &mut Terms) -> Result<Kernel, String> {
    let kind = parse_op(&kernel.op, &kernel.attrs)?;
    if kind.def().class == Class::View {
        return Err(format!("{} only renames bytes and is never launched", kernel.op));
    }
    let operands = types(&kernel.operands)?;
    let results = types(&kernel.results)?;
    let (operands, results): (Vec<&TensorType>, Vec<&TensorType>) =
        (operands.iter().collect(), results.iter().collect());
    let sig = terms.signature(&kind, &operands)?;
    let inferred = terms.sig(sig).map(|sig| sig.results.as_slice()).unwrap_or_default();
    if inferred.iter().collect::<Vec<_>>() != results {
        let list: Vec<String> = inferred.iter().map(ToString::to_string).collect();
        return Err(format!("the result types are ({})", list.join(", ")));
    }
    let needed = kind.cost(&operands, &results).workspace;
    if kernel.workspace_bytes < needed {
        return Err(format!(
            "a workspace of {} bytes is stated, {} needs {needed}",
            kernel.workspace_bytes, kernel.op
        ));
    }
    Ok(Kernel {
        sig,
        reads: operands.iter().map(|ty| ty.bytes()).collect(),
        writes: results.iter().map(|ty| ty.bytes()).collect(),
        inplace: kind.inplace_pairs(&operands, &results),
        workspace: kernel.workspace_bytes,
        identity: crate::term::is_identity(&kind),
    })
}

fn types(texts: &[String]) -> Result<Vec<TensorType>, String> {
    texts.iter().map(|text| parse_type(text).map_err(|why| format!("type `{text}`: {why}"))).collect()
}
