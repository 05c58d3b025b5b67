"""Element-wise ops, reductions and matrix products."""

from __future__ import annotations

import math

import torch
from torch.fx import Node

from ._ir import Type, Value, broadcast
from ._lower import DTYPES, Lowering, rule

UNARY = {
    "neg": "neg", "_neg_view": "neg", "abs": "abs", "sign": "sign", "floor": "floor", "ceil": "ceil", "round": "round",
    "sin": "sin", "cos": "cos", "atan": "atan", "exp": "exp", "log": "log", "sqrt": "sqrt", "reciprocal": "reciprocal",
    "tanh": "tanh", "sigmoid": "sigmoid", "erf": "erf", "relu": "relu",
}
BINARY = {"mul.Tensor": "mul", "mul.Scalar": "mul", "minimum": "min", "maximum": "max", "pow.Tensor_Tensor": "pow"}
COMPARE = {"lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal"}


def _unary(kind: str):
    def lower(cx: Lowering, node: Node) -> Value:
        return cx.m.unary(kind, cx.value(node.args[0], cx.type(node).dtype))

    return lower


def _binary(kind: str):
    def lower(cx: Lowering, node: Node) -> Value:
        dtype = cx.type(node).dtype
        if dtype == "bool":
            kinds = {"mul": "and", "max": "or", "min": "and"}
            return cx.m.op(kinds[kind], operands(cx, node, "bool"), cx.type(node))
        return cx.m.binary(kind, *operands(cx, node, dtype))

    return lower


def operands(cx: Lowering, node: Node, dtype: str) -> list[Value]:
    return [cx.value(arg, dtype) for arg in node.args[:2]]


def common(cx: Lowering, node: Node) -> str:
    """Element type in which the two operands meet, by PyTorch's rules."""
    plain = [arg.meta["val"] if isinstance(arg, Node) else arg for arg in node.args[:2]]
    return DTYPES[torch.result_type(*plain)]


def _compare(kind: str):
    def lower(cx: Lowering, node: Node) -> Value:
        dtype = common(cx, node)
        dtype = "i32" if dtype == "bool" and kind != "equal" else dtype
        return cx.m.compare(kind, *operands(cx, node, dtype))

    return lower


for _name, _kind in UNARY.items():
    rule(f"{_name}.default")(_unary(_kind))
for _name, _kind in BINARY.items():
    rule(_name if "." in _name else f"{_name}.default")(_binary(_kind))
for _name, _kind in COMPARE.items():
    rule(f"{_name}.Tensor", f"{_name}.Scalar")(_compare(_kind))


@rule("ne.Tensor", "ne.Scalar")
def ne(cx, node):
    return cx.m.unary("not", cx.m.compare("equal", *operands(cx, node, common(cx, node))))


@rule("logical_not.default", "bitwise_not.default")
def logical_not(cx, node):
    if cx.type(node).dtype != "bool":
        raise cx.refuse(node, "bits of integers are not supported")
    return cx.m.unary("not", cx.value(node.args[0], "bool"))


@rule("logical_and.default", "bitwise_and.Tensor", "bitwise_and.Scalar")
def logical_and(cx, node):
    return logical(cx, node, "and")


@rule("logical_or.default", "bitwise_or.Tensor", "bitwise_or.Scalar")
def logical_or(cx, node):
    return logical(cx, node, "or")


@rule("logical_xor.default", "bitwise_xor.Tensor")
def logical_xor(cx, node):
    need_bool(cx, node)
    return cx.m.unary("not", cx.m.compare("equal", *operands(cx, node, "bool")))


def need_bool(cx, node):
    if cx.type(node).dtype != "bool":
        raise cx.refuse(node, "bits of integers are not supported")


def logical(cx, node, kind):
    need_bool(cx, node)
    return cx.m.op(kind, operands(cx, node, "bool"), cx.type(node))


@rule("add.Tensor", "add.Scalar")
def add(cx, node):
    return scaled(cx, node, "add")


@rule("sub.Tensor", "sub.Scalar")
def sub(cx, node):
    return scaled(cx, node, "sub")


@rule("rsub.Scalar", "rsub.Tensor")
def rsub(cx, node):
    a, b = operands(cx, node, cx.type(node).dtype)
    return cx.m.binary("sub", b, a)


def scaled(cx, node, kind):
    """`a + alpha * b`, or the difference."""
    dtype = cx.type(node).dtype
    if dtype == "bool":
        return cx.m.op("or", operands(cx, node, "bool"), cx.type(node))
    a, b = operands(cx, node, dtype)
    alpha = cx.arg(node, 2, "alpha", 1)
    return cx.m.binary(kind, a, b if alpha == 1 else cx.m.by("mul", b, alpha))


