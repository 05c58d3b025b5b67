"""memc: training steps of PyTorch modules within a hard device-memory budget.

    step = memc.train_step(model, loss_fn, optimizer, example_inputs=(x, y), budget="8G")
    for x, y in loader:
        loss = step(x, y)

The whole step (forward, loss, backward, update) is captured once, planned, proved, and replayed. The module's parameters,
its buffers and the optimizer's state go on living in the user's objects.
"""

from typing import TYPE_CHECKING

from ._errors import (CaptureError, DataError, DeviceError, Error, InfeasibleBudget, InternalError, InvalidModel,
                      UnsupportedOp)
from ._native import Plan, Session, __version__, compile, load

if TYPE_CHECKING:
    from ._step import EvalStep, TrainStep, estimate, eval_step, export_step, train_step

# Names that need PyTorch, which is imported with the first of them.
_OF_TORCH = {"EvalStep", "TrainStep", "estimate", "eval_step", "export_step", "train_step"}

__all__ = [
    "CaptureError", "DataError", "DeviceError", "Error", "EvalStep", "InfeasibleBudget", "InternalError", "InvalidModel",
    "Plan", "Session", "TrainStep", "UnsupportedOp", "__version__", "compile", "estimate", "eval_step", "export_step",
    "load", "train_step",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str):
    if name not in _OF_TORCH:
        raise AttributeError(f"module `memc` has no attribute `{name}`")
    from . import _step

    return getattr(_step, name)
