//! Scaled dot-product attention and rotary position embedding, as compositions.

use memc_ir::attr::F32;
use memc_ir::{DType, OpKind, ValueId};

use crate::context::{Done, Made, NodeCx};
use crate::error::{Fault, unsupported};

/// `x` as `[batch, heads, sequence, size]`; `[batch, sequence, heads * size]` is split by attribute `count`.
fn heads(n: &mut NodeCx<'_, '_>, x: ValueId, count: &str) -> Made {
    let ty = n.ty(x).clone();
    let &[batch, sequence, hidden] = ty.shape.as_slice() else {
        return if ty.rank() == 4 { Ok(x) } else { Err(format!("{ty} must have three or four axes").into()) };
    };
    let heads = u64::try_from(n.int(count, 0)?).ok().filter(|&h| h > 0 && hidden.is_multiple_of(h));
    let Some(heads) = heads else {
        return Err(format!("attribute `{count}` does not divide the last axis of {ty}").into());
    };
    let x = n.reshaped(x, &[batch, sequence, heads, hidden / heads])?;
    n.turned(x, &[0, 2, 1, 3])
}

/// The extents of a tensor of four axes.
fn four(n: &NodeCx<'_, '_>, x: ValueId) -> Result<[u64; 4], Fault> {
    let ty = n.ty(x);
    <[u64; 4]>::try_from(ty.shape.as_slice()).map_err(|_| format!("{ty} must have four axes").into())
}

/// `Attention`: `softmax(softcap(scale * Q * K^T) + mask) * V` for every head.
///
/// Key and value heads that several query heads share are broadcast, not repeated.
pub(crate) fn attention(n: &mut NodeCx<'_, '_>) -> Done {
    let (q, k, v) = (n.operand(0)?, n.operand(1)?, n.operand(2)?);
    let flat = n.ty(q).rank() == 3;
    let (q, k, v) = (heads(n, q, "q_num_heads")?, heads(n, k, "kv_num_heads")?, heads(n, v, "kv_num_heads")?);
    let (past_key, past_value) = (n.optional(4)?, n.optional(5)?);
    let past = past_key.map_or(0, |p| n.ty(p).shape.get(2).copied().unwrap_or(0));
    let k = with_past(n, past_key, k)?;
    let v = with_past(n, past_value, v)?;
    let ([batch, q_heads, rows, size], [_, kv_heads, columns, _]) = (four(n, q)?, four(n, k)?);
    let v_size = four(n, v)?[3];
    if kv_heads == 0 || !q_heads.is_multiple_of(kv_heads) {
        return Err(format!("{q_heads} query heads cannot share {kv_heads} key heads").into());
    }
    if n.int("softmax_precision", 1)? == 11 {
        return unsupported("softmax in element type double is not supported");
    }
    let alpha = F32(n.float("scale", 1.0 / (size as f32).sqrt())?);
    let shared = q_heads / kv_heads;
    let scores = product(n, q, k, shared, OpKind::MatMul { trans_a: false, trans_b: true, alpha })?;
    let scores = n.reshaped(scores, &[batch, q_heads, rows, columns])?;
    let softcap = n.float("softcap", 0.0)?;
    let capped = if softcap > 0.0 {
        let inner = n.scaled(scores, "softcap", 1.0 / softcap)?;
        let bent = n.temp(OpKind::Tanh {}, &[inner])?;
        n.scaled(bent, "softcap", softcap)?
    } else {
        scores
    };
    let masked = masked(n, capped, [batch, rows, columns], past)?;
    let weights = n.temp(OpKind::Softmax { axis: 3 }, &[masked])?;
    let plain = OpKind::MatMul { trans_a: false, trans_b: false, alpha: F32(1.0) };
    let y = product(n, weights, v, shared, plain)?;
    let mut y = n.reshaped(y, &[batch, q_heads, rows, v_size])?;
    if flat {
        y = n.turned(y, &[0, 2, 1, 3])?;
        y = n.reshaped(y, &[batch, rows, q_heads.saturating_mul(v_size)])?;
    }
    let shown = match n.int("qk_matmul_output_mode", 0)? {
        0 => scores,
        1 => capped,
        2 => masked,
        3 => weights,
        other => return Err(format!("there is no qk_matmul_output_mode {other}").into()),
    };
    for (i, value) in [y, k, v, shown].into_iter().enumerate() {
        n.yields(i, value);
    }
    Ok(())
}

/// `x` after the keys or values of earlier calls.
fn with_past(n: &mut NodeCx<'_, '_>, past: Option<ValueId>, x: ValueId) -> Made {
    past.map_or(Ok(x), |past| n.temp(OpKind::Concat { axis: 2 }, &[past, x]))
}

/// The product of `a` with `b`, each head of which serves `shared` heads of `a` in a row.
fn product(n: &mut NodeCx<'_, '_>, mut a: ValueId, mut b: ValueId, shared: u64, kind: OpKind) -> Made {
    if shared > 1 {
        let ([batch, heads, m, k], [_, groups, r, c]) = (four(n, a)?, four(n, b)?);
        a = n.reshaped(a, &[batch, groups, heads / groups, m, k])?;
        b = n.reshaped(b, &[batch, groups, 1, r, c])?;
    }
    n.temp(kind, &[a, b])
}