@rule("div.Tensor", "div.Scalar")
def div(cx, node):
    return cx.m.binary("div", *operands(cx, node, cx.type(node).dtype))


@rule("div.Tensor_mode", "div.Scalar_mode")
def div_mode(cx, node):
    a, b = operands(cx, node, cx.type(node).dtype)
    mode = node.kwargs.get("rounding_mode")
    return cx.m.binary("div", a, b) if mode is None else floored(cx, a, b) if mode == "floor" else truncated(cx, a, b)


def truncated(cx, a, b):
    y = cx.m.binary("div", a, b)
    if not y.type.is_float:
        return y
    zero = cx.m.scalar(0.0, y.type.dtype)
    return cx.m.select(cx.m.compare("less", y, zero), cx.m.unary("ceil", y), cx.m.unary("floor", y))


def floored(cx, a, b):
    m, y = cx.m, cx.m.binary("div", a, b)
    if y.type.is_float:
        return m.unary("floor", y)
    # Integer division truncates: one less where the remainder has another sign than the divisor.
    rest = m.binary("sub", a, m.binary("mul", y, b))
    zero = m.scalar(0, y.type.dtype)
    differs = m.unary("not", m.compare("equal", m.compare("less", rest, zero), m.compare("less", b, zero)))
    inexact = m.unary("not", m.compare("equal", rest, zero))
    wrong = m.op("and", [differs, inexact], Type("bool", broadcast(differs.type.shape, inexact.type.shape)))
    return m.binary("sub", y, m.cast(wrong, y.type.dtype))


@rule("floor_divide.default")
def floor_divide(cx, node):
    return floored(cx, *operands(cx, node, cx.type(node).dtype))


@rule("remainder.Tensor", "remainder.Scalar")
def remainder(cx, node):
    a, b = operands(cx, node, cx.type(node).dtype)
    return cx.m.binary("sub", a, cx.m.binary("mul", floored(cx, a, b), b))


@rule("fmod.Tensor", "fmod.Scalar")
def fmod(cx, node):
    a, b = operands(cx, node, cx.type(node).dtype)
    return cx.m.binary("sub", a, cx.m.binary("mul", truncated(cx, a, b), b))


@rule("pow.Tensor_Scalar")
def pow_scalar(cx, node):
    x, exponent = cx.value(node.args[0], cx.type(node).dtype), node.args[1]
    simple = {0: None, 1: lambda: x, 2: lambda: cx.m.binary("mul", x, x), 0.5: lambda: cx.m.unary("sqrt", x)}
    if x.type.is_float:
        simple |= {-1: lambda: cx.m.unary("reciprocal", x)}
        simple |= {-0.5: lambda: cx.m.unary("reciprocal", cx.m.unary("sqrt", x))}
    simple |= {3: lambda: cx.m.binary("mul", cx.m.binary("mul", x, x), x)}
    if simple.get(exponent):
        return simple[exponent]()
    return cx.m.by("pow", x, exponent)


@rule("pow.Scalar")
def pow_of_scalar(cx, node):
    dtype = cx.type(node).dtype
    return cx.m.binary("pow", cx.value(node.args[0], dtype), cx.value(node.args[1], dtype))


@rule("rsqrt.default")
def rsqrt(cx, node):
    return cx.m.unary("reciprocal", cx.m.unary("sqrt", cx.value(node.args[0], cx.type(node).dtype)))


@rule("log2.default")
def log2(cx, node):
    return cx.m.by("mul", cx.m.unary("log", cx.value(node.args[0], cx.type(node).dtype)), 1 / math.log(2))


@rule("log1p.default")
def log1p(cx, node):
    """`log(u) * x / (u - 1)` with `u = 1 + x`, exact to rounding where x is small (Kahan)."""
    m, x = cx.m, cx.value(node.args[0], cx.type(node).dtype)
    u = m.by("add", x, 1.0)
    one = m.scalar(1.0, x.type.dtype)
    difference = m.binary("sub", u, one)
    ratio = m.binary("div", m.binary("mul", m.unary("log", u), x), difference)
    exact = m.compare("equal", u, one)
    unbounded = m.compare("equal", u, m.scalar(math.inf, x.type.dtype))
    return m.select(exact, x, m.select(unbounded, u, ratio))


@rule("expm1.default")
def expm1(cx, node):
    """`(u - 1) * x / log(u)` with `u = exp(x)`, exact to rounding where x is small (Kahan)."""
    m, x = cx.m, cx.value(node.args[0], cx.type(node).dtype)
    u = m.unary("exp", x)
    one = m.scalar(1.0, x.type.dtype)
    difference = m.binary("sub", u, one)
    precise = m.binary("div", m.binary("mul", difference, x), m.unary("log", u))
    near = m.compare("less", m.unary("abs", x), one)
    return m.select(m.compare("equal", u, one), x, m.select(near, precise, difference))


