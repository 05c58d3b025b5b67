//! A small evaluator for integer and boolean constants.
//!
//! Exporters compute shapes with ordinary nodes (Shape, Gather, Concat, ...). Several operators need such an
//! operand's value to know their result's type, so the importer evaluates these chains. It deliberately
//! handles only integer and boolean tensors of at most [`MAX_ELEMENTS`] elements; folding in general is a
//! pass.

use memc_ir::ops::broadcast_shapes;
use memc_ir::{DType, TensorType};

use crate::error::Fault;
use crate::tensor::Literal;

/// Most elements of a computed constant.
pub(crate) const MAX_ELEMENTS: u64 = 1 << 16;

/// Applies an element-wise operator with broadcasting; `None` when it is none of these or cannot be
/// evaluated.
pub(crate) fn binary(op: &str, a: &Literal, b: &Literal) -> Option<Literal> {
    let f: fn(i64, i64) -> Option<i64> = match op {
        "Add" => |x, y| x.checked_add(y),
        "Sub" => |x, y| x.checked_sub(y),
        "Mul" => |x, y| x.checked_mul(y),
        "Div" => |x, y| x.checked_div(y),
        "Mod" => |x, y| {
            Some({
                let rest = x.checked_rem(y)?;
                if rest != 0 && (rest < 0) != (y < 0) { rest + y } else { rest }
            })
        },
        "Rem" => |x, y| x.checked_rem(y),
        "Min" => |x, y| Some(x.min(y)),
        "Max" => |x, y| Some(x.max(y)),
        "Equal" => |x, y| Some(i64::from(x == y)),
        "Less" => |x, y| Some(i64::from(x < y)),
        "LessOrEqual" => |x, y| Some(i64::from(x <= y)),
        "Greater" => |x, y| Some(i64::from(x > y)),
        "GreaterOrEqual" => |x, y| Some(i64::from(x >= y)),
        "And" => |x, y| Some(x & y),
        "Or" => |x, y| Some(x | y),
        _ => return None,
    };
    let logical = matches!(op, "And" | "Or");
    let compares = matches!(op, "Equal" | "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual");
    let legal = op == "Equal" || logical == (a.ty.dtype == DType::Bool);
    if a.ty.dtype != b.ty.dtype || !legal {
        return None;
    }
    let dtype = if compares { DType::Bool } else { a.ty.dtype };
    let shape = result_shape(&[a, b])?;
    let (x, y) = (expand(a, &shape)?.ints()?, expand(b, &shape)?.ints()?);
    let values: Option<Vec<i64>> = x.iter().zip(&y).map(|(&x, &y)| f(x, y)).collect();
    Literal::from_ints(dtype, &shape, &values?).ok()
}

/// Applies an element-wise operator of one operand.
pub(crate) fn unary(op: &str, x: &Literal) -> Option<Literal> {
    let f: fn(i64) -> Option<i64> = match (op, x.ty.dtype == DType::Bool) {
        ("Neg", false) => |v| v.checked_neg(),
        ("Abs", false) => |v| v.checked_abs(),
        ("Not", true) => |v| Some(1 - v),
        _ => return None,
    };
    small(&x.ty)?;
    let values: Option<Vec<i64>> = x.ints()?.into_iter().map(f).collect();
    Literal::from_ints(x.ty.dtype, &x.ty.shape, &values?).ok()
}

/// `cond ? a : b` with broadcasting.
pub(crate) fn select(cond: &Literal, a: &Literal, b: &Literal) -> Option<Literal> {
    if cond.ty.dtype != DType::Bool || a.ty.dtype != b.ty.dtype {
        return None;
    }
    let shape = result_shape(&[cond, a, b])?;
    let ints = |x| expand(x, &shape)?.ints();
    let (c, x, y) = (ints(cond)?, ints(a)?, ints(b)?);
    let values: Vec<i64> =
        c.iter().zip(x.iter().zip(&y)).map(|(&c, (&x, &y))| if c != 0 { x } else { y }).collect();
    Literal::from_ints(a.ty.dtype, &shape, &values).ok()
}

/// Conversion of a small constant to another element type.
pub(crate) fn cast(x: &Literal, to: DType) -> Option<Literal> {
    small(&x.ty)?;
    convert(x, to)
}

