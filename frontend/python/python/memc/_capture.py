"""Capture of a whole training step as one graph of ATen ops: forward, loss and backward.

Contract: the graph is functional, with no views or mutations, and its shapes are those of the example inputs. It computes
what PyTorch computes in the mode the module is in, but for dropout, whose random bits are memc's. Nothing of the module
changes: parameters and buffers are stood in for by tensors without contents.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import threading
import traceback
from dataclasses import dataclass, field
from typing import Any, Callable, Mapping

import torch
import torch.utils._pytree as pytree
import torch.utils.checkpoint
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.distributions import Distribution
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import PythonKeyTracer, make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from . import _complex, _ops_index, _ops_math, _ops_nn, _ops_shape  # noqa: F401  (they register their rules)
from ._decompositions import decompositions
from ._errors import CaptureError, UnsupportedOp
from ._functions import Functions
from ._lower import is_users, place
from ._modules import require_shapes, unchanged


@dataclass
class Captured:
    """A step as a graph, and the meaning of its inputs and outputs."""

    graph: GraphModule
    parameters: dict[str, torch.nn.Parameter]
    buffers: dict[str, torch.Tensor]
    # Example inputs by name. The tensors are the graph's placeholders behind the buffers, in this order. The others are
    # constants of the graph.
    examples: dict[str, Any]
    # Values of the graph.
    results: list[Node] = field(default_factory=list)
    gradients: dict[str, Node] = field(default_factory=dict)
    # What the step leaves in each buffer, and in parameters that the forward pass changes.
    updated: dict[str, Node] = field(default_factory=dict)
    spec: Any = None

    @property
    def inputs(self) -> dict[str, torch.Tensor]:
        return {name: leaf for name, leaf in self.examples.items() if isinstance(leaf, torch.Tensor)}


def to_functional(x):
    return FunctionalTensor.to_functional(x) if isinstance(x, torch.Tensor) else x


def from_functional(x):
    if not isinstance(x, FunctionalTensor):
        return x
    torch._sync(x)
    return torch._from_functional_tensor(x.elem)


def parameters_of(function: Callable) -> list[str]:
    """Names of a function's parameters, as far as they are known."""
    try:
        known = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in known if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def named_inputs(model: torch.nn.Module, inputs, has_target: bool, compute: Callable | None) -> tuple[list[str], list, Any]:
    """Names and leaves of example inputs, and the structure they have."""
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    if isinstance(inputs, Mapping):
        tops = list(inputs)
        parts = list(inputs.values())
    else:
        inputs, parts = tuple(inputs), list(inputs)
        known = parameters_of(compute)[1:] if compute is not None else parameters_of(model.forward)
        tops = [known[i] if i < len(known) else f"input{i}" for i in range(len(parts))]
        if has_target and tops:
            tops[-1] = "target"
    names, leaves = [], []
    for top, part in zip(tops, parts):
        found = pytree.tree_leaves(part)
        leaves += found
        names += [top] if len(found) == 1 else [f"{top}.{i}" for i in range(len(found))]
    return names, leaves, pytree.tree_structure(inputs)


def called(model, compute: Callable | None, loss_fn: Callable | None, inputs):
    """Loss, or outputs, of the inputs as the user means it."""
    if compute is not None:
        return compute(model, **inputs) if isinstance(inputs, Mapping) else compute(model, *inputs)
    if isinstance(inputs, Mapping):
        out = model(**inputs)
        return out if loss_fn is None else loss_fn(out)
    if loss_fn is None:
        return model(*inputs)
    return loss_fn(model(*inputs[:-1]), inputs[-1])


def as_left(name: str, tensor, before: torch.Tensor) -> torch.Tensor:
    """What a step leaves in a parameter or buffer, which keeps its shape and type."""
    if not isinstance(tensor, torch.Tensor) or tensor.shape != before.shape or tensor.dtype != before.dtype:
        now = f"{tensor.dtype} {tuple(tensor.shape)}" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise CaptureError(f"the step replaces `{name}`, {before.dtype} {tuple(before.shape)}, by {now}; a tensor that steps "
                           "carry on keeps its shape and type")
    return tensor.detach()


