//! A normalisation with element-wise steps before and behind it: one part after another, so that the bits are
//! those of the single ops. A value that is no result lies in a result that is written later.

use memc_ir::ops::fused::Body;
use memc_ir::ops::fused_norm::{From, Part, Parts};

use crate::error::KernelError;
use crate::view::{Ctx, Operand};
use crate::widen;

type Done = Result<(), KernelError>;

pub(crate) fn fused_norm(
    c: &Ctx,
    results: &mut [&mut [u8]],
    workspace: &mut [u8],
    body: &Body,
    outs: &[u64],
) -> Done {
    let types: Vec<_> = c.types.iter().collect();
    let parts = Parts::of(&types, body, outs).map_err(|why| c.fail(why))?;
    parts.iter().try_for_each(|part| run(c, part, results, workspace))
}

fn run(c: &Ctx, part: &Part, results: &mut [&mut [u8]], workspace: &mut [u8]) -> Done {
    // The results that the part writes; it may read the others.
    let mut written: Vec<(usize, &mut [u8])> = Vec::with_capacity(part.to.len());
    let mut read: Vec<Option<&[u8]>> = Vec::with_capacity(results.len());
    for (j, result) in results.iter_mut().enumerate() {
        match part.to.iter().position(|&to| to == j) {
            Some(k) => {
                written.push((k, &mut **result));
                read.push(None);
            }
            None => read.push(Some(&**result)),
        }
    }
    written.sort_by_key(|(k, _)| *k);
    let place = |j: usize| match read.get(j).copied().flatten() {
        Some(bytes) => Some(Operand::Bytes(bytes)),
        None => part.to.iter().position(|&to| to == j).map(Operand::Result),
    };
    let operand = |from: &From| match *from {
        From::Result(j) => place(j),
        From::Operand(i) => match c.operands[i] {
            Operand::Result(j) => place(j),
            bytes => Some(bytes),
        },
    };
    let operands: Option<Vec<Operand>> = part.from.iter().map(operand).collect();
    let operands = operands.ok_or_else(|| c.fail("an operand is in no result"))?;
    let mut out: Vec<&mut [u8]> = written.into_iter().map(|(_, bytes)| bytes).collect();
    let inner = Ctx {
        op: &part.op,
        types: &part.operands,
        results: &part.results,
        operands: &operands,
        first: c.first,
        flat: None,
    };
    widen::any(&inner, &mut out, workspace)
}
