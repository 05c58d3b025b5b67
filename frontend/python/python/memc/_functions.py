"""Functions of PyTorch in a form that memc has ops for, while a step is captured.

Contract: each computes what PyTorch's own does, up to rounding, of ops whose gradients are ops that memc has. Dropout alone
draws other bits: memc's, which are a function of the step's number.
"""

from __future__ import annotations

import functools
import itertools
import math

import torch
from torch._decomp import decompositions
from torch.overrides import TorchFunctionMode

functional = torch.nn.functional


@torch.library.custom_op("memc::dropout", mutates_args=())
def dropout(x: torch.Tensor, p: float, mask: int) -> torch.Tensor:
    """Dropout whose mask depends on the mask's number, the micro-batch and the number of the step."""
    raise NotImplementedError("memc::dropout runs only within a compiled step")


@dropout.register_fake
def _(x, p, mask):
    return torch.empty_like(x)


def _setup(ctx, inputs, output):
    _, ctx.p, ctx.mask = inputs


def _backward(ctx, grad):
    # A mask has the same number forwards and backwards.
    return dropout(grad, ctx.p, ctx.mask), None, None


dropout.register_autograd(_backward, setup_context=_setup)


def many(value, axes: int) -> list[int]:
    value = [value] if isinstance(value, int) else list(value)
    return value * axes if len(value) == 1 else value


