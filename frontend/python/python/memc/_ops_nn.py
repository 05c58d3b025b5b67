"""Convolutions, pooling, normalisation, softmax, losses and interpolation."""

from __future__ import annotations

import math

import torch
from torch.fx import Node

from ._ir import Module, Type, Value
from ._lower import Lowering, rule


def pair(values, default=None) -> list[int]:
    """Numbers for two axes from one, two or none."""
    values = default if values in (None, [], ()) else values
    values = [values] if isinstance(values, int) else list(values)
    return values * 2 if len(values) == 1 else values


class Convolution:
    """Arguments of a convolution over one or two axes, as over two."""

    def __init__(self, cx: Lowering, node: Node, stride, padding, dilation, transposed, output_padding, groups):
        self.m = cx.m
        self.axes = len(stride) if len(stride) > 1 else max(1, cx.type(node.args[1]).rank - 2)
        if self.axes > 2:
            raise cx.refuse(node, "convolutions over three axes are supported as torch.nn.functional.conv3d and conv_transpose3d alone")
        fill = 2 - self.axes
        wide = lambda values, neutral: [neutral] * fill + (list(values) * self.axes if len(values) == 1 else list(values))
        self.strides, self.pads, self.dilations = wide(stride, 1), wide(padding, 0), wide(dilation, 1)
        self.transposed, self.groups = transposed, groups

    def window(self) -> dict:
        return dict(strides=self.strides, pads=self.pads * 2, dilations=self.dilations, groups=self.groups)

    def flat(self, x: Value) -> Value:
        """With an axis of extent one before the last, for one axis."""
        return x if self.axes == 2 else self.m.reshape(x, (*x.type.shape[:2], 1, x.type.shape[2]))

    def forward(self, x: Value, w: Value, bias: Value | None, shape) -> Value:
        type = Type(x.type.dtype, tuple(shape) if self.axes == 2 else (*shape[:2], 1, shape[2]))
        x, w = self.flat(x), self.flat(w)
        if self.transposed:
            y = self.m.op("conv_grad_input", [x, w], type, **self.window(), size=type.shape[2:])
            if bias is not None:
                y = self.m.binary("add", y, self.m.reshape(bias, (1, type.shape[1], 1, 1)))
        else:
            y = self.m.op("conv", [x, w] + ([bias] if bias is not None else []), type, **self.window())
        return self.m.reshape(y, shape)

    def input_gradient(self, dy: Value, w: Value, shape) -> Value:
        type = Type(dy.type.dtype, tuple(shape) if self.axes == 2 else (*shape[:2], 1, shape[2]))
        dy, w = self.flat(dy), self.flat(w)
        if self.transposed:
            y = self.m.op("conv", [dy, w], type, **self.window())
        else:
            y = self.m.op("conv_grad_input", [dy, w], type, **self.window(), size=type.shape[2:])
        return self.m.reshape(y, shape)

    def weight_gradient(self, dy: Value, x: Value, shape) -> Value:
        type = Type(dy.type.dtype, tuple(shape) if self.axes == 2 else (*shape[:2], 1, shape[2]))
        a, b = (x, dy) if self.transposed else (dy, x)
        y = self.m.op("conv_grad_weight", [self.flat(a), self.flat(b)], type, **self.window(), kernel=type.shape[2:])
        return self.m.reshape(y, shape)


@rule("convolution.default")
def convolution(cx, node):
    x, w, bias = node.args[:3]
    conv = Convolution(cx, node, *node.args[3:9])
    bias = None if bias is None else cx.value(bias)
    return conv.forward(cx.value(x), cx.value(w), bias, cx.type(node).shape)


@rule("convolution_backward.default")
def convolution_backward(cx, node):
    dy, x, w = [cx.value(arg) for arg in node.args[:3]]
    conv = Convolution(cx, node, *node.args[4:10])
    wants_x, wants_w, wants_bias = node.args[10]
    dx = conv.input_gradient(dy, w, x.type.shape) if wants_x else None
    dw = conv.weight_gradient(dy, x, w.type.shape) if wants_w else None
    db = cx.m.reduce("reduce_sum", dy, [0, *range(2, dy.type.rank)]) if wants_bias else None
    return [dx, dw, db]


def batched(cx: Lowering, x: Value) -> Value:
    """An image batch of one from a single image."""
    return cx.m.reshape(x, (1, *x.type.shape)) if x.type.rank == 3 else x


