"""What modules have beside parameters and buffers, while a step of them is captured."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import torch

from ._errors import CaptureError


PLAIN = (int, float, str, tuple, type(None), torch.dtype, torch.device)


def is_plain(value: Any) -> bool:
    """Whether a value compares as a whole: a number, a text, or a tuple of such."""
    return isinstance(value, PLAIN) and (not isinstance(value, tuple) or all(map(is_plain, value)))


def require_shapes(model: torch.nn.Module) -> None:
    """Refuses lazy modules whose parameters have no shape yet."""
    lazy = torch.nn.parameter.UninitializedTensorMixin
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if isinstance(tensor, lazy):
            raise CaptureError(f"`{name}` has no shape yet, since it is of a lazy module; call the model on a batch, and make "
                               "the optimizer behind that")


def is_renewed(module: torch.nn.Module, key: str) -> bool:
    """Whether PyTorch computes an attribute anew in each step: those of its own modules, and weights of the older norms."""
    if type(module).__module__.startswith("torch."):
        return True
    hooks = module._forward_pre_hooks.values()
    return any(type(hook).__module__.startswith("torch.nn.utils") and hook.name == key for hook in hooks)


def shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"{value!r:.40}" if is_plain(value) else type(value).__name__


class AsBuilt:
    """What a model was when a step was built: its parameters and modules, the modes of these, and their plain attributes."""

    def __init__(self, model: torch.nn.Module):
        modules = list(model.named_modules())
        self.parts = [(name, m, part, key, value) for name, m in modules for part in (m._parameters, m._modules)
                      for key, value in part.items()]
        self.plain = [(name, m.__dict__, key, value) for name, m in modules for key, value in m.__dict__.items()
                      if is_plain(value) and value == value]

    def replaced(self) -> str | None:
        """Name of a parameter or module that is another one now."""
        at = lambda name, key: f"{name}.{key}" if name else key
        return next((at(name, key) for name, _, part, key, value in self.parts if part.get(key) is not value), None)

    def changed(self) -> tuple[str, str, Any, Any] | None:
        """A plain attribute that has another value now: name of its module, its own, the value before and now."""
        for name, attributes, key, value in self.plain:
            now = attributes.get(key)
            if now is not value and not same(now, value):
                return name, key, value, now
        return None


@contextlib.contextmanager
def unchanged(model: torch.nn.Module):
    """Takes back what Python code of the modules changes in them, and warns of it.

    A compiled step does not run that code. Buffers are no part of this: steps carry them on.
    """
    inner = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
    saved = [(name, m, dict(m.__dict__), {key: m.__dict__[key].copy() for key in inner}) for name, m in model.named_modules()]
    try:
        yield
    finally:
        changes = []
        for name, module, attributes, parts in saved:
            for key, value in module.__dict__.items():
                before = attributes.get(key)
                if value is before or same(value, before) or is_renewed(module, key):
                    continue
                at = f"{name}.{key}" if name else key
                changes.append(f"`{at}` ({shown(before)} to {shown(value)})" if key in attributes else f"`{at}`, which is new")
            module.__dict__.clear()
            module.__dict__.update(attributes)
            for key, part in parts.items():
                module.__dict__[key].clear()
                module.__dict__[key].update(part)
        if changes:
            more = f", and {len(changes) - 3} more" if len(changes) > 3 else ""
            warnings.warn(f"the step changes attributes of modules: {', '.join(changes[:3])}{more}. A compiled step runs no "
                          "Python, so that they stay as they are; register_buffer has tensors that steps carry on",
                          stacklevel=2)


def same(a: Any, b: Any) -> bool:
    """Whether two plain values are equal."""
    return is_plain(a) and is_plain(b) and type(a) is type(b) and a == b