def conv3d(x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """A convolution over images for each place of the kernel along the depth."""
    if isinstance(padding, str) or x.ndim != 5:
        raise NotImplementedError("conv3d takes a batch, and padding as numbers")
    stride, padding, dilation = many(stride, 3), many(padding, 3), many(dilation, 3)
    x = functional.pad(x, (0, 0, 0, 0, padding[0], padding[0]))
    depth = weight.shape[2]
    out = (x.shape[2] - dilation[0] * (depth - 1) - 1) // stride[0] + 1
    total = None
    for k in range(depth):
        start = k * dilation[0]
        taken = x[:, :, start:start + stride[0] * (out - 1) + 1:stride[0]].transpose(1, 2)
        y = torch.conv2d(taken.flatten(0, 1), weight[:, :, k], None, stride[1:], padding[1:], dilation[1:], groups)
        total = y if total is None else total + y
    y = total.unflatten(0, (x.shape[0], out)).transpose(1, 2)
    return y if bias is None else y + bias.view(-1, 1, 1, 1)


def conv_transpose3d(x, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    """A transposed convolution over images for each place of the kernel along the depth."""
    stride, padding, more, dilation = (many(value, 3) for value in (stride, padding, output_padding, dilation))
    size, depth = x.shape[2], weight.shape[2]
    out = (size - 1) * stride[0] - 2 * padding[0] + dilation[0] * (depth - 1) + more[0] + 1
    total = None
    for k in range(depth):
        y = torch.conv_transpose2d(x.transpose(1, 2).flatten(0, 1), weight[:, :, k], None, stride[1:], padding[1:], more[1:],
                                   groups, dilation[1:])
        y = y.unflatten(0, (x.shape[0], size)).transpose(1, 2)
        y = functional.pad(y.unsqueeze(3), (0, 0, 0, 0, 0, stride[0] - 1)).flatten(2, 3)[:, :, :(size - 1) * stride[0] + 1]
        start = k * dilation[0] - padding[0]
        y = functional.pad(y, (0, 0, 0, 0, start, out - start - y.shape[2]))
        total = y if total is None else total + y
    return total if bias is None else total + bias.view(-1, 1, 1, 1)


def max_pool3d(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
    """Maxima along the depth, then over images."""
    if ceil_mode or return_indices or input.ndim != 5:
        raise NotImplementedError("max_pool3d takes a batch, without ceil_mode and return_indices")
    kernel, padding, dilation = many(kernel_size, 3), many(padding, 3), many(dilation, 3)
    stride = kernel if stride in (None, [], ()) else many(stride, 3)
    x = functional.pad(input, (0, 0, 0, 0, padding[0], padding[0]), value=float("-inf"))
    out = (x.shape[2] - dilation[0] * (kernel[0] - 1) - 1) // stride[0] + 1
    starts = [k * dilation[0] for k in range(kernel[0])]
    y = functools.reduce(torch.maximum, [x[:, :, s:s + stride[0] * (out - 1) + 1:stride[0]] for s in starts])
    y = functional.max_pool2d(y.transpose(1, 2).flatten(0, 1), kernel[1:], stride[1:], padding[1:], dilation[1:])
    return y.unflatten(0, (x.shape[0], out)).transpose(1, 2)


def avg_pool3d(input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None):
    """Means along the depth, then over images."""
    kernel, padding = many(kernel_size, 3), many(padding, 3)
    if ceil_mode or divisor_override or (any(padding) and not count_include_pad):
        raise NotImplementedError("avg_pool3d takes no ceil_mode and divisor_override, and counts its padding")
    stride = kernel if stride in (None, [], ()) else many(stride, 3)
    x = functional.pad(input, (0, 0, 0, 0, padding[0], padding[0]))
    x = x.unfold(-3, kernel[0], stride[0]).mean(-1)
    y = functional.avg_pool2d(x.flatten(0, -3).unsqueeze(1), kernel[1:], stride[1:], padding[1:])
    return y.reshape(*x.shape[:-2], *y.shape[-2:])


def rrelu(input, lower=1 / 8, upper=1 / 3, training=False, inplace=False):
    if training:
        raise NotImplementedError("rrelu draws slopes in training, which is not supported")
    return functional.leaky_relu(input, (lower + upper) / 2, inplace)


def local_response_norm(x, size, alpha=1e-4, beta=0.75, k=1.0):
    padded = functional.pad(x * x, [0, 0] * (x.ndim - 2) + [size // 2, (size - 1) // 2])
    total = sum(padded[:, i:i + x.shape[1]] for i in range(size))
    return x / (k + alpha / size * total) ** beta


def weight_norm(v, g, dim=0):
    axes = [i for i in range(v.ndim) if i != dim % v.ndim] if dim != -1 else list(range(v.ndim))
    return v * (g / (v * v).sum(axes, keepdim=True).sqrt())


def embedding_bag(input, weight, offsets=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, mode="mean",
                  sparse=False, per_sample_weights=None, include_last_offset=False, padding_idx=None):
    """Sums, means or maxima of rows for each bag of a matrix of indices."""
    if offsets is not None or max_norm is not None or padding_idx is not None or input.ndim != 2:
        raise NotImplementedError("embedding_bag takes a matrix of indices, one bag a row, without offsets, max_norm and "
                                  "padding_idx")
    rows = functional.embedding(input, weight, scale_grad_by_freq=scale_grad_by_freq)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    return {"mean": lambda: rows.mean(1), "sum": lambda: rows.sum(1), "max": lambda: rows.amax(1)}[mode]()


def grid_sample(input, grid, mode="bilinear", padding_mode="zeros", align_corners=None):
    modes, paddings = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")
    if input.ndim != 4:
        raise NotImplementedError("grid_sample takes images")
    return decompositions.grid_sampler_2d(input, grid, modes.index(mode), paddings.index(padding_mode), bool(align_corners))


def adaptive_max_pool(axes: int):
    """Maxima of the parts of images that PyTorch's formula gives, one part after the other where they differ in size."""
    def pool(input, output_size, return_indices=False):
        if return_indices:
            raise NotImplementedError("adaptive max pooling has no indices here")
        sizes = [size if size is not None else input.shape[i - axes] for i, size in enumerate(many(output_size, axes))]
        for axis, size in zip(range(-axes, 0), sizes):
            n = input.shape[axis]
            parts = [input.narrow(axis, i * n // size, -(-(i + 1) * n // size) - i * n // size) for i in range(size)]
            input = torch.cat([part.amax(axis, keepdim=True) for part in parts], axis)
        return input

    return pool


def cdist(x1, x2, p=2.0, compute_mode="use_mm_for_euclid_dist_if_necessary"):
    """Distances of all pairs of rows. The gradient is zero where two rows are equal."""
    large = x1.shape[-2] > 25 or x2.shape[-2] > 25
    if p == 2.0 and (compute_mode == "use_mm_for_euclid_dist" or (large and compute_mode.endswith("necessary"))):
        squares = (x1 * x1).sum(-1).unsqueeze(-1) + (x2 * x2).sum(-1).unsqueeze(-2) - 2 * x1 @ x2.transpose(-2, -1)
    else:
        difference = (x1.unsqueeze(-2) - x2.unsqueeze(-3)).abs()
        if p == 1.0 or p == float("inf"):
            return difference.sum(-1) if p == 1.0 else difference.amax(-1)
        squares = difference.pow(p).sum(-1)
    positive = squares > 0
    return torch.where(positive, torch.where(positive, squares, 1.0).pow(1 / p), 0.0)


def gaussian_nll_loss(input, target, var, full=False, eps=1e-6, reduction="mean"):
    """Without a look at the variance's sign."""
    var = input.new_full((), var) if isinstance(var, float) else var
    var = var.unsqueeze(-1) if var.ndim and var.shape == input.shape[:-1] else var
    var = var + (var.clamp_min(eps) - var).detach()
    loss = 0.5 * (var.log() + (input - target) ** 2 / var) + (0.5 * math.log(2 * math.pi) if full else 0.0)
    return {"mean": loss.mean, "sum": loss.sum, "none": lambda: loss}[reduction]()


def masked_scatter(input, mask, source):
    """The next element of a source at each place of a mask."""
    mask = mask.expand(torch.broadcast_shapes(mask.shape, input.shape))
    at = (mask.flatten().to(torch.int64).cumsum(0) - 1).clamp_min(0)
    return torch.where(mask, source.flatten()[at].reshape(mask.shape), input)


def lstm(input, *rest):
    """PyTorch's plain form, which a GPU would take only without kernels of its own."""
    if not input.is_cuda:
        return torch.lstm(input, *rest)
    return (decompositions.lstm_impl if isinstance(rest[0], (tuple, list)) else decompositions.lstm_data_impl)(input, *rest)


def gru(input, *rest):
    """See `lstm`."""
    if not input.is_cuda:
        return torch.gru(input, *rest)
    return (decompositions.gru_impl if isinstance(rest[1], (tuple, list)) else decompositions.gru_impl_data)(input, *rest)


def lstm_cell(input, hx, w_ih, w_hh, b_ih=None, b_hh=None):
    gates = functional.linear(input, w_ih, b_ih) + functional.linear(hx[0], w_hh, b_hh)
    i, f, g, o = gates.chunk(4, 1)
    c = f.sigmoid() * hx[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def gru_cell(input, hx, w_ih, w_hh, b_ih=None, b_hh=None):
    x, h = functional.linear(input, w_ih, b_ih).chunk(3, 1), functional.linear(hx, w_hh, b_hh).chunk(3, 1)
    r, z = (x[0] + h[0]).sigmoid(), (x[1] + h[1]).sigmoid()
    n = (x[2] + r * h[2]).tanh()
    return (hx - n) * z + n


class Functions(TorchFunctionMode):
    """Replaces functions where the step calls them."""

    def __init__(self):
        super().__init__()
        self.masks = itertools.count()
        self.replaced = {
            functional.dropout: self.dropout, functional.scaled_dot_product_attention: self.attention,
            torch.dropout: lambda x, p, train: self.dropout(x, p, train),
            functional.conv3d: conv3d, functional.conv_transpose3d: conv_transpose3d,
            functional.max_pool3d: max_pool3d, functional.local_response_norm: local_response_norm,
            torch._weight_norm: weight_norm, functional.embedding_bag: embedding_bag,
            functional.avg_pool3d: avg_pool3d, torch._C._nn.avg_pool3d: avg_pool3d, functional.rrelu: rrelu,
            functional.gaussian_nll_loss: gaussian_nll_loss,
            functional.grid_sample: grid_sample, torch.cdist: cdist,
            functional.adaptive_max_pool1d: adaptive_max_pool(1), functional.adaptive_max_pool2d: adaptive_max_pool(2),
            functional.adaptive_max_pool3d: adaptive_max_pool(3), torch.adaptive_max_pool1d: adaptive_max_pool(1),
            torch.masked_scatter: masked_scatter, torch.Tensor.masked_scatter: masked_scatter,
            torch.Tensor.masked_scatter_: lambda input, mask, source: input.copy_(masked_scatter(input, mask, source)),
            torch.lstm: lstm, torch.gru: gru, torch.lstm_cell: lstm_cell, torch.gru_cell: gru_cell,
        }

    def drop(self, x: torch.Tensor, p: float) -> torch.Tensor:
        if p == 0.0:
            return x
        return torch.zeros_like(x) if p == 1.0 else dropout(x, float(p), next(self.masks))

    def dropout(self, input, p=0.5, training=True, inplace=False):
        if not training:
            return input
        return input.copy_(self.drop(input, p)) if inplace else self.drop(input, p)

    def attention(self, query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        if enable_gqa:
            groups = query.shape[-3] // key.shape[-3]
            key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
        scores = query @ key.transpose(-2, -1) * scale
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
        if attn_mask is None:
            weights = scores.softmax(-1)
        elif attn_mask.dtype == torch.bool:
            weights = scores.masked_fill(~attn_mask, float("-inf")).softmax(-1)
            # Rows that attend to nothing are zero.
            weights = weights if is_causal else weights.masked_fill(~attn_mask, 0.0)
        else:
            weights = (scores + attn_mask).softmax(-1)
        return self.drop(weights.to(query.dtype), dropout_p) @ value

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return self.replaced.get(func, func)(*args, **(kwargs or {}))
