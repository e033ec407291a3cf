"""One function on many ranks, in threads or in processes, for nccl.virtual.run."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import multiprocessing
import os
import pickle
import queue
import signal
import subprocess
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any, NamedTuple

from nccl._by_value import dumps
from nccl.bindings.nccl import NCCLError
from nccl.core.communicator import Communicator
from nccl.core.utils import UniqueId, get_unique_id
from nccl.virtual import RankError, devices
from niccolite import _native

_Function = Callable[..., Any]
_PATIENCE = 2.0  # seconds that a thread or a process gets to end, after another one has failed
_PROMPTLY = 0.5  # seconds that it gets after Ctrl-C


class _Progress:
    def __init__(self, ranks: int, wanted: bool) -> None:
        self._ranks = ranks
        self._done = 0
        self._wanted = wanted

    def finished(self, rank: int) -> None:
        self._done += 1
        if self._wanted:
            print(f"rank {rank} is done, {self._done} of {self._ranks}", file=sys.stderr, flush=True)


# ---- where ranks are

_PACKAGE = os.path.dirname(__file__) + os.sep
_STANDARD = (sysconfig.get_path("stdlib") + os.sep, "<frozen ")  # installed packages are below, too


class _Place(NamedTuple):
    """Where a rank is: in `call` of this package, or ("") in code of the program; called at `where`."""

    call: str
    where: str
    peer: int | None  # of a message


def _outwards(frame: FrameType | None) -> Iterable[tuple[FrameType, int]]:
    while frame is not None:
        yield frame, frame.f_lineno
        frame = frame.f_back


def _place_of(frames: Iterable[tuple[FrameType, int]]) -> _Place:
    """`frames` with their lines, the innermost first."""
    call, peer, where = "", None, ""
    is_inside = True
    for frame, line in frames:
        file = frame.f_code.co_filename
        if file == __file__:  # the rank is not in its function
            return _Place(_CALLS.get(call, call), where or "run()", peer)
        is_inside = is_inside and file.startswith((_PACKAGE, contextlib.__file__))
        if is_inside and file.startswith(_PACKAGE):
            call, peer = frame.f_code.co_name, frame.f_locals.get("peer")
        elif not is_inside:
            where = where or f"{os.path.basename(file)}:{line}"
            if not file.startswith(_STANDARD):
                return _Place(_CALLS.get(call, call), f"{os.path.basename(file)}:{line}", peer)
    return _Place(_CALLS.get(call, call), where, peer)


def _place_of_error(error: BaseException) -> _Place:
    return _place_of(reversed(list(traceback.walk_tb(error.__traceback__))))


_CALLS = {"group": "the end of a group"}


def _list(ranks: list[int]) -> str:
    if len(ranks) > 8:
        return f"{len(ranks)} other ranks"
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def _interrupt(places: dict[int, _Place | str], ranks: int) -> KeyboardInterrupt:
    """The exception of an interrupted run. `places`: of each rank its place, or another description."""
    lines: dict[str, list[int]] = {}
    for rank in range(ranks):
        place = places.get(rank, "did not answer")
        if isinstance(place, str):
            doing = place
        elif not place.call:
            doing = f"ran {place.where}"
        else:
            late = [place.peer] if place.peer is not None else [
                other for other in range(ranks)
                if isinstance(there := places.get(other), str) or there is None or there.call != place.call
            ]
            doing = f"waited in {place.call} ({place.where}) for {_list(late) if late else 'each other'}"
        lines.setdefault(doing, []).append(rank)
    told = "; ".join(f"{_list(who)} {doing}" for doing, who in lines.items())
    return KeyboardInterrupt(f"run() of {ranks} ranks was interrupted: {told}")


def _require_no_group() -> None:
    if _native.is_group_open():
        raise RuntimeError(
            "the function has returned inside of a group, so that the group's calls were not carried out: "
            "call group_end() once for each group_start()"
        )


# ---- threads


def _abort(comm: Communicator) -> None:
    """Aborts it, unless its own rank destroys it at this moment: then its handle is none any more."""
    with contextlib.suppress(NCCLError):
        comm.abort()


class _Rank(threading.Thread):
    """One rank: its result or its exception, told to `finished` when there is one."""

    def __init__(
        self, comm: Communicator, rank: int, call: Callable[[Communicator], Any], finished: queue.Queue[int]
    ) -> None:
        super().__init__(name=f"rank {rank}", daemon=True)
        self.result: Any = None
        self.error: BaseException | None = None
        self._comm = comm
        self._rank = rank
        self._call = call
        self._finished = finished

    def run(self) -> None:
        try:
            _native.set_current_device(self._comm.device.device_id)
            self.result = self._call(self._comm)
            _require_no_group()
        except BaseException as error:  # noqa: BLE001
            self.error = error
        finally:
            with contextlib.suppress(KeyboardInterrupt):  # interrupt() came late: nobody waits any more
                self._finished.put(self._rank)

    def interrupt(self) -> None:
        """Ends its waits in the library, and raises KeyboardInterrupt in its Python code."""
        _abort(self._comm)
        if self.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self.ident), ctypes.py_object(KeyboardInterrupt)
            )


class _Devices:
    """Consecutive virtual GPUs that no other run of the process uses.

    Two runs on one GPU share its default stream. There the calls of the two communicators can stand in
    another order on each rank, and then none can go on.
    """

    _lock = threading.Lock()
    _used: set[int] = set()

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks

    def __enter__(self) -> range:
        with self._lock:
            first = 0
            while taken := self._used.intersection(range(first, first + self._ranks)):
                first = max(taken) + 1
            try:
                devices(first + self._ranks)
            except RuntimeError as error:
                if first == 0:
                    raise
                raise RuntimeError(f"other runs use {len(self._used)} virtual GPUs: {error}") from None
            self.chosen = range(first, first + self._ranks)
            self._used.update(self.chosen)
        return self.chosen

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._used.difference_update(self.chosen)


def run_in_threads(function: _Function, ranks: int, args: tuple[Any, ...], progress: bool) -> list[Any]:
    with _Devices(ranks) as chosen:
        return _run_in_threads(function, chosen, args, progress)


def _run_in_threads(
    function: _Function, chosen: range, args: tuple[Any, ...], progress: bool
) -> list[Any]:
    ranks = len(chosen)
    comms = Communicator.init_all(chosen)
    finished: queue.Queue[int] = queue.Queue()
    threads = [
        _Rank(comm, rank, lambda comm: function(comm, *args), finished)
        for rank, comm in enumerate(comms)
    ]
    try:
        for thread in threads:
            thread.start()
        shown = _Progress(ranks, progress)
        for _ in threads:
            rank = _next_finished(finished, threads)
            if (error := threads[rank].error) is not None:
                raise RankError(rank, ranks, f"{type(error).__name__}: {error}") from error
            shown.finished(rank)
        for thread in threads:
            thread.join()
    except BaseException as error:
        is_interrupt = isinstance(error, KeyboardInterrupt)
        places = _places_of(threads) if is_interrupt else {}
        for thread in threads:
            if thread.is_alive():
                thread.interrupt()
        deadline = time.monotonic() + (_PROMPTLY if is_interrupt else _PATIENCE)
        for thread in threads:
            if thread.ident is not None:
                thread.join(timeout=max(0.0, deadline - time.monotonic()))
        for comm in comms:
            _abort(comm)
        if is_interrupt:
            raise _interrupt(places, ranks) from None
        raise
    _destroy_together(comms)
    return [thread.result for thread in threads]


_LOOK = 0.1  # seconds between two looks at the ranks that are left
_LOOKS = 8  # this many alike in a row are a standstill
_POLLING = 0.02  # the share of a core that a waiting rank may use


def _next_finished(finished: queue.Queue[int], threads: list[_Rank]) -> int:
    """The next rank that has returned. RankError: one has, and the others wait for it.

    They do when each of them has been in one call of the library all the time, and the process has
    done nothing meanwhile: the virtual GPUs' work is its work, too.
    """
    alike = 0
    before: dict[int, tuple[Any, ...]] = {}
    while True:
        some_returned = not all(thread.is_alive() for thread in threads)
        used = time.process_time()
        try:
            return finished.get(timeout=_LOOK if some_returned else None)
        except queue.Empty:
            used = time.process_time() - used
        now = _calls_of(threads)
        left = sum(thread.is_alive() for thread in threads)
        is_still = 0 < left == len(now) and now == before and used < _LOOK * _POLLING * (left + 2)
        alike = alike + 1 if is_still else 0
        before = now
        if alike == _LOOKS and finished.empty():
            returned = next(rank for rank, thread in enumerate(threads) if not thread.is_alive())
            waits = ", ".join(f"rank {rank} in {call[-1]}" for rank, call in now.items())
            raise RankError(
                returned, len(threads), f"its function has returned, and the others wait for ever: {waits}"
            )


def _places_of(threads: list[_Rank]) -> dict[int, _Place | str]:
    frames = sys._current_frames()
    return {
        rank: _place_of(_outwards(frames.get(thread.ident or 0)))
        if thread.is_alive()
        else "had returned"
        for rank, thread in enumerate(threads)
    }


def _calls_of(threads: list[_Rank]) -> dict[int, tuple[Any, ...]]:
    """For each rank that is in a call of this package: a key that is equal as long as the rank is in
    this one call, and the call's name."""
    frames = sys._current_frames()
    calls: dict[int, tuple[Any, ...]] = {}
    for rank, thread in enumerate(threads):
        frame = frames.get(thread.ident or 0)
        if not thread.is_alive() or frame is None or not frame.f_code.co_filename.startswith(_PACKAGE):
            continue
        place = _place_of(_outwards(frame))
        instructions = tuple(outer.f_lasti for outer, _ in _outwards(frame))
        calls[rank] = (id(frame), instructions, f"{place.call} ({place.where})")
    return calls