def of_rank(cx: Lowering, y: Value, x: Value) -> Value:
    return cx.m.reshape(y, y.type.shape[1:]) if x.type.rank == 3 else y


def pooling(node: Node, at: int, has_dilation: bool) -> dict:
    """Attributes of a pooling whose kernel is argument `at`."""
    arg = lambda i, default: node.args[i] if len(node.args) > i else default
    kernel = pair(arg(at, None))
    window = dict(kernel=kernel, strides=pair(arg(at + 1, None), kernel), pads=pair(arg(at + 2, 0), [0]) * 2)
    if has_dilation:
        window |= dict(dilations=pair(arg(at + 3, 1), [1]), ceil=bool(arg(at + 4, False)))
    else:
        window |= dict(ceil=bool(arg(at + 3, False)), count_pad=bool(arg(at + 4, True)))
    return window


@rule("max_pool2d_with_indices.default")
def max_pool(cx, node):
    m, x = cx.m, cx.value(node.args[0])
    wide = batched(cx, x)
    shape = cx.type(node, 0).shape
    shape = (1, *shape) if x.type.rank == 3 else shape
    types = [Type(x.type.dtype, shape), Type("i64", shape)]
    y, at = m.ops("max_pool", [wide], types, **pooling(node, 1, True))
    # Positions in the whole tensor; PyTorch's are positions in an image.
    cx.values[(node, "positions")] = at
    image = m.scalar(wide.type.shape[2] * wide.type.shape[3], "i64")
    local = m.binary("sub", at, m.binary("mul", m.binary("div", at, image), image))
    return [of_rank(cx, y, x), of_rank(cx, local, x)]


@rule("max_pool2d_with_indices_backward.default")
def max_pool_backward(cx, node):
    dy, x = cx.value(node.args[0]), cx.value(node.args[1])
    wide, dys = batched(cx, x), batched(cx, dy)
    positions = cx.values[(node.args[7].args[0], "positions")]
    return of_rank(cx, cx.m.op("max_pool_grad", [dys, positions], wide.type, shape=wide.type.shape), x)


@rule("avg_pool2d.default")
def avg_pool(cx, node):
    x = cx.value(node.args[0])
    wide, shape = batched(cx, x), cx.type(node).shape
    type = Type(x.type.dtype, (1, *shape) if x.type.rank == 3 else shape)
    window = pooling(node, 1, False)
    y = of_rank(cx, cx.m.op("average_pool", [wide], type, **window), x)
    return divided(cx, node, y, window, 6)


def divided(cx, node, y, window, at):
    """With the divisor that argument `at` may give in place of the window's size."""
    divisor = cx.arg(node, at, "divisor_override")
    if divisor is None:
        return y
    if not window["count_pad"] or window["ceil"]:
        raise cx.refuse(node, "divisor_override needs count_include_pad and no ceil_mode here")
    return cx.m.by("mul", y, window["kernel"][0] * window["kernel"][1] / divisor)


@rule("avg_pool2d_backward.default")
def avg_pool_backward(cx, node):
    dy, x = cx.value(node.args[0]), cx.value(node.args[1])
    wide, window = batched(cx, x), pooling(node, 2, False)
    y = cx.m.op("average_pool_grad", [batched(cx, dy)], wide.type, **window, shape=wide.type.shape)
    return divided(cx, node, of_rank(cx, y, x), window, 7)


def linear_map(op, axes: int, at: int, size: int, out: int, *args) -> torch.Tensor:
    """Matrix `[out, size]` of what an op does along one of its axes."""
    # Other axes have two elements: some of PyTorch's kernels are wrong for images one pixel wide.
    shape = lambda n, rest: [n if i == at else rest for i in range(axes)]
    eye = torch.eye(size).reshape(size, 1, *shape(size, 1)).expand(size, 1, *shape(size, 2)).contiguous()
    wide = op(eye, shape(out, 2), *args)
    for axis in reversed(range(axes)):
        wide = wide if axis == at else wide.select(2 + axis, 0)
    return wide.reshape(size, out).T.contiguous()


