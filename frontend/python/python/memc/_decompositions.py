"""ATen ops composed of others, for which memc has rules: PyTorch's own compositions, and those that it lacks.

Contract: each computes what PyTorch's op does, up to rounding. They work below autograd, so gradients need none.
"""

from __future__ import annotations

import math
from typing import Callable

import torch
from torch._decomp import core_aten_decompositions, get_decompositions

from ._lower import RULES

aten = torch.ops.aten
Tensor = torch.Tensor

COMPOSED: dict[torch._ops.OpOverload, Callable] = {}


def composed(*ops):
    """Registers the composition of ATen overloads."""

    def register(function):
        COMPOSED.update({op: function for op in ops})
        return function

    return register


def decompositions() -> dict:
    """Compositions of ops that memc has no rule for."""
    table = dict(core_aten_decompositions())
    extra = [aten.native_group_norm_backward, aten.native_group_norm, aten.mse_loss, aten.mse_loss_backward,
             aten.smooth_l1_loss, aten.smooth_l1_loss_backward, aten.huber_loss, aten.huber_loss_backward,
             aten.binary_cross_entropy, aten.binary_cross_entropy_backward, aten.std, aten.norm, aten.std_mean,
             aten.linalg_vector_norm, aten._fused_rms_norm, aten._fused_rms_norm_backward, aten.embedding_renorm,
             aten.softplus, aten.softplus_backward, aten.mish_backward, aten.elu, aten.leaky_relu, aten.addmv, aten.dist]
    table.update(get_decompositions(extra))
    table.update(COMPOSED)
    return {op: function for op, function in table.items() if str(op) not in RULES and f"{op}.default" not in RULES}


# Of each element.

composed(aten.tan.default)(lambda x: x.sin() / x.cos())
composed(aten.cosh.default)(lambda x: (x.exp() + (-x).exp()) / 2)
composed(aten.asinh.default)(lambda x: x.sign() * torch.log1p(x.abs() + x * x / (1 + (x * x + 1).sqrt())))
composed(aten.acosh.default)(lambda x: torch.log(x + (x * x - 1).sqrt()))
composed(aten.atanh.default)(lambda x: (torch.log1p(x) - torch.log1p(-x)) / 2)
composed(aten.erfc.default)(lambda x: 1 - x.erf())
composed(aten.exp2.default)(lambda x: (x * math.log(2)).exp())
composed(aten.log10.default)(lambda x: x.log() / math.log(10))
composed(aten.hypot.default)(lambda x, y: (x * x + y * y).sqrt())
composed(aten.trunc.default)(lambda x: torch.where(x < 0, x.ceil(), x.floor()))
composed(aten.signbit.default)(lambda x: x < 0)
composed(aten.copysign.Tensor, aten.copysign.Scalar)(lambda x, y: torch.where(torch.as_tensor(y) < 0, -x.abs(), x.abs()))
composed(aten.fmin.default)(lambda x, y: torch.where(x.isnan(), y, torch.where(y.isnan(), x, torch.minimum(x, y))))
composed(aten.fmax.default)(lambda x, y: torch.where(x.isnan(), y, torch.where(y.isnan(), x, torch.maximum(x, y))))
composed(aten.hardshrink_backward.default, aten.softshrink_backward.default)(
    lambda grad, x, limit: torch.where(x.abs() <= limit, torch.zeros_like(grad), grad))


@composed(aten.atan2.default)
def atan2(y: Tensor, x: Tensor) -> Tensor:
    half = torch.where(y < 0, -math.pi / 2, math.pi / 2)
    angle = (y / x).atan() + torch.where(x < 0, 2 * half, 0.0)
    return torch.where(x == 0, torch.where(y == 0, 0.0, half), angle)


@composed(aten.sinh.default)
def sinh(x: Tensor) -> Tensor:
    a = torch.expm1(x.abs())
    return x.sign() * (a + 1 / (1 + 1 / a)) / 2


# Terms by which the gamma function's argument is raised, until its asymptotic series holds (DLMF 5.11). Arguments below
# a half are reflected (DLMF 5.5.3).
RAISED = 8


