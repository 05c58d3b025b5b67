//! Element-wise ops: one thread makes one element of every result at a time.

use std::fmt::Write;

use memc_ir::{DType, OpKind};

use crate::Call;
use crate::kernel::{Entry, Launch, Lowering, float, int, name};
use crate::walk::{Walk, broadcast};

/// What a thread does: statements before its first element, then for every element statements and one expression for
/// each result. The elements of operand `t` are `x{t}`, in their wide type, and its address is `a{t}`.
#[derive(Default)]
pub(crate) struct Body {
    /// Statements before the loop.
    pub(crate) before: String,
    /// Statements for each element.
    pub(crate) lines: String,
    /// One expression for each result, in its wide type.
    pub(crate) results: Vec<String>,
}

impl Body {
    fn of(expression: impl Into<String>) -> Body {
        Body { results: vec![expression.into()], ..Body::default() }
    }
}

/// The launch of `body` over all elements of the results; operands broadcast. Operands from `scalars` on are single
/// numbers that only `body.before` reads.
pub(crate) fn map(call: &Call, body: &Body, scalars: usize) -> Lowering {
    let Some(first) = call.results.first() else { return Lowering::default() };
    let rank = first.rank();
    let elements = call.operands.get(..scalars.min(call.operands.len())).unwrap_or_default();
    let strides: Vec<Vec<i64>> = elements.iter().map(|t| broadcast(&t.shape, rank)).collect();
    let walk = Walk::new(&first.shape, &strides);
    let mut entry = Entry::new();
    for (t, ty) in call.operands.iter().enumerate() {
        entry = entry.operand(t, name(ty.dtype), &format!("a{t}"));
    }
    for (j, ty) in call.results.iter().enumerate() {
        entry = entry.result(j, name(ty.dtype), &format!("y{j}"));
    }
    let (entry, mut text) = walk.offsets(entry, "o", "i");
    for t in 0..elements.len() {
        let _ = writeln!(text, "const auto x{t} = up(a{t}[o{t}]);");
    }
    text.push_str(&body.lines);
    for (j, (expression, ty)) in body.results.iter().zip(call.results).enumerate() {
        let _ = writeln!(text, "y{j}[i] = down<{}>({expression});", name(ty.dtype));
    }
    Lowering::of(entry.each_after("map", first.numel(), &body.before, &text))
}

/// Element-wise ops without state; `None` for every other op.
pub(crate) fn lower(call: &Call) -> Option<Lowering> {
    use OpKind::*;
    let body = match call.op {
        Neg {} => Body::of("op_neg(x0)"),
        Abs {} => Body::of("op_abs(x0)"),
        Sign {} => Body::of("op_sign(x0)"),
        Relu {} => Body::of("op_relu(x0)"),
        Not {} => Body::of("x0 == 0"),
        Floor {} => Body::of("floorf(x0)"),
        Ceil {} => Body::of("ceilf(x0)"),
        Round {} => Body::of("rintf(x0)"),
        Sin {} => Body::of("sinf(x0)"),
        Cos {} => Body::of("cosf(x0)"),
        Exp {} => Body::of("expf(x0)"),
        Log {} => Body::of("logf(x0)"),
        Sqrt {} => Body::of("sqrtf(x0)"),
        Reciprocal {} => Body::of("1.0f / x0"),
        Tanh {} => Body::of("tanhf(x0)"),
        Sigmoid {} => Body::of("op_sigmoid(x0)"),
        Erf {} => Body::of("erff(x0)"),
        Gelu { tanh: false } => Body::of("op_gelu(x0)"),
        Gelu { tanh: true } => Body::of("op_gelu_tanh(x0)"),
        Add {} => Body::of("op_add(x0, x1)"),
        Sub {} => Body::of("op_sub(x0, x1)"),
        Mul {} => Body::of("op_mul(x0, x1)"),
        Div {} => Body::of("op_div(x0, x1)"),
        Pow {} => Body::of("op_pow(x0, x1)"),
        Min {} => Body::of("op_min(x0, x1)"),
        Max {} => Body::of("op_max(x0, x1)"),
        Equal {} => Body::of("x0 == x1"),
        Less {} => Body::of("x0 < x1"),
        LessEqual {} => Body::of("x0 <= x1"),
        Greater {} => Body::of("x0 > x1"),
        GreaterEqual {} => Body::of("x0 >= x1"),
        And {} => Body::of("x0 != 0 && x1 != 0"),
        Or {} => Body::of("x0 != 0 || x1 != 0"),
        ReluGrad {} => Body::of("x1 > 0.0f ? x0 : 0.0f"),
        TanhGrad {} => Body::of("x0 * (1.0f - x1 * x1)"),
        SigmoidGrad {} => Body::of("x0 * x1 * (1.0f - x1)"),
        GeluGrad { tanh: false } => Body::of("x0 * op_gelu_slope(x1)"),
        GeluGrad { tanh: true } => Body::of("x0 * op_gelu_tanh_slope(x1)"),
        MovingAverage { momentum, scale } => {
            let (old, new) = (momentum.0, (1.0 - momentum.0) * scale.0);
            Body::of(format!("{} * x0 + {} * x1", float(old), float(new)))
        }
        MaskScale { scale } => Body::of(format!("x1 != 0 ? x0 * {} : 0.0f", float(scale.0))),
        Increment { by } => return Some(increment(call, *by)),
        Cast { to } => return Some(cast(call, *to)),
        Select {} => return Some(select(call)),
        _ => return None,
    };
    Some(map(call, &body, usize::MAX))
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
    let (entry, mut text) = Walk::new(&y.shape, &strides).offsets(entry, "o", "i");
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
