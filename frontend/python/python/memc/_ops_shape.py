"""Ops that move elements or make tensors of given contents."""

from __future__ import annotations

from torch.fx import Node

from ._ir import Value
from ._lower import Lowering, rule


@rule("alias.default", "detach.default", "clone.default", "lift_fresh_copy.default", "contiguous.default",
      "lift_fresh.default", "_conj_physical.default", "view_of.default", "resolve_conj.default", "resolve_neg.default")
def same(cx: Lowering, node: Node) -> Value:
    return cx.value(node.args[0])


@rule("profiler._record_function_enter_new.default", "profiler._record_function_exit._RecordFunction")
def mark(cx, node):
    """A mark for PyTorch's profiler."""
    return None


@rule("view.default", "_unsafe_view.default", "reshape.default", "squeeze.dim", "squeeze.dims", "squeeze.default",
      "unsqueeze.default", "_reshape_alias.default")
def view(cx, node):
    return cx.m.reshape(cx.value(node.args[0]), cx.type(node).shape)


def is_dense(shape, strides) -> bool:
    """Whether strides are those of a dense, row-major tensor."""
    expected = 1
    for d, stride in zip(reversed(shape), reversed(list(strides))):
        if d not in (1, 0) and stride != expected:
            return False
        expected *= d
    return True


@rule("as_strided.default")
def as_strided(cx, node):
    """A reshape, where the strides are those of a dense tensor."""
    x, type = cx.value(node.args[0]), cx.type(node)
    offset = cx.arg(node, 3, "storage_offset") or 0
    if not is_dense(type.shape, node.args[2]) or x.type.elements != type.elements or offset:
        raise cx.refuse(node, "views by strides are not supported; use reshape, transpose or indexing")
    return cx.m.reshape(x, type.shape)


@rule("as_strided_scatter.default")
def as_strided_scatter(cx, node):
    """The new contents, where they replace the whole tensor."""
    x, new, shape, strides = cx.value(node.args[0]), cx.value(node.args[1]), *node.args[2:4]
    if not is_dense(shape, strides) or new.type.elements != x.type.elements:
        raise cx.refuse(node, "writing to views by strides is not supported; use reshape, transpose or indexing")
    return cx.m.reshape(new, x.type.shape)


@rule("t.default", "transpose.int", "permute.default")
def permute(cx, node):
    x = cx.value(node.args[0])
    rank = x.type.rank
    if "permute" in str(node.target):
        return cx.m.transpose(x, [d % rank for d in node.args[1]])
    if "transpose" in str(node.target):
        return cx.m.swap(x, node.args[1] % rank, node.args[2] % rank) if rank else x
    return cx.m.swap(x, 0, 1) if rank == 2 else x


@rule("expand.default")
def expand(cx, node):
    return cx.m.broadcast(cx.value(node.args[0]), cx.type(node).shape)


@rule("slice.Tensor")
def slice_(cx, node):
    x = cx.value(node.args[0])
    axis = cx.arg(node, 1, "dim", 0) % x.type.rank
    start, end = bounds(x.type.shape[axis], cx.arg(node, 2, "start"), cx.arg(node, 3, "end"))
    return cx.m.slice(x, axis, start, end, cx.arg(node, 4, "step", 1))


