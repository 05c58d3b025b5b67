"""Compiled steps that run in this process, on the user's own module and optimizer.

Contract: between two steps the module's parameters and buffers and the optimizer's state hold what a step of PyTorch
would have left there. A training step moves them to where its plan keeps them, in ordinary memory or on a GPU: they are
the step's memory until it is closed.
"""

from __future__ import annotations

import contextlib
import html
import pathlib
import sys
import warnings
from typing import Any, Callable, Mapping

import numpy
import torch
import torch.utils._pytree as pytree

from . import _native
from ._build import Built, build_forward, build_training
from ._capture import capture
from ._errors import CaptureError, DataError, DeviceError
from ._lower import DTYPES
from ._modules import AsBuilt, shown
from ._optim import hyperparameters

TORCH = {name: dtype for dtype, name in DTYPES.items()}


def viewed(session, name: str, type, device: torch.device) -> tuple[Any, torch.Tensor]:
    """The view of a state's memory, and a tensor on it that keeps it alive."""
    view = session.view(name)
    if type.elements == 0:
        return view, torch.empty(type.shape, dtype=TORCH[type.dtype])
    tensor = torch.as_tensor(view, device=device) if view.is_on_gpu else torch.from_numpy(numpy.asarray(view))
    return view, tensor.view(torch.bfloat16) if type.dtype == "bf16" else tensor


