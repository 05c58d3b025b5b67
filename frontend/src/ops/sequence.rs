//! Sequences of tensors whose length and positions are known: they are cut, joined and picked at import.
//!
//! Sequences that are fed or returned are not supported.

use memc_ir::{DType, OpKind, ValueId};

use super::movement::slice_along;
use crate::context::{Bound, Done, NodeCx};
use crate::error::Fault;
use crate::tensor::Literal;

/// Most parts of one sequence.
const MAX_PARTS: u64 = 1 << 16;

/// `SplitToSequence`: parts of given lengths, or of one length (the last may be shorter), or single elements.
pub(crate) fn split(n: &mut NodeCx<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let ty = n.ty(x).clone();
    let axis = n.axis(n.int("axis", 0)?, ty.rank())?;
    let extent = ty.shape[axis];
    let scalar = n.literal(1).is_some_and(|l| l.ty.rank() == 0);
    let lengths: Vec<u64> = match n.const_ints(1, "split")? {
        Some(list) if !scalar => {
            let sizes: Option<Vec<u64>> = list.iter().map(|&l| u64::try_from(l).ok()).collect();
            sizes.ok_or_else(|| format!("lengths {list:?} must not be negative"))?
        }
        other => {
            let size = other.map_or(Some(1), |l| l.first().and_then(|&l| u64::try_from(l).ok()));
            let size = size.filter(|&s| s > 0).ok_or("the length of the parts must be positive")?;
            if extent.div_ceil(size) > MAX_PARTS {
                return Err(format!("a sequence of more than {MAX_PARTS} parts is too long").into());
            }
            (0..extent.div_ceil(size)).map(|i| size.min(extent - i * size)).collect()
        }
    };
    let total = lengths.iter().try_fold(0u64, |t, &l| t.checked_add(l));
    if total != Some(extent) {
        return Err(format!("lengths {lengths:?} do not cut axis {axis} of {ty}").into());
    }
    // Without lengths the parts may lose their axis, which then has one element.
    let drop = n.input(1).is_none() && !n.flag("keepdims", true)?;
    let mut parts = Vec::new();
    let mut at = 0;
    for length in lengths {
        let mut part = slice_along(n, x, axis, at, at + length)?;
        at += length;
        if drop {
            let mut shape = ty.shape.clone();
            shape.remove(axis);
            part = n.reshaped(part, &shape)?;
        }
        parts.push(part);
    }
    yields(n, parts);
    Ok(())
}

/// The tensors of sequence input 0.
fn parts(n: &NodeCx<'_, '_>) -> Result<Vec<ValueId>, Fault> {
    let name = n.input(0).ok_or("input 0 is missing")?;
    match &n.cx.bound(name)?.sequence {
        Some(parts) => Ok(parts.to_vec()),
        None => Err(format!("`{name}` is no sequence").into()),
    }
}

fn yields(n: &mut NodeCx<'_, '_>, parts: Vec<ValueId>) {
    n.bind(0, Bound { sequence: Some(parts.into()), ..Bound::default() });
}

/// The constant position that input `i` names among `count`, counted from the end when negative.
fn position(n: &NodeCx<'_, '_>, i: usize, count: usize) -> Result<Option<usize>, Fault> {
    let Some(list) = n.const_ints(i, "position")? else { return Ok(None) };
    let &[at] = list.as_slice() else { return Err("its position must be one integer".into()) };
    n.axis(at, count).map(Some)
}

/// `SequenceEmpty` and `SequenceConstruct`: the inputs as a sequence.
pub(crate) fn construct(n: &mut NodeCx<'_, '_>) -> Done {
    let parts = n.operands()?;
    yields(n, parts);
    Ok(())
}

/// `SequenceInsert`, at the end without a position.
pub(crate) fn insert(n: &mut NodeCx<'_, '_>) -> Done {
    let mut parts = parts(n)?;
    let value = n.operand(1)?;
    let at = match n.input(2) {
        // A position behind the last part is one too.
        Some(_) => position(n, 2, parts.len() + 1)?.unwrap_or(parts.len()),
        None => parts.len(),
    };
    if parts.len() as u64 >= MAX_PARTS {
        return Err(format!("a sequence of more than {MAX_PARTS} parts is too long").into());
    }
    parts.insert(at.min(parts.len()), value);
    yields(n, parts);
    Ok(())
}

/// `SequenceErase`, of the last part without a position.
pub(crate) fn erase(n: &mut NodeCx<'_, '_>) -> Done {
    let mut parts = parts(n)?;
    let last = parts.len().checked_sub(1).ok_or("the sequence is empty")?;
    let at = position(n, 1, parts.len())?.unwrap_or(last);
    parts.remove(at.min(last));
    yields(n, parts);
    Ok(())
}

/// `SequenceLength`.
pub(crate) fn length(n: &mut NodeCx<'_, '_>) -> Done {
    let count = parts(n)?.len() as i64;
    n.fold(0, Literal::from_ints(DType::I64, &[], &[count])?)
}

/// `ConcatFromSequence`, along an axis or along a new one.
pub(crate) fn concat(n: &mut NodeCx<'_, '_>) -> Done {
    let mut parts = parts(n)?;
    let first = *parts.first().ok_or("the sequence is empty")?;
    let stack = n.flag("new_axis", false)?;
    let rank = n.ty(first).rank() + usize::from(stack);
    let axis = n.axis(n.int("axis", 0)?, rank)?;
    if stack {
        for part in &mut parts {
            let mut shape = n.ty(*part).shape.clone();
            shape.insert(axis.min(shape.len()), 1);
            *part = n.reshaped(*part, &shape)?;
        }
    }
    n.finish(OpKind::Concat { axis: axis as i64 }, &parts)
}

/// `SequenceAt` at a constant position, counted from the end when negative.
pub(crate) fn at(n: &mut NodeCx<'_, '_>) -> Done {
    let parts = parts(n)?;
    let at = position(n, 1, parts.len())?.ok_or("its position is missing")?;
    let part = parts.get(at).copied().ok_or("its position is outside the sequence")?;
    n.bind(0, part);
    Ok(())
}