def _destroy_together(comms: list[Communicator]) -> None:
    """Destroys all at the same time, because each destroy() waits for the other ranks."""
    enders = [threading.Thread(target=comm.destroy) for comm in comms if comm.is_valid]
    for ender in enders:
        ender.start()
    for ender in enders:
        ender.join()


# ---- processes


class _Kind(enum.IntEnum):
    """Kinds of a child's messages. Of failures seen together the first kind is reported: a library's error
    is mostly a consequence of another rank's failure, and may be seen before that failure."""

    ID = 0  # rank 0's
    RESULT = 1
    EXCEPTION = 2
    END = 3  # of the process; nobody sends this
    LIBRARY_ERROR = 4
    INTERRUPT = 5


def _ignore_interrupts() -> None:
    """The terminal and the parent both send one, and this may be the moment of the second."""
    with contextlib.suppress(KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _run_rank(
    function: _Function, rank: int, ranks: int, args: tuple[Any, ...], parent: Connection
) -> None:
    """A child: rank 0 sends the id up, the others are sent it; last comes its result or its failure."""
    try:
        devices(ranks)
        _native.set_current_device(rank)
        if rank == 0:
            identity = get_unique_id()
            parent.send((_Kind.ID, bytes(identity)))
        else:
            identity = UniqueId.from_bytes(parent.recv())
        comm = Communicator.init(ranks, rank, identity)
        result = function(comm, *args)
        _require_no_group()
        comm.destroy()
        parent.send((_Kind.RESULT, result))
    except KeyboardInterrupt as interrupt:
        _ignore_interrupts()
        with contextlib.suppress(OSError):  # the parent has ended
            parent.send((_Kind.INTERRUPT, _place_of_error(interrupt)))
        parent.close()
        os._exit(1)
    except BaseException as error:  # noqa: BLE001
        _ignore_interrupts()
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        if isinstance(error, NCCLError):
            parent.send((_Kind.LIBRARY_ERROR, (text, _place_of_error(error))))
        else:
            parent.send((_Kind.EXCEPTION, text))
        # A regular end of the communicator would wait for ranks that are ended.
        parent.close()
        os._exit(1)


def _start_forked(call: tuple[Any, ...], rank: int, ranks: int, there: Connection) -> Any:
    function, args = call
    child = multiprocessing.get_context("fork").Process(
        target=_run_rank, args=(function, rank, ranks, args, there), name=f"rank {rank}", daemon=True
    )
    child.start()
    return child


class _NewProcess:
    """A new interpreter, with the members of multiprocessing.Process that _collect() uses.

    multiprocessing itself would run the program's main module again in each process: a notebook has no
    file, and a program without a guard would start ranks of its own.
    """

    def __init__(self, descriptor: int) -> None:
        path = [str(entry) for entry in sys.path]
        program = f"import sys; sys.path[:] = {path!r}; from nccl._ranks import run_sent; run_sent({descriptor})"
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        self._process = subprocess.Popen(
            [sys.executable, *flags, "-c", program], stdin=subprocess.DEVNULL, pass_fds=[descriptor]
        )
        self.pid = self._process.pid
        self.kill = self._process.kill

    @property
    def exitcode(self) -> int | None:
        return self._process.poll()

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def join(self, timeout: float | None = None) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)


