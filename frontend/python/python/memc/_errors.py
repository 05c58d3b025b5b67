"""Exceptions. Each says what is wrong, where, and what to do next."""

from __future__ import annotations

from . import _native
from ._native import DataError, DeviceError, Error, InfeasibleBudget, InternalError, InvalidModel

__all__ = ["CaptureError", "DataError", "DeviceError", "Error", "InfeasibleBudget", "InternalError", "InvalidModel",
           "UnsupportedOp"]


class UnsupportedOp(_native.UnsupportedOp):
    """An op of the captured step that memc cannot train.

    `op`: its name; `where`: the line of the program, `FILE:LINE`, or "".
    """

    def __init__(self, op: str, where: str, why: str):
        super().__init__(f"{op}{f' at {where}' if where else ''}: {why}")
        self.op, self.where = op, where


class CaptureError(InvalidModel):
    """A step that cannot be captured: its Python code depends on data, or its optimizer is not known."""


for _own in (CaptureError, UnsupportedOp):
    # Where users find it.
    _own.__module__ = "memc"
