"""One rank of one cell of the fault matrix (matrix.py):

  python3 cell.py LIBRARY_FOLDER RUN_FOLDER RANK NRANKS CULPRIT FAULT MODE PHASE

Prints "FAULT" and the time (seconds of CLOCK_MONOTONIC) when the culprit misbehaves, "ERROR" with time, code and sentence when a
call or the communicator's asynchronous error tells of a failure, and "WRONG" for a result that is not right.
"""

import ctypes
import os
import pathlib
import signal
import struct
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from attacks.api import Device, Library, UniqueId  # noqa: E402

COUNT = 5000
FLOAT, DOUBLE, SUM, MAX = 7, 8, 0, 3
PATIENCE = 5.0  # seconds
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def now() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def say(word: str, *rest) -> None:
    print(word, f"{now():.4f}", *rest, flush=True)


class Cell:
    def __init__(self, library, run, rank, nranks, culprit, fault, mode, phase):
        self.run, self.rank, self.nranks = pathlib.Path(run), int(rank), int(nranks)
        self.is_culprit, self.fault, self.mode, self.phase = int(culprit) == self.rank, fault, mode, phase
        self.library = Library(pathlib.Path(library))
        self.nccl, self.cuda = self.library.nccl, self.library.cuda
        self.device = Device(self.library, self.rank)
        self.comm, self.graph = ctypes.c_void_p(), ctypes.c_void_p()
        self.input, self.output = (self.device.allocate(8 * COUNT * 2) for _ in range(2))
        self.keep = HOST_FUNCTION(lambda unused: time.sleep(1000))

    def check(self, code: int) -> None:
        if code == 0:
            return
        say("ERROR", code, self.library.last_error(self.comm))
        self.stay()

    def stay(self) -> None:
        time.sleep(2 * PATIENCE)
        os._exit(0)

    def meet(self, name: str) -> None:
        (self.run / f"{name}.{self.rank}").touch()
        while len(list(self.run.glob(f"{name}.*"))) < self.nranks:
            time.sleep(0.005)

    def initialize(self) -> None:
        identity, file = UniqueId(), self.run / "id"
        if self.rank == 0:
            self.check(self.nccl.ncclGetUniqueId(ctypes.byref(identity)))
            (self.run / "id.new").write_bytes(bytes(identity.internal))
            (self.run / "id.new").rename(file)
        while not file.exists():
            time.sleep(0.005)
        identity = UniqueId.from_buffer_copy(file.read_bytes())
        self.nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
        self.check(self.nccl.ncclCommInitRank(ctypes.byref(self.comm), self.nranks, identity, self.rank))

    # ---- operations

    def all_reduce(self, count=COUNT, kind=FLOAT, operation=SUM) -> None:
        self.check(self.nccl.ncclAllReduce(self.input, self.output, ctypes.c_size_t(count), kind, operation, self.comm,
                                           self.device.stream))

    def broadcast(self, count=COUNT) -> None:
        self.check(self.nccl.ncclBroadcast(self.input, self.input, ctypes.c_size_t(count), FLOAT, 0, self.comm,
                                           self.device.stream))

    def messages(self, count=COUNT) -> None:
        after, before = (self.rank + 1) % self.nranks, (self.rank - 1) % self.nranks
        self.check(self.nccl.ncclGroupStart())
        self.check(self.nccl.ncclSend(self.input, ctypes.c_size_t(count), FLOAT, after, self.comm, self.device.stream))
        self.check(self.nccl.ncclRecv(self.output, ctypes.c_size_t(COUNT), FLOAT, before, self.comm, self.device.stream))
        self.check(self.nccl.ncclGroupEnd())

    def call(self, **wrong) -> None:
        if self.mode == "message":
            return self.messages(**wrong)
        if self.mode != "group":
            return self.all_reduce(**wrong)
        self.check(self.nccl.ncclGroupStart())
        self.all_reduce(**wrong)
        self.broadcast()
        self.check(self.nccl.ncclGroupEnd())

    def queue(self, **wrong) -> None:
        """One operation, by itself or as a graph of it."""
        if self.mode != "graph":
            return self.call(**wrong)
        if not self.graph or wrong:
            graph, self.graph = ctypes.c_void_p(), ctypes.c_void_p()
            self.device.check(self.cuda.cudaStreamBeginCapture(self.device.stream, 2))
            self.call(**wrong)
            self.device.check(self.cuda.cudaStreamEndCapture(self.device.stream, ctypes.byref(graph)))
            self.device.check(self.cuda.cudaGraphInstantiate(ctypes.byref(self.graph), graph, ctypes.c_ulonglong(0)))
        self.device.check(self.cuda.cudaGraphLaunch(self.graph, self.device.stream))

    def watch(self) -> None:
        """Until the stream is idle, or a failure."""
        while not self.device.is_idle():
            self.look()

    def look(self) -> None:
        state = ctypes.c_int()
        self.check(self.nccl.ncclCommGetAsyncError(self.comm, ctypes.byref(state)))
        self.check(state.value)
        time.sleep(0.002)

    def work(self, times: int) -> None:
        for _ in range(times):
            self.device.write(self.input, struct.pack("<f", 1.0) * COUNT)
            self.queue()
            self.watch()
            got = struct.unpack("<f", self.device.read(self.output, 4))[0]
            if got != (1.0 if self.mode == "message" else float(self.nranks)):
                say("WRONG", got)

    # ---- the fault

    def misbehave(self) -> None:
        """Never returns, but where the culprit goes on with a call of its own."""
        say("FAULT")
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "exit":
            os._exit(0)
        if self.fault == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.fault == "kernel":
            self.device.check(self.cuda.cudaLaunchHostFunc(self.device.stream, self.keep, None))
            self.queue()
        wrong = {"count": {"count": COUNT - 8}, "type": {"count": COUNT, "kind": DOUBLE}, "operation": {"operation": MAX}}
        if self.fault in wrong:
            self.queue(**wrong[self.fault])
            self.watch()
        if self.fault == "order":
            self.broadcast()
            self.all_reduce()
            self.watch()
        self.stay()  # a missing call

    def others(self) -> None:
        if self.fault == "order":
            self.all_reduce()
            self.broadcast()
        elif self.phase in ("first", "middle", "between"):
            self.queue()
        elif self.phase == "split":
            other = ctypes.c_void_p()
            self.check(self.nccl.ncclCommSplit(self.comm, 0, self.rank, ctypes.byref(other), None))
        elif self.phase == "shrink":
            # Of one more rank than the culprit, so that it is waited for.
            other, excluded = ctypes.c_void_p(), ctypes.c_int(self.nranks - 1)
            if self.rank != self.nranks - 1:
                self.check(self.nccl.ncclCommShrink(self.comm, ctypes.byref(excluded), 1, ctypes.byref(other), None, 0))
        else:
            self.check(self.nccl.ncclCommDestroy(self.comm))
            say("DESTROYED")
            self.stay()
        # Who has all that it needs hears of the fault, too.
        end = now() + PATIENCE
        while now() < end:
            self.look()
        self.stay()

    def play(self) -> None:
        self.initialize()
        if self.phase == "middle":
            self.work(20)
        elif self.phase != "first":
            self.work(2)
            self.meet("between")
        if self.is_culprit:
            if self.phase == "between":
                time.sleep(0.2)
            self.misbehave()
        self.others()


Cell(*sys.argv[1:]).play()
