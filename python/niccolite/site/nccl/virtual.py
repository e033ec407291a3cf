"""Virtual GPUs: devices made of CPU threads, on which the library runs as it does on GPUs.

Their memory is the host's, so NumPy arrays are used in place.
"""

from __future__ import annotations

import contextlib
import operator
import os
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from nccl.core import cuda
from nccl.core.cuda import Device, get_device_id
from nccl.core.memory import mem_alloc
from niccolite import _native

if TYPE_CHECKING:
    import numpy
    from typing_extensions import TypeVarTuple, Unpack

    from nccl.core.communicator import Communicator
    from nccl.core.typing import NcclDeviceSpec

    _Arguments = TypeVarTuple("_Arguments")

_Result = TypeVar("_Result")

__all__ = ["RankError", "Stream", "array", "devices", "run", "stream"]

_VARIABLE = "NICCOLITE_DEVICES"
_MOST = 4096  # virtual GPUs of a process


def devices(n: int | None = None) -> list[Device]:
    """The process's virtual GPUs. With `n` there will be at least as many; it may grow from call to call.

    RuntimeError: devices have been used before, and they are GPUs, or their number came from the
    environment or from a use without `n` and is less.
    """
    if n is not None and not _native.are_devices_chosen() and not _are_chosen_by_environment(n):
        # Unused devices cost nothing, and their number cannot grow later.
        os.environ[_VARIABLE] = f"virtual:{_MOST}"
        cuda.show_devices(min(n, _native.device_count()))
        os.environ[_VARIABLE] = f"virtual:{n}"  # for processes that are started
    count = _native.device_count()
    if not _native.is_virtual():
        raise RuntimeError(
            f"this process uses GPUs: call nccl.virtual.devices() before any device is used, or set "
            f"{_VARIABLE}=virtual"
        )
    if n is not None and count < n:
        raise RuntimeError(
            f"{n} virtual GPUs are wanted, and this process has {count}: their number is settled at the "
            f"first use of a device; call nccl.virtual.devices({n}) before, or set {_VARIABLE}=virtual:{n}. "
            f"There are at most {_MOST}"
            + _hint_at_hidden()
        )
    if n is not None and n > cuda.device_count():
        cuda.show_devices(n)
    return [Device(i) for i in range(cuda.device_count() if n is None else n)]


def _hint_at_hidden() -> str:
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "" if hidden is None else f'. CUDA_VISIBLE_DEVICES, which is "{hidden}", hides virtual GPUs, too'


def _are_chosen_by_environment(n: int) -> bool:
    """True if the environment names enough virtual GPUs. Other values are overridden."""
    kind, _, number = os.environ.get(_VARIABLE, "").partition(":")
    return kind == "virtual" and number.isdigit() and int(number) >= n


class Stream(_native.Stream):
    """A queue of work on one device. Operations of one stream run one after the other.

    `handle` is the cudaStream_t, 0 once closed; `device` the ordinal. ``close()`` ends it; work that is
    queued goes on. Also a context manager, which closes it at the end.
    """

    def __init__(self, device: NcclDeviceSpec | None = None) -> None:
        super().__init__(get_device_id(device))

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, _native.stream_handle(self))

    def synchronize(self) -> None:
        """Waits until all that was queued is done. Ctrl-C ends the wait."""
        _native.wait_idle(self.device, self)

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def stream(device: NcclDeviceSpec | None = None) -> Stream:
    """A new stream on `device` (None: the current one)."""
    return Stream(device)


def array(
    data: Any, dtype: Any = None, device: NcclDeviceSpec | None = None
) -> numpy.ndarray[Any, Any]:
    """A NumPy array with the values of `data` in memory of a virtual GPU, as registration and windows
    want it, and as other processes can reach it directly.

    `data`, `dtype` as of numpy.array; `device` None: the current one. The memory goes with the array.
    """
    import numpy

    devices()
    source = numpy.asarray(data, dtype=dtype)
    memory = mem_alloc(max(1, source.nbytes), device)
    flat = numpy.frombuffer(memory, dtype=numpy.uint8)[: source.nbytes]  # type: ignore[call-overload]
    made: numpy.ndarray[Any, Any] = flat.view(source.dtype).reshape(source.shape)
    made[...] = source
    return made


class RankError(RuntimeError):
    """A rank of run() has failed: `rank`, and the exception as ``__cause__`` or in the text."""

    def __init__(self, rank: int, ranks: int, what: str) -> None:
        super().__init__(f"rank {rank} of {ranks} failed: {what}")
        self.rank = rank
        self.ranks = ranks
        self.what = what

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.rank, self.ranks, self.what)


def _checked_arguments(function: Callable[..., Any], args: Any) -> tuple[Any, ...]:
    """`args` as a tuple. TypeError: ``function(comm, *args)`` is no possible call."""
    if not isinstance(args, (tuple, list)):
        raise TypeError(f"args is of type {type(args).__name__}; it must be a tuple, as in args=(value,)")
    import inspect

    with contextlib.suppress(ValueError):  # some functions written in C have no signature
        signature = inspect.signature(function)
        try:
            signature.bind(None, *args)
        except TypeError as error:
            name = getattr(function, "__name__", repr(function))
            count = f" and {len(args)} of args" if args else ""
            raise TypeError(
                f"run() cannot call {name}{signature} with the communicator{count}: {error}. The first parameter "
                "is the communicator; run(..., args=(...)) gives the others"
            ) from None
    return tuple(args)


@overload
def run(
    function: Callable[[Communicator], _Result],
    ranks: int = 8,
    *,
    processes: bool = False,
    progress: bool = False,
) -> list[_Result]: ...
@overload
def run(
    function: Callable[[Communicator, Unpack[_Arguments]], _Result],
    ranks: int = 8,
    *,
    args: tuple[Unpack[_Arguments]],
    processes: bool = False,
    progress: bool = False,
) -> list[_Result]: ...
def run(
    function: Callable[..., Any],
    ranks: int = 8,
    *,
    args: tuple[Any, ...] = (),
    processes: bool = False,
    progress: bool = False,
) -> list[Any]:
    """Calls ``function(comm, *args)`` once for each rank of a new communicator, all at the same time.

    Each rank has a virtual GPU, which is current. Returns the results of the calls, by rank.

    `processes`: in a process each, instead of a thread each; `args` and results are pickled, and so is
    `function` unless processes can be forked (when this process has not used a device yet). Functions
    and classes of the program itself or of a notebook are sent with the names that they use.
    `progress`: writes to the standard error which ranks are done.

    RankError: a rank has failed, or (in threads) has returned while the others wait for it. The other
    ranks are ended, and the error describes the first failure.
    KeyboardInterrupt: Ctrl-C, which ends all ranks. It says which rank waited in which call for whom.
    """
    if not callable(function):
        raise TypeError(f"function is {function!r}, which cannot be called: run(function, ranks=4)")
    ranks = operator.index(ranks)
    if ranks < 1:
        raise ValueError(f"ranks is {ranks}; there must be at least 1")
    args = _checked_arguments(function, args)
    from nccl._ranks import run_in_processes, run_in_threads

    how = run_in_processes if processes else run_in_threads
    return how(function, ranks, args, progress)
