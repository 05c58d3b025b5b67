//! Constants, shape queries, and views of the same elements.

use memc_ir::attr::{F32, Scalar};
use memc_ir::{DType, MAX_RANK, OpKind, TensorType};

use crate::constants;
use crate::context::{Done, NodeCx};
use crate::error::{Fault, unsupported};
use crate::floats;
use crate::model::Attr;
use crate::tensor::{Literal, tensor_type};

/// `Identity`: another name for the same value.
pub(crate) fn identity(n: &mut NodeCx<'_, '_>) -> Done {
    let Some(name) = n.input(0) else { return Err("input 0 is missing".into()) };
    let bound = n.cx.bound(name)?.clone();
    n.bind(0, bound);
    Ok(())
}

/// `Constant`.
pub(crate) fn constant(n: &mut NodeCx<'_, '_>) -> Done {
    let node = n.node;
    let mut values =
        node.attrs.iter().filter(|(name, _)| name.starts_with("value") || *name == "sparse_value");
    let (Some((name, attr)), None) = (values.next(), values.next()) else {
        return Err("it must have exactly one value".into());
    };
    if let Some(doubles) = floats::constant(attr) {
        n.bind(0, doubles?);
        return Ok(());
    }
    let literal = match (name.as_str(), attr) {
        ("value", Attr::Tensor(t)) => n.cx.literal(t)?,
        ("value_float", Attr::Float(v)) => Literal::from_floats(&[], &[*v])?,
        ("value_floats", Attr::Floats(v)) => Literal::from_floats(&[v.len() as u64], v)?,
        ("value_int", Attr::Int(v)) => Literal::from_ints(DType::I64, &[], &[*v])?,
        ("value_ints", Attr::Ints(v)) => Literal::vector(v),
        _ => return unsupported(format!("attribute `{name}` with {} is not supported", attr.kind())),
    };
    n.bind(0, literal);
    Ok(())
}

/// Binds output 0 to a tensor of type `ty` with every element `value`: a literal, or an op when that is too
/// large or the allowance for computed constants is used up.
fn filled(n: &mut NodeCx<'_, '_>, ty: TensorType, value: Scalar) -> Done {
    let count = ty.numel();
    if count > constants::MAX_ELEMENTS || !n.cx.folded.has(ty.bytes()) {
        return n.finish(OpKind::Fill { dtype: ty.dtype, shape: ty.shape, value }, &[]);
    }
    let count = count as usize;
    let literal = match value {
        Scalar::Float(F32(v)) => Literal::from_rounded(ty.dtype, &ty.shape, vec![v; count])?,
        Scalar::Int(v) => Literal::from_ints(ty.dtype, &ty.shape, &vec![v; count])?,
    };
    n.fold(0, literal)
}

/// `ConstantOfShape`.
pub(crate) fn constant_of_shape(n: &mut NodeCx<'_, '_>) -> Done {
    let dims = n.const_ints(0, "shape")?.ok_or("input 0 is missing")?;
    let value = match n.node.attrs.get("value") {
        None => Literal::from_floats(&[1], &[0.0])?,
        Some(Attr::Tensor(t)) => n.cx.literal(t)?,
        Some(other) => return Err(other.ill_typed("value", "a tensor")),
    };
    let scalar = value.single().ok_or("attribute `value` must have one element")?;
    filled(n, tensor_type(value.ty.dtype, &dims)?, scalar)
}

/// A constant operand broadcast to `ty`, when all its elements are equal.
pub(super) fn filled_like(n: &mut NodeCx<'_, '_>, x: &Literal, ty: TensorType) -> Result<bool, Fault> {
    let Some(value) = x.splat() else { return Ok(false) };
    filled(n, ty, value)?;
    Ok(true)
}

/// `Shape`.
pub(crate) fn shape(n: &mut NodeCx<'_, '_>) -> Done {
    let ty = n.operand_type(0)?;
    let rank = ty.rank() as i64;
    let clamp = |v: i64| if v < 0 { v.saturating_add(rank) } else { v }.clamp(0, rank) as usize;
    let (start, end) = (clamp(n.int("start", 0)?), clamp(n.int("end", rank)?));
    let dims: Vec<i64> = ty.shape.get(start..end).unwrap_or_default().iter().map(|&d| d as i64).collect();
    n.fold(0, Literal::vector(&dims))
}

/// `Size`.
pub(crate) fn size(n: &mut NodeCx<'_, '_>) -> Done {
    let count = n.operand_type(0)?.numel() as i64;
    n.fold(0, Literal::from_ints(DType::I64, &[], &[count])?)
}

/// `Range`.
pub(crate) fn range(n: &mut NodeCx<'_, '_>) -> Done {
    let mut values = [0; 3];
    let dtype = n.operand_type(0)?.dtype;
    if dtype == DType::F32 {
        return float_range(n);
    }
    if !dtype.is_int() {
        return unsupported(format!("a range of {dtype} is not supported"));
    }
    for (i, what) in ["start", "limit", "delta"].into_iter().enumerate() {
        let ints = n.const_ints(i, what)?.unwrap_or_default();
        let [v] = ints[..] else { return Err(format!("its {what} must be one integer").into()) };
        values[i] = v;
    }
    let literal = constants::range(dtype, values[0], values[1], values[2])?;
    n.fold(0, literal)
}

