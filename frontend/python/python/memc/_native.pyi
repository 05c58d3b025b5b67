"""The extension: compiles steps in memc's IR text, and runs plans in this process.

Memory goes in and out as addresses and lengths in bytes. They are trusted: pass those of contiguous arrays
that live, and that nobody changes, until the call returns.
"""

from os import PathLike
from types import TracebackType
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Type, Union, final

__version__: str

_Path = Union[str, PathLike[str]]
# Name, element type such as "f32", shape, role.
_Tensor = Tuple[str, str, List[int], str]
# Address and bytes.
_Memory = Tuple[int, int]

class Error(Exception):
    """Failure of memc; the text includes the hint."""

    hint: Optional[str]

class InfeasibleBudget(Error):
    """No plan fits the budget."""

    # Smallest budget in bytes, where that is the reason.
    smallest: Optional[int]
    # The op with the largest working set, and its largest tensors as (name, type, bytes).
    peak_op: Optional[str]
    tensors: List[Tuple[str, str, int]]

class UnsupportedOp(Error):
    """An op of the model that memc does not have."""

class InvalidModel(Error):
    """The model, its text, or a plan file is not a correct step."""

class DeviceError(Error):
    """The device is not there, has failed, or cannot give the memory."""

class DataError(Error):
    """Data is not what the step takes."""

class InternalError(Error):
    """A bug in memc."""

    # What a report of the bug needs, as text; only where the compiler found the bug.
    reproducer: str

def compile(
    ir: str,
    *,
    budget: Optional[str] = None,
    device: str = "cpu",
    host_memory: Optional[str] = None,
    conv_workspace: str = "512M",
    effort: Optional[int] = None,
    seed: Optional[int] = None,
    swap: bool = True,
    recompute: bool = True,
    copies: bool = True,
    rewrite: bool = True,
    host_ops: bool = True,
    name: Optional[str] = None,
    progress: Optional[Callable[[str], Any]] = None,
) -> Plan: ...
def load(path: _Path) -> Plan: ...
def memc_main(args: Sequence[str]) -> int: ...
def memrun_main(args: Sequence[str]) -> int: ...
@final
class Plan:
    """A proved plan of one step. Sizes are bytes, times nanoseconds of the cost model."""

    @property
    def peak_bytes(self) -> int: ...
    @property
    def unplanned_peak_bytes(self) -> int: ...
    @property
    def step_ns(self) -> int: ...
    @property
    def ideal_ns(self) -> int: ...
    @property
    def budget_bytes(self) -> int: ...
    @property
    def reserve_bytes(self) -> int: ...
    @property
    def dev_bytes(self) -> int: ...
    @property
    def host_bytes(self) -> int: ...
    @property
    def swapped_bytes(self) -> int: ...
    @property
    def recompute_ns(self) -> int: ...
    @property
    def recompute_ops(self) -> int: ...
    @property
    def ops(self) -> int: ...
    @property
    def device(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def planner(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def hash(self) -> str: ...
    @property
    def inputs(self) -> List[_Tensor]: ...
    @property
    def outputs(self) -> List[_Tensor]: ...
    @property
    def states(self) -> List[_Tensor]: ...
    def write(self, path: _Path) -> None: ...
    def report(self) -> str: ...
    def summary(self) -> str: ...
    def tune(self, *, device: Optional[str] = None) -> Plan: ...
    def start(
        self, states: Dict[str, _Memory] = ..., *, threads: int = 0, device: Optional[str] = None
    ) -> Session: ...

@final
class Session:
    """A plan that runs, one step after another."""

    def step(self, inputs: Dict[str, _Memory]) -> None: ...
    def output(self, name: str) -> bytes: ...
    def output_into(self, name: str, address: int, nbytes: int) -> None: ...
    def read(self, state: str, address: int, nbytes: int) -> None: ...
    def write(self, state: str, address: int, nbytes: int) -> None: ...
    def view(self, state: str) -> View: ...
    def synchronize(self) -> None: ...
    @property
    def steps_done(self) -> int: ...
    def set_steps(self, n: int) -> None: ...
    @property
    def notes(self) -> List[str]: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    def __enter__(self) -> Session: ...
    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        value: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None: ...

@final
class View:
    """Memory of a state, for numpy and torch; it lives as long as this."""

    @property
    def address(self) -> int: ...
    @property
    def is_on_gpu(self) -> bool: ...
    # A step takes the state from copies too, which a change of this memory does not reach.
    @property
    def has_copies(self) -> bool: ...
    # One of the two, by where the memory is.
    @property
    def __array_interface__(self) -> Dict[str, Any]: ...
    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]: ...