/// `scores` with the mask added; where that is boolean, or a position lies in the future or in padding, minus
/// infinity.
fn masked(n: &mut NodeCx<'_, '_>, mut scores: ValueId, [batch, rows, columns]: [u64; 3], past: u64) -> Made {
    let never = n.number(scores, "never", f32::NEG_INFINITY)?;
    if let Some(mut mask) = n.optional(3)? {
        let ty = n.ty(mask).clone();
        let Some(&last) = ty.shape.last() else { return Err("its mask has no axes".into()) };
        if last < columns {
            let absent = if ty.dtype == DType::Bool { 0.0 } else { f32::NEG_INFINITY };
            mask = n.padded(mask, ty.rank() - 1, [0, columns - last], absent)?;
        }
        scores = if ty.dtype == DType::Bool { n.pick(mask, scores, never)? } else { n.add(scores, mask)? };
    }
    if n.flag("is_causal", false)? {
        let (queries, keys) = (n.iota(rows, 0, 2)?, n.iota(columns, 1, 2)?);
        let past = n.integer("past", past as i64)?;
        let queries = n.add(queries, past)?;
        let seen = n.temp(OpKind::LessEqual {}, &[keys, queries])?;
        scores = n.pick(seen, scores, never)?;
    }
    if let Some(lengths) = n.optional(6)? {
        let lengths = n.cast_to(lengths, DType::I64)?;
        let lengths = n.reshaped(lengths, &[batch, 1, 1, 1])?;
        let keys = n.iota(columns, 3, 4)?;
        let present = n.temp(OpKind::Less {}, &[keys, lengths])?;
        scores = n.pick(present, scores, never)?;
    }
    Ok(scores)
}

/// `RotaryEmbedding`: pairs of elements of every head turned by an angle that depends on the position.
pub(crate) fn rotary(n: &mut NodeCx<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let original = n.ty(x).shape.clone();
    // To `[batch, sequence, heads, size]`.
    let rows = match original.as_slice() {
        &[batch, sequence, hidden] => {
            let heads =
                u64::try_from(n.int("num_heads", 0)?).ok().filter(|&h| h > 0 && hidden.is_multiple_of(h));
            let heads = heads.ok_or_else(|| format!("attribute `num_heads` does not divide {hidden}"))?;
            n.reshaped(x, &[batch, sequence, heads, hidden / heads])?
        }
        [_, _, _, _] => n.turned(x, &[0, 2, 1, 3])?,
        _ => return Err(format!("{} must have three or four axes", n.ty(x)).into()),
    };
    let [batch, sequence, heads, size] = four(n, rows)?;
    let part = n.int("rotary_embedding_dim", 0)?;
    let part = if part == 0 { size } else { u64::try_from(part).unwrap_or(u64::MAX) };
    if part > size || part % 2 == 1 {
        return Err(format!("{part} of {size} elements cannot be turned in pairs").into());
    }
    let half = part / 2;
    let (cos, sin) = (angle(n, 1, [batch, sequence, half])?, angle(n, 2, [batch, sequence, half])?);
    let interleaved = n.flag("interleaved", false)?;
    let (a, b) = if interleaved {
        let pairs = n.cut(rows, 3, 0, part, 1)?;
        let pairs = n.reshaped(pairs, &[batch, sequence, heads, half, 2])?;
        let (a, b) = (n.cut(pairs, 4, 0, 1, 1)?, n.cut(pairs, 4, 1, 2, 1)?);
        let shape = [batch, sequence, heads, half];
        (n.reshaped(a, &shape)?, n.reshaped(b, &shape)?)
    } else {
        (n.cut(rows, 3, 0, half, 1)?, n.cut(rows, 3, half, part, 1)?)
    };
    let (ca, sb) = (n.mul(cos, a)?, n.mul(sin, b)?);
    let (sa, cb) = (n.mul(sin, a)?, n.mul(cos, b)?);
    let (real, imaginary) = (n.sub(ca, sb)?, n.add(sa, cb)?);
    let mut y = if interleaved {
        let shape = [batch, sequence, heads, half, 1];
        let (real, imaginary) = (n.reshaped(real, &shape)?, n.reshaped(imaginary, &shape)?);
        let pairs = n.temp(OpKind::Concat { axis: 4 }, &[real, imaginary])?;
        n.reshaped(pairs, &[batch, sequence, heads, part])?
    } else {
        n.temp(OpKind::Concat { axis: 3 }, &[real, imaginary])?
    };
    if part < size {
        let rest = n.cut(rows, 3, part, size, 1)?;
        y = n.temp(OpKind::Concat { axis: 3 }, &[y, rest])?;
    }
    let y = if original.len() == 4 { n.turned(y, &[0, 2, 1, 3])? } else { n.reshaped(y, &original)? };
    n.yields(0, y);
    Ok(())
}

/// Cosines or sines (input `i`) for every position, `[batch, sequence, 1, half]`, looked up by input 3 if
/// present.
fn angle(n: &mut NodeCx<'_, '_>, i: usize, [batch, sequence, half]: [u64; 3]) -> Made {
    let mut table = n.operand(i)?;
    if let Some(positions) = n.optional(3)? {
        table = n.temp(OpKind::Gather { axis: 0 }, &[table, positions])?;
    }
    if n.ty(table).shape != [batch, sequence, half] {
        return Err(format!("table {} does not have shape [{batch}, {sequence}, {half}]", n.ty(table)).into());
    }
    n.reshaped(table, &[batch, sequence, 1, half])
}