def reflected(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Whether an argument is reflected, what it is then, and pi times its distance from a whole number."""
    low = x < 0.5
    return low, torch.where(low, 1 - x, x), math.pi * (x - x.round())


@composed(aten.lgamma.default)
def lgamma(x: Tensor) -> Tensor:
    low, z, angle = reflected(x)
    y = z + RAISED
    series = (y - 0.5) * y.log() - y + 0.5 * math.log(2 * math.pi) + 1 / (12 * y) - 1 / (360 * y * y * y)
    value = series - sum(((z + i).log() for i in range(RAISED)), torch.zeros_like(x))
    return torch.where(low, math.log(math.pi) - angle.sin().abs().log() - value, value)


@composed(aten.digamma.default)
def digamma(x: Tensor) -> Tensor:
    low, z, angle = reflected(x)
    y = z + RAISED
    square = 1 / (y * y)
    series = y.log() - 0.5 / y - square * (1 / 12 - square * (1 / 120 - square / 252))
    value = series - sum((1 / (z + i) for i in range(RAISED)), torch.zeros_like(x))
    return torch.where(low, value - math.pi * angle.cos() / angle.sin(), value)


# Along an axis, in steps that double the distance (Hillis and Steele, CACM 1986).


def scanned(parts: list[Tensor], dim: int, neutral: list[float], combine) -> list[Tensor]:
    """Every element with all before it.

    `combine(later, earlier)` takes and returns lists of the same tensors; `neutral` elements before it change nothing.
    """
    axes = parts[0].ndim
    size, by = parts[0].shape[dim] if axes else 1, 1
    while by < size:
        pads = [0, 0] * (axes - 1 - dim % axes) + [by, 0]
        earlier = [aten.constant_pad_nd(p.narrow(dim, 0, size - by), pads, n) for p, n in zip(parts, neutral)]
        parts = combine(parts, earlier)
        by *= 2
    return parts


@composed(aten.cumsum.default)
def cumsum(x: Tensor, dim: int, dtype=None) -> Tensor:
    x = x.to(dtype if dtype is not None else x.dtype if x.is_floating_point() else torch.int64)
    return scanned([x], dim, [0], lambda a, b: [a[0] + b[0]])[0]


@composed(aten.cumprod.default)
def cumprod(x: Tensor, dim: int, dtype=None) -> Tensor:
    x = x.to(dtype if dtype is not None else x.dtype if x.is_floating_point() else torch.int64)
    return scanned([x], dim, [1], lambda a, b: [a[0] * b[0]])[0]


@composed(aten.logcumsumexp.default)
def logcumsumexp(x: Tensor, dim: int) -> Tensor:
    def add(a, b):
        most = torch.maximum(a[0], b[0])
        least = torch.where(most == -math.inf, torch.zeros_like(most), most)
        return [least + ((a[0] - least).exp() + (b[0] - least).exp()).log()]

    return scanned([x], dim, [-math.inf], add)[0]


def places(x: Tensor, dim: int) -> Tensor:
    """The place of each element along an axis."""
    if not x.ndim:
        return torch.zeros_like(x, dtype=torch.int64)
    shape = [-1 if i == dim % x.ndim else 1 for i in range(x.ndim)]
    return torch.arange(x.shape[dim]).reshape(shape).expand(x.shape)


def running(x: Tensor, dim: int, last: float, is_before) -> tuple[Tensor, ...]:
    """Of each element and all before it the last that comes first, and its place. `last`: a float that comes behind all."""
    if not x.is_floating_point():
        last = torch.iinfo(x.dtype).min if last < 0 else torch.iinfo(x.dtype).max
    def choose(a, b):
        kept = ~is_before(b[0], a[0])
        return [torch.where(kept, new, old) for new, old in zip(a, b)]

    return tuple(scanned([x, places(x, dim)], dim, [last, 0], choose))


composed(aten.cummax.default)(lambda x, dim: running(x, dim, -math.inf, lambda a, b: a > b))
composed(aten.cummin.default)(lambda x, dim: running(x, dim, math.inf, lambda a, b: a < b))


# By order.


@composed(aten.kthvalue.default)
def kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    if not x.ndim:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    pair = (t.narrow(dim, k - 1, 1) for t in torch.sort(x, dim))
    return tuple(t if keepdim else t.squeeze(dim) for t in pair)


@composed(aten.median.dim)
def median(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return kthvalue(x, (x.shape[dim] + 1) // 2 if x.ndim else 1, dim, keepdim)


composed(aten.median.default)(lambda x: median(x.flatten(), 0)[0])


def counted(boundaries: Tensor, x: Tensor, right: bool, int32: bool) -> Tensor:
    """How many of the boundaries, along a last axis more, come before."""
    x = x.unsqueeze(-1)
    return (boundaries <= x if right else boundaries < x).sum(-1).to(torch.int32 if int32 else torch.int64)


@composed(aten.bucketize.Tensor)
def bucketize(x: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    return counted(boundaries, x, right, out_int32)


@composed(aten.searchsorted.Tensor)
def searchsorted(boundaries: Tensor, x: Tensor, *, out_int32: bool = False, right: bool = False, side=None, sorter=None):
    if sorter is not None:
        raise NotImplementedError("searchsorted takes no sorter here; sort the boundaries")
    boundaries = boundaries if boundaries.ndim == 1 else boundaries.unsqueeze(-2)
    return counted(boundaries, x, right or side == "right", out_int32)


# At places.


def windows(size: int, length: int, step: int) -> Tensor:
    """Places of the elements of all windows, one window after the other."""
    starts = torch.arange((size - length) // step + 1) * step
    return (starts.unsqueeze(1) + torch.arange(length)).flatten()


@composed(aten.unfold.default)
def unfold(x: Tensor, dim: int, size: int, step: int) -> Tensor:
    x = x if x.ndim else x.unsqueeze(0)
    dim %= x.ndim
    taken = x.index_select(dim, windows(x.shape[dim], size, step))
    return taken.unflatten(dim, (-1, size)).movedim(dim + 1, -1)


@composed(aten.unfold_backward.default)
def unfold_backward(grad: Tensor, input_sizes, dim: int, size: int, step: int) -> Tensor:
    dim %= max(1, len(input_sizes))
    at = windows(input_sizes[dim] if len(input_sizes) else 1, size, step)
    grad = grad.movedim(-1, dim + 1).flatten(dim, dim + 1)
    whole = torch.zeros([*input_sizes] or [1], dtype=grad.dtype, device=grad.device)
    return whole.index_add(dim, at, grad).reshape(list(input_sizes))


@composed(aten.put.default)
def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    flat, at = x.flatten(), index.flatten()
    write = flat.scatter_add if accumulate else flat.scatter
    return write(0, torch.where(at < 0, at + flat.numel(), at), source.flatten()).reshape(x.shape)


@composed(aten.index_reduce.default)
def index_reduce(x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
    shape = [-1 if i == dim % x.ndim else 1 for i in range(x.ndim)]
    return x.scatter_reduce(dim, index.reshape(shape).expand(source.shape), source, reduce, include_self=include_self)


@composed(aten.diagonal_scatter.default)
def diagonal_scatter(x: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    y = x.movedim((dim1, dim2), (-2, -1))
    rows, columns = y.shape[-2:]
    start = offset if offset >= 0 else -offset * columns
    at = start + torch.arange(src.shape[-1]) * (columns + 1)
    flat = y.flatten(-2).scatter(-1, at.expand(src.shape), src)
    return flat.unflatten(-1, (rows, columns)).movedim((-2, -1), (dim1, dim2))


@composed(aten.replication_pad1d_backward.default, aten.replication_pad2d_backward.default,
          aten.replication_pad3d_backward.default)
def replication_pad_backward(grad: Tensor, x: Tensor, padding) -> Tensor:
    for axis in range(len(padding) // 2):
        dim = x.ndim - 1 - axis
        at = (torch.arange(grad.shape[dim]) - padding[2 * axis]).clamp(0, x.shape[dim] - 1)
        shape = [x.shape[dim] if i == dim else n for i, n in enumerate(grad.shape)]
        grad = torch.zeros(shape, dtype=grad.dtype, device=grad.device).index_add(dim, at, grad)
    return grad


# Random numbers, memc's.


@composed(aten.exponential.default)
def exponential(x: Tensor, lambd: float = 1.0, generator=None) -> Tensor:
    # Never zero, as PyTorch's: its logarithm is taken.
    return -torch.log1p(-torch.rand_like(x).clamp_min(2.0**-25)) / lambd


@composed(aten.normal.float_float)
def normal(mean: float, std: float, size, *, generator=None, dtype=None, layout=None, device=None, pin_memory=None) -> Tensor:
    return torch.randn(size, dtype=dtype, device=device) * std + mean


@composed(aten.randperm.default)
def randperm(n: int, *, dtype=None, layout=None, device=None, pin_memory=None) -> Tensor:
    order = torch.rand(n, device=device).argsort()
    return order if dtype is None else order.to(dtype)
