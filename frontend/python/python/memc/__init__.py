"""Trains models within a hard memory budget."""

from memc._native import (
    DataError,
    DeviceError,
    Error,
    InfeasibleBudget,
    InternalError,
    InvalidModel,
    Plan,
    Session,
    UnsupportedOp,
    View,
    __version__,
    compile,
    load,
)

__all__ = [
    "DataError",
    "DeviceError",
    "Error",
    "InfeasibleBudget",
    "InternalError",
    "InvalidModel",
    "Plan",
    "Session",
    "UnsupportedOp",
    "View",
    "__version__",
    "compile",
    "load",
]