def as_loss(out) -> torch.Tensor:
    if not isinstance(out, torch.Tensor):
        loss = out.get("loss") if isinstance(out, Mapping) else getattr(out, "loss", None)
        if loss is None and isinstance(out, tuple) and out and isinstance(out[0], torch.Tensor) and out[0].ndim == 0:
            loss = out[0]
        if loss is None:
            raise CaptureError(f"the step returns {type(out).__name__} and no loss; give a loss_fn, or compute= with a "
                               "function (model, *inputs) that returns one number")
        out = loss
    if out.numel() != 1:
        raise CaptureError(f"the loss has shape {tuple(out.shape)}; reduce it to one number, for instance with .mean()")
    return out


class Direct:
    """A segment of reentrant checkpointing, computed like any other code: without gradients where no argument has one."""

    @staticmethod
    def apply(function, _preserve, *args):
        has_gradient = any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args)
        with contextlib.nullcontext() if has_gradient else torch.no_grad():
            return function(*args)


def directly(_function, *args, context_fn=None, **_kwargs):
    """Stands for PyTorch's generator: enters the context that the user gives the forward pass, and does nothing else."""
    given = [context_fn, *args]
    contexts = next((f() for f in given if callable(f)), (contextlib.nullcontext(),))
    # What a selective policy keeps is the plan's to decide.
    selective = getattr(torch.utils.checkpoint, "_CachingTorchDispatchMode", ())
    with contextlib.nullcontext() if isinstance(contexts[0], selective) else contexts[0]:
        yield


# What stands for parts of `torch.utils.checkpoint`; not every version of PyTorch has all of them.
CHECKPOINTS = {"CheckpointFunction": Direct, "_checkpoint_without_reentrant_generator": directly,
               "_checkpoint_without_reentrant_generator_impl": directly}


@contextlib.contextmanager
def without_checkpoints(with_gradients: bool):
    """Computes segments of `torch.utils.checkpoint` directly, and lets `save_on_cpu` do nothing: the plan decides what leaves
    the device and what is computed again.

    Where gradients are wanted, other hooks on what they read are refused.
    """
    module, saving = torch.utils.checkpoint, torch.autograd.graph.save_on_cpu
    before = {name: getattr(module, name) for name in CHECKPOINTS if hasattr(module, name)}
    for name in before:
        setattr(module, name, CHECKPOINTS[name])
    saving.__enter__, saving.__exit__ = lambda self: None, lambda self, *_: None
    refusal = "a step takes no hooks on saved tensors: its plan decides what leaves the device and what is computed again; " \
              "leave them out"
    try:
        with torch.autograd.graph.disable_saved_tensors_hooks(refusal) if with_gradients else contextlib.nullcontext():
            yield
    finally:
        # Those of its base class.
        del saving.__enter__, saving.__exit__
        for name, part in before.items():
            setattr(module, name, part)


# Capture changes modules of PyTorch for a while.
ALONE = threading.RLock()