/// Conversion to another element type, of a constant of any size. Floats become integers by truncation, which
/// must fit, and shorter floats by rounding to the nearest; integers become short floats where that is exact.
pub(crate) fn convert(x: &Literal, to: DType) -> Option<Literal> {
    if x.ty.dtype == to {
        return Some(x.clone());
    }
    let short = matches!(to, DType::F16 | DType::BF16);
    if let Some(floats) = x.floats().filter(|_| to.is_float()) {
        return Literal::from_rounded(to, &x.ty.shape, floats).ok();
    }
    if short {
        // Below 2^24 an integer is an f32, so that it is rounded once.
        let exact = |v: i64| (v.unsigned_abs() <= 1 << 24).then_some(v as f32);
        let floats: Vec<f32> = x.ints()?.into_iter().map(exact).collect::<Option<_>>()?;
        return Literal::from_rounded(to, &x.ty.shape, floats).ok();
    }
    let values = match x.floats() {
        // Every float below 2^63 in size is an i64 once truncated.
        Some(floats) if to.is_int() => {
            let whole = |v: f32| (v.abs() < 9.2e18).then_some(v.trunc() as i64);
            floats.into_iter().map(whole).collect::<Option<Vec<i64>>>()?
        }
        Some(floats) if to == DType::Bool => floats.into_iter().map(|v| i64::from(v != 0.0)).collect(),
        _ => x.ints()?,
    };
    if to == DType::F32 {
        let floats: Vec<f32> = values.iter().map(|&v| v as f32).collect();
        return Literal::from_floats(&x.ty.shape, &floats).ok();
    }
    Literal::from_ints(to, &x.ty.shape, &values).ok()
}

/// Positions of the elements that are not zero, one row per axis.
pub(crate) fn nonzero(x: &Literal) -> Option<Literal> {
    small(&x.ty)?;
    let set: Vec<bool> = match x.floats() {
        Some(floats) => floats.into_iter().map(|v| v != 0.0).collect(),
        None => x.ints()?.into_iter().map(|v| v != 0).collect(),
    };
    let found: Vec<u64> = set.iter().zip(0..).filter(|&(&set, _)| set).map(|(_, at)| at).collect();
    let axes = x.ty.shape.iter().zip(strides(&x.ty));
    let rows = axes.flat_map(|(&extent, stride)| {
        found.iter().map(move |at| (at / stride.unsigned_abs().max(1) % extent.max(1)) as i64)
    });
    let rows: Vec<i64> = rows.collect();
    Literal::from_ints(DType::I64, &[x.ty.rank() as u64, found.len() as u64], &rows).ok()
}

/// The same elements under another shape with the same number of elements; any element type.
pub(crate) fn reshape(x: &Literal, shape: &[u64]) -> Option<Literal> {
    let ty = TensorType::new(x.ty.dtype, shape);
    (ty.checked_numel()? == x.ty.numel()).then(|| Literal { ty, data: x.data.clone() })
}

/// Gather along axis 0 of a vector.
pub(crate) fn gather(data: &Literal, indices: &Literal) -> Option<Literal> {
    small(&indices.ty)?;
    if data.ty.rank() != 1 || indices.ty.dtype == DType::Bool {
        return None;
    }
    let values = data.ints()?;
    let n = i64::try_from(values.len()).ok()?;
    let pick = |i: i64| values.get(usize::try_from(if i < 0 { i.checked_add(n)? } else { i }).ok()?).copied();
    let picked: Option<Vec<i64>> = indices.ints()?.into_iter().map(pick).collect();
    Literal::from_ints(data.ty.dtype, &indices.ty.shape, &picked?).ok()
}

/// Concatenation of vectors.
pub(crate) fn concat(parts: &[Literal]) -> Option<Literal> {
    let dtype = parts.first()?.ty.dtype;
    let mut values = Vec::new();
    for p in parts {
        small(&p.ty)?;
        if p.ty.rank() != 1 || p.ty.dtype != dtype {
            return None;
        }
        values.extend(p.ints()?);
        // Checked per part: an operand's name may be repeated any number of times.
        small(&TensorType::new(dtype, [values.len() as u64]))?;
    }
    Literal::from_ints(dtype, &[values.len() as u64], &values).ok()
}

/// The elements of `x` at `start` plus multiples of `strides`, both counted in elements, under `shape`.
fn strided(x: &Literal, shape: &[u64], start: i64, strides: &[i64]) -> Option<Literal> {
    let ty = TensorType::new(x.ty.dtype, shape);
    ty.checked_numel()?;
    small(&ty)?;
    small(&x.ty)?;
    let values = x.ints()?;
    let mut out = Vec::new();
    for flat in 0..ty.numel() {
        let (mut rest, mut at) = (flat, start);
        for (&extent, &stride) in shape.iter().zip(strides).rev() {
            at = at.checked_add(stride.checked_mul((rest % extent) as i64)?)?;
            rest /= extent;
        }
        out.push(*values.get(usize::try_from(at).ok()?)?);
    }
    Literal::from_ints(x.ty.dtype, shape, &out).ok()
}

