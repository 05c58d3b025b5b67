//! A matrix product and the sum of one operand: the kernels of the two ops, one after the other, with their
//! bits.

use memc_ir::ops::BiasGrad;
use memc_ir::{OpKind, TensorType};

use crate::kernel::{Arg, Lowering};
use crate::library::{LibraryCall, library};
use crate::{Call, product, reduce};

/// Both; `None` for every other op.
pub(crate) fn lower(call: &Call) -> Option<Lowering> {
    let parts = BiasGrad::of(call.op)?;
    let mut all = product::lower(&Call { op: &parts.product, results: call.results.get(..1)?, ..*call })?;
    let sum = sum(&parts, call.operands, call.results)?;
    all.workspace = all.workspace.max(sum.workspace);
    all.launches.extend(sum.launches);
    Some(all)
}

/// The sum alone, as launches of the whole op.
fn sum(parts: &BiasGrad, operands: &[TensorType], results: &[TensorType]) -> Option<Lowering> {
    let (operands, results) = (operands.get(parts.of..=parts.of)?, results.get(1..)?);
    let mut sum = reduce::lower(&Call { op: &parts.sum, operands, results })?;
    for arg in sum.launches.iter_mut().flat_map(|launch| &mut launch.args) {
        *arg = match *arg {
            Arg::Operand(_) => Arg::Operand(parts.of),
            Arg::Result(_) => Arg::Result(1),
            other => other,
        };
    }
    Some(sum)
}

/// A product and the sum of an operand as two parts, for a library that does not compute both at once.
///
/// The call computes the product alone, from the first operands to the first result. The launches compute the
/// sum; they follow the call and may use its workspace. `None` for every other op.
pub(crate) fn split_call(op: &OpKind, operands: &[TensorType]) -> Option<(LibraryCall, Lowering)> {
    let parts = BiasGrad::of(op)?;
    let results = op.infer(&operands.iter().collect::<Vec<_>>()).ok()?;
    Some((library(&parts.product, operands)?, sum(&parts, operands, &results)?))
}
