//! Element-wise operators and gradients of activations.

use memc_ir::attr::Scalar;
use memc_ir::{DType, OpKind, ValueId};

use crate::constants;
use crate::context::{Done, NodeCx};
use crate::error::{Fault, unsupported};
use crate::floats;
use crate::tensor;

/// One operand.
pub(crate) fn unary(n: &mut NodeCx<'_, '_>, kind: OpKind) -> Done {
    let known = n.literal(0);
    if let Some(y) = known.as_ref().and_then(|x| constants::unary(&n.node.op, x)) {
        return n.fold(0, y);
    }
    let x = n.operand(0)?;
    n.finish(kind, &[x])?;
    n.know(0, known.and_then(|x| floats::fold(&n.node.op, &[&x])));
    Ok(())
}

/// Two operands, broadcasting.
pub(crate) fn binary(n: &mut NodeCx<'_, '_>, kind: OpKind) -> Done {
    let known = n.literal(0).zip(n.literal(1));
    if let Some(y) = known.as_ref().and_then(|(a, b)| constants::binary(&n.node.op, a, b)) {
        return n.fold(0, y);
    }
    let operands = [n.operand(0)?, n.operand(1)?];
    n.finish(kind, &operands)?;
    n.know(0, known.and_then(|(a, b)| floats::fold(&n.node.op, &[&a, &b])));
    Ok(())
}

/// Any number of operands, combined from left to right.
pub(crate) fn variadic(n: &mut NodeCx<'_, '_>, kind: OpKind) -> Done {
    if n.node.inputs.len() == 2 && n.node.op != "Sum" {
        return binary(n, kind);
    }
    let operands = n.operands()?;
    let Some((&last, rest)) = operands.split_last() else {
        return Err("it has no inputs".into());
    };
    let Some((&first, middle)) = rest.split_first() else {
        n.bind(0, last);
        return Ok(());
    };
    let mut sum = first;
    for &x in middle {
        sum = n.temp(kind.clone(), &[sum, x])?;
    }
    n.finish(kind, &[sum, last])
}

/// `Mean`: the sum of all operands, divided by their number.
pub(crate) fn mean(n: &mut NodeCx<'_, '_>) -> Done {
    let operands = n.operands()?;
    let Some((&first, rest)) = operands.split_first() else {
        return Err("it has no inputs".into());
    };
    let mut sum = first;
    for &x in rest {
        sum = n.add(sum, x)?;
    }
    let count = n.number(sum, "count", operands.len() as f32)?;
    n.finish(OpKind::Div {}, &[sum, count])
}

/// `Xor`: whether the operands differ.
pub(crate) fn xor(n: &mut NodeCx<'_, '_>) -> Done {
    let operands = [n.operand(0)?, n.operand(1)?];
    let equal = n.temp(OpKind::Equal {}, &operands)?;
    n.finish(OpKind::Not {}, &[equal])
}

/// `Mod` of integers: the remainder has the sign of the divisor, or with `fmod` that of the dividend.
pub(crate) fn modulo(n: &mut NodeCx<'_, '_>) -> Done {
    let toward_zero = n.flag("fmod", false)?;
    if let (Some(a), Some(b)) = (n.literal(0), n.literal(1))
        && let Some(y) = constants::binary(if toward_zero { "Rem" } else { "Mod" }, &a, &b)
    {
        return n.fold(0, y);
    }
    let (a, b) = (n.operand(0)?, n.operand(1)?);
    if !n.ty(a).dtype.is_int() {
        return unsupported(
            "the remainder of floats is not supported, which no composition of ops gives exactly",
        );
    }
    let whole = n.div(a, b)?;
    let whole = n.mul(whole, b)?;
    let rest = n.sub(a, whole)?;
    if toward_zero {
        n.yields(0, rest);
        return Ok(());
    }
    let zero = n.number(a, "zero", 0.0)?;
    let (low, below) = (n.temp(OpKind::Less {}, &[rest, zero])?, n.temp(OpKind::Less {}, &[b, zero])?);
    let same_sign = n.temp(OpKind::Equal {}, &[low, below])?;
    let exact = n.temp(OpKind::Equal {}, &[rest, zero])?;
    let keep = n.temp(OpKind::Or {}, &[same_sign, exact])?;
    let moved = n.add(rest, b)?;
    n.finish(OpKind::Select {}, &[keep, rest, moved])
}

/// A gradient from the result's gradient and one saved tensor.
pub(crate) fn pair(n: &mut NodeCx<'_, '_>, kind: OpKind) -> Done {
    let operands = [n.operand(0)?, n.operand(1)?];
    n.finish(kind, &operands)
}