def along(m: Module, x: Value, axis: int, matrix: torch.Tensor) -> Value:
    """A matrix applied along an axis."""
    out, size = matrix.shape
    if out == size and torch.equal(matrix, torch.eye(size)):
        return x
    constant = m.cast(m.constant(matrix.flatten().tolist(), "f32", [out, size]), x.type.dtype)
    if axis == x.type.rank - 1:
        return m.matmul(x, constant, trans_b=True)
    lead, rest = x.type.shape[:axis], x.type.shape[axis + 1:]
    y = m.matmul(constant, m.reshape(x, (*lead, size, math.prod(rest))))
    return m.reshape(y, (*lead, out, *rest))


def resampled(cx: Lowering, node: Node, op, args: list[tuple], backward: bool) -> Value:
    """An op that is linear in each of its axes, or its gradient. `args`: those of the op for each axis."""
    y, axes = cx.value(node.args[0]), len(args)
    small, large = (cx.type(node), y.type) if backward else (y.type, cx.type(node))
    for i, more in enumerate(args):
        axis = y.type.rank - axes + i
        matrix = linear_map(op, axes, i, small.shape[axis], large.shape[axis], *more)
        y = along(cx.m, y, axis, matrix.T.contiguous() if backward else matrix)
    return y


aten = torch.ops.aten


@rule("_adaptive_avg_pool2d.default")
def adaptive_avg_pool(cx, node):
    return resampled(cx, node, aten._adaptive_avg_pool2d, [(), ()], False)


@rule("_adaptive_avg_pool2d_backward.default")
def adaptive_avg_pool_backward(cx, node):
    return resampled(cx, node, aten._adaptive_avg_pool2d, [(), ()], True)


def _upsample(name: str, axes: int, takes_align: bool, backward: bool):
    def lower(cx: Lowering, node: Node) -> Value:
        args = list(node.args[3 if backward else 2:])
        align = [args.pop(0)] if takes_align else []
        scales = args + [None] * (axes - len(args))
        alone = lambda i: (*align, *[scales[i] if a == i else None for a in range(axes)])
        op = getattr(aten, name).default
        return resampled(cx, node, op, [alone(i) for i in range(axes)], backward)

    return lower


for _name, _axes, _align in (
        ("upsample_nearest1d", 1, False), ("upsample_nearest2d", 2, False), ("upsample_nearest3d", 3, False),
        ("_upsample_nearest_exact1d", 1, False), ("_upsample_nearest_exact2d", 2, False),
        ("upsample_linear1d", 1, True), ("upsample_bilinear2d", 2, True), ("upsample_trilinear3d", 3, True),
        ("upsample_bicubic2d", 2, True), ("_upsample_bilinear2d_aa", 2, True)):
    rule(f"{_name}.default")(_upsample(_name, _axes, _align, False))
    rule(f"{_name}_backward.default")(_upsample(_name, _axes, _align, True))


def factors(cx: Lowering, weight, bias, size: tuple[int, ...]) -> list[Value]:
    """Scale and bias of a normalisation; ones and zeros where there are none."""
    return [cx.m.constant(neutral, "f32", size) if arg is None else cx.value(arg) for arg, neutral in ((weight, 1.0), (bias, 0.0))]


@rule("_native_batch_norm_legit_functional.default", "_native_batch_norm_legit.default", "_native_batch_norm_legit.no_stats",
      "native_batch_norm.default", "_native_batch_norm_legit_no_training.default")
def batch_norm(cx, node):
    m, name = cx.m, str(node.target)
    x, weight, bias = node.args[:3]
    if "no_training" in name:
        running, (momentum, epsilon), training = node.args[3:5], node.args[5:7], False
    elif "no_stats" in name:
        running, (training, momentum, epsilon) = (None, None), node.args[3:6]
    else:
        running, (training, momentum, epsilon) = node.args[3:5], node.args[5:8]
    x = cx.value(x)
    channels = (x.type.shape[1],)
    scale, shift = factors(cx, weight, bias, channels)
    stats = Type("f32", channels)
    if not training:
        mean, variance = (cx.value(arg, "f32") for arg in running)
        inverse = inverse_deviation(cx, variance, epsilon)
        y = m.op("batch_norm", [x, scale, shift, mean, inverse], x.type)
        empty = m.constant(0.0, "f32", (0,))
        return [y, empty, empty, *(cx.value(arg) for arg in running)]
    mean, variance, inverse = m.ops("batch_norm_stats", [x], [stats] * 3, epsilon=float(epsilon))
    y = m.op("batch_norm", [x, scale, shift, mean, inverse], x.type)
    results = [y, mean, inverse]
    if running[0] is not None:
        count = x.type.elements // channels[0]
        kept = 1.0 - float(momentum)

        def average(old, new, factor):
            old = cx.value(old)
            wide = m.op("moving_average", [m.cast(old, "f32"), new], stats, momentum=kept, scale=factor)
            return m.cast(wide, old.type.dtype)

        # PyTorch keeps the unbiased variance.
        results += [average(running[0], mean, 1.0), average(running[1], variance, count / max(1, count - 1))]
    return results


