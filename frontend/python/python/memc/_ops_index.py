"""Ops that read or write at indices, order elements, or draw random numbers."""

from __future__ import annotations

import math

from torch.fx import Node

from ._ir import Type, Value, broadcast
from ._lower import Lowering, rule


@rule("embedding.default")
def embedding(cx, node):
    table, at = cx.value(node.args[0]), cx.value(node.args[1])
    return cx.m.op("gather", [table, at], cx.type(node), axis=0)


@rule("embedding_dense_backward.default")
def embedding_backward(cx, node):
    m = cx.m
    dy, at, rows, padding, by_frequency = node.args
    if by_frequency:
        raise cx.refuse(node, "scale_grad_by_freq is not supported; leave it out")
    dy, at = cx.value(dy), cx.value(at)
    if padding >= 0:
        kept = m.unary("not", m.compare("equal", at, m.scalar(padding, at.type.dtype)))
        dy = m.select(m.reshape(kept, (*at.type.shape, 1)), dy, m.scalar(0.0, dy.type.dtype))
    return m.op("gather_grad", [at, dy], cx.type(node), axis=0, dim=rows)


@rule("index_select.default")
def index_select(cx, node):
    x, at = cx.value(node.args[0]), cx.value(node.args[2])
    return cx.m.op("gather", [x, at], cx.type(node), axis=node.args[1] % x.type.rank)


@rule("gather.default")
def gather(cx, node):
    x, at = cx.value(node.args[0]), cx.value(node.args[2])
    if not x.type.rank:
        return x
    return cx.m.op("gather_elements", [x, at], cx.type(node), axis=node.args[1] % x.type.rank)


class Scatter:
    """Writes to one place of an axis for each index."""

    def __init__(self, cx: Lowering, node: Node):
        self.m, self.x, self.at = cx.m, cx.value(node.args[0]), cx.value(node.args[2])
        self.axis = node.args[1] % max(1, self.x.type.rank)
        self.new = cx.value(node.args[3], self.x.type.dtype)
        if not isinstance(node.args[3], Node):
            self.new = self.m.broadcast(self.new, self.at.type.shape)
        for axis, size in enumerate(self.at.type.shape):
            self.new = self.m.slice(self.new, axis, 0, size)

    def into(self, x: Value, new: Value, mode: str) -> Value:
        return self.m.op("scatter_elements", [x, self.at, new], x.type, axis=self.axis, mode=mode)

    def full(self, number: float, shape: tuple[int, ...]) -> Value:
        return self.m.broadcast(self.m.scalar(number, self.x.type.dtype), shape)


@rule("scatter.src", "scatter.value")
def scatter(cx, node):
    places = Scatter(cx, node)
    return places.into(places.x, places.new, "replace")


@rule("scatter_add.default")
def scatter_add(cx, node):
    places = Scatter(cx, node)
    return places.into(places.x, places.new, "add")


# Modes of `scatter_elements`, and what changes nothing in them.
REDUCTIONS = {"sum": ("add", 0.0), "mean": ("add", 0.0), "prod": ("mul", 1.0), "amax": ("max", -math.inf),
              "amin": ("min", math.inf)}


@rule("scatter_reduce.two")
def scatter_reduce(cx, node):
    places = Scatter(cx, node)
    shape, of_self = places.at.type.shape, bool(cx.arg(node, 5, "include_self", True))
    mode, nothing = REDUCTIONS[node.args[4]]
    if not places.x.type.is_float and (node.args[4] == "mean" or not of_self):
        raise cx.refuse(node, "reductions of integers are supported with include_self=True, and without a mean")
    x = places.x if of_self else places.into(places.x, places.full(nothing, shape), "replace")
    y = places.into(x, places.new, mode)
    if node.args[4] != "mean":
        return y
    count = places.full(1.0, x.type.shape)
    count = count if of_self else places.into(count, places.full(0.0, shape), "replace")
    return cx.m.binary("div", y, places.into(count, places.full(1.0, shape), "add"))


