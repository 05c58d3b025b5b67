"""Ops on complex numbers, as pairs of real tensors.

A complex tensor of the user's lies in memory as PyTorch has it: a state or an input with a last axis more, of real and
imaginary parts.
"""

from __future__ import annotations

import math
from typing import Union

import torch
from torch.fx import Node

from ._ir import Module, Type, Value
from ._lower import PAIRS, RULES, Lowering, Pair, place, split

# Ops that are linear in every part, or move elements: their rules are used for each part.
COMPONENTWISE = [f"aten.{name}" for name in (
    "alias.default", "detach.default", "clone.default", "lift_fresh_copy.default", "contiguous.default", "view.default",
    "_unsafe_view.default", "reshape.default", "squeeze.dim", "squeeze.dims", "squeeze.default", "unsqueeze.default",
    "_reshape_alias.default", "t.default", "transpose.int", "permute.default", "expand.default", "slice.Tensor",
    "slice_backward.default", "select.int", "select_backward.default", "select_scatter.default", "slice_scatter.default",
    "cat.default", "stack.default", "split.Tensor", "split_with_sizes.default", "unbind.int", "chunk.default",
    "repeat.default", "flip.default", "roll.default", "index_select.default", "index.Tensor", "neg.default", "sum.default",
    "sum.dim_IntList", "mean.default", "mean.dim", "copy.default", "diagonal.default", "tril.default", "triu.default",
    "gather.default", "where.self", "resolve_conj.default", "resolve_neg.default", "_neg_view.default")]
# Most points of a transform, which is a matrix product here.
POINTS = 4096

def rule(*names: str):
    def register(function):
        PAIRS.update({f"aten.{name}": function for name in names})
        return function

    return register


def joined(m: Module, x: Union[Value, Pair]) -> Value:
    """A pair as one tensor with the parts along a last axis; any other value as it is."""
    if not isinstance(x, Pair):
        return x
    shape = (*x.re.type.shape, 1)
    return m.concat([m.reshape(x.re, shape), m.reshape(x.im, shape)], len(shape) - 1)


def by_parts(cx: Lowering, node: Node) -> Union[Pair, list[Pair]]:
    """The value, or values, of an op whose rule for real numbers is used for each part."""
    parts = []
    for part in (0, 1):
        cx.part = part
        try:
            parts.append(RULES[str(node.target)](cx, node))
        finally:
            cx.part = None
    if isinstance(parts[0], list):
        return [Pair(*both) for both in zip(*parts)]
    return Pair(*parts)


PAIRS.update({name: by_parts for name in COMPONENTWISE})


def pair(cx: Lowering, arg) -> Pair:
    """An operand as a pair, with zeros for the imaginary part of a real one."""
    if isinstance(arg, Node):
        value = cx.values[arg]
        if isinstance(value, Pair):
            return value
        value = cx.m.cast(value, "f32")
        return Pair(value, cx.m.fill(0.0, value.type))
    number = complex(arg)
    return Pair(cx.m.scalar(number.real, "f32"), cx.m.scalar(number.imag, "f32"))


def is_real(cx: Lowering, arg) -> bool:
    return not isinstance(cx.values[arg], Pair) if isinstance(arg, Node) else not isinstance(arg, complex)


def real(cx: Lowering, arg) -> Value:
    return cx.value(arg, "f32")


def times(m: Module, a: Pair, b: Pair, product) -> Pair:
    return Pair(m.binary("sub", product(a.re, b.re), product(a.im, b.im)),
                m.binary("add", product(a.re, b.im), product(a.im, b.re)))


@rule("mul.Tensor", "mul.Scalar")
def mul(cx, node):
    a, b = node.args[:2]
    multiply = lambda x, y: cx.m.binary("mul", x, y)
    if is_real(cx, a):
        a, b = b, a
    if is_real(cx, b):
        return Pair(*[multiply(x, real(cx, b)) for x in pair(cx, a)])
    return times(cx.m, pair(cx, a), pair(cx, b), multiply)