def inverse_deviation(cx: Lowering, variance: Value, epsilon: float) -> Value:
    return cx.m.unary("reciprocal", cx.m.unary("sqrt", cx.m.by("add", variance, float(epsilon))))


@rule("native_batch_norm_backward.default")
def batch_norm_backward(cx, node):
    m = cx.m
    dy, x, weight, running_mean, running_var, mean, inverse, training, epsilon, wanted = node.args
    dy, x = cx.value(dy), cx.value(x)
    channels = (x.type.shape[1],)
    scale = factors(cx, weight, None, channels)[0]
    if training:
        types = [x.type, Type(scale.type.dtype, channels), Type(scale.type.dtype, channels)]
        return m.ops("batch_norm_grad", [dy, x, scale, cx.value(mean), cx.value(inverse)], types)
    wide = (1, *channels, *[1] * (x.type.rank - 2))
    inverse = inverse_deviation(cx, cx.value(running_var, "f32"), epsilon)
    apart = m.binary("sub", m.cast(x, "f32"), m.reshape(cx.value(running_mean, "f32"), wide))
    factor = m.reshape(m.binary("mul", m.cast(scale, "f32"), inverse), wide)
    full = m.cast(dy, "f32")
    axes = [0, *range(2, x.type.rank)]
    dx = m.cast(m.binary("mul", full, factor), x.type.dtype)
    if not any(wanted[1:]):
        return [dx, None, None]
    dscale = m.reduce("reduce_sum", m.binary("mul", full, m.binary("mul", apart, m.reshape(inverse, wide))), axes)
    return [dx, m.cast(dscale, scale.type.dtype), m.cast(m.reduce("reduce_sum", full, axes), scale.type.dtype)]


@rule("native_layer_norm.default")
def layer_norm(cx, node):
    x, shape, weight, bias, epsilon = node.args
    x, axis = cx.value(x), cx.value(x).type.rank - len(shape)
    stats = Type("f32", (*x.type.shape[:axis], *[1] * len(shape)))
    operands = [x, *factors(cx, weight, bias, tuple(shape))]
    return cx.m.ops("layer_norm", operands, [x.type, stats, stats], axis=axis, epsilon=float(epsilon))


@rule("native_layer_norm_backward.default")
def layer_norm_backward(cx, node):
    dy, x, shape, mean, inverse, weight = node.args[:6]
    x, scale = cx.value(x), factors(cx, weight, None, tuple(shape))[0]
    types = [x.type, Type(scale.type.dtype, tuple(shape)), Type(scale.type.dtype, tuple(shape))]
    operands = [cx.value(dy), x, scale, cx.value(mean), cx.value(inverse)]
    return cx.m.ops("layer_norm_grad", operands, types, axis=x.type.rank - len(shape))


def _softmax(kind: str):
    def lower(cx: Lowering, node: Node) -> Value:
        x = cx.value(node.args[0], cx.type(node).dtype)
        return cx.m.unary(kind, x, axis=node.args[1] % max(1, x.type.rank))

    return lower


rule("_softmax.default", "_safe_softmax.default")(_softmax("softmax"))
rule("_log_softmax.default")(_softmax("log_softmax"))


@rule("_softmax_backward_data.default")
def softmax_backward(cx, node):
    y = cx.value(node.args[1])
    dx = cx.m.op("softmax_grad", [cx.value(node.args[0], y.type.dtype), y], y.type, axis=node.args[2] % y.type.rank)
    return cx.m.cast(dx, cx.type(node).dtype)


REDUCTIONS = {0: "none", 1: "mean", 2: "sum"}
NLL = {f"aten.{name}.default" for name in ("nll_loss_forward", "nll_loss2d_forward")}
NLL_BACKWARD = {f"aten.{name}.default" for name in ("nll_loss_backward", "nll_loss2d_backward")}


