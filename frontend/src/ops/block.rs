//! Operators that rearrange, repeat or mask whole blocks: tiles, triangles, one-hot rows, running sums.

use memc_ir::{DType, OpKind, TensorType, ValueId};

use crate::context::{Done, Made, NodeCx};
use crate::error::{Fault, unsupported};
use crate::tensor;

/// `Tile`: each repeated axis is split from a new one, which is broadcast.
pub(crate) fn tile(n: &mut NodeCx<'_, '_>) -> Done {
    let ty = n.operand_type(0)?;
    let repeats = n.const_ints(1, "repeats")?.ok_or("input 1 is missing")?;
    let repeats: Option<Vec<u64>> = repeats.iter().map(|&r| u64::try_from(r).ok()).collect();
    let Some(repeats) = repeats.filter(|r| r.len() == ty.rank()) else {
        return Err(format!("its repeats do not fit {ty}").into());
    };
    let (mut split, mut wide, mut shape) = (Vec::new(), Vec::new(), Vec::new());
    for (&d, &r) in ty.shape.iter().zip(&repeats) {
        if r != 1 {
            split.push(1);
            wide.push(r);
        }
        split.push(d);
        wide.push(d);
        shape.push(d.checked_mul(r).ok_or_else(|| format!("{ty} repeated {repeats:?} times is too large"))?);
    }
    if shape == ty.shape {
        return super::shape::identity(n);
    }
    if TensorType::new(ty.dtype, wide.clone()).checked_numel().is_none() {
        return unsupported(format!("{ty} repeated {repeats:?} times is too large"));
    }
    let x = n.operand(0)?;
    let x = n.reshaped(x, &split)?;
    let y = n.temp(OpKind::Broadcast { shape: wide }, &[x])?;
    let y = n.reshaped(y, &shape)?;
    n.yields(0, y);
    Ok(())
}

/// Comparison `kind` of the column with the row plus `k`, for every element of a matrix of extents `shape`.
fn by_diagonal(n: &mut NodeCx<'_, '_>, shape: [u64; 2], k: i64, kind: OpKind) -> Made {
    let (rows, columns) = (n.iota(shape[0], 0, 2)?, n.iota(shape[1], 1, 2)?);
    let k = n.integer("k", k)?;
    let edge = n.add(rows, k)?;
    n.temp(kind, &[columns, edge])
}

/// `Trilu`: the upper or lower triangle of matrices, zero elsewhere.
pub(crate) fn trilu(n: &mut NodeCx<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let k = match n.const_ints(1, "k")?.as_deref() {
        None => 0,
        Some(&[k]) => k,
        Some(_) => return Err("its k must be one integer".into()),
    };
    let ty = n.ty(x).clone();
    let &[.., rows, columns] = ty.shape.as_slice() else {
        return Err(format!("{ty} is no matrix").into());
    };
    // Beyond the matrix, all values of k mean the same.
    let k = k.clamp(-(rows as i64), columns as i64);
    let kind = if n.flag("upper", true)? { OpKind::GreaterEqual {} } else { OpKind::LessEqual {} };
    let kept = by_diagonal(n, [rows, columns], k, kind)?;
    let zero = n.number(x, "zero", 0.0)?;
    n.finish(OpKind::Select {}, &[kept, x, zero])
}

/// `EyeLike`: ones on one diagonal of a matrix of the operand's shape.
pub(crate) fn eye_like(n: &mut NodeCx<'_, '_>) -> Done {
    let ty = n.operand_type(0)?;
    let &[rows, columns] = ty.shape.as_slice() else {
        return Err(format!("{ty} is no matrix").into());
    };
    let to = match n.int("dtype", 0)? {
        0 => ty.dtype,
        code => tensor::dtype(i32::try_from(code).unwrap_or(0))?,
    };
    let k = n.int("k", 0)?.clamp(-(rows as i64), columns as i64);
    let y = by_diagonal(n, [rows, columns], k, OpKind::Equal {})?;
    let y = n.cast_to(y, to)?;
    n.yields(0, y);
    Ok(())
}

