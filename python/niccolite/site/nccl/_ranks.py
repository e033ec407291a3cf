"""One function on many ranks, in threads or in processes: what nccl.virtual.run stands on."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from nccl.core.communicator import Communicator
from nccl.core.utils import UniqueId, get_unique_id
from nccl.virtual import RankError, devices
from niccolite import _native

_Function = Callable[..., Any]
_PATIENCE = 2.0  # seconds that threads get to end; one that waits for something of its own is left


class _Progress:
    def __init__(self, ranks: int, wanted: bool) -> None:
        self._ranks = ranks
        self._done = 0
        self._wanted = wanted

    def finished(self, rank: int) -> None:
        self._done += 1
        if self._wanted:
            print(f"rank {rank} is done, {self._done} of {self._ranks}", file=sys.stderr, flush=True)


# ---- threads


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
        except BaseException as error:  # noqa: BLE001
            self.error = error
        finally:
            with contextlib.suppress(KeyboardInterrupt):  # interrupt() came late: nobody waits any more
                self._finished.put(self._rank)

    def interrupt(self) -> None:
        """Ends its waits in the library, and raises KeyboardInterrupt in what Python it runs."""
        self._comm.abort()
        if self.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self.ident), ctypes.py_object(KeyboardInterrupt)
            )


def run_in_threads(function: _Function, ranks: int, args: tuple[Any, ...], progress: bool) -> list[Any]:
    devices(ranks)
    comms = Communicator.init_all(ranks)
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
            rank = finished.get()
            if (error := threads[rank].error) is not None:
                raise RankError(rank, ranks, f"{type(error).__name__}: {error}") from error
            shown.finished(rank)
        for thread in threads:
            thread.join()
    except BaseException:
        for thread in threads:
            if thread.is_alive():
                thread.interrupt()
        deadline = time.monotonic() + _PATIENCE
        for thread in threads:
            if thread.ident is not None:
                thread.join(timeout=max(0.0, deadline - time.monotonic()))
        for comm in comms:
            comm.abort()
        raise
    _destroy_together(comms)
    return [thread.result for thread in threads]


def _destroy_together(comms: list[Communicator]) -> None:
    """Destroying waits for the other ranks, of which this one thread has all."""
    enders = [threading.Thread(target=comm.destroy) for comm in comms if comm.is_valid]
    for ender in enders:
        ender.start()
    for ender in enders:
        ender.join()


# ---- processes


def _run_rank(
    function: _Function, rank: int, ranks: int, args: tuple[Any, ...], parent: Connection
) -> None:
    """A child: rank 0 sends the id up, the others are sent it; last, (is it a result?, result or text)."""
    try:
        devices(ranks)
        _native.set_current_device(rank)
        if rank == 0:
            identity = get_unique_id()
            parent.send(bytes(identity))
        else:
            identity = UniqueId.from_bytes(parent.recv())
        comm = Communicator.init(ranks, rank, identity)
        result = function(comm, *args)
        comm.destroy()
        parent.send((True, result))
    except BaseException as error:  # noqa: BLE001
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        parent.send((False, text))
        # What is left of the communicator would wait for ranks that are ended.
        parent.close()
        os._exit(1)


def run_in_processes(
    function: _Function, ranks: int, args: tuple[Any, ...], progress: bool
) -> list[Any]:
    # A forked child of a process that has used a device would lack the threads of it.
    context = multiprocessing.get_context("spawn" if _native.are_devices_chosen() else "fork")
    pipes = [context.Pipe() for _ in range(ranks)]
    children = [
        context.Process(  # type: ignore[attr-defined]
            target=_run_rank, args=(function, rank, ranks, args, there), name=f"rank {rank}", daemon=True
        )
        for rank, (_, there) in enumerate(pipes)
    ]
    try:
        for child, (_, there) in zip(children, pipes):
            child.start()
            there.close()  # so that the end of the child is seen
        results = _collect([here for here, _ in pipes], ranks, progress)
        for child in children:
            child.join()
        return results
    finally:
        for child in children:
            if child.is_alive():
                child.kill()
                child.join()
        for here, _ in pipes:
            here.close()


def _receive(pipe: Connection, rank: int, ranks: int) -> Any:
    try:
        return pipe.recv()
    except EOFError:
        raise RankError(rank, ranks, "its process has ended without a result") from None


def _collect(pipes: list[Connection], ranks: int, progress: bool) -> list[Any]:
    results: list[Any] = [None] * ranks
    shown = _Progress(ranks, progress)
    waiting: dict[Any, int] = {pipe: rank for rank, pipe in enumerate(pipes)}
    while waiting:
        for pipe in wait(list(waiting)):
            rank = waiting[pipe]
            message = _receive(pipe, rank, ranks)  # type: ignore[arg-type]
            if isinstance(message, bytes):  # rank 0's id
                for other in pipes[1:]:
                    other.send(message)
                continue
            is_result, value = message
            if not is_result:
                raise RankError(rank, ranks, value)
            results[rank] = value
            del waiting[pipe]
            shown.finished(rank)
    return results