class Places:
    """Tuples of indices of an advanced indexing, and the tensor with the indexed axes in front."""

    def __init__(self, cx: Lowering, node: Node, x: Value, indices: list):
        self.m = cx.m
        self.axes = [i for i, index in enumerate(indices) if index is not None]
        found = [cx.value(indices[i]) for i in self.axes]
        if any(index.type.dtype in ("bool", "u8") for index in found):
            raise cx.refuse(node, "the number of elements that a mask selects depends on data; use torch.where")
        self.shape = broadcast(*[index.type.shape for index in found])
        self.rest = [i for i in range(x.type.rank) if i not in self.axes]
        self.front = [*self.axes, *self.rest]
        columns = [self.m.reshape(self.m.broadcast(self.m.cast(i, "i64"), self.shape), (*self.shape, 1)) for i in found]
        self.tuples = self.m.concat(columns, len(self.shape))
        # Indices side by side have their axes where they were, others in front.
        adjacent = self.axes == list(range(self.axes[0], self.axes[-1] + 1))
        self.lead = self.axes[0] if adjacent else 0

    def order(self) -> list[int]:
        """Permutation from indexed axes first to PyTorch's order."""
        n = len(self.shape)
        rest = [n + i for i in range(len(self.rest))]
        return [*rest[: self.lead], *range(n), *rest[self.lead:]]

    def single(self) -> bool:
        return len(self.axes) == 1


@rule("index.Tensor", "_unsafe_index.Tensor")
def index(cx, node):
    m, x = cx.m, cx.value(node.args[0])
    indices = list(node.args[1])
    at = Places(cx, node, x, indices)
    if at.single():
        axis = at.axes[0]
        return m.op("gather", [x, cx.value(indices[axis])], cx.type(node), axis=axis)
    front = m.transpose(x, at.front)
    shape = (*at.shape, *[x.type.shape[i] for i in at.rest])
    y = m.op("gather_nd", [front, at.tuples], Type(x.type.dtype, shape))
    return m.transpose(y, at.order())


@rule("index_put.default", "_unsafe_index_put.default", "_index_put_impl.default")
def index_put(cx, node):
    m, x = cx.m, cx.value(node.args[0])
    indices, accumulate = list(node.args[1]), bool(cx.arg(node, 3, "accumulate", False))
    new = cx.value(node.args[2], x.type.dtype)
    masks = [i for i in indices if i is not None and cx.value(i).type.dtype == "bool"]
    if masks and len(indices) == 1 and new.type.elements == 1:
        mask = cx.value(indices[0], "bool")
        mask = m.reshape(mask, (*mask.type.shape, *[1] * (x.type.rank - mask.type.rank)))
        new = m.reshape(new, ())
        return m.select(mask, m.binary("add", x, new) if accumulate else new, x)
    at = Places(cx, node, x, indices)
    order = at.order()
    shape = (*at.shape, *[x.type.shape[i] for i in at.rest])
    new = m.broadcast(new, [shape[i] for i in order])
    if at.single() and accumulate and is_zero(node.args[0]):
        axis = at.axes[0]
        return m.op("gather_grad", [cx.value(indices[axis]), new], x.type, axis=axis, dim=x.type.shape[axis])
    new = m.transpose(new, inverse(order))
    front = m.transpose(x, at.front)
    y = m.op("scatter_nd", [front, at.tuples, new], front.type, mode="add" if accumulate else "replace")
    return m.transpose(y, inverse(at.front))


def inverse(perm: list[int]) -> list[int]:
    return [perm.index(i) for i in range(len(perm))]


def is_zero(node: Node) -> bool:
    name = str(node.target)
    return "zeros" in name or "full.default" in name and node.args[1] == 0 or "full_like" in name and node.args[1] == 0


@rule("index_add.default")
def index_add(cx, node):
    m, x = cx.m, cx.value(node.args[0])
    axis, at, new = node.args[1] % x.type.rank, cx.value(node.args[2]), cx.value(node.args[3])
    added = m.op("gather_grad", [at, new], x.type, axis=axis, dim=x.type.shape[axis])
    alpha = node.kwargs.get("alpha", 1)
    return m.binary("add", x, added if alpha == 1 else m.by("mul", added, alpha))


def foremost(cx: Lowering, x: Value, axis: int, k: int, smallest: bool) -> list[Value]:
    """The `k` largest or smallest elements along an axis, and their places."""
    if not x.type.rank:
        return [x, cx.m.scalar(0, "i64")]
    type = Type("i64", tuple(k if i == axis else d for i, d in enumerate(x.type.shape)))
    ordered = cx.m.cast(x, "i32") if x.type.dtype == "bool" else x
    at = cx.m.op("top_k", [ordered], type, axis=axis, k=k, smallest=smallest)
    return [cx.m.op("gather_elements", [x, at], Type(x.type.dtype, type.shape), axis=axis), at]