def span(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.numel() * tensor.element_size()


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """A dense tensor in ordinary memory with the same elements."""
    return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()


def as_tensor(leaf: Any) -> Any:
    """An array of NumPy, or of a library that speaks DLPack, as a tensor on the same memory where it can be."""
    if isinstance(leaf, numpy.ndarray):
        return torch.from_numpy(leaf if leaf.flags.writeable and leaf.flags.c_contiguous else leaf.copy())
    if hasattr(leaf, "__dlpack__") and not isinstance(leaf, torch.Tensor):
        return torch.from_dlpack(leaf)
    return leaf


def ordered(value: Any, spec) -> Any:
    """Inputs whose dictionaries have the order of the example's."""
    if spec.type is dict and isinstance(value, dict) and set(value) == set(spec.context):
        return {key: ordered(value[key], child) for key, child in zip(spec.context, children(spec))}
    if spec.type in (tuple, list) and type(value) is spec.type and len(value) == len(children(spec)):
        return spec.type(ordered(part, child) for part, child in zip(value, children(spec)))
    return value


def children(spec) -> list:
    """Structures of a structure's parts. PyTorch has moved them."""
    return list(spec.children() if hasattr(spec, "children") else spec.children_specs)


def is_same(a: Any, b: Any) -> bool:
    """Whether two inputs that are no tensors mean the same."""
    return a is b or (type(a) is type(b) and bool(a == b))


class Step:
    """A compiled step. `train_step` and `eval_step` make them."""

    def __init__(self, built: Built, plan, spec, examples: dict[str, Any], device: torch.device, threads: int, tune: bool):
        self._built, self.plan, self._spec, self._examples, self._device = built, plan, spec, examples, device
        self._types = {value.name: value.type for value in built.module.states.values()}
        self._states: dict[str, torch.Tensor] = dict(built.tensors)
        contents = {**built.tensors, **built.frozen, **self._optimizer_tensors()}
        contents = {name: plain(tensor) for name, tensor in contents.items()}
        chosen = str(device) if device.type == "cuda" and device.index is not None else None
        with self._room(contents):
            if tune:
                self.plan = plan = plan.tune(device=chosen)
            self._session = plan.start({name: span(tensor) for name, tensor in contents.items()}, threads=threads,
                                       device=chosen)
        # Where each state lies; it stays there.
        self._views = {name: self._session.view(name) for name in self._types}
        self._is_on_gpu = any(view.is_on_gpu for view in self._views.values())
        if self._is_on_gpu and not torch.cuda.is_available():
            self._session.close()
            raise DeviceError("the step runs on a GPU that this build of PyTorch cannot use, so that no tensor can lie "
                              "there; install PyTorch with CUDA, or set device=\"cpu\"")

    @contextlib.contextmanager
    def _room(self, contents: dict[str, torch.Tensor]):
        """While the step takes its memory, nothing else has to be on the GPU."""
        yield

    # What it took.

    @property
    def peak(self) -> int:
        """Most bytes of the device in use at once."""
        return self.plan.peak_bytes

    @property
    def unplanned_peak(self) -> int:
        """Bytes that the step takes without a plan."""
        return self.plan.unplanned_peak_bytes

    @property
    def steps_done(self) -> int:
        """Number of steps so far, by which the next one draws its random numbers. It can be set."""
        return self._session.steps_done

    @steps_done.setter
    def steps_done(self, count: int) -> None:
        self._session.set_steps(count)

    def report(self, path: str | pathlib.Path | None = None) -> str | None:
        """Page (HTML) about the plan: written to `path`, or else returned."""
        page = self.plan.report()
        if path is None:
            return page
        pathlib.Path(path).write_text(page, encoding="utf-8")
        return None

    def _repr_html_(self) -> str:
        # A frame keeps the page's style out of the notebook.
        return f'<iframe title="memc report" srcdoc="{html.escape(self.report())}" width="100%" height="640" style="border: 0"></iframe>'

    def __repr__(self) -> str:
        size = lambda n: f"{n / 2**20:.1f} MiB"
        return (f"<{type(self).__name__} of {self._built.module.name}: peak {size(self.peak)}, "
                f"{size(self.unplanned_peak)} without a plan>")

    # Memory.

    def _optimizer_tensors(self) -> dict[str, torch.Tensor]:
        return {}

    def _write(self, name: str, tensor: torch.Tensor) -> None:
        dense = plain(tensor)
        self._session.write(name, *span(dense))

    # Running.

    def _feed(self, args: tuple, kwargs: dict) -> list[tuple[str, torch.Tensor]]:
        """Contents of the module's inputs, checked against the example's."""
        if self._spec.type is dict and not kwargs and len(args) == 1 and isinstance(args[0], Mapping):
            args, kwargs = (), dict(args[0])
        inputs = ordered(kwargs or args, self._spec)
        leaves = [as_tensor(leaf) for leaf in pytree.tree_leaves(inputs)]
        if any(callable(leaf) and not callable(example) for leaf, example in zip(leaves, self._examples.values())):
            raise DataError("a step takes no closure: it computes loss, gradients and update itself; "
                            "call it with the batch, as in step(x, y)")
        if pytree.tree_structure(inputs) != self._spec:
            by_name = f" by the names {', '.join(map(str, kwargs))}" if kwargs else ""
            raise DataError(f"the step takes inputs as in example_inputs ({', '.join(self._examples)}), which was "
                            f"a {self._spec.type.__name__}; it was called with {len(leaves)}{by_name} of another structure")
        fed = []
        for (name, example), tensor in zip(self._examples.items(), leaves):
            if not isinstance(example, torch.Tensor):
                if not is_same(tensor, example):
                    raise DataError(f"input `{name}` is {shown(tensor)}, and the step was built for {shown(example)}, which "
                                    "it has as a constant; give what changes as a tensor, or build a step for each value")
                continue
            if not isinstance(tensor, torch.Tensor):
                raise DataError(f"input `{name}` is {shown(tensor)}, and the step was built for a tensor")
            # Kernels take indices from the end as well. Indices beyond it are refused by the session.
            if name in self._built.indices and tensor.numel() and (least := int(tensor.min())) < 0:
                raise DataError(f"input `{name}` has the index {least}; those of a table begin with 0")
            parts = self._built.inputs[name]
            shape = (example.shape[0] * len(parts), *example.shape[1:]) if len(parts) > 1 else tuple(example.shape)
            if tuple(tensor.shape) == tuple(shape) and tensor.dtype != example.dtype:
                raise DataError(f"input `{name}` is {tensor.dtype}, and the step was built for {example.dtype}; give it with "
                                f".to({example.dtype})")
            if tuple(tensor.shape) != tuple(shape) or tensor.dtype != example.dtype:
                raise DataError(f"input `{name}` is {tensor.dtype} {tuple(tensor.shape)}, and the step was built for "
                                f"{example.dtype} {tuple(shape)}; build a step for each shape (drop_last=True keeps a "
                                "DataLoader from a smaller last batch)")
            fed += zip(parts, [plain(part) for part in tensor.chunk(len(parts))])
        return fed

    def _run(self, fed: list[tuple[str, torch.Tensor]]) -> None:
        if self._is_on_gpu:
            # PyTorch may still be writing the step's memory.
            torch.cuda.synchronize(self._device)
        self._session.step({name: span(tensor) for name, tensor in fed})
        # The user's tensors are the step's memory, and may be read from now on.
        self._session.synchronize()

    def _output(self, name: str) -> torch.Tensor:
        kind = next(type for known, *type in self.plan.outputs if known == name)
        out = torch.empty(tuple(kind[1]), dtype=TORCH[kind[0]])
        self._session.output_into(name, *span(out))
        return torch.view_as_complex(out) if name in self._built.complex else out

    def close(self) -> None:
        """Gives the step's memory back."""
        self._views.clear()
        self._states.clear()
        self._session.close()

    def _check_open(self) -> None:
        if self._session.closed:
            raise DataError("the step is closed; build it again")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class TrainStep(Step):
    """A training step: `loss = step(x, y)`."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, built: Built, plan, spec, examples, device,
                 threads, tune):
        self.model, self.optimizer = model, optimizer
        self._names = {name: parameter for name, parameter in model.named_parameters()}
        # How the step was built: whether each parameter of the optimizer wants a gradient, the mode of each module, and the
        # size of each group.
        updated = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        self._wanted = {name: p.requires_grad for name, p in self._names.items() if id(p) in updated}
        self._built_of = AsBuilt(model)
        self._autocast = autocast_of()
        self._sizes = [len(group["params"]) for group in optimizer.param_groups]
        # Where tensors go when the step is closed.
        self._homes = {name: tensor.device for name, tensor in built.tensors.items()}
        self._homes |= {state: self._homes[parameter] for parameter, _, state in built.optimizer}
        self._has_told = False
        # One number for each parameter, on memory that is filled at once.
        self._counts = torch.zeros(len(built.trained))
        super().__init__(built, plan, spec, examples, device, threads, tune)
        for name, tensor in built.tensors.items():
            self._adopt(name, tensor)
        self._session.set_steps(self._steps_before())
        self._install()
        self._hooks = [model.register_load_state_dict_post_hook(OnLoad(self._check_loaded)),
                       optimizer.register_load_state_dict_post_hook(OnLoad(self._reload))]

    @contextlib.contextmanager
    def _room(self, contents: dict[str, torch.Tensor]):
        """Tensors wait in ordinary memory, so that the GPU never has them twice."""
        moved = [(tensor, tensor.device, contents[name]) for name, tensor in
                 {**self._states, **self._optimizer_tensors()}.items() if tensor.is_cuda]
        for tensor, _, content in moved:
            tensor.data = content
        if moved:
            torch.cuda.empty_cache()
        try:
            yield
        except BaseException:
            for tensor, home, content in moved:
                tensor.data = content.to(home)
            raise

    def _viewed(self, name: str) -> torch.Tensor:
        self._views[name], tensor = viewed(self._session, name, self._types[name], self._device)
        return torch.view_as_complex(tensor) if name in self._built.complex else tensor

    def _adopt(self, name: str, tensor: torch.Tensor) -> None:
        """Lets a tensor of the user be the state's memory."""
        with torch.no_grad():
            tensor.data = self._viewed(name)

    def _pull_foreign(self) -> None:
        """Takes over tensors that the user has replaced, or that are another step's memory."""
        owned = {*self._built.trained, *self._built.buffers}
        for name, tensor in self._states.items():
            if tensor.numel() and tensor.data_ptr() != self._views[name].address:
                self._write(name, tensor)
                if name in owned:
                    self._adopt(name, tensor)
        self._pull_optimizer()

    def _optimizer_tensors(self) -> dict[str, torch.Tensor]:
        """States that the optimizer has already, by the names of the step's states."""
        found = {}
        for parameter, kind, state in self._built.optimizer:
            have = self.optimizer.state.get(self._names[parameter], {}).get(kind)
            if isinstance(have, torch.Tensor):
                found[state] = have
        return found

    def _steps_before(self) -> int:
        """Steps that the optimizer has done. SGD does not count them."""
        counts = {int(state["step"]) for state in self.optimizer.state.values() if "step" in state}
        if len(counts) > 1:
            raise CaptureError(f"the optimizer's parameters have done different numbers of steps ({min(counts)} to "
                               f"{max(counts)}), and a compiled step counts once; begin with a new optimizer")
        begun = any(state for state in self.optimizer.state.values())
        return counts.pop() if counts else max(int(begun), self.steps_done)

    def _install(self) -> None:
        """Gives the optimizer state tensors on the step's memory."""
        self._counts.fill_(self.steps_done)
        for parameter, kind, name in self._built.optimizer:
            self._states[name] = self.optimizer.state[self._names[parameter]][kind] = self._viewed(name)
        if type(self.optimizer) is not torch.optim.SGD:
            for name, count in zip(self._built.trained, self._counts):
                self.optimizer.state[self._names[name]]["step"] = count

    def _check_loaded(self) -> None:
        """Refuses parameters that are not the ones the step trains."""
        now = dict(self.model.named_parameters())
        other = [name for name, parameter in self._names.items() if now.get(name) is not parameter]
        if other:
            raise CaptureError(f"load_state_dict has replaced parameters that the step trains ({other[0]}); load without "
                               "assign=True, or build a new optimizer and a new step")

    def _reload(self) -> None:
        """Goes on from the state that the optimizer has loaded."""
        for state, tensor in self._optimizer_tensors().items():
            self._write(state, tensor)
        self._session.set_steps(self._steps_before())
        self._install()

    def _pull_optimizer(self) -> None:
        """Takes over state of the optimizer that has been replaced."""
        moved = False
        for parameter, kind, name in self._built.optimizer:
            have = self.optimizer.state[self._names[parameter]].get(kind)
            if have is not self._states[name]:
                moved = True
                if isinstance(have, torch.Tensor):
                    self._write(name, have)
        if moved or int(self._counts[0]) != self.steps_done:
            # Another step, or the optimizer itself, has made steps.
            self._session.set_steps(self._steps_before())
            self._install()

    def _check_as_built(self) -> None:
        """Refuses what the step cannot follow, and warns where it goes on in another way than PyTorch would."""
        for name, wanted in self._wanted.items():
            if self._names[name].requires_grad != wanted:
                now, then = ("no gradient", "one") if wanted else ("a gradient", "none")
                raise CaptureError(f"`{name}` wants {now} now, and the step was built with {then}; build a new step")
        if [len(group["params"]) for group in self.optimizer.param_groups] != self._sizes:
            raise CaptureError("the optimizer has other parameters than when the step was built; build a new step")
        replaced = self._built_of.replaced()
        if replaced is not None:
            raise CaptureError(f"`{replaced}` is another one than when the step was built; make a new optimizer, and build a new "
                               "step")
        if not self._has_told:
            self._tell_of_changes()

    def _tell_of_changes(self) -> None:
        """Warns once of what the step does not follow."""
        text = None
        if (changed := self._built_of.changed()) is not None:
            name, key, then, now = changed
            of = f"module `{name}`" if name else "the model"
            mode = lambda is_training: "training" if is_training else "evaluation"
            text = f"{of} is in {mode(now)} mode, and the step goes on in {mode(then)} mode, as it was built" \
                if key == "training" else f"`{key}` of {of} is {shown(now)} now, and the step goes on with {shown(then)}, as it " \
                "was built; give what changes as an input"
        elif autocast_of() - self._autocast:
            text = "autocast around a call of the step changes nothing; enter it while the step is built, or within compute"
        if text is not None:
            self._has_told = True
            warnings.warn(text, stacklevel=4)

    def _rates(self) -> list[tuple[str, torch.Tensor]]:
        """Learning rates of the groups, which must be as they were otherwise."""
        rates = []
        for name, group, hyper in zip(self._built.rates, self.optimizer.param_groups, self._built.hyper):
            if hyperparameters(group) != hyper:
                changed = [key for key, value in hyperparameters(group).items() if hyper.get(key) != value]
                cycled = "; OneCycleLR and CyclicLR take cycle_momentum=False" if {"momentum", "betas"} & set(changed) else ""
                raise CaptureError(f"{', '.join(changed)} of the optimizer have changed since the step was built; only lr "
                                   f"may change: build a new step{cycled}")
            rates.append((name, torch.tensor(float(group["lr"]), dtype=torch.float32)))
        return rates

    def __call__(self, *args, **kwargs) -> torch.Tensor:
        """Runs one step, and returns the loss before it."""
        self._check_open()
        self._check_as_built()
        self._pull_foreign()
        self._run([*self._feed(args, kwargs), *self._rates()])
        self._counts.fill_(self.steps_done)
        # Schedulers warn where no step was taken.
        self.optimizer._opt_called = True
        return self._output("loss")

    def close(self) -> None:
        """Gives the step's memory back. The user's tensors return to where they were before it."""
        for hook in self._hooks:
            hook.remove()
        for name, tensor in self._states.items():
            tensor.data = tensor.data.to(self._homes[name], copy=True)
        super().close()


class EvalStep(Step):
    """A forward pass: `outputs = step(x)`, in the structure that the module returns."""

    def __init__(self, model: torch.nn.Module, built: Built, plan, spec, examples, device, threads, tune):
        self.model = model
        super().__init__(built, plan, spec, examples, device, threads, tune)

    def __call__(self, *args, **kwargs) -> Any:
        self._check_open()
        for name, tensor in self._states.items():
            self._write(name, tensor)
        self._run(self._feed(args, kwargs))
        outputs = iter(self._built.outputs)
        leaves = self._built.spec.num_leaves
        values = [self._built.fixed[i] if i in self._built.fixed else self._output(next(outputs)) for i in range(leaves)]
        return pytree.tree_unflatten(values, self._built.spec)


def autocast_of() -> set[str]:
    """Kinds of devices for which autocast is on."""
    return {kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)}