/// `OneHot(indices, depth, values)`: `values[1]` where the index is, else `values[0]`. Negative indices count
/// from the end, others outside select nothing.
pub(crate) fn one_hot(n: &mut NodeCx<'_, '_>) -> Done {
    let (indices, values) = (n.operand(0)?, n.operand(2)?);
    let depth = n.constant(1, "depth")?.ok_or("input 1 is missing")?;
    let depth = match (depth.floats(), depth.ints()) {
        (Some(v), _) => v.iter().map(|&v| v as i64).collect(),
        (None, Some(v)) => v,
        (None, None) => Vec::new(),
    };
    let &[depth] = depth.as_slice() else { return Err("its depth must be one number".into()) };
    let Ok(extent) = u64::try_from(depth) else { return Err(format!("depth {depth} is negative").into()) };
    let mut shape = n.ty(indices).shape.clone();
    let axis = n.axis(n.int("axis", -1)?, shape.len() + 1)?;
    shape.insert(axis, 1);
    let at = n.cast_to(indices, DType::I64)?;
    let at = n.reshaped(at, &shape)?;
    let zero = n.number(at, "zero", 0.0)?;
    let wrap = n.integer("depth", depth)?;
    let (negative, wrapped) = (n.temp(OpKind::Less {}, &[at, zero])?, n.add(at, wrap)?);
    let at = n.pick(negative, wrapped, at)?;
    let places = n.iota(extent, axis, shape.len())?;
    let hit = n.temp(OpKind::Equal {}, &[at, places])?;
    if n.ty(values).shape != [2] {
        return Err(format!("its values must be two numbers, not {}", n.ty(values)).into());
    }
    let (off, on) = (n.cut(values, 0, 0, 1, 1)?, n.cut(values, 0, 1, 2, 1)?);
    let (off, on) = (n.reshaped(off, &[])?, n.reshaped(on, &[])?);
    n.finish(OpKind::Select {}, &[hit, on, off])
}

/// The extents of an image batch and the block size, which `SpaceToDepth` and `DepthToSpace` rearrange.
fn blocks(n: &mut NodeCx<'_, '_>) -> Result<(ValueId, [u64; 4], u64), Fault> {
    let x = n.operand(0)?;
    let Ok(shape) = <[u64; 4]>::try_from(n.ty(x).shape.as_slice()) else {
        return Err(format!("{} must have four axes", n.ty(x)).into());
    };
    let size = n.int("blocksize", 0)?;
    match u64::try_from(size) {
        Ok(size @ 1..=0xffff) => Ok((x, shape, size)),
        _ => Err(format!("there is no block of size {size}").into()),
    }
}

/// `SpaceToDepth`: blocks of pixels become channels.
pub(crate) fn space_to_depth(n: &mut NodeCx<'_, '_>) -> Done {
    let (x, [batch, c, h, w], b) = blocks(n)?;
    let x = n.reshaped(x, &[batch, c, h / b, b, w / b, b])?;
    let x = n.turned(x, &[0, 3, 5, 1, 2, 4])?;
    let y = n.reshaped(x, &[batch, c.saturating_mul(b * b), h / b, w / b])?;
    n.yields(0, y);
    Ok(())
}

/// `DepthToSpace`: channels become blocks of pixels; the block's pixels are the outer (`DCR`) or the inner
/// (`CRD`) part of the channel number.
pub(crate) fn depth_to_space(n: &mut NodeCx<'_, '_>) -> Done {
    let (x, [batch, c, h, w], b) = blocks(n)?;
    let inner = c / (b * b);
    let x = match n.text("mode", "DCR")? {
        "DCR" => {
            let x = n.reshaped(x, &[batch, b, b, inner, h, w])?;
            n.turned(x, &[0, 3, 4, 1, 5, 2])?
        }
        "CRD" => {
            let x = n.reshaped(x, &[batch, inner, b, b, h, w])?;
            n.turned(x, &[0, 1, 4, 2, 5, 3])?
        }
        other => return Err(format!("there is no mode `{other}`").into()),
    };
    let y = n.reshaped(x, &[batch, inner, h.saturating_mul(b), w.saturating_mul(b)])?;
    n.yields(0, y);
    Ok(())
}

/// `CumSum` and `CumProd`: every element combined with those before it, in steps that double the distance
/// (Hillis and Steele, "Data parallel algorithms", CACM 1986).
pub(crate) fn running(n: &mut NodeCx<'_, '_>, kind: OpKind, neutral: f32) -> Done {
    let mut x = n.operand(0)?;
    let ty = n.ty(x).clone();
    let axis = match n.const_ints(1, "axis")?.as_deref() {
        Some(&[axis]) => n.axis(axis, ty.rank())?,
        _ => return Err("its axis must be one integer".into()),
    };
    let (reverse, exclusive) = (n.flag("reverse", false)?, n.flag("exclusive", false)?);
    let extent = ty.shape[axis];
    let later = |n: &mut NodeCx<'_, '_>, x, by: u64| {
        let kept = n.cut(x, axis, 0, extent - by, 1)?;
        n.padded(kept, axis, [by, 0], neutral)
    };
    if reverse {
        x = n.flipped(x, axis)?;
    }
    if exclusive && extent > 0 {
        x = later(n, x, 1)?;
    }
    let mut by = 1;
    while by < extent {
        let shifted = later(n, x, by)?;
        x = n.temp(kind.clone(), &[shifted, x])?;
        by *= 2;
    }
    if reverse {
        x = n.flipped(x, axis)?;
    }
    n.yields(0, x);
    Ok(())
}