@contextlib.contextmanager
def capturing(kinds: set[str], with_gradients: bool):
    """Ways of PyTorch while a step on devices of these kinds is captured: no ops that only one backend has."""
    compiler, autocast, tracer = torch.compiler, torch.autocast, PythonKeyTracer
    before, begin, frames = compiler._is_compiling_flag, autocast.__init__, tracer._filter_traceback_frames
    checks = Distribution._validate_args

    @functools.wraps(begin)
    def checked(self, device_type, dtype=None, enabled=True, cache_enabled=None):
        if enabled and device_type not in kinds:
            raise CaptureError(f"autocast for {device_type!r} changes nothing in a step whose tensors are on "
                               f"{' and '.join(sorted(kinds))}{users_line_of_stack()}; move the model and the example inputs to "
                               f"{device_type!r}, or name their device")
        begin(self, device_type, dtype, enabled, cache_enabled)

    compiler._is_compiling_flag, autocast.__init__, tracer._filter_traceback_frames = True, checked, users_frames
    # Distributions look at their parameters' contents.
    Distribution.set_default_validate_args(False)
    onednn = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        # Modules that were compiled by PyTorch are captured as they are without.
        with sdpa_kernel(SDPBackend.MATH), torch.backends.cudnn.flags(enabled=False), \
                torch.compiler.set_stance("force_eager"), without_checkpoints(with_gradients):
            yield
    finally:
        torch._C._set_mkldnn_enabled(onednn)
        compiler._is_compiling_flag, autocast.__init__, tracer._filter_traceback_frames = before, begin, frames
        Distribution.set_default_validate_args(checks)


def users_frames(_tracer, stack: traceback.StackSummary) -> traceback.StackSummary:
    """Frames of the user's program below that of the captured step. Those above are of who builds the step."""
    within = [i for i, frame in enumerate(stack) if frame.filename == __file__ and frame.name == "step"]
    below = stack[within[-1]:] if within else []
    return traceback.StackSummary.from_list([frame for frame in below if is_users(frame.filename)])


def capture(model: torch.nn.Module, example_inputs, *, loss_fn: Callable | None = None, compute: Callable | None = None,
            trained: set[str] | None = None) -> Captured:
    """Captures a step of `model`.

    `trained` names the parameters whose gradients are wanted; with `None` the step is the forward pass alone.

    Raises `CaptureError` where Python code of the step depends on the contents of tensors.
    """
    if torch.is_inference_mode_enabled():
        raise CaptureError("a step cannot be captured in inference mode, which has no gradients; build it outside of "
                           "torch.inference_mode()")
    require_shapes(model)
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    names, leaves, spec = named_inputs(model, example_inputs, loss_fn is not None, compute)
    tensors = {name: leaf for name, leaf in zip(names, leaves) if isinstance(leaf, torch.Tensor)}
    wanted = [name for name in parameters if trained is not None and name in trained]
    functions = Functions()
    out_spec = []

    def forward(inputs):
        """The user's computation."""
        out = called(model, compute, loss_fn, inputs)
        return as_loss(out) if trained is not None else out

    def step(params, bufs, data):
        """All of the step. Traces of ops begin below this frame."""
        with FunctionalTensorMode():
            params, bufs, data = pytree.tree_map(to_functional, (params, bufs, data))
            for name in parameters:
                params[name].requires_grad_(name in wanted)
            fed = [data[name] if name in data else leaf for name, leaf in zip(names, leaves)]
            inputs = pytree.tree_unflatten(fed, spec)
            grad = torch.enable_grad() if wanted else torch.no_grad()
            tied = torch.nn.utils.stateless._reparametrize_module
            # Of every name the tensor that the module has at the end: it may replace its buffers.
            held = {**params, **bufs}
            with grad, functions, tied(model, held, tie_weights=True):
                out = forward(inputs)
            grads = torch.autograd.grad(out, [params[n] for n in wanted], allow_unused=True) if wanted else ()
            results, tree = pytree.tree_flatten(out)
            out_spec.append(tree)
            results = [r.detach() if isinstance(r, torch.Tensor) else r for r in results]
            left = [as_left(n, held[n], (params | bufs)[n]) for n in (*parameters, *buffers)]
            return tuple(map(from_functional, [*results, *grads, *left]))

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    # A module without contents, on the device meta, is captured as one on the CPU.
    device = lambda x: torch.device("cpu") if x.device.type == "meta" else x.device
    fake = lambda x: torch.empty(x.shape, dtype=x.dtype, device=device(x))
    kinds = {device(x).type for group in (parameters, buffers, tensors) for x in group.values()}
    try:
        with ALONE, torch.random.fork_rng(devices=[]), unchanged(model), capturing(kinds, bool(wanted)), mode:
            given = [{n: fake(t) for n, t in group.items()} for group in (parameters, buffers, tensors)]
            graph = make_fx(step, decompositions(), tracing_mode="real", record_stack_traces=True)(*given)
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise CaptureError(f"the step cannot be captured: {error.func} depends on the contents of a tensor"
                           f"{users_line(error)}; compute it outside of the step, or choose with torch.where") from error
    except AssertionError as error:
        # Ops of linear algebra that check their operands' contents.
        if "effect" not in str(error):
            raise
        op = re.search(r"aten\.\w+(\.\w+)?", str(error))
        where = users_line(error).removeprefix(" at ")
        raise UnsupportedOp(op[0] if op else "linalg", where, "it checks contents of tensors, and memc has no translation of "
                            "it") from error
    except NotImplementedError as error:
        raise CaptureError(f"the step cannot be captured: {error}{users_line(error)}") from error
    except RuntimeError as error:
        if "takes no hooks on saved tensors" in str(error):
            raise CaptureError(f"{error}{users_line(error)}") from error
        if "mutating a non-functional tensor" not in str(error):
            raise
        raise CaptureError(f"the step changes a tensor that is not one of the model's{users_line(error)}; make its module a part "
                           "of the model (torch.nn.ModuleDict), or put it into evaluation mode") from error
    refuse_own(graph, {**parameters, **buffers})
    return labelled(graph, Captured(graph, parameters, buffers, dict(zip(names, leaves)), spec=out_spec[-1]), wanted)