class OnLoad:
    """A hook behind the loading of states. Copies of it, as of a module that is saved, do nothing."""

    def __init__(self, function: Callable | None = None):
        self.function = function

    def __call__(self, *_) -> None:
        if self.function is not None:
            self.function()

    def __reduce__(self):
        return OnLoad, ()


def normal(inputs):
    """Example inputs as a tuple or a dictionary, with tensors for arrays."""
    single = isinstance(inputs, torch.Tensor) or hasattr(inputs, "__dlpack__")
    inputs = (inputs,) if single else dict(inputs) if isinstance(inputs, Mapping) else tuple(inputs)
    return pytree.tree_map(as_tensor, inputs)


def trained_by(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> set[str]:
    """Names of the parameters that the optimizer updates."""
    names = {id(p): name for name, p in model.named_parameters()}
    return {names[id(p)] for g in optimizer.param_groups for p in g["params"] if id(p) in names and p.requires_grad}


def captured_training(model, loss_fn, optimizer, example_inputs, compute, accumulate, clip_grad_norm, clip_grad_value,
                      exported: bool = False):
    """The module of a training step, and the structure of its inputs."""
    example_inputs = normal(example_inputs)
    if loss_fn is not None and compute is not None:
        raise CaptureError("loss_fn and compute are both given; compute returns the loss itself, so pass None as loss_fn")
    if accumulate < 1:
        raise CaptureError(f"accumulate = {accumulate} must be at least 1")
    if not model.training:
        warnings.warn("the model is in evaluation mode, and trains like that; call model.train() before", stacklevel=3)
    captured = capture(model, example_inputs, loss_fn=loss_fn, compute=compute, trained=trained_by(model, optimizer))
    if not captured.gradients:
        raise CaptureError("the loss depends on none of the optimizer's parameters; check requires_grad and detach")
    built = build_training(captured, optimizer, name=type(model).__name__, accumulate=accumulate,
                           clip_norm=clip_grad_norm, clip_value=clip_grad_value, exported=exported)
    return captured, built, pytree.tree_structure(example_inputs)


def tell_of_random_numbers(built: Built) -> None:
    """Once for each line that builds such steps."""
    if built.module.streams:
        warnings.warn("dropout and other random numbers of the step are memc's, not PyTorch's: a function of the step's number "
                      "and of torch.initial_seed()", stacklevel=3)


def train_step(model: torch.nn.Module, loss_fn: Callable | None, optimizer: torch.optim.Optimizer, example_inputs, *,
               budget: str | float | None = None, compute: Callable | None = None, accumulate: int = 1,
               clip_grad_norm: float | None = None, clip_grad_value: float | None = None, device: str | None = None,
               threads: int = 0, tune: bool = False, **options) -> TrainStep:
    """Compiles a training step of `model` into a plan that fits `budget` bytes of the device.

    `loss_fn(output, target)` gets what `model(*inputs[:-1])` returns, and the last input. With `None` the model returns
    the loss, or an object with a `loss`. `compute(model, *inputs)` is any function that returns the loss. Inputs in a
    dictionary are passed by name.

    `budget`: "8G", "60%" of the device, "peak*60%" of what the step takes without a plan, or bytes. `accumulate`:
    micro-batches in a step, each of the size of `example_inputs`; the step takes their concatenation, and the loss is their
    mean. `clip_grad_norm`, `clip_grad_value`: as `torch.nn.utils` has them. `device`: "cuda", "cuda:N", "cpu", or a profile;
    without one, the GPU if PyTorch has one. `tune`: measure the algorithms of the GPU's libraries first, for some seconds.
    `options`: those of `memc.compile` but `name`, such as `effort`.

    Raises `CaptureError`, `UnsupportedOp`, `InfeasibleBudget`.
    """
    captured, built, spec = captured_training(model, loss_fn, optimizer, example_inputs, compute, accumulate,
                                              clip_grad_norm, clip_grad_value)
    tell_of_random_numbers(built)
    name, where = placed(device, model)
    plan = compiled(built, budget, name, options)
    return TrainStep(model, optimizer, built, plan, spec, captured.examples, where, threads, tune)


def eval_step(model: torch.nn.Module, example_inputs, *, budget: str | float | None = None, compute: Callable | None = None,
              device: str | None = None, threads: int = 0, tune: bool = False, **options) -> EvalStep:
    """Compiles the forward pass of `model`, in the mode it is in, within `budget` bytes of the device."""
    example_inputs = normal(example_inputs)
    captured = capture(model, example_inputs, compute=compute)
    built = build_forward(captured, name=type(model).__name__)
    tell_of_random_numbers(built)
    name, where = placed(device, model)
    plan = compiled(built, budget, name, options)
    return EvalStep(model, built, plan, pytree.tree_structure(example_inputs), captured.examples, where, threads, tune)


def placed(device: str | None, model: torch.nn.Module) -> tuple[str, torch.device]:
    """The profile to plan for, and the device of the step's tensors. Without a name: the model's GPU, or any."""
    if device is None:
        on_gpu = [tensor.device for tensor in model.parameters() if tensor.is_cuda]
        device = str(on_gpu[0]) if on_gpu else "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" or device.startswith("cuda"):
        return device, torch.device(device)
    return device, torch.device("cuda")


def compiled(built: Built, budget, device: str, options: dict):
    budget = f"{int(budget)}B" if isinstance(budget, (int, float)) else budget
    # The user may change a tensor at any time, in ways that nothing tells: a state has to lie in one place.
    options = {"copies": False, **options}
    with stages(options):
        return _native.compile(str(built.module), budget=budget, device=device, name=built.module.name, **options)


@contextlib.contextmanager
def stages(options: dict):
    """Says on a terminal what is being done, in one line that is gone at the end, unless `progress` is given."""
    if "progress" in options or not (sys.stderr and sys.stderr.isatty()):
        yield
        return

    def show(text: str) -> None:
        print(f"\r\033[Kmemc: {text[:100]}", end="", file=sys.stderr, flush=True)

    options["progress"] = show
    try:
        yield
    finally:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def export_step(path: str | pathlib.Path, model: torch.nn.Module, loss_fn: Callable | None, optimizer: torch.optim.Optimizer,
                example_inputs, *, compute: Callable | None = None, accumulate: int = 1, clip_grad_norm: float | None = None,
                clip_grad_value: float | None = None) -> tuple[pathlib.Path, pathlib.Path]:
    """Writes the step for the command line: `PATH.mir` for `memc compile`, `PATH.safetensors` for `memrun --init`.

    Needs the package `safetensors`.
    """
    from safetensors.torch import save_file

    _, built, _ = captured_training(model, loss_fn, optimizer, example_inputs, compute, accumulate, clip_grad_norm,
                                    clip_grad_value, exported=True)
    tell_of_random_numbers(built)
    base = pathlib.Path(path)
    base = base.with_suffix("") if base.suffix == ".mir" else base
    # The name may have dots of its own.
    module, states = (base.with_name(base.name + suffix) for suffix in (".mir", ".safetensors"))
    module.write_text(str(built.module), encoding="utf-8")
    real = lambda tensor: torch.view_as_real(tensor) if tensor.is_complex() else tensor
    save_file({name: real(plain(tensor)).clone() for name, tensor in {**built.tensors, **built.frozen}.items()}, str(states))
    return module, states


def estimate(model: torch.nn.Module, loss_fn: Callable | None, optimizer: torch.optim.Optimizer, example_inputs, *,
             compute: Callable | None = None, accumulate: int = 1, device: str | None = None) -> int:
    """Bytes of the device that the step takes without a plan."""
    _, built, _ = captured_training(model, loss_fn, optimizer, example_inputs, compute, accumulate, None, None)
    return compiled(built, None, placed(device, model)[0], {"effort": 0}).unplanned_peak_bytes