def _start_new(call: tuple[Any, ...], rank: int, ranks: int, there: Connection) -> Any:
    return _NewProcess(there.fileno())


def run_sent(descriptor: int) -> None:
    """A new interpreter: runs the rank that it is sent."""
    parent = Connection(descriptor)
    try:
        rank, ranks, call = parent.recv()
        function, args = pickle.loads(call)
    except BaseException as error:  # noqa: BLE001
        parent.send((_Kind.EXCEPTION, "".join(traceback.format_exception(error))))
        return
    _run_rank(function, rank, ranks, args, parent)


def run_in_processes(
    function: _Function, ranks: int, args: tuple[Any, ...], progress: bool
) -> list[Any]:
    # A forked child of a process that has used a device would lack the threads of it.
    start = _start_new if _native.are_devices_chosen() else _start_forked
    call = (function, args)
    sent = dumps(call) if start is _start_new else None
    children: list[Any] = []
    pipes: list[Connection] = []
    ends: list[int] = []
    try:
        for rank in range(ranks):
            # Opened as late and closed as early as possible, because a forked child inherits open
            # descriptors: with the other end of an earlier child's pipe it would hide that child's
            # end.
            here, there = multiprocessing.Pipe()
            pipes.append(here)
            with there:
                child = start(call, rank, ranks, there)
            children.append(child)
            ends.append(_end_of(child, here))
        for rank, here in enumerate(pipes if sent is not None else []):
            with contextlib.suppress(OSError):  # it has ended, which is seen below
                here.send((rank, ranks, sent))
        results = _collect(pipes, children, ends, progress)
        for child in children:
            child.join()
        return results
    except KeyboardInterrupt:
        raise _interrupt(_interrupted_places(pipes, children), ranks) from None
    finally:
        for child in children:
            if child.is_alive():
                child.kill()
                child.join()
        for here in pipes:
            here.close()
        for end in ends:
            os.close(end)