def is_fused(scores, weight) -> bool:
    """Whether scores are a log-softmax over the classes, so that cross_entropy computes both."""
    is_node = isinstance(scores, Node) and str(scores.target) == "aten._log_softmax.default"
    return is_node and weight is None and scores.meta["val"].ndim >= 2 and scores.args[1] in (1, 1 - scores.meta["val"].ndim)


@rule("nll_loss_forward.default", "nll_loss2d_forward.default")
def nll_loss(cx, node):
    m = cx.m
    scores, target, weight, reduction, ignored = node.args
    valid, weights, labels = examples(cx, node, target, weight, ignored, cx.type(scores))
    total = m.reduce("reduce_sum", weights, range(weights.type.rank))
    if is_fused(scores, weight):
        logits = cx.value(scores.args[0], cx.type(scores).dtype)
        types = [Type(logits.type.dtype, cx.type(node, 0).shape), logits.type]
        loss, log_prob = m.ops("cross_entropy", [logits, cx.value(target)], types,
                               reduction=REDUCTIONS[reduction], ignore_index=ignored)
        cx.values[(scores, "log_prob")] = log_prob
        return [loss, total]
    x = cx.value(scores)
    axis = 1 if x.type.rank > 1 else 0
    at = m.reshape(labels, (*x.type.shape[:axis], 1, *x.type.shape[axis + 1:]))
    picked = m.op("gather_elements", [x, at], Type(x.type.dtype, at.type.shape), axis=axis)
    each = m.unary("neg", m.binary("mul", m.reshape(picked, weights.type.shape), weights))
    each = m.select(valid, each, m.scalar(0.0, x.type.dtype))
    if reduction == 0:
        return [each, total]
    loss = m.reduce("reduce_sum", each, range(each.type.rank))
    return [m.binary("div", loss, total) if reduction == 1 else loss, total]


def examples(cx, node, target, weight, ignored, scores: Type):
    """Which labels count, with which weight, and the labels with 0 for the others."""
    m, labels = cx.m, cx.value(target)
    valid = m.unary("not", m.compare("equal", labels, m.scalar(ignored, labels.type.dtype)))
    labels = m.select(valid, labels, m.scalar(0, labels.type.dtype))
    if weight is None:
        return valid, m.cast(valid, scores.dtype), labels
    each = m.op("gather", [cx.value(weight), labels], Type(scores.dtype, labels.type.shape), axis=0)
    return valid, m.select(valid, each, m.scalar(0.0, scores.dtype)), labels


@rule("nll_loss_backward.default", "nll_loss2d_backward.default")
def nll_loss_backward(cx, node):
    m = cx.m
    dloss, scores, target, weight, reduction, ignored, total = node.args
    type = cx.type(scores)
    valid, weights, labels = examples(cx, node, target, weight, ignored, type)
    each = m.binary("mul", m.unary("neg", cx.value(dloss, type.dtype)), weights)
    if reduction == 1:
        each = m.binary("div", each, cx.value(total))
    axis = 1 if type.rank > 1 else 0
    thin = (*type.shape[:axis], 1, *type.shape[axis + 1:])
    classes = m.reshape(m.iota(type.shape[axis]), [type.shape[axis] if i == axis else 1 for i in range(type.rank)])
    hit = m.compare("equal", m.reshape(m.cast(labels, "i64"), thin), classes)
    return m.select(hit, m.reshape(each, thin), m.scalar(0.0, type.dtype))


@rule("_log_softmax_backward_data.default")
def log_softmax_backward(cx, node):
    m = cx.m
    dy, y, axis = node.args[:3]
    if str(dy.target) in NLL_BACKWARD and dy.args[1] is y and is_fused(y, dy.args[3]):
        log_prob = cx.values.get((y, "log_prob"), cx.value(y))
        reduction, ignored = dy.args[4:6]
        dx = m.op("cross_entropy_grad", [cx.value(dy.args[0]), log_prob, cx.value(dy.args[2])], log_prob.type,
                  reduction=REDUCTIONS[reduction], ignore_index=ignored)
        return m.cast(dx, cx.type(node).dtype)
    dy, y = cx.value(dy), cx.value(y)
    total = m.reduce("reduce_sum", dy, [axis % y.type.rank], True)
    dx = m.binary("sub", dy, m.binary("mul", m.unary("exp", y), total))
    return m.cast(dx, cx.type(node).dtype)