/// `Pow`, whose operands may differ in element type.
pub(crate) fn pow(n: &mut NodeCx<'_, '_>) -> Done {
    let known = n.literal(0).zip(n.literal(1));
    let (a, mut b) = (n.operand(0)?, n.operand(1)?);
    let to = n.ty(a).dtype;
    if n.ty(b).dtype != to {
        b = n.temp(OpKind::Cast { to }, &[b])?;
    }
    n.finish(OpKind::Pow {}, &[a, b])?;
    n.know(0, known.and_then(|(a, b)| floats::power(&a, &b)));
    Ok(())
}

/// `Where`.
pub(crate) fn select(n: &mut NodeCx<'_, '_>) -> Done {
    if let (Some(c), Some(a), Some(b)) = (n.literal(0), n.literal(1), n.literal(2))
        && let Some(y) = constants::select(&c, &a, &b)
    {
        return n.fold(0, y);
    }
    let operands = [n.operand(0)?, n.operand(1)?, n.operand(2)?];
    n.finish(OpKind::Select {}, &operands)
}

/// `Cast`.
pub(crate) fn cast(n: &mut NodeCx<'_, '_>) -> Done {
    let code = n.int("to", 0)?;
    let to = i32::try_from(code).map_err(|_| format!("there is no element type {code}"))?;
    cast_to(n, tensor::dtype(to)?)
}

/// `CastLike`.
pub(crate) fn cast_like(n: &mut NodeCx<'_, '_>) -> Done {
    let to = n.operand_type(1)?.dtype;
    cast_to(n, to)
}

fn cast_to(n: &mut NodeCx<'_, '_>, to: DType) -> Done {
    if n.operand_type(0)?.dtype == to {
        return super::shape::identity(n);
    }
    if let Some(y) = n.literal(0).and_then(|x| constants::cast(&x, to)) {
        return n.fold(0, y);
    }
    let x = n.operand(0)?;
    n.finish(OpKind::Cast { to }, &[x])
}

/// `Clip`: bounds are attributes before opset 11, optional inputs from then on.
pub(crate) fn clip(n: &mut NodeCx<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let (low, high) = if n.version < 11 {
        let low = n.float("min", f32::NEG_INFINITY)?;
        let high = n.float("max", f32::INFINITY)?;
        let mut bound = |what, value: f32| -> Result<Option<ValueId>, Fault> {
            if value.is_infinite() { Ok(None) } else { n.scalar(what, value).map(Some) }
        };
        (bound("min", low)?, bound("max", high)?)
    } else {
        (n.optional(1)?, n.optional(2)?)
    };
    match (low, high) {
        (None, None) => super::shape::identity(n),
        (Some(low), None) => n.finish(OpKind::Max {}, &[x, low]),
        (None, Some(high)) => n.finish(OpKind::Min {}, &[x, high]),
        (Some(low), Some(high)) => {
            let raised = n.temp(OpKind::Max {}, &[x, low])?;
            n.finish(OpKind::Min {}, &[raised, high])
        }
    }
}

/// `Gelu` of the standard.
pub(crate) fn gelu(n: &mut NodeCx<'_, '_>) -> Done {
    let tanh = match n.text("approximate", "none")? {
        "none" => false,
        "tanh" => true,
        other => return Err(format!("there is no approximation `{other}`").into()),
    };
    unary(n, OpKind::Gelu { tanh })
}

/// Microsoft's `FastGelu`, with an optional bias that is added first.
pub(crate) fn fast_gelu(n: &mut NodeCx<'_, '_>) -> Done {
    let mut x = n.operand(0)?;
    if let Some(bias) = n.optional(1)? {
        x = n.temp(OpKind::Add {}, &[x, bias])?;
    }
    n.finish(OpKind::Gelu { tanh: true }, &[x])
}

/// Gradient of `FastGelu` without bias.
pub(crate) fn fast_gelu_grad(n: &mut NodeCx<'_, '_>) -> Done {
    if n.input(2).is_some() {
        return unsupported("the form with bias is not supported");
    }
    pair(n, OpKind::GeluGrad { tanh: true })
}

/// Microsoft's `Scale`: product with a scalar of any element type, or with its reciprocal.
pub(crate) fn scale(n: &mut NodeCx<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let down = n.flag("scale_down", false)?;
    let known = n.literal(1).and_then(|s| s.single());
    let factor = match known {
        Some(value) => {
            let value = match value {
                Scalar::Float(v) => v.0,
                Scalar::Int(v) => v as f32,
            };
            n.scalar("factor", if down { 1.0 / value } else { value })?
        }
        None => {
            let mut s = n.operand(1)?;
            if n.ty(s).numel() != 1 {
                return Err("the factor must have one element".into());
            }
            if n.ty(s).dtype != DType::F32 {
                s = n.temp(OpKind::Cast { to: DType::F32 }, &[s])?;
            }
            let s = n.reshaped(s, &[])?;
            if down { n.temp(OpKind::Reciprocal {}, &[s])? } else { s }
        }
    };
    n.finish(OpKind::Mul {}, &[x, factor])
}