def _interrupted_places(pipes: list[Connection], children: list[Any]) -> dict[int, _Place | str]:
    """Interrupts the children and returns their answers. A terminal has interrupted them already."""
    places: dict[int, _Place | str] = {}
    waiting = set(range(len(children)))
    for patience, is_first in [(0.1, True), (_PROMPTLY, False)]:
        if not is_first:
            for rank in waiting:
                with contextlib.suppress(OSError):  # it has ended
                    os.kill(children[rank].pid, signal.SIGINT)
        deadline = time.monotonic() + patience
        while waiting and (left := deadline - time.monotonic()) > 0:
            ready = set(wait([pipes[rank] for rank in waiting], left))
            for rank in [rank for rank in waiting if pipes[rank] in ready]:
                try:
                    kind, value = pipes[rank].recv()
                except (EOFError, OSError):
                    kind, value = _Kind.END, None
                if kind is _Kind.ID:
                    continue
                waiting.remove(rank)
                if kind is _Kind.INTERRUPT:
                    places[rank] = value
                elif kind is _Kind.LIBRARY_ERROR:  # another rank was interrupted first, and has ended
                    places[rank] = value[1]
                else:
                    places[rank] = "had returned" if kind is _Kind.RESULT else "had ended"
    return places


def _end_of(child: Any, pipe: Connection) -> int:
    """A descriptor that is ready once the process has ended; to be closed.

    A process that the child has forked may have all of its descriptors, and outlive it. Then the child's
    pipe does not end with the child, and neither does multiprocessing's sentinel, which is another pipe.
    """
    try:
        return os.pidfd_open(child.pid)
    except OSError:  # Linux before 5.3
        return os.dup(getattr(child, "sentinel", pipe.fileno()))


def _receive(pipe: Connection, child: Any) -> tuple[_Kind, Any]:
    """The next message of a child that has sent something or has ended."""
    with contextlib.suppress(EOFError, OSError):
        if pipe.poll():
            message: tuple[_Kind, Any] = pipe.recv()
            return message
    if child.exitcode is None:  # its pipe has ended a moment before it
        child.join(_PATIENCE)
    code = child.exitcode
    if code is None:  # its program has closed a descriptor that it did not open
        return _Kind.END, "its process has closed the connection by which results come"
    how = f"exit code {code}" if code >= 0 else f"signal {-code}, {signal.strsignal(-code)}"
    return _Kind.END, f"its process has ended without a result ({how})"


def _collect(
    pipes: list[Connection], children: list[Any], ends: list[int], progress: bool
) -> list[Any]:
    ranks = len(pipes)
    results: list[Any] = [None] * ranks
    shown = _Progress(ranks, progress)
    waiting = set(range(ranks))
    failures: list[tuple[_Kind, RankError]] = []
    deadline: float | None = None
    while waiting and all(kind is _Kind.LIBRARY_ERROR for kind, _ in failures):
        patience = None if deadline is None else deadline - time.monotonic()
        if patience is not None and patience <= 0:
            break
        signs = [sign for rank in waiting for sign in (pipes[rank], ends[rank])]
        ready = set(wait(signs, patience))
        for rank in sorted(waiting):
            if ready.isdisjoint((pipes[rank], ends[rank])):
                continue
            kind, value = _receive(pipes[rank], children[rank])
            if kind is _Kind.ID:
                for other in pipes[1:]:
                    with contextlib.suppress(OSError):  # it has ended, which is seen here
                        other.send(value)
                continue
            waiting.remove(rank)
            if kind is _Kind.LIBRARY_ERROR:
                value, _ = value
            if kind is _Kind.INTERRUPT:
                value = f"it was interrupted in {value.call or 'the program'} ({value.where})"
            if kind is _Kind.RESULT:
                results[rank] = value
                shown.finished(rank)
            else:
                failures.append((kind, RankError(rank, ranks, value)))
                deadline = deadline or time.monotonic() + _PATIENCE
    if failures:
        raise min(failures, key=lambda failure: failure[0])[1]
    return results
