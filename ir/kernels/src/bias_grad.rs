//! A matrix product and the sum of one operand, one after the other: the bits of the two ops.

use memc_ir::ops::BiasGrad;

use crate::error::KernelError;
use crate::view::Ctx;
use crate::widen;

pub(crate) fn bias_grad(c: &Ctx, results: &mut [&mut [u8]], workspace: &mut [u8]) -> Result<(), KernelError> {
    let BiasGrad { product, sum, of } = BiasGrad::of(c.op).ok_or_else(|| c.fail("is another op"))?;
    let [y, s] = c.outs(results)?;
    let product = Ctx { op: &product, results: &c.results[..1], ..*c };
    widen::any(&product, &mut [y], workspace)?;
    let own = of..of + 1;
    let (types, operands) = (&c.types[own.clone()], &c.operands[own]);
    let sum = Ctx { op: &sum, types, operands, results: &c.results[1..], ..*c };
    widen::any(&sum, &mut [s], workspace)
}