def refuse_own(graph: GraphModule, tensors: dict[str, torch.Tensor]) -> None:
    """Refuses constants of the graph that are the model's own tensors: the step would never see them change."""
    names = {tensor.untyped_storage().data_ptr(): name for name, tensor in tensors.items() if tensor.numel()}
    for node in graph.graph.nodes:
        if node.op != "get_attr":
            continue
        tensor = getattr(graph, node.target)
        name = names.get(tensor.untyped_storage().data_ptr()) if isinstance(tensor, torch.Tensor) and tensor.numel() else None
        if name is not None and tensor.device.type != "meta":
            where = place(node)
            raise CaptureError(f"the step reads `{name}` past its module{f' at {where}' if where else ''}, so that it would be a "
                               "constant: through a reference that was taken before, or in a backward pass that computes a "
                               "segment again; read it as an attribute of its module, and leave recomputation to the plan")


def users_line_of_stack() -> str:
    """` at FILE:LINE` of the innermost frame of this call that is neither PyTorch's nor memc's."""
    frame = inspect.currentframe()
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return f" at {frame.f_code.co_filename}:{frame.f_lineno}" if frame else ""


def users_line(error: BaseException) -> str:
    """` at FILE:LINE` of the innermost frame that is neither PyTorch's nor memc's."""
    trace, found = error.__traceback__, ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if is_users(file):
            found = f" at {file}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def origin(node: Node) -> Node:
    """The node that an alias is of."""
    while node.op == "call_function" and str(node.target) in ("aten.detach.default", "aten.alias.default"):
        node = node.args[0]
    return node


def labelled(graph: GraphModule, captured: Captured, wanted: list[str]) -> Captured:
    """Takes the outputs of the graph apart, and what nothing reads away."""
    output = next(node for node in graph.graph.nodes if node.op == "output")
    values = list(output.args[0])
    left = len(values) - len(captured.parameters) - len(captured.buffers)
    grads = left - len(wanted)
    captured.results = values[:grads]
    captured.gradients = {name: grad for name, grad in zip(wanted, values[grads:left]) if grad is not None}
    names = (*captured.parameters, *captured.buffers)
    begun = [node for node in graph.graph.nodes if node.op == "placeholder"]
    captured.updated = {name: node for name, node, first in zip(names, values[left:], begun)
                        if name in captured.buffers or origin(node) is not first}
    graph.graph.eliminate_dead_code()
    return captured