/// Distance in elements between neighbours along each axis.
fn strides(ty: &TensorType) -> Vec<i64> {
    (0..ty.rank()).map(|i| ty.shape[i + 1..].iter().product::<u64>() as i64).collect()
}

/// For every axis the elements `starts`, `starts + steps`, ... before `ends`; the bounds must be legal.
pub(crate) fn slice(x: &Literal, starts: &[i64], ends: &[i64], steps: &[i64]) -> Option<Literal> {
    small(&x.ty)?;
    let own = strides(&x.ty);
    let (mut shape, mut start, mut by) = (Vec::new(), 0i64, Vec::new());
    for (i, &stride) in own.iter().enumerate() {
        let (from, to, step) = (*starts.get(i)?, *ends.get(i)?, *steps.get(i)?);
        let span = if step > 0 { to.checked_sub(from)? } else { from.checked_sub(to)? };
        let extent = *x.ty.shape.get(i)?;
        let count =
            if extent == 0 { 0 } else { span.max(0).unsigned_abs().div_ceil(step.unsigned_abs().max(1)) };
        shape.push(count);
        start = start.checked_add(from.checked_mul(stride)?)?;
        by.push(step.checked_mul(stride)?);
    }
    strided(x, &shape, start, &by)
}

/// Axis `i` of the result is axis `perm[i]` of `x`; `None` when `perm` is no permutation.
pub(crate) fn transpose(x: &Literal, perm: &[u64]) -> Option<Literal> {
    small(&x.ty)?;
    let own = strides(&x.ty);
    let axes: Option<Vec<usize>> =
        perm.iter().map(|&p| usize::try_from(p).ok().filter(|&p| p < own.len())).collect();
    let axes = axes?;
    let mut sorted = axes.clone();
    sorted.sort_unstable();
    sorted.dedup();
    if sorted.len() != own.len() || axes.len() != own.len() {
        return None;
    }
    let shape: Vec<u64> = axes.iter().map(|&a| x.ty.shape[a]).collect();
    let by: Vec<i64> = axes.iter().map(|&a| own[a]).collect();
    strided(x, &shape, 0, &by)
}

/// The integers `start`, `start + delta`, ... before `limit`.
pub(crate) fn range(dtype: DType, start: i64, limit: i64, delta: i64) -> Result<Literal, Fault> {
    let (start, limit, delta) = (i128::from(start), i128::from(limit), i128::from(delta));
    if delta == 0 {
        return Err("delta is zero".into());
    }
    let span = if delta > 0 { limit - start } else { start - limit };
    let count = u64::try_from(span.max(0).unsigned_abs().div_ceil(delta.unsigned_abs()));
    let count = count.ok().filter(|&n| n <= MAX_ELEMENTS);
    let count = count.ok_or_else(|| format!("the result has more than {MAX_ELEMENTS} elements"))?;
    // Every value lies between start and limit, so it is an i64.
    let values: Vec<i64> = (0..i128::from(count)).map(|i| (start + i * delta) as i64).collect();
    Literal::from_ints(dtype, &[count], &values)
}

fn small(ty: &TensorType) -> Option<()> {
    (ty.numel() <= MAX_ELEMENTS).then_some(())
}

fn result_shape(operands: &[&Literal]) -> Option<Vec<u64>> {
    operands.iter().try_fold(Vec::new(), |shape, x| broadcast_shapes(&shape, &x.ty.shape).ok())
}

