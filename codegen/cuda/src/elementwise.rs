//! Element-wise ops: the expression of one element, and the ops that are no plain function of elements.

use memc_ir::{DType, OpKind};

use crate::Call;
use crate::index_space::{IndexSpace, broadcast};
use crate::kernel::{Entry, Launch, Lowering, float, int, name};
use crate::map::{Body, map};

/// Element-wise ops without state; `None` for every other op.
pub(crate) fn lower(call: &Call) -> Option<Lowering> {
    match call.op {
        OpKind::Increment { by } => Some(increment(call, *by)),
        OpKind::Cast { to } => Some(cast(call, *to)),
        OpKind::Select {} => Some(select(call)),
        op => {
            let names: Vec<String> = (0..call.operands.len()).map(|t| format!("x{t}")).collect();
            Some(map(call, &Body::of(expression(op, &names)?), usize::MAX))
        }
    }
}

/// An element of the op's result, in its wide type, from its operands' elements in theirs; `None` for an op
/// that is more than a function of elements.
pub(crate) fn expression(op: &OpKind, args: &[String]) -> Option<String> {
    use OpKind::*;
    let arg = |i: usize| args.get(i).map_or("", String::as_str);
    let (a, b, c) = (arg(0), arg(1), arg(2));
    Some(match op {
        Neg {} => format!("op_neg({a})"),
        Abs {} => format!("op_abs({a})"),
        Sign {} => format!("op_sign({a})"),
        Relu {} => format!("op_relu({a})"),
        Not {} => format!("{a} == 0"),
        Floor {} => format!("floorf({a})"),
        StopGradient {} => a.to_string(),
        Ceil {} => format!("ceilf({a})"),
        Round {} => format!("rintf({a})"),
        Atan {} => format!("atanf({a})"),
        Sin {} => format!("sinf({a})"),
        Cos {} => format!("cosf({a})"),
        Exp {} => format!("expf({a})"),
        Log {} => format!("logf({a})"),
        Sqrt {} => format!("sqrtf({a})"),
        Reciprocal {} => format!("1.0f / {a}"),
        Tanh {} => format!("tanhf({a})"),
        Sigmoid {} => format!("op_sigmoid({a})"),
        Erf {} => format!("erff({a})"),
        Gelu { tanh: false } => format!("op_gelu({a})"),
        Gelu { tanh: true } => format!("op_gelu_tanh({a})"),
        Add {} => format!("op_add({a}, {b})"),
        Sub {} => format!("op_sub({a}, {b})"),
        Mul {} => format!("op_mul({a}, {b})"),
        Div {} => format!("op_div({a}, {b})"),
        Pow {} => format!("op_pow({a}, {b})"),
        Min {} => format!("op_min({a}, {b})"),
        Max {} => format!("op_max({a}, {b})"),
        Equal {} => format!("{a} == {b}"),
        Less {} => format!("{a} < {b}"),
        LessEqual {} => format!("{a} <= {b}"),
        Greater {} => format!("{a} > {b}"),
        GreaterEqual {} => format!("{a} >= {b}"),
        And {} => format!("{a} != 0 && {b} != 0"),
        Or {} => format!("{a} != 0 || {b} != 0"),
        ReluGrad {} => format!("{b} > 0.0f ? {a} : 0.0f"),
        TanhGrad {} => format!("{a} * (1.0f - {b} * {b})"),
        SigmoidGrad {} => format!("{a} * {b} * (1.0f - {b})"),
        GeluGrad { tanh: false } => format!("{a} * op_gelu_slope({b})"),
        GeluGrad { tanh: true } => format!("{a} * op_gelu_tanh_slope({b})"),
        Select {} => format!("{a} != 0 ? {b} : {c}"),
        MovingAverage { momentum, scale } => {
            let (old, new) = (momentum.0, (1.0 - momentum.0) * scale.0);
            format!("{} * {a} + {} * {b}", float(old), float(new))
        }
        MaskScale { scale } => format!("{b} != 0 ? {a} * {} : 0.0f", float(scale.0)),
        BatchNorm {} => format!("({a} - {}) * ({} * {b}) + {c}", arg(3), arg(4)),
        _ => return None,
    })
}

fn cast(call: &Call, to: DType) -> Lowering {
    let (Some(x), Some(y)) = (call.operands.first(), call.results.first()) else {
        return Lowering::default();
    };
    if x.dtype == to {
        return crate::shape::copy(call);
    }
    let (from, into) = (name(x.dtype), name(to));
    // Any byte but zero is true.
    let read = if x.dtype == DType::Bool { "(i32)(x[i].bits != 0)" } else { "up(x[i])" };
    let entry = Entry::new().operand(0, from, "x").result(0, into, "y");
    Lowering::of(entry.each("cast", y.numel(), &format!("y[i] = cast<{into}>({read});")))
}

/// Elements move unread.
fn select(call: &Call) -> Lowering {
    let (Some(y), [_, a, b]) = (call.results.first(), call.operands) else { return Lowering::default() };
    let rank = y.rank();
    let strides: Vec<Vec<i64>> = call.operands.iter().map(|t| broadcast(&t.shape, rank)).collect();
    let (ta, tb, ty) =
        (crate::kernel::raw(a.dtype), crate::kernel::raw(b.dtype), crate::kernel::raw(y.dtype));
    let entry =
        Entry::new().operand(0, "u8", "cond").operand(1, ta, "a").operand(2, tb, "b").result(0, ty, "y");
    let (entry, mut text) = IndexSpace::new(&y.shape, &strides).offsets(entry, "o", "i");
    text.push_str("y[i] = cond[o0] ? a[o1] : b[o2];");
    Lowering::of(entry.each("select", y.numel(), &text))
}

fn increment(call: &Call, by: i64) -> Lowering {
    let one = |(i, ty): (usize, &memc_ir::TensorType)| -> Option<Launch> {
        let entry = Entry::new().operand(i, name(ty.dtype), "x").result(i, name(ty.dtype), "y");
        let text = format!("y[i] = op_add(x[i], ({}){});", name(ty.dtype), int(by));
        entry.each("increment", ty.numel(), &text)
    };
    Lowering::of(call.operands.iter().enumerate().filter_map(one))
}
