"""Module of a step: the captured graph for each micro-batch, then the updates."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from ._capture import Captured
from ._complex import joined
from ._errors import CaptureError
from ._ir import Module, Type, Value, number
from ._lower import Lowered, Lowering, split, tensor_type
from ._optim import Updater, clipped, groups_of


@dataclass
class Built:
    """A module, and how its inputs, states and outputs belong to the user's objects."""

    module: Module
    # Names of the module's inputs for each input of the user's step, one for each micro-batch.
    inputs: dict[str, list[str]]
    # Names of the user's inputs that are indices of tables.
    indices: set[str] = field(default_factory=set)
    # Names of the learning rates' inputs, by parameter group.
    rates: list[str] = field(default_factory=list)
    # States that are parameters and buffers, by their names in the user's module.
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    # States of the optimizer: parameter, PyTorch's name, state's name.
    optimizer: list[tuple[str, str, str]] = field(default_factory=list)
    # Contents of states that never change and that the module does not have.
    frozen: dict[str, torch.Tensor] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    # Buffers that the step may change, and parameters that it changes.
    buffers: list[str] = field(default_factory=list)
    trained: list[str] = field(default_factory=list)
    hyper: list[dict] = field(default_factory=list)
    # Structure of the outputs, and which leaves are no tensors.
    spec: Any = None
    fixed: dict[int, Any] = field(default_factory=dict)
    # States and outputs of complex numbers, which have both parts along a last axis.
    complex: set[str] = field(default_factory=set)


def state_of(built: Built, name: str, tensor: torch.Tensor, role: str) -> Value:
    built.tensors[name] = tensor
    if tensor.is_complex():
        built.complex.add(name)
    return built.module.state(name, tensor_type(tensor, name), role)


def place_states(built: Built, captured: Captured, trained: set[str]) -> dict[str, Value]:
    """States for parameters and buffers."""
    values = {}
    for name, parameter in captured.parameters.items():
        role = "param" if name in trained else "buffer" if name in captured.updated else "frozen"
        values[name] = state_of(built, name, parameter, role)
    for name, buffer in captured.buffers.items():
        values[name] = state_of(built, name, buffer, "buffer")
    return values


def in_parts(m: Module, captured: Captured, states: dict[str, Value]) -> dict[str, Lowered]:
    """What ops of the graph read of the states."""
    tensors = {**captured.parameters, **captured.buffers}
    return {name: split(m, value) if tensors[name].is_complex() else value for name, value in states.items()}


# Ops that read rows at indices from 0, and the place of these among their arguments.
TABLES = {"aten.embedding.default": 1, "aten.gather.default": 2, "aten.index_select.default": 2}
SAME_VALUES = {"aten.view.default", "aten.reshape.default", "aten._to_copy.default", "aten.clone.default", "aten.alias.default",
               "aten.unsqueeze.default", "aten.squeeze.dim", "aten.expand.default", "aten.detach.default"}


def is_index(node: torch.fx.Node) -> bool:
    """Whether an op takes the elements of a value for indices of a table."""
    for user in node.users:
        at = TABLES.get(str(user.target))
        if at is not None and len(user.args) > at and user.args[at] is node:
            return True
        if str(user.target) in SAME_VALUES and is_index(user):
            return True
    return False


def lowered(built: Built, captured: Captured, values: dict[str, Lowered], micro: int, count: int) -> Lowering:
    """One more micro-batch of the captured graph."""
    cx = Lowering(built.module)
    holders = [node for node in captured.graph.graph.nodes if node.op == "placeholder"]
    names = [*captured.parameters, *captured.buffers]
    for node, name in zip(holders, names):
        cx.values[node] = values[name]
    for node, (name, tensor) in zip(holders[len(names):], captured.inputs.items()):
        fed = {"source": f'"{name}"'} | ({"micro": micro} if count > 1 else {})
        value = built.module.input(name, tensor_type(tensor, name), **fed)
        built.inputs.setdefault(name, []).append(value.name)
        if not tensor.is_floating_point() and is_index(node):
            built.indices.add(name)
        cx.values[node] = split(built.module, value) if tensor.is_complex() else value
    cx.run(captured.graph.graph)
    built.frozen |= cx.frozen
    return cx