/// `x` broadcast to `shape`.
pub(crate) fn expand(x: &Literal, shape: &[u64]) -> Option<Literal> {
    if broadcast_shapes(&x.ty.shape, shape).ok()? != shape {
        return None;
    }
    let lead = shape.len() - x.ty.rank();
    let by = x.ty.shape.iter().zip(strides(&x.ty)).map(|(&d, stride)| if d == 1 { 0 } else { stride });
    let by: Vec<i64> = std::iter::repeat_n(0, lead).chain(by).collect();
    strided(x, shape, 0, &by)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ints(shape: &[u64], values: &[i64]) -> Literal {
        Literal::from_ints(DType::I64, shape, values).expect("literal")
    }

    /// Broadcasting pairs the elements as numpy does.
    #[test]
    fn operands_broadcast() {
        let column = ints(&[2, 1], &[10, 20]);
        let row = ints(&[3], &[1, 2, 3]);
        let sum = binary("Add", &column, &row).expect("sum");
        assert_eq!(sum, ints(&[2, 3], &[11, 12, 13, 21, 22, 23]));
        let less = binary("Less", &row, &ints(&[], &[2])).expect("less");
        assert_eq!((less.ty.dtype, less.ints()), (DType::Bool, Some(vec![1, 0, 0])));
        assert_eq!(select(&less, &row, &ints(&[], &[9])).expect("select").ints(), Some(vec![1, 9, 9]));
    }

    /// Overflow, division by zero and mixed element types are left to the op at run time.
    #[test]
    fn what_has_no_value_is_not_evaluated() {
        let x = ints(&[], &[i64::MIN]);
        assert_eq!(binary("Div", &x, &ints(&[], &[-1])), None);
        assert_eq!(binary("Div", &x, &ints(&[], &[0])), None);
        assert_eq!(binary("Mul", &x, &ints(&[], &[2])), None);
        assert_eq!(unary("Neg", &x), None);
        let flag = Literal::from_ints(DType::Bool, &[], &[1]).expect("flag");
        assert_eq!(binary("Add", &flag, &flag), None);
        assert_eq!(binary("And", &flag, &x), None);
    }

    /// A concatenation stops at the first part that makes it too large.
    #[test]
    fn concatenations_are_limited() {
        let part = Literal::vector(&vec![1; 1 << 15]);
        assert!(concat(&vec![part.clone(); 2]).is_some());
        assert_eq!(concat(&vec![part; 3]), None);
    }

    /// Positions are listed axis by axis in the order of the elements; NaN is not zero, and a scalar has no
    /// axes.
    #[test]
    fn positions_of_what_is_not_zero() {
        let m = ints(&[2, 3], &[0, 5, 0, 7, 0, -1]);
        assert_eq!(nonzero(&m), Some(ints(&[2, 3], &[0, 1, 1, 1, 0, 2])));
        let floats = Literal::from_floats(&[3], &[-0.0, f32::NAN, 2.0]).expect("floats");
        assert_eq!(nonzero(&floats), Some(ints(&[1, 2], &[1, 2])));
        assert_eq!(nonzero(&ints(&[0, 4], &[])), Some(ints(&[2, 0], &[])));
        assert_eq!(nonzero(&ints(&[], &[3])), Some(ints(&[0, 1], &[])));
    }

    /// Vectors are gathered (also from the end), concatenated, sliced and counted up.
    #[test]
    fn shape_arithmetic() {
        let v = Literal::vector(&[4, 16, 32]);
        assert_eq!(gather(&v, &ints(&[], &[-1])).expect("gather"), ints(&[], &[32]));
        assert_eq!(gather(&v, &ints(&[1], &[3])), None);
        assert_eq!(
            concat(&[v.clone(), Literal::vector(&[7])]).expect("concat").ints(),
            Some(vec![4, 16, 32, 7])
        );
        assert_eq!(slice(&v, &[2], &[-1], &[-1]).expect("slice").ints(), Some(vec![32, 16, 4]));
        let m = ints(&[2, 3], &[1, 2, 3, 4, 5, 6]);
        assert_eq!(slice(&m, &[1, 0], &[-1, 3], &[-1, 2]).expect("slice"), ints(&[2, 2], &[4, 6, 1, 3]));
        assert_eq!(transpose(&m, &[1, 0]).expect("transpose"), ints(&[3, 2], &[1, 4, 2, 5, 3, 6]));
        assert_eq!(transpose(&m, &[1, 1]), None);
        let floats = Literal::from_floats(&[2], &[-1.5, 8.0]).expect("floats");
        assert_eq!(cast(&floats, DType::I64).expect("cast"), ints(&[2], &[-1, 8]));
        assert_eq!(cast(&Literal::from_floats(&[1], &[f32::NAN]).expect("nan"), DType::I64), None);
        let halves = cast(&floats, DType::BF16).expect("bf16");
        assert_eq!((halves.ty.dtype, halves.floats()), (DType::BF16, Some(vec![-1.5, 8.0])));
        assert_eq!(cast(&halves, DType::F32), Some(floats));
        assert_eq!(cast(&v, DType::F16).expect("f16").floats(), Some(vec![4.0, 16.0, 32.0]));
        assert_eq!(cast(&ints(&[], &[(1 << 24) + 1]), DType::BF16), None);
        assert_eq!(range(DType::I64, 5, 0, -2).expect("range").ints(), Some(vec![5, 3, 1]));
        assert_eq!(range(DType::I64, 0, 5, -2).expect("range").ints(), Some(vec![]));
        assert!(
            range(DType::I64, i64::MIN, i64::MAX, 1).expect_err("huge").to_string().contains("more than")
        );
    }
}
