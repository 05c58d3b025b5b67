//! Sequences of tensors whose length and positions are known: they are cut and picked at import.
//!
//! Sequences that are fed, grow or are returned are not supported.

use super::movement::slice_along;
use crate::context::{Bound, Done, NodeCx};

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
    n.bind(0, Bound { sequence: Some(parts.into()), ..Bound::default() });
    Ok(())
}

/// `SequenceAt` at a constant position, counted from the end when negative.
pub(crate) fn at(n: &mut NodeCx<'_, '_>) -> Done {
    let name = n.input(0).ok_or("input 0 is missing")?;
    let Some(parts) = n.cx.bound(name)?.sequence.clone() else {
        return Err(format!("`{name}` is no sequence").into());
    };
    let position = n.const_ints(1, "position")?.and_then(|p| p.first().copied());
    let position = n.axis(position.ok_or("its position must be one integer")?, parts.len())?;
    n.bind(0, parts[position]);
    Ok(())
}
