"""Builder of modules in memc's IR text form (ir/README.md has its grammar and its ops)."""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass
from typing import Iterable, Sequence

PLAIN = re.compile(r"[A-Za-z0-9_./:$-]+\Z")
# Elements of a constant that may be spelled one by one; longer ones are written as bytes.
DENSE = 64
FLOATS = ("f32", "f16", "bf16")
BYTES = {"f32": 4, "f16": 2, "bf16": 2, "i32": 4, "i64": 8, "i8": 1, "u8": 1, "bool": 1}


@dataclass(frozen=True)
class Type:
    """Element type and shape of a dense, row-major tensor."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * BYTES[self.dtype]

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS


@dataclass(frozen=True)
class Value:
    """A tensor of the module, by its name."""

    name: str
    type: Type

    def __str__(self) -> str:
        return quoted("%", self.name)


def quoted(sigil: str, name: str) -> str:
    return sigil + (name if PLAIN.match(name) else text(name))


def text(value: str) -> str:
    escape = lambda c: {'"': '\\"', "\\": "\\\\"}.get(c) or (f"\\u{{{ord(c):x}}}" if ord(c) < 32 or ord(c) == 127 else c)
    return '"' + "".join(map(escape, value)) + '"'


def number(value: float) -> str:
    """A float that reads back as the `f32` nearest to it."""
    if math.isnan(value):
        return "nan(0x7fc00000)"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    try:
        value = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return "inf" if value > 0 else "-inf"
    return repr(value)


def attribute(name: str, value) -> str | None:
    """`name = value`; `None` for a flag that is not set."""
    if isinstance(value, bool):
        return name if value else None
    if isinstance(value, float):
        return f"{name} = {number(value)}"
    if isinstance(value, (list, tuple)):
        return f"{name} = [{', '.join(map(str, value))}]"
    return f"{name} = {value}"


def broadcast(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Shape that numpy's rules give for operands of these shapes."""
    rank = max(map(len, shapes))
    columns = zip(*[(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes])
    return tuple(next((d for d in column if d != 1), 1) for column in columns)


def hash32(number: int) -> int:
    """Bits of a number, well mixed (the finalizer of SplitMix64; Steele, Lea and Flood, 2014)."""
    z = (number * 0x9e3779b97f4a7c15) % (1 << 64)
    z = ((z ^ (z >> 30)) * 0xbf58476d1ce4e5b9) % (1 << 64)
    z = ((z ^ (z >> 27)) * 0x94d049bb133111eb) % (1 << 64)
    return (z ^ (z >> 31)) >> 32


class Module:
    """A graph-phase module that grows by one op at a time."""

    def __init__(self, name: str, seed: int = 0):
        self.name = name
        # Of all random numbers; any integer.
        self.seed = seed
        self.lines: list[str] = []
        self.ends: list[str] = []
        self.taken: set[str] = set()
        self.constants: dict[tuple, Value] = {}
        # Origin of the ops that follow: a place in the user's program.
        self.loc = ""
        # Prefix of their names.
        self.scope = "t"
        self.inputs: dict[str, Value] = {}
        self.states: dict[str, Value] = {}
        self.streams = 0
        self._step: Value | None = None

    def unique(self, name: str) -> str:
        """The name, or with a number where it is taken."""
        free, n = name, 1
        while free in self.taken:
            free, n = f"{name}.{n}", n + 1
        self.taken.add(free)
        return free

    def input(self, name: str, type: Type, **attrs) -> Value:
        value = Value(self.unique(name), type)
        parts = [attribute(key, v) for key, v in attrs.items()]
        braces = f" {{{', '.join(parts)}}}" if parts else ""
        self.lines.append(f"{value} = input{braces} : {type}")
        self.inputs[value.name] = value
        return value

    def state(self, name: str, type: Type, role: str, init: str = "zeros") -> Value:
        """A tensor that persists. `role`: param, frozen, optimizer or buffer."""
        value = Value(self.unique(name), type)
        self.lines.append(f"{value} = state {{role = {role}, init = {init}}} : {type}")
        self.states[value.name] = value
        return value

    def step(self) -> Value:
        """Number of the step, from 1, as an `i64` scalar."""
        if self._step is None:
            self._step = self.input("step", Type("i64", ()), feed="step")
        return self._step

    def stream(self) -> int:
        """Number of a stream of random numbers that nothing else of the module draws from, a `u32`.

        The seed is a part of it: attributes that kernels have as literals would have to be compiled for every seed.
        """
        self.streams += 1
        return (hash32(self.seed) + self.streams) % (1 << 32)

    def constant(self, values: Sequence | float | int | bool, dtype: str, shape: Sequence[int] = ()) -> Value:
        """A constant: one number everywhere, or a flat list of numbers."""
        shape = tuple(shape)
        many = isinstance(values, (list, tuple))
        spell = number if dtype in FLOATS else lambda v: str(int(v))
        payload = f"dense [{', '.join(map(spell, values))}]" if many else f"splat {spell(values)}"
        return self._constant(payload, Type(dtype, shape))

    def bytes_constant(self, data: bytes, type: Type) -> Value:
        return self._constant(f'hex "{data.hex()}"', type)

    def _constant(self, payload: str, type: Type) -> Value:
        key = (payload, type)
        if key not in self.constants:
            value = Value(self.unique(f"c{len(self.constants)}"), type)
            self.lines.append(f"{value} = const {payload} : {type}")
            self.constants[key] = value
        return self.constants[key]

    def ops(self, kind: str, operands: Iterable[Value], types: Sequence[Type], **attrs) -> list[Value]:
        """Appends an op with results of the given types."""
        results = [Value(self.unique(self.scope), type) for type in types]
        names = ", ".join(map(str, operands))
        parts = [part for key, v in attrs.items() if (part := attribute(key, v)) is not None]
        line = f"{', '.join(map(str, results))} = {kind}{' ' + names if names else ''}"
        line += f" {{{', '.join(parts)}}}" if parts else ""
        line += f" : {', '.join(map(str, types))}"
        line += f" loc {text(self.loc)}" if self.loc else ""
        self.lines.append(line)
        return results

    def op(self, kind: str, operands: Iterable[Value], type: Type, **attrs) -> Value:
        return self.ops(kind, operands, [type], **attrs)[0]

    def yields(self, role: str, value: Value, name: str) -> None:
        """Makes a value an output. `role`: loss or output."""
        self.ends.append(f"yield {role} {value} as {text(name)}")

    def carry(self, state: Value, next: Value) -> None:
        """Lets a state become another value at the end of the step."""
        self.ends.append(f"carry {state} <- {next}")

    def __str__(self) -> str:
        return "\n".join([f"module {quoted('@', self.name)} graph", "", *self.lines, *self.ends, ""])

    # Ops whose result types follow from their operands.

    def unary(self, kind: str, x: Value, **attrs) -> Value:
        return self.op(kind, [x], x.type, **attrs)

    def binary(self, kind: str, a: Value, b: Value) -> Value:
        return self.op(kind, [a, b], Type(a.type.dtype, broadcast(a.type.shape, b.type.shape)))

    def compare(self, kind: str, a: Value, b: Value) -> Value:
        return self.op(kind, [a, b], Type("bool", broadcast(a.type.shape, b.type.shape)))

    def select(self, cond: Value, a: Value, b: Value) -> Value:
        shape = broadcast(cond.type.shape, a.type.shape, b.type.shape)
        return self.op("select", [cond, a, b], Type(a.type.dtype, shape))

    def cast(self, x: Value, dtype: str) -> Value:
        return x if x.type.dtype == dtype else self.op("cast", [x], Type(dtype, x.type.shape), to=dtype)

    def scalar(self, value: float | int | bool, dtype: str) -> Value:
        return self.constant(value, dtype)

    def by(self, kind: str, x: Value, value: float) -> Value:
        """`x` combined with one number of its element type."""
        return self.binary(kind, x, self.scalar(value, x.type.dtype))

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        shape = tuple(shape)
        return x if shape == x.type.shape else self.op("reshape", [x], Type(x.type.dtype, shape), shape=shape)

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        if list(perm) == list(range(x.type.rank)):
            return x
        return self.op("transpose", [x], Type(x.type.dtype, tuple(x.type.shape[p] for p in perm)), perm=perm)

    def swap(self, x: Value, a: int, b: int) -> Value:
        perm = list(range(x.type.rank))
        perm[a], perm[b] = perm[b], perm[a]
        return self.transpose(x, perm)

    def broadcast(self, x: Value, shape: Sequence[int]) -> Value:
        shape = tuple(shape)
        if shape == x.type.shape:
            return x
        return self.op("broadcast", [x], Type(x.type.dtype, shape), shape=shape)

    def slice(self, x: Value, axis: int, start: int, end: int, step: int = 1) -> Value:
        """Elements `start`, `start + step`, ... before `end` of an axis."""
        size = x.type.shape[axis]
        if (start, end, step) == (0, size, 1):
            return x
        starts, ends, steps = [0] * x.type.rank, list(x.type.shape), [1] * x.type.rank
        starts[axis], ends[axis], steps[axis] = start, end, step
        shape = list(x.type.shape)
        shape[axis] = max(0, -(-(end - start) // step))
        return self.op("slice", [x], Type(x.type.dtype, tuple(shape)), starts=starts, ends=ends, steps=steps)

    def flip(self, x: Value, axis: int) -> Value:
        starts, ends, steps = [0] * x.type.rank, list(x.type.shape), [1] * x.type.rank
        size = x.type.shape[axis]
        starts[axis], ends[axis], steps[axis] = size - 1, -1, -1
        return self.op("slice", [x], x.type, starts=starts, ends=ends, steps=steps)

    def pad(self, x: Value, before: Sequence[int], after: Sequence[int], value: float = 0.0) -> Value:
        if not any(before) and not any(after):
            return x
        shape = tuple(b + d + a for b, d, a in zip(before, x.type.shape, after))
        value = float(value) if x.type.is_float else int(value)
        return self.op("pad", [x], Type(x.type.dtype, shape), before=before, after=after, value=value)

    def pad_axis(self, x: Value, axis: int, before: int, after: int, value: float = 0.0) -> Value:
        at = lambda n: [n if i == axis else 0 for i in range(x.type.rank)]
        return self.pad(x, at(before), at(after), value)

    def concat(self, xs: Sequence[Value], axis: int) -> Value:
        shape = list(xs[0].type.shape)
        shape[axis] = sum(x.type.shape[axis] for x in xs)
        return xs[0] if len(xs) == 1 else self.op("concat", xs, Type(xs[0].type.dtype, tuple(shape)), axis=axis)

    def fill(self, value: float | int | bool, type: Type) -> Value:
        value = float(value) if type.is_float else int(value)
        return self.op("fill", [], type, dtype=type.dtype, shape=type.shape, value=value)

    def reduce(self, kind: str, x: Value, axes: Sequence[int], keepdims: bool = False) -> Value:
        """`kind`: reduce_sum, reduce_mean or reduce_max."""
        axes = sorted(axes)
        if not axes:
            return x
        kept = [1 if i in axes else d for i, d in enumerate(x.type.shape) if keepdims or i not in axes]
        return self.op(kind, [x], Type(x.type.dtype, tuple(kept)), axes=axes, keepdims=keepdims)

    def matmul(self, a: Value, b: Value, trans_a: bool = False, trans_b: bool = False) -> Value:
        lead = broadcast(a.type.shape[:-2], b.type.shape[:-2])
        rows = a.type.shape[-1 if trans_a else -2]
        columns = b.type.shape[-2 if trans_b else -1]
        type = Type(a.type.dtype, (*lead, rows, columns))
        return self.op("matmul", [a, b], type, trans_a=trans_a, trans_b=trans_b)

    def iota(self, size: int, start: int = 0, step: int = 1, dtype: str = "i64") -> Value:
        """`start`, `start + step`, ... as a vector."""
        numbers = [start + i * step for i in range(size)]
        if size <= DENSE:
            return self.constant(numbers, dtype, [size])
        kind = {"i64": "q", "i32": "i", "f32": "f"}.get(dtype)
        if kind is None:
            return self.cast(self.iota(size, start, step, "i64"), dtype)
        return self.bytes_constant(struct.pack(f"<{size}{kind}", *numbers), Type(dtype, (size,)))