@rule("mm.default", "bmm.default")
def matmul(cx, node):
    return times(cx.m, pair(cx, node.args[0]), pair(cx, node.args[1]), cx.m.matmul)


@rule("div.Tensor", "div.Scalar")
def div(cx, node):
    m, (a, b) = cx.m, node.args[:2]
    if is_real(cx, b):
        return Pair(*[m.binary("div", x, real(cx, b)) for x in pair(cx, a)])
    y = pair(cx, b)
    square = squared(m, y)
    top = times(m, pair(cx, a), conjugate(m, y), lambda u, v: m.binary("mul", u, v))
    return Pair(*[m.binary("div", x, square) for x in top])


@rule("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar")
def add(cx, node):
    m, kind = cx.m, "add" if "add" in str(node.target) else "sub"
    alpha = cx.arg(node, 2, "alpha", 1)
    b = pair(cx, node.args[1])
    b = b if alpha == 1 else Pair(*[m.by("mul", x, alpha) for x in b])
    return Pair(*[m.binary(kind, x, y) for x, y in zip(pair(cx, node.args[0]), b)])


def conjugate(m: Module, x: Pair) -> Pair:
    return Pair(x.re, m.unary("neg", x.im))


@rule("_conj.default", "_conj_physical.default", "conj_physical.default")
def conj(cx, node):
    return conjugate(cx.m, pair(cx, node.args[0]))


def squared(m: Module, x: Pair) -> Value:
    return m.binary("add", m.binary("mul", x.re, x.re), m.binary("mul", x.im, x.im))


@rule("abs.default")
def magnitude(cx, node):
    return cx.m.unary("sqrt", squared(cx.m, pair(cx, node.args[0])))


@rule("sgn.default")
def direction(cx, node):
    m, x = cx.m, pair(cx, node.args[0])
    length = m.unary("sqrt", squared(m, x))
    zero = m.scalar(0.0, "f32")
    none = m.compare("equal", length, zero)
    return Pair(*[m.select(none, zero, m.binary("div", part, length)) for part in x])


@rule("exp.default")
def exp(cx, node):
    m, x = cx.m, pair(cx, node.args[0])
    return Pair(*[m.binary("mul", m.unary("exp", x.re), m.unary(kind, x.im)) for kind in ("cos", "sin")])


@rule("complex.default")
def of_parts(cx, node):
    return Pair(*[cx.m.broadcast(real(cx, arg), node.meta["val"].shape) for arg in node.args[:2]])


@rule("polar.default")
def polar(cx, node):
    m, (length, angle) = cx.m, [real(cx, arg) for arg in node.args[:2]]
    return Pair(*[m.binary("mul", length, m.unary(kind, angle)) for kind in ("cos", "sin")])


@rule("view_as_real.default", "view_as_real_copy.default")
def view_as_real(cx, node):
    return joined(cx.m, pair(cx, node.args[0]))


@rule("view_as_complex.default", "view_as_complex_copy.default")
def view_as_complex(cx, node):
    return split(cx.m, real(cx, node.args[0]))


@rule("_to_copy.default", "real.default")
def to_type(cx, node):
    x = cx.values[node.args[0]]
    if node.meta["val"].is_complex():
        return pair(cx, node.args[0])
    return x.re if isinstance(x, Pair) else x


@rule("zeros_like.default", "zeros.default", "new_zeros.default", "full.default", "full_like.default", "ones_like.default",
      "ones.default", "new_full.default", "scalar_tensor.default", "empty_like.default", "empty.memory_format",
      "new_empty_strided.default", "empty_strided.default", "new_empty.default")
def filled(cx, node):
    name = str(node.target)
    at = {"full.": 1, "full_like": 1, "new_full": 2, "scalar_tensor": 0}
    number = next((node.args[i] for key, i in at.items() if key in name), 1.0 if "ones" in name else 0.0)
    type = Type("f32", tuple(node.meta["val"].shape))
    return Pair(cx.m.fill(complex(number).real, type), cx.m.fill(complex(number).imag, type))