@rule("topk.default")
def topk(cx, node):
    x = cx.value(node.args[0])
    axis = cx.arg(node, 2, "dim", -1) % max(1, x.type.rank)
    return foremost(cx, x, axis, node.args[1], not cx.arg(node, 3, "largest", True))


@rule("sort.default", "sort.stable")
def sort(cx, node):
    x = cx.value(node.args[0])
    names = ("stable", "dim", "descending") if "stable" in str(node.target) else ("dim", "descending")
    read = lambda name, default: cx.arg(node, names.index(name) + (0 if "stable" in names else 1), name, default)
    axis = (node.kwargs.get("dim", -1) if "stable" in names else read("dim", -1)) % max(1, x.type.rank)
    descending = node.kwargs.get("descending", False) if "stable" in names else read("descending", False)
    return foremost(cx, x, axis, x.type.shape[axis] if x.type.rank else 1, not descending)


@rule("max.dim", "min.dim")
def max_dim(cx, node):
    x = cx.value(node.args[0])
    axis = node.args[1] % max(1, x.type.rank)
    found = foremost(cx, x, axis, 1, "min" in str(node.target))
    return [cx.m.reshape(y, cx.type(node, i).shape) for i, y in enumerate(found)]


@rule("argmax.default", "argmin.default")
def argmax(cx, node):
    x, axis = cx.value(node.args[0]), cx.arg(node, 1, "dim")
    if axis is None:
        x, axis = cx.m.reshape(x, (x.type.elements,)), 0
    found = foremost(cx, x, axis % max(1, x.type.rank), 1, "argmin" in str(node.target))
    return cx.m.reshape(found[1], cx.type(node).shape)


@rule("memc.dropout.default")
def dropout(cx, node):
    x, ratio, mask = node.args
    # Each micro-batch has masks of its own, which its gradients have, too.
    if mask not in cx.streams:
        cx.streams[mask] = cx.m.stream()
    return cx.m.op("dropout", [cx.value(x), cx.m.step()], cx.type(node), ratio=float(ratio), seed=0,
                   stream=cx.streams[mask])


def floats(cx: Lowering, node: Node, kind: str, **attrs) -> Value:
    """Random `f32` of the node's shape, new ones in each step."""
    shape = cx.type(node).shape
    return cx.m.op(kind, [cx.m.step()], Type("f32", shape), seed=0, stream=cx.m.stream(), shape=shape, **attrs)


def drawn(cx: Lowering, node: Node, kind: str, **attrs) -> Value:
    """Random numbers of the node's type, new ones in each step."""
    return cx.m.cast(floats(cx, node, kind, **attrs), cx.type(node).dtype)


@rule("rand.default", "rand_like.default")
def rand(cx, node):
    return drawn(cx, node, "random_uniform", low=0.0, high=1.0)


@rule("uniform.default")
def uniform(cx, node):
    return drawn(cx, node, "random_uniform", low=float(cx.arg(node, 1, "from", 0.0)), high=float(cx.arg(node, 2, "to", 1.0)))


@rule("randn.default", "randn_like.default")
def randn(cx, node):
    return drawn(cx, node, "random_normal", mean=0.0, scale=1.0)


@rule("normal_functional.default")
def normal(cx, node):
    return drawn(cx, node, "random_normal", mean=float(cx.arg(node, 1, "mean", 0.0)), scale=float(cx.arg(node, 2, "std", 1.0)))


@rule("bernoulli.p")
def bernoulli_p(cx, node):
    type = cx.type(node)
    mask = cx.m.op("random_mask", [cx.m.step()], Type("bool", type.shape), ratio=1.0 - float(node.args[1]), seed=0,
                   stream=cx.m.stream(), shape=type.shape)
    return cx.m.cast(mask, type.dtype)


@rule("bernoulli.default")
def bernoulli(cx, node):
    hit = cx.m.compare("less", floats(cx, node, "random_uniform", low=0.0, high=1.0), cx.value(node.args[0], "f32"))
    return cx.m.cast(hit, cx.type(node).dtype)


@rule("randint.low", "randint.default", "randint_like.low_dtype", "randint_like.default")
def randint(cx, node):
    first = 1 if "like" in str(node.target) else 0
    low, high = node.args[first:first + 2] if "low" in str(node.target) else (0, node.args[first])
    y = cx.m.unary("floor", floats(cx, node, "random_uniform", low=0.0, high=float(high - low)))
    y = cx.m.binary("min", y, cx.m.scalar(float(high - low - 1), "f32"))
    return cx.m.by("add", cx.m.cast(y, cx.type(node).dtype), low)