@rule("acos.default")
def acos(cx, node):
    """`2 atan(sqrt((1 - x) / (1 + x)))`."""
    return cx.m.by("mul", half_angle(cx, node), 2.0)


@rule("asin.default")
def asin(cx, node):
    """A right angle less the inverse cosine."""
    angle = cx.m.by("mul", half_angle(cx, node), 2.0)
    return cx.m.binary("sub", cx.m.scalar(math.pi / 2, angle.type.dtype), angle)


def half_angle(cx, node):
    """Half of the angle with this cosine."""
    m, x = cx.m, cx.value(node.args[0], cx.type(node).dtype)
    one = m.scalar(1.0, x.type.dtype)
    return m.unary("atan", m.unary("sqrt", m.binary("div", m.binary("sub", one, x), m.binary("add", one, x))))


@rule("gelu.default")
def gelu(cx, node):
    tanh = node.kwargs.get("approximate", "none") == "tanh"
    return cx.m.unary("gelu", cx.value(node.args[0]), tanh=tanh)


@rule("gelu_backward.default")
def gelu_backward(cx, node):
    dy, x = operands(cx, node, cx.type(node).dtype)
    return cx.m.op("gelu_grad", [dy, x], x.type, tanh=node.kwargs.get("approximate", "none") == "tanh")


@rule("silu.default")
def silu(cx, node):
    x = cx.value(node.args[0])
    return cx.m.binary("mul", x, cx.m.unary("sigmoid", x))


@rule("threshold_backward.default")
def threshold_backward(cx, node):
    dy, x = operands(cx, node, cx.type(node).dtype)
    threshold = node.args[2]
    if threshold == 0:
        return cx.m.op("relu_grad", [dy, x], x.type)
    kept = cx.m.compare("greater", x, cx.m.scalar(threshold, x.type.dtype))
    return cx.m.select(kept, dy, cx.m.scalar(0.0, x.type.dtype))


@rule("tanh_backward.default")
def tanh_backward(cx, node):
    dy, y = operands(cx, node, cx.type(node).dtype)
    return cx.m.op("tanh_grad", [dy, y], y.type)


@rule("sigmoid_backward.default")
def sigmoid_backward(cx, node):
    dy, y = operands(cx, node, cx.type(node).dtype)
    return cx.m.op("sigmoid_grad", [dy, y], y.type)