# Fourier transforms, as products with the matrix of the transform along each axis.


def along(cx: Lowering, x: Value, axis: int, matrix: torch.Tensor, node: Node) -> Value:
    """A matrix `[in, out]` applied along an axis."""
    constant = cx.constant(node.name, matrix.float(), place(node))
    last = x.type.rank - 1
    return cx.m.swap(cx.m.matmul(cx.m.swap(x, axis, last), constant), axis, last)


def scale(node: Node, sizes: list[int]) -> float:
    """Factor of PyTorch's normalisation 0 (none), 1 (by the root) or 2 (by the number of points)."""
    n = math.prod(sizes)
    return {0: 1.0, 1: n ** -0.5, 2: 1 / n}[node.args[2]]


def angles(cx: Lowering, node: Node, n: int) -> torch.Tensor:
    if n > POINTS:
        raise cx.refuse(node, f"transforms have at most {POINTS} points here")
    places = torch.arange(n, dtype=torch.int64)
    return ((places[:, None] * places) % n).double() * (2 * math.pi / n)


def turned(cx: Lowering, node: Node, x: Pair, axis: int, is_forward: bool) -> Pair:
    """A complex transform along an axis."""
    m, angle = cx.m, angles(cx, node, x.re.type.shape[axis])
    cosine = lambda part: along(cx, part, axis, angle.cos(), node)
    sine = lambda part: along(cx, part, axis, angle.sin(), node)
    kinds = ("add", "sub") if is_forward else ("sub", "add")
    return Pair(m.binary(kinds[0], cosine(x.re), sine(x.im)), m.binary(kinds[1], cosine(x.im), sine(x.re)))


def scaled(cx: Lowering, x: Pair, by: float) -> Pair:
    return x if by == 1.0 else Pair(*[cx.m.by("mul", part, by) for part in x])


@rule("_fft_c2c.default")
def fft_c2c(cx, node):
    x = pair(cx, node.args[0])
    axes = [axis % x.re.type.rank for axis in node.args[1]]
    by = scale(node, [x.re.type.shape[axis] for axis in axes])
    for axis in axes:
        x = turned(cx, node, x, axis, bool(node.args[3]))
    return scaled(cx, x, by)


@rule("_fft_r2c.default")
def fft_r2c(cx, node):
    m, x = cx.m, real(cx, node.args[0])
    *axes, last = [axis % x.type.rank for axis in node.args[1]]
    by, n = scale(node, [x.type.shape[axis] for axis in (*axes, last)]), x.type.shape[last]
    angle = angles(cx, node, n)[:, :n // 2 + 1 if node.args[3] else n]
    y = Pair(along(cx, x, last, angle.cos(), node), m.unary("neg", along(cx, x, last, angle.sin(), node)))
    for axis in axes:
        y = turned(cx, node, y, axis, True)
    return scaled(cx, y, by)


@rule("_fft_c2r.default")
def fft_c2r(cx, node):
    m, x, n = cx.m, pair(cx, node.args[0]), int(node.args[3])
    *axes, last = [axis % x.re.type.rank for axis in node.args[1]]
    by = scale(node, [*[x.re.type.shape[axis] for axis in axes], n])
    for axis in axes:
        x = turned(cx, node, x, axis, False)
    half = n // 2 + 1
    # Every frequency but the first, and the middle one of an even number, stands for two.
    count = torch.tensor([1.0 if k == 0 or 2 * k == n else 2.0 for k in range(half)], dtype=torch.double)[:, None]
    angle = angles(cx, node, n)[:half]
    x = Pair(*[m.slice(part, last, 0, half) for part in x])
    y = m.binary("sub", along(cx, x.re, last, count * angle.cos(), node), along(cx, x.im, last, count * angle.sin(), node))
    return y if by == 1.0 else m.by("mul", y, by)