/// `Range` over floats: `start + i * delta`.
fn float_range(n: &mut NodeCx<'_, '_>) -> Done {
    let mut values = [0.0; 3];
    for (i, what) in ["start", "limit", "delta"].into_iter().enumerate() {
        let floats = n.constant(i, what)?.and_then(|l| l.floats()).unwrap_or_default();
        let [v] = floats[..] else { return Err(format!("its {what} must be one float").into()) };
        values[i] = v;
    }
    let [start, limit, delta] = values;
    let count = ((f64::from(limit) - f64::from(start)) / f64::from(delta)).ceil().max(0.0);
    if !count.is_finite() {
        return Err(format!("a range from {start} to {limit} by {delta} has no end").into());
    }
    let count = n.small(count as u64)?;
    let values: Vec<f32> = (0..count).map(|i| start + i as f32 * delta).collect();
    n.bind(0, Literal::from_floats(&[count], &values)?);
    Ok(())
}

/// Binds output 0 to input 0 under `shape`.
fn view(n: &mut NodeCx<'_, '_>, shape: Vec<u64>) -> Done {
    if let Some(y) = n.literal(0).and_then(|x| constants::reshape(&x, &shape)) {
        n.bind(0, y);
        return Ok(());
    }
    let x = n.operand(0)?;
    n.finish(OpKind::Reshape { shape }, &[x])
}

/// `Reshape`: 0 copies an extent unless `allowzero`, one -1 stands for what is left.
pub(crate) fn reshape(n: &mut NodeCx<'_, '_>) -> Done {
    let ty = n.operand_type(0)?;
    let target = n.const_ints(1, "shape")?.ok_or("input 1 is missing")?;
    let shape = reshaped(&ty, &target, n.flag("allowzero", false)?)?;
    view(n, shape)
}

fn reshaped(ty: &TensorType, target: &[i64], allow_zero: bool) -> Result<Vec<u64>, Fault> {
    let cannot = || format!("{ty} cannot have shape {target:?}");
    if target.len() > MAX_RANK {
        return Err(format!("{} axes are too many, supported are {MAX_RANK}", target.len()).into());
    }
    let mut shape = Vec::new();
    let mut free = None;
    for (i, &d) in target.iter().enumerate() {
        shape.push(match d {
            0 if !allow_zero => *ty.shape.get(i).ok_or_else(cannot)?,
            -1 if free.is_none() => {
                free = Some(i);
                1
            }
            _ => u64::try_from(d).map_err(|_| cannot())?,
        });
    }
    if let Some(i) = free {
        let rest = shape.iter().try_fold(1u64, |p, &d| p.checked_mul(d)).filter(|&p| p > 0);
        let rest = rest.filter(|&p| ty.numel().is_multiple_of(p)).ok_or_else(cannot)?;
        shape[i] = ty.numel() / rest;
    }
    Ok(shape)
}

/// `Flatten`: a matrix of the axes before and from `axis`.
pub(crate) fn flatten(n: &mut NodeCx<'_, '_>) -> Done {
    let ty = n.operand_type(0)?;
    let axis = n.int("axis", 1)?;
    let rank = ty.rank() as i64;
    let at = if axis < 0 { axis.saturating_add(rank) } else { axis };
    if !(0..=rank).contains(&at) {
        return Err(format!("axis {axis} does not split {ty}").into());
    }
    let (rows, columns) = ty.shape.split_at(at as usize);
    view(n, vec![rows.iter().product(), columns.iter().product()])
}

/// `Squeeze`.
pub(crate) fn squeeze(n: &mut NodeCx<'_, '_>) -> Done {
    let ty = n.operand_type(0)?;
    let dropped = match n.ints_since(13, 1, "axes")? {
        Some(axes) => n.axes(&axes, ty.rank())?,
        None => (0..ty.rank() as u64).filter(|&i| ty.shape[i as usize] == 1).collect(),
    };
    let mut shape = Vec::new();
    for (i, &d) in ty.shape.iter().enumerate() {
        match dropped.contains(&(i as u64)) {
            true if d != 1 => return Err(format!("axis {i} of {ty} cannot be dropped").into()),
            true => {}
            false => shape.push(d),
        }
    }
    view(n, shape)
}

/// `Unsqueeze`.
pub(crate) fn unsqueeze(n: &mut NodeCx<'_, '_>) -> Done {
    let ty = n.operand_type(0)?;
    let axes = n.ints_since(13, 1, "axes")?.ok_or("its axes are missing")?;
    let rank = ty.rank() + axes.len();
    if rank > MAX_RANK {
        return Err(format!("{rank} axes are too many, supported are {MAX_RANK}").into());
    }
    let new = n.axes(&axes, rank)?;
    let mut old = ty.shape.iter();
    let shape = (0..rank as u64)
        .map(|i| if new.contains(&i) { 1 } else { old.next().copied().unwrap_or(1) })
        .collect();
    view(n, shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Zeros copy, -1 fills up, and what has another number of elements is refused.
    #[test]
    fn reshape_targets() {
        let ty = TensorType::new(DType::F32, [2, 3, 4]);
        assert_eq!(reshaped(&ty, &[0, -1], false), Ok(vec![2, 12]));
        assert_eq!(reshaped(&ty, &[4, 6], false), Ok(vec![4, 6]));
        assert!(reshaped(&ty, &[-1, -1], false).is_err());
        assert!(reshaped(&ty, &[5, -1], false).is_err());
        assert!(reshaped(&ty, &[0, 0, 0, 0], false).is_err());
        assert!(reshaped(&ty, &[i64::MAX, i64::MAX, -1], false).is_err());
        let empty = TensorType::new(DType::F32, [0, 3]);
        assert_eq!(reshaped(&empty, &[3, 0], true), Ok(vec![3, 0]));
        assert!(reshaped(&empty, &[0, -1], true).is_err());
    }
}