@rule("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def where(cx, node):
    dtype = cx.type(node).dtype
    return cx.m.select(cx.value(node.args[0], "bool"), cx.value(node.args[1], dtype), cx.value(node.args[2], dtype))


@rule("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(cx, node):
    dtype = cx.type(node).dtype
    x, mask, value = cx.value(node.args[0], dtype), cx.value(node.args[1], "bool"), cx.value(node.args[2], dtype)
    return cx.m.select(mask, value, x)


@rule("clamp.default", "clamp.Tensor", "hardtanh.default")
def clamp(cx, node):
    type = cx.type(node)
    y = cx.value(node.args[0], type.dtype)
    for at, name, kind in ((1, "min", "max"), (2, "max", "min")):
        limit = cx.arg(node, at, name)
        if limit is not None:
            y = cx.m.binary(kind, y, cx.value(limit, type.dtype))
    return y


@rule("clamp_min.default", "clamp_min.Tensor")
def clamp_min(cx, node):
    return cx.m.binary("max", *operands(cx, node, cx.type(node).dtype))


@rule("clamp_max.default", "clamp_max.Tensor")
def clamp_max(cx, node):
    return cx.m.binary("min", *operands(cx, node, cx.type(node).dtype))


@rule("isnan.default")
def isnan(cx, node):
    x = cx.value(node.args[0])
    return cx.m.unary("not", cx.m.compare("equal", x, x))


@rule("isinf.default")
def isinf(cx, node):
    x = cx.m.unary("abs", cx.value(node.args[0]))
    return cx.m.compare("equal", x, cx.m.scalar(math.inf, x.type.dtype))


@rule("addcmul.default")
def addcmul(cx, node):
    return composed(cx, node, "mul")


@rule("addcdiv.default")
def addcdiv(cx, node):
    return composed(cx, node, "div")


def composed(cx, node, kind):
    """`x + value * (a kind b)`."""
    x, a, b = [cx.value(arg, cx.type(node).dtype) for arg in node.args[:3]]
    y = cx.m.binary(kind, a, b)
    value = node.kwargs.get("value", 1)
    return cx.m.binary("add", x, y if value == 1 else cx.m.by("mul", y, value))


@rule("_to_copy.default")
def to_copy(cx, node):
    return cx.value(node.args[0], cx.type(node).dtype)


@rule("mm.default", "bmm.default")
def mm(cx, node):
    return cx.m.matmul(*operands(cx, node, cx.type(node).dtype))


@rule("mv.default", "dot.default")
def mv(cx, node):
    a, b = operands(cx, node, cx.type(node).dtype)
    a = cx.m.reshape(a, (-1 if a.type.rank > 1 else 1, a.type.shape[-1])) if a.type.rank == 1 else a
    y = cx.m.matmul(a, cx.m.reshape(b, (b.type.shape[0], 1)))
    return cx.m.reshape(y, cx.type(node).shape)


@rule("addmm.default", "baddbmm.default")
def addmm(cx, node):
    c, a, b = [cx.value(arg, cx.type(node).dtype) for arg in node.args[:3]]
    alpha, beta = node.kwargs.get("alpha", 1), node.kwargs.get("beta", 1)
    y = cx.m.matmul(a, b)
    y = y if alpha == 1 else cx.m.by("mul", y, alpha)
    return y if beta == 0 else cx.m.binary("add", y, c if beta == 1 else cx.m.by("mul", c, beta))


def axes_of(cx: Lowering, node: Node, at: int, name: str = "dim") -> list[int]:
    """Axes of a reduction; all of them where none is named."""
    rank = cx.value(node.args[0]).type.rank
    dims = cx.arg(node, at, name)
    if dims is None or dims == []:
        return list(range(rank))
    return sorted(d % rank for d in ([dims] if isinstance(dims, int) else dims)) if rank else []


def _reduce(kind: str):
    def lower(cx: Lowering, node: Node) -> Value:
        x = cx.value(node.args[0], cx.type(node).dtype)
        return cx.m.reduce(kind, x, axes_of(cx, node, 1), bool(cx.arg(node, 2, "keepdim", False)))

    return lower


rule("sum.default", "sum.dim_IntList")(_reduce("reduce_sum"))
rule("mean.default", "mean.dim")(_reduce("reduce_mean"))
rule("amax.default")(_reduce("reduce_max"))


@rule("amin.default")
def amin(cx, node):
    x = cx.m.unary("neg", cx.value(node.args[0], cx.type(node).dtype))
    return cx.m.unary("neg", cx.m.reduce("reduce_max", x, axes_of(cx, node, 1), bool(cx.arg(node, 2, "keepdim", False))))


@rule("max.default", "min.default")
def extreme(cx, node):
    x = cx.value(node.args[0])
    if "min" in str(node.target):
        return cx.m.unary("neg", cx.m.reduce("reduce_max", cx.m.unary("neg", x), range(x.type.rank)))
    return cx.m.reduce("reduce_max", x, range(x.type.rank))


@rule("any.default", "any.dim", "any.dims")
def any_(cx, node):
    return any_of(cx, node, cx.value(node.args[0], "bool"))


@rule("all.default", "all.dim", "all.dims")
def all_(cx, node):
    return cx.m.unary("not", any_of(cx, node, cx.m.unary("not", cx.value(node.args[0], "bool"))))


def any_of(cx, node, x):
    y = cx.m.reduce("reduce_max", cx.m.cast(x, "f32"), axes_of(cx, node, 1), bool(cx.arg(node, 2, "keepdim", False)))
    return cx.m.cast(y, "bool")


@rule("var.correction", "var_mean.correction")
def var(cx, node):
    m, x = cx.m, cx.value(node.args[0])
    dims, keep = axes_of(cx, node, 1), bool(node.kwargs.get("keepdim", False))
    correction = node.kwargs.get("correction", 1)
    correction = 1 if correction is None else correction
    mean = m.reduce("reduce_mean", x, dims, True)
    apart = m.binary("sub", x, mean)
    total = m.reduce("reduce_sum", m.binary("mul", apart, apart), dims, keep)
    count = math.prod(x.type.shape[d] for d in dims)
    y = m.by("div", total, max(0.0, float(count - correction)))
    if "var_mean" not in str(node.target):
        return y
    return [y, mean if keep else m.reshape(mean, y.type.shape)]


@rule("prod.default", "prod.dim_int")
def prod(cx, node):
    """The product of each axis in halves."""
    m, x = cx.m, cx.value(node.args[0], cx.type(node).dtype)
    for axis in axes_of(cx, node, 1):
        while (size := x.type.shape[axis]) > 1:
            x = m.pad_axis(x, axis, 0, size % 2, 1.0)
            half = x.type.shape[axis] // 2
            x = m.binary("mul", m.slice(x, axis, 0, half), m.slice(x, axis, half, 2 * half))
    return m.reshape(x, cx.type(node).shape)
