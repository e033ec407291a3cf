"""One rank of an attacked job. Runs the steps that it is given and reports each as a line of JSON:

  python3 victim.py LIBRARY_FOLDER RUN_FOLDER RANK NRANKS STEPS   (STEPS: JSON, a list of [name, arguments...])

Times are milliseconds of CLOCK_MONOTONIC, which all processes of the machine share.
"""

import ctypes
import json
import os
import pathlib
import signal
import struct
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from attacks import api  # noqa: E402


def now() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC) * 1e3


def name_of(thread: str) -> str:
    try:
        return pathlib.Path(f"/proc/self/task/{thread}/comm").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return "virtual-gpu"  # it has ended


def resources() -> dict:
    """Without the workers of the virtual GPUs, which start when they are needed and stay."""
    threads = [thread for thread in os.listdir("/proc/self/task") if not name_of(thread).startswith("virtual-gpu")]
    return {"descriptors": len(os.listdir("/proc/self/fd")), "threads": len(threads)}


class Rank:
    def __init__(self, library: pathlib.Path, run: pathlib.Path, rank: int, nranks: int):
        self.run, self.rank, self.nranks = run, rank, nranks
        self.library = api.Library(library)
        self.nccl = self.library.nccl
        self.device = api.Device(self.library, rank)
        self.comm, self.other = ctypes.c_void_p(), ctypes.c_void_p()
        self.before = {}
        self.has_failed = False

    def report(self, step: str, started: float, code: int = 0, **more) -> None:
        text = self.library.last_error(self.comm) if code not in (0, api.IN_PROGRESS) else ""
        event = {"step": step, "started": started, "ended": now(), "code": code, "text": text, **more}
        self.has_failed |= code not in (0, api.IN_PROGRESS)
        sys.stdout.write(json.dumps(event) + "\n")
        sys.stdout.flush()

    # ---- steps

    def warm_up(self) -> None:
        """What a process keeps for good (the listener for its unique ids) is no leak: it is there
        before."""
        own, unused = api.UniqueId(), api.UniqueId()
        comm = ctypes.c_void_p()
        if self.rank == 0:
            self.nccl.ncclGetUniqueId(ctypes.byref(unused))
        self.nccl.ncclGetUniqueId(ctypes.byref(own))
        self.nccl.ncclCommInitRank(ctypes.byref(comm), 1, own, 0)
        buffer = self.device.allocate(1024)
        self.nccl.ncclAllReduce(buffer, buffer, ctypes.c_size_t(256), 7, 0, comm, self.device.stream)
        self.device.cuda.cudaStreamSynchronize(self.device.stream)
        self.nccl.ncclCommDestroy(comm)
        self.before = resources()

    def init(self) -> None:
        started = now()
        path, unique = self.run / "id", api.UniqueId()
        if self.rank == 0:
            code = self.nccl.ncclGetUniqueId(ctypes.byref(unique))
            if code != 0:
                return self.report("ncclGetUniqueId", started, code)
            (self.run / "id.partial").write_bytes(bytes(unique))
            (self.run / "id.partial").rename(path)
        while not path.exists():
            time.sleep(0.002)
        ctypes.memmove(ctypes.byref(unique), path.read_bytes(), 128)
        started = now()
        self.report("calls ncclCommInitRank", started)
        code = self.nccl.ncclCommInitRank(ctypes.byref(self.comm), self.nranks, unique, self.rank)
        self.report("ncclCommInitRank", started, code)

    def split(self) -> None:
        """Makes another communicator of the same ranks."""
        started = now()
        code = self.nccl.ncclCommSplit(self.comm, 0, self.rank, ctypes.byref(self.other), None)
        self.report("ncclCommSplit", started, code)

    def change(self) -> None:
        self.comm, self.other = self.other, self.comm

    def collective(self, name: str, count: int = 1024, kind: str = "float", operation: str = "sum", root: int = 0,
                   peer: int = 0, null: bool = False) -> None:
        number, size = api.TYPES[kind]
        send = ctypes.c_void_p() if null else self.device.allocate(count * size)
        receive = self.device.allocate(count * size)
        if kind == "float" and not null:
            self.device.write(send, struct.pack("f", self.rank + 1) * count)
        elements, op = ctypes.c_size_t(count), api.OPERATIONS[operation]
        started = now()
        stream = self.device.stream
        if name == "ncclAllReduce":
            code = self.nccl.ncclAllReduce(send, receive, elements, number, op, self.comm, stream)
        elif name == "ncclReduce":
            code = self.nccl.ncclReduce(send, receive, elements, number, op, root, self.comm, stream)
        elif name == "ncclBroadcast":
            code = self.nccl.ncclBroadcast(send, receive, elements, number, root, self.comm, stream)
        elif name == "ncclSend":
            code = self.nccl.ncclSend(send, elements, number, peer, self.comm, stream)
        else:
            code = self.nccl.ncclRecv(receive, elements, number, peer, self.comm, stream)
        self.receive, self.count = receive, count
        self.report(name, started, code)

    def watch(self, most: float = 4000) -> None:
        """Waits for the asynchronous error or the end of the work, whichever comes first; then, after an error, whether
        the work looks finished."""
        started, code, idle = now(), 0, False
        state = ctypes.c_int()
        while now() < started + most:
            idle = self.device.is_idle()
            if self.nccl.ncclCommGetAsyncError(self.comm, ctypes.byref(state)) == 0:
                code = 0 if state.value == api.IN_PROGRESS else state.value
            if code != 0 or idle:
                break
            time.sleep(0.0005)
        found = now()
        if code == 0 and idle:
            return self.report("done", started, waits=False)
        text = self.library.last_error(self.comm)
        if code != 0:
            time.sleep(0.1)  # time enough for a kernel that ends to look finished
        waits = not self.device.is_idle()
        event = {"step": "asynchronous error" if code else "still waits", "started": started, "ended": found,
                 "code": code, "text": text, "waits": waits}
        self.has_failed = True
        sys.stdout.write(json.dumps(event) + "\n")
        sys.stdout.flush()

    def check(self) -> None:
        """The sum of what all ranks gave."""
        started = now()
        want = struct.pack("f", self.nranks * (self.nranks + 1) / 2) * self.count
        self.device.cuda.cudaStreamSynchronize(self.device.stream)
        self.report("right" if self.device.read(self.receive, len(want)) == want else "WRONG DATA", started)

    def loop(self, most: float) -> None:
        """All-reduces of 1 MiB, until one fails or the time is over."""
        started = now()
        buffer = self.device.allocate(1 << 20)
        while now() < started + most:
            code = self.nccl.ncclAllReduce(buffer, buffer, ctypes.c_size_t(1 << 18), 7, 0, self.comm, self.device.stream)
            if code != 0:
                return self.report("ncclAllReduce", started, code, waits=not self.device.is_idle())
            while not self.device.is_idle() and now() < started + most:
                state = ctypes.c_int()
                self.nccl.ncclCommGetAsyncError(self.comm, ctypes.byref(state))
                if state.value not in (0, api.IN_PROGRESS):
                    return self.watch()
                time.sleep(0.0002)

    def destroy(self, keeps: bool = False) -> None:
        started = now()
        code = self.nccl.ncclCommDestroy(self.comm)
        comm, self.comm = self.comm, ctypes.c_void_p()
        self.report("ncclCommDestroy", started, code)
        if keeps:
            self.comm = comm

    def leave(self) -> None:
        self.change()  # the one that the stream has first ends first
        for _ in range(2):
            self.leave_one()
            self.change()

    def leave_one(self) -> None:
        if self.comm and not self.has_failed:
            self.destroy()
        started = now()
        if self.comm:
            code = self.nccl.ncclCommAbort(self.comm)
            self.comm = ctypes.c_void_p()
            self.report("ncclCommAbort", started, code)

    def leaks(self) -> None:
        """What is there more than before init. Threads end a moment after they are told to."""
        deadline = now() + 1000
        while any(resources()[key] > self.before[key] for key in self.before) and now() < deadline:
            time.sleep(0.01)
        after = resources()
        self.report("leaks", now(), more={key: after[key] - self.before[key] for key in after})

    def die(self) -> None:
        self.report("dies", now())
        self.say("died")
        os.kill(os.getpid(), signal.SIGKILL)

    def die_in(self, milliseconds: float) -> None:
        def later():
            time.sleep(milliseconds / 1e3)
            self.die()
        threading.Thread(target=later, daemon=True).start()

    def sleep(self, milliseconds: float) -> None:
        time.sleep(milliseconds / 1e3)

    def meet(self, name: str) -> None:
        """Until all that live have come so far, or a while."""
        self.say(f"{name}{self.rank}")
        deadline = now() + 1500
        while now() < deadline and len(list(self.run.glob(f"{name}*")) + list(self.run.glob("died"))) < self.nranks:
            time.sleep(0.002)

    def say(self, name: str) -> None:
        (self.run / name).touch()

    def hear(self, name: str) -> None:
        while not (self.run / name).exists():
            time.sleep(0.002)


def main() -> None:
    library, run, rank, nranks, steps = sys.argv[1:]
    victim = Rank(pathlib.Path(library), pathlib.Path(run), int(rank), int(nranks))
    victim.warm_up()
    for name, *arguments in json.loads(steps):
        more = arguments.pop() if arguments and isinstance(arguments[-1], dict) else {}
        if name.startswith("nccl"):
            victim.collective(name, **more)
        else:
            getattr(victim, name)(*arguments, **more)
    sys.stdout.flush()
    victim.meet("end")  # so that none sees this process end instead of what was done to it
    os._exit(0)  # what waits on the stream would keep an orderly end waiting


main()