def bounds(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    """A half-open range of an axis, by Python's rules."""
    start, end, _ = slice(start, end).indices(size)
    return start, max(start, end)


@rule("slice_backward.default")
def slice_backward(cx, node):
    dy, shape, axis, start, end, step = node.args
    m, dy, axis = cx.m, cx.value(dy), axis % len(shape)
    start, end = bounds(shape[axis], start, end)
    if step != 1 and dy.type.shape[axis] > 0:
        dy = spread(m, dy, axis, step)
    return m.pad_axis(dy, axis, start, shape[axis] - start - dy.type.shape[axis])


def spread(m, x: Value, axis: int, step: int) -> Value:
    """Elements of an axis with `step - 1` zeros between them."""
    shape = list(x.type.shape)
    split = m.reshape(x, (*shape[: axis + 1], 1, *shape[axis + 1:]))
    wide = m.pad_axis(split, axis + 1, 0, step - 1)
    size = shape[axis] * step
    flat = m.reshape(wide, (*shape[:axis], size, *shape[axis + 1:]))
    return m.slice(flat, axis, 0, size - step + 1)


@rule("select.int")
def select(cx, node):
    x = cx.value(node.args[0])
    axis = node.args[1] % x.type.rank
    at = node.args[2] % x.type.shape[axis]
    return cx.m.reshape(cx.m.slice(x, axis, at, at + 1), cx.type(node).shape)


@rule("select_backward.default")
def select_backward(cx, node):
    dy, shape, axis, at = node.args
    axis = axis % len(shape)
    at = at % shape[axis]
    dy = cx.m.reshape(cx.value(dy), (*shape[:axis], 1, *shape[axis + 1:]))
    return cx.m.pad_axis(dy, axis, at, shape[axis] - at - 1)


@rule("select_scatter.default")
def select_scatter(cx, node):
    x, y = cx.value(node.args[0]), cx.value(node.args[1])
    axis = node.args[2] % x.type.rank
    at = node.args[3] % x.type.shape[axis]
    y = cx.m.reshape(y, (*x.type.shape[:axis], 1, *x.type.shape[axis + 1:]))
    return replaced(cx, x, y, axis, at, at + 1)


@rule("slice_scatter.default")
def slice_scatter(cx, node):
    x, y = cx.value(node.args[0]), cx.value(node.args[1])
    axis = cx.arg(node, 2, "dim", 0) % x.type.rank
    size = x.type.shape[axis]
    start, end = bounds(size, cx.arg(node, 3, "start"), cx.arg(node, 4, "end"))
    step = cx.arg(node, 5, "step", 1)
    if step == 1:
        return replaced(cx, x, y, axis, start, end)
    # Steps have gaps: `y` spread out, chosen where it has elements.
    m = cx.m
    hit = m.constant([start <= i < end and (i - start) % step == 0 for i in range(size)], "bool", [size])
    hit = m.reshape(hit, [size if i == axis else 1 for i in range(x.type.rank)])
    wide = spread(m, y, axis, step)
    wide = m.pad_axis(wide, axis, start, size - start - wide.type.shape[axis])
    return m.select(hit, wide, x)


def replaced(cx, x, y, axis, start, end):
    """`x` with `y` in place of its elements from `start` to `end`."""
    m, size = cx.m, x.type.shape[axis]
    parts = [m.slice(x, axis, 0, start)] if start else []
    parts.append(m.cast(m.broadcast(y, [end - start if i == axis else d for i, d in enumerate(x.type.shape)]), x.type.dtype))
    parts += [m.slice(x, axis, end, size)] if end < size else []
    return m.concat(parts, axis)


@rule("cat.default")
def cat(cx, node):
    type = cx.type(node)
    xs = [cx.value(x, type.dtype) for x in node.args[0]]
    # PyTorch leaves out empty vectors whatever the rank of the others.
    xs = [x for x in xs if x.type.shape != (0,)] or xs[:1]
    return cx.m.concat(xs, cx.arg(node, 1, "dim", 0) % max(1, type.rank))


@rule("stack.default")
def stack(cx, node):
    type = cx.type(node)
    axis = cx.arg(node, 1, "dim", 0) % type.rank
    shape = [1 if i == axis else d for i, d in enumerate(type.shape)]
    return cx.m.concat([cx.m.reshape(cx.value(x, type.dtype), shape) for x in node.args[0]], axis)


@rule("split.Tensor", "split_with_sizes.default", "unbind.int", "chunk.default", "unsafe_split.Tensor")
def split(cx, node):
    x, results = cx.value(node.args[0]), node.meta["val"]
    is_unbind = "unbind" in str(node.target)
    axis = cx.arg(node, 1 if is_unbind else 2, "dim", 0) % x.type.rank
    parts, at = [], 0
    for i in range(len(results)):
        type = cx.type(node, i)
        size = 1 if is_unbind else type.shape[axis]
        parts.append(cx.m.reshape(cx.m.slice(x, axis, at, at + size), type.shape))
        at += size
    return parts


@rule("repeat.default")
def repeat(cx, node):
    m, x, repeats = cx.m, cx.value(node.args[0]), node.args[1]
    shape = (1,) * (len(repeats) - x.type.rank) + x.type.shape
    narrow = [n for d in shape for n in (1, d)]
    wide = [n for r, d in zip(repeats, shape) for n in (r, d)]
    return m.reshape(m.broadcast(m.reshape(x, narrow), wide), cx.type(node).shape)


@rule("flip.default")
def flip(cx, node):
    x = cx.value(node.args[0])
    for axis in node.args[1]:
        x = cx.m.flip(x, axis % x.type.rank)
    return x


@rule("roll.default")
def roll(cx, node):
    m, x = cx.m, cx.value(node.args[0])
    shifts, dims = node.args[1], cx.arg(node, 2, "dims", [])
    y = x if dims else m.reshape(x, (x.type.elements,))
    for shift, axis in zip(shifts, dims or [0]):
        axis, size = axis % y.type.rank, y.type.shape[axis % y.type.rank]
        at = size - shift % size if size else 0
        y = y if at in (0, size) else m.concat([m.slice(y, axis, at, size), m.slice(y, axis, 0, at)], axis)
    return m.reshape(y, x.type.shape)


@rule("constant_pad_nd.default")
def constant_pad_nd(cx, node):
    """Pads of the last axis come first; negative ones cut."""
    m, x, pads = cx.m, cx.value(node.args[0]), node.args[1]
    value = cx.arg(node, 2, "value", 0.0)
    before, after = [0] * x.type.rank, [0] * x.type.rank
    for i in range(len(pads) // 2):
        axis = x.type.rank - 1 - i
        low, high = pads[2 * i], pads[2 * i + 1]
        x = m.slice(x, axis, max(0, -low), x.type.shape[axis] - max(0, -high))
        before[axis], after[axis] = max(0, low), max(0, high)
    return m.pad(x, before, after, value)


@rule("full.default", "full_like.default", "new_full.default", "zeros.default", "ones.default", "zeros_like.default",
      "ones_like.default", "new_zeros.default", "new_ones.default", "empty.memory_format", "empty_like.default",
      "new_empty.default", "empty_permuted.default", "new_empty_strided.default", "empty_strided.default",
      "scalar_tensor.default")
def full(cx, node):
    type, name = cx.type(node), str(node.target)
    at = 0 if "scalar_tensor" in name else 2 if "new_full" in name else 1
    value = node.args[at] if "full" in name or "scalar_tensor" in name else 1 if "ones" in name else 0
    if isinstance(value, Node):
        return cx.m.broadcast(cx.value(value, type.dtype), type.shape)
    if not type.rank:
        return cx.m.scalar(value, type.dtype)
    return cx.m.fill(value, type)


@rule("fill.Scalar", "fill.Tensor")
def fill(cx, node):
    type = cx.type(node)
    return cx.m.broadcast(cx.value(node.args[1], type.dtype), type.shape)


@rule("copy.default")
def copy(cx, node):
    type = cx.type(node)
    return cx.m.broadcast(cx.value(node.args[1], type.dtype), type.shape)


@rule("arange.start_step", "arange.start", "arange.default")
def arange(cx, node):
    start, step = (0, 1) if "default" in str(node.target) else (node.args[0], cx.arg(node, 2, "step", 1))
    return cx.m.iota(cx.type(node).shape[0], start, step, cx.type(node).dtype)


@rule("tril.default", "triu.default")
def triangle(cx, node):
    m, x = cx.m, cx.value(node.args[0])
    k = cx.arg(node, 1, "diagonal", 0)
    rows, columns = x.type.shape[-2:]
    row, column = m.reshape(m.iota(rows, k), (rows, 1)), m.iota(columns)
    kept = m.compare("less_equal" if "tril" in str(node.target) else "greater_equal", column, row)
    if x.type.dtype == "bool":
        return m.op("and", [x, m.broadcast(kept, x.type.shape)], x.type)
    return m.select(kept, x, m.scalar(0, x.type.dtype))


@rule("diagonal.default")
def diagonal(cx, node):
    """Elements of a diagonal by their places in the flat matrix."""
    m, x = cx.m, cx.value(node.args[0])
    offset = cx.arg(node, 1, "offset", 0)
    a, b = cx.arg(node, 2, "dim1", 0) % x.type.rank, cx.arg(node, 3, "dim2", 1) % x.type.rank
    rest = [i for i in range(x.type.rank) if i not in (a, b)]
    x = m.transpose(x, [*rest, a, b])
    *lead, rows, columns = x.type.shape
    type = cx.type(node)
    size = type.shape[-1]
    start = offset if offset >= 0 else -offset * columns
    at = m.iota(size, start, columns + 1)
    flat = m.reshape(x, (*lead, rows * columns))
    return m.op("gather", [flat, at], type, axis=len(lead))
