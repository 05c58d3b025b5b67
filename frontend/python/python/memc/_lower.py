"""From a captured graph of ATen ops to a module of memc's IR.

Contract: every op either becomes IR that computes the same numbers up to rounding, or is refused with its name and the
line of the user's program. Strides do not matter: tensors of the module are dense and row-major, and captured graphs
have no views or mutations.
"""

from __future__ import annotations

import pathlib
from typing import Any, Callable, NamedTuple, Union

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from ._errors import UnsupportedOp
from ._ir import BYTES, Module, Type, Value

DTYPES = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "bool",
}
# Constants of more bytes become states that do not change.
INLINE = 1 << 16

OWN, TORCH = (str(pathlib.Path(file).parent) for file in (__file__, torch.__file__))

class Pair(NamedTuple):
    """Real and imaginary part of a complex tensor."""

    re: Value
    im: Value


# `None`: an op that marks a place of the program, and computes nothing.
Lowered = Union[Value, Pair, list[Value], list[Pair], None]
RULES: dict[str, Callable[["Lowering", Node], Lowered]] = {}
# Those of ops with complex operands or results.
PAIRS: dict[str, Callable[["Lowering", Node], Lowered]] = {}


def rule(*names: str):
    """Registers a rule for ATen overloads, such as `add.Tensor`."""

    def register(function):
        for name in names:
            RULES[name if name.startswith(("memc.", "profiler.")) else f"aten.{name}"] = function
        return function

    return register


def place(node: Node) -> str:
    """Innermost line of the user's program that made the op, `FILE:LINE`; of a gradient, that of one of its operands."""
    for maker in [node, *reversed(node.all_input_nodes)]:
        trace = maker.meta.get("stack_trace") or ""
        frames = [line.strip() for line in trace.splitlines() if line.strip().startswith("File ")]
        for frame in reversed(frames):
            file, line = frame.split('"')[1], frame.split("line ")[1].split(",")[0]
            if is_users(file):
                return f"{file}:{line}"
    return ""


def is_users(file: str) -> bool:
    """Whether a source file is neither PyTorch's nor memc's."""
    return not file.startswith(("<", OWN, TORCH)) and "eval_with_key" not in file


def tensor_type(value: torch.Tensor, where: str = "") -> Type:
    """Type of a tensor. Complex numbers are two along a last axis."""
    if value.dtype == torch.complex64:
        return Type("f32", (*(int(d) for d in value.shape), 2))
    dtype = DTYPES.get(value.dtype)
    if dtype is None:
        raise UnsupportedOp(str(value.dtype), where, f"tensors of {value.dtype} are not supported; use float32 or int64")
    return Type(dtype, tuple(int(d) for d in value.shape))


class Lowering:
    """Module that grows by the ops of a graph."""

    def __init__(self, module: Module):
        self.m = module
        self.values: dict[Node, Lowered] = {}
        # Contents of constants that are states of the module, by name.
        self.frozen: dict[str, torch.Tensor] = {}
        # Streams of dropout, by the numbers that masks have in the graph.
        self.streams: dict[int, int] = {}
        # Which part of complex tensors is computed, while a rule is used for each.
        self.part: int | None = None

    def type(self, node: Node, at: int | None = None) -> Type:
        """Type of a node, or of one of its results."""
        value = node.meta["val"]
        value = value if at is None else value[at]
        if self.part is not None and value.is_complex():
            return Type("f32", tuple(int(d) for d in value.shape))
        return tensor_type(value, place(node))

    def value(self, arg, dtype: str | None = None) -> Value:
        """The value of an argument, as a tensor of `dtype`."""
        if isinstance(arg, Node):
            value = self.values[arg]
            if isinstance(value, Pair):
                if self.part is None:
                    raise self.refuse(arg, "it is complex, which the op that reads it does not take")
                value = value[self.part]
            if isinstance(value, list):
                raise AssertionError(f"{arg} has several results")
            return value if dtype is None else self.m.cast(value, dtype)
        if dtype is None:
            dtype = "bool" if isinstance(arg, bool) else "i64" if isinstance(arg, int) else "f32"
        return self.m.scalar(arg, dtype)

    def arg(self, node: Node, at: int, name: str, default=None):
        """An argument by place or name."""
        return node.args[at] if at < len(node.args) else node.kwargs.get(name, default)

    def refuse(self, node: Node, why: str) -> UnsupportedOp:
        return UnsupportedOp(str(node.target), place(node), why)

    def constant(self, name: str, tensor: torch.Tensor, where: str) -> Value | Pair:
        """A tensor that the program has made outside of the step."""
        if tensor.is_complex():
            return split(self.m, self.constant(name, torch.view_as_real(tensor.detach().resolve_conj()), where))
        type = tensor_type(tensor, where)
        tensor = tensor.detach().cpu().contiguous()
        if type.elements * BYTES[type.dtype] <= INLINE:
            return self.m.bytes_constant(bytes(tensor.view(torch.uint8).flatten().tolist()) if type.rank else
                                         bytes(tensor.reshape(1).view(torch.uint8).tolist()), type)
        value = self.m.state(name, type, "frozen")
        self.frozen[value.name] = tensor
        return value

    def run(self, graph: Graph) -> None:
        """Lowers every op behind the placeholders, whose values are there."""
        for node in graph.nodes:
            if node.op == "call_function":
                self.m.loc, self.m.scope = place(node), node.name
                self.values[node] = self.lower(node)
            elif node.op == "get_attr":
                tensor = getattr(graph.owning_module, node.target)
                self.values[node] = self.constant(node.name, tensor, place(node))
            elif node.op not in ("placeholder", "output"):
                raise self.refuse(node, "the captured graph has a call that is no op")

    def lower(self, node: Node) -> Lowered:
        if node.target.__name__ == "getitem":
            return self.values[node.args[0]][node.args[1]]
        name = str(node.target)
        paired = is_complex(node)
        function = (PAIRS if paired else RULES).get(name)
        if function is not None:
            return function(self, node)
        found = content(node)
        if isinstance(found, torch.Tensor):
            return self.constant(node.name, found, place(node))
        numbers = " for complex numbers" if paired else ""
        raise self.refuse(node, f"memc has no translation of it{numbers}; compose it of other ops")


def is_complex(node: Node) -> bool:
    """Whether a node's value, or that of one of its operands, is complex."""
    values = [n.meta.get("val") for n in (node, *node.all_input_nodes)]
    return any(isinstance(value, torch.Tensor) and value.is_complex() for value in values)


def split(m: Module, x: Value) -> Pair:
    """Parts of a tensor that has them along its last axis."""
    axis, shape = x.type.rank - 1, x.type.shape[:-1]
    return Pair(*[m.reshape(m.slice(x, axis, i, i + 1), shape) for i in range(2)])


def content(node: Node) -> Any:
    """What a node computes, where that depends neither on the step's inputs and states nor on random numbers."""
    if node.op == "get_attr":
        return getattr(node.graph.owning_module, node.target)
    tags = getattr(node.target, "tags", ())
    if node.op != "call_function" or torch.Tag.nondeterministic_seeded in tags or str(node.target).startswith("memc."):
        return None
    known = {maker: content(maker) for maker in node.all_input_nodes}
    if any(value is None for value in known.values()):
        return None
    args, kwargs = map_arg((node.args, node.kwargs), lambda maker: known[maker])
    return node.target(*args, **{**kwargs, **({"device": torch.device("cpu")} if "device" in kwargs else {})})