def build_training(captured: Captured, optimizer: torch.optim.Optimizer, *, name: str, accumulate: int,
                   clip_norm: float | None, clip_value: float | None, exported: bool = False) -> Built:
    """The step of an optimizer on the mean loss of `accumulate` micro-batches.

    An exported step has one learning rate, and each group's is a multiple of it.
    """
    m = Module(name, torch.initial_seed())
    built = Built(m, {})
    names = {id(p): name for name, p in captured.parameters.items()}
    groups = groups_of(optimizer, names)
    built.hyper = [hyper for hyper, _ in groups]
    built.trained = [p for _, members in groups for p in members if p in captured.gradients]
    built.buffers = [name for name in captured.updated if name not in built.trained]
    start = place_states(built, captured, set(built.trained))
    values, sums, losses = in_parts(m, captured, start), {}, []
    begun = dict(values)
    for micro in range(accumulate):
        cx = lowered(built, captured, values, micro, accumulate)
        losses.append(cx.value(captured.results[0], "f32"))
        for name, node in captured.gradients.items():
            g = joined(m, cx.values[node])
            sums[name] = m.binary("add", sums[name], g) if name in sums else g
        # The next micro-batch goes on from the statistics of this one.
        values |= {name: cx.values[node] for name, node in captured.updated.items()}
    for name in built.buffers:
        if values[name] is not begun[name]:
            m.carry(start[name], joined(m, values[name]))
    m.loc = m.scope = "accumulate"
    if accumulate > 1:
        sums = {name: m.by("div", g, float(accumulate)) for name, g in sums.items()}
    m.yields("loss", mean(m, losses), "loss")
    built.outputs = ["loss"]
    updates(built, optimizer, groups, start, values, clipped(m, sums, clip_norm, clip_value), exported)
    return built


def mean(m: Module, values: list[Value]) -> Value:
    total = m.reshape(values[0], ())
    for value in values[1:]:
        total = m.binary("add", total, m.reshape(value, ()))
    return total if len(values) == 1 else m.by("div", total, float(len(values)))


def updates(built: Built, optimizer, groups, start: dict[str, Value], values: dict[str, Lowered], gradients: dict[str, Value],
            exported: bool):
    """Appends each group's updates with its own learning rate. `values`: what the forward pass leaves in the states."""
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    if exported and len(set(rates)) > 1 and rates[0] == 0.0:
        raise CaptureError("the first parameter group has a learning rate of 0, of which the others are no multiples")
    updater = Updater(built.module, optimizer)
    for i, (hyper, members) in enumerate(groups):
        lr = rate(built.module, i, rates, exported)
        built.rates.append(lr.name)
        for name in members:
            if name in gradients:
                new = updater.update(name, joined(built.module, values[name]), gradients[name], lr, hyper)
                built.module.carry(start[name], new)
    built.complex |= {state.name for p, kinds in updater.states.items() if p in built.complex for state in kinds.values()}
    built.optimizer = [(p, kind, state.name) for p, kinds in updater.states.items() for kind, state in kinds.items()]


def rate(m: Module, group: int, rates: list[float], exported: bool) -> Value:
    """The learning rate of a group: an input, or in an exported step a multiple of the first."""
    if group == 0:
        return m.input("lr", Type("f32", ()), feed="learning_rate", default=number(rates[0]))
    if exported:
        return m.by("mul", m.inputs["lr"], rates[group] / rates[0]) if rates[group] != rates[0] else m.inputs["lr"]
    return m.input(f"lr.{group}", Type("f32", ()), source=f'"lr.{group}"')


def build_forward(captured: Captured, *, name: str) -> Built:
    """The forward pass alone, with its results as outputs."""
    built = Built(Module(name, torch.initial_seed()), {}, spec=captured.spec)
    start = place_states(built, captured, set())
    values = in_parts(built.module, captured, start)
    cx = lowered(built, captured, values, 0, 1)
    for i, node in enumerate(captured.results):
        if not isinstance(node, torch.fx.Node):
            built.fixed[i] = node
            continue
        built.module.yields("output", joined(built.module, cx.values[node]), f"output{i}")
        if node.meta["val"].is_complex():
            built.complex.add(f"output{i}")
        built.outputs.append(f"output{i}")
    for name, node in captured.updated.items():
        if cx.values[node] is not values[name]:
            built.module.carry(start[name], joined(built.module, cx.values[node]))
    return built
