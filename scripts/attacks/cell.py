"""Ranks of one cell of the fault matrix (matrix.py), in one process, each on a thread of its own:

  python3 cell.py LIBRARY_FOLDER RUN_FOLDER RANKS NRANKS CULPRIT FAULT MODE PHASE

RANKS: "3" or "0,1,2"; rank NRANKS is the newcomer of the phase `grow`. Each rank writes to RUN_FOLDER/output<rank>: "FAULT" and the time
(seconds of CLOCK_MONOTONIC) when it is about to misbehave, "ERROR" with time, code and sentence when a call or the communicator's
asynchronous error tells of a failure, and "WRONG" for a result that is not right. Faults that somebody else makes (matrix.EXTERNAL) have
happened when RUN_FOLDER/applied is there.
"""

import ctypes
import os
import pathlib
import signal
import struct
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from attacks import matrix  # noqa: E402
from attacks.api import Device, Library, UniqueId  # noqa: E402

COUNT = 5000
FLOAT, DOUBLE, SUM, MAX = 7, 8, 0, 3
PATIENCE = 5.0  # seconds
JOINED = 0.3  # after which a rank that has called init has joined
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def now() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


class Over(Exception):
    pass


class Cell:
    def __init__(self, library, run, rank, nranks, culprit, fault, mode, phase):
        self.run, self.rank, self.nranks = pathlib.Path(run), int(rank), int(nranks)
        self.culprit, self.fault, self.mode, self.phase = int(culprit), fault, mode, phase
        self.is_culprit = self.culprit == self.rank
        self.output = open(self.run / f"output{self.rank}", "w")
        self.library = library
        self.nccl, self.cuda = self.library.nccl, self.library.cuda
        self.device = Device(self.library, self.rank)
        self.comm, self.graph = ctypes.c_void_p(), ctypes.c_void_p()
        self.input, self.result = (self.device.allocate(8 * COUNT * 2) for _ in range(2))
        self.keep = HOST_FUNCTION(lambda unused: time.sleep(1000))

    def say(self, word: str, *rest) -> None:
        print(word, f"{now():.4f}", *rest, file=self.output, flush=True)

    def check(self, code: int) -> None:
        if code == 0:
            return
        self.say("ERROR", code, self.library.last_error(self.comm))
        self.stay()

    def stay(self) -> None:
        time.sleep(2 * PATIENCE)
        raise Over

    def wait_for(self, name: str) -> None:
        while not (self.run / name).exists():
            time.sleep(0.005)

    def meet(self, name: str) -> None:
        (self.run / f"{name}.{self.rank}").touch()
        while len(list(self.run.glob(f"{name}.*"))) < self.nranks:
            time.sleep(0.01)

    def share_id(self, name: str, make) -> UniqueId:
        identity, file = UniqueId(), self.run / name
        if self.rank == 0:
            self.check(make(identity))
            (self.run / f"{name}.new").write_bytes(bytes(identity.internal))
            (self.run / f"{name}.new").rename(file)
        self.wait_for(name)
        return UniqueId.from_buffer_copy(file.read_bytes())

    def initialize(self) -> None:
        identity = self.share_id("id", lambda unique: self.nccl.ncclGetUniqueId(ctypes.byref(unique)))
        if self.phase == "init":
            self.meet("begin")
            # The fault comes when the culprit has joined, and the last rank has not.
            if self.is_culprit:
                threading.Thread(target=self.misbehave, daemon=True).start()
            elif self.rank == matrix.last_of(self.culprit, self.nranks) and self.fault != "missing":
                self.wait_for("fault")
                time.sleep(0.05)
            if self.is_culprit and self.fault == "missing":
                self.stay()
        self.check(self.nccl.ncclCommInitRank(ctypes.byref(self.comm), self.nranks, identity, self.rank))
        if self.phase == "init":
            self.stay()

    # ---- operations

    def all_reduce(self, count=COUNT, kind=FLOAT, operation=SUM) -> None:
        self.check(self.nccl.ncclAllReduce(self.input, self.result, ctypes.c_size_t(count), kind, operation, self.comm,
                                           self.device.stream))

    def broadcast(self, count=COUNT) -> None:
        self.check(self.nccl.ncclBroadcast(self.input, self.input, ctypes.c_size_t(count), FLOAT, 0, self.comm,
                                           self.device.stream))

    def messages(self, count=COUNT) -> None:
        after, before = (self.rank + 1) % self.nranks, (self.rank - 1) % self.nranks
        self.check(self.nccl.ncclGroupStart())
        self.check(self.nccl.ncclSend(self.input, ctypes.c_size_t(count), FLOAT, after, self.comm, self.device.stream))
        self.check(self.nccl.ncclRecv(self.result, ctypes.c_size_t(COUNT), FLOAT, before, self.comm, self.device.stream))
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
        time.sleep(0.002 * max(1, self.nranks // 8))

    def work(self, times: int) -> None:
        for _ in range(times):
            self.device.write(self.input, struct.pack("<f", 1.0) * COUNT)
            self.queue()
            self.watch()
            got = struct.unpack("<f", self.device.read(self.result, 4))[0]
            if got != (1.0 if self.mode == "message" else float(self.nranks)):
                self.say("WRONG", got)

    # ---- the fault

    def misbehave(self) -> None:
        """Returns only where the culprit goes on, with a call of its own or as if nothing were wrong."""
        if self.phase == "init" and self.fault != "missing":
            time.sleep(JOINED)
        self.say("FAULT")
        (self.run / "fault").touch()
        if self.fault in matrix.EXTERNAL:
            return
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
        if self.phase != "init":
            self.stay()  # a missing call

    def others(self) -> None:
        if self.fault == "order":
            self.all_reduce()
            self.broadcast()
        elif self.phase in matrix.OPERATIONS:
            self.queue()
        elif self.phase == "split":
            other = ctypes.c_void_p()
            self.check(self.nccl.ncclCommSplit(self.comm, 0, self.rank, ctypes.byref(other), None))
        elif self.phase == "shrink":
            # Of one more rank than the culprit, so that it is waited for.
            other, excluded = ctypes.c_void_p(), ctypes.c_int(self.nranks - 1)
            if self.rank != self.nranks - 1:
                self.check(self.nccl.ncclCommShrink(self.comm, ctypes.byref(excluded), 1, ctypes.byref(other), None, 0))
        elif self.phase == "grow":
            other = ctypes.c_void_p()
            self.check(self.nccl.ncclCommGrow(self.comm, self.nranks + 1, None, -1, ctypes.byref(other), None))
        else:
            self.check(self.nccl.ncclCommDestroy(self.comm))
            self.say("DESTROYED")
            self.stay()
        # Who has all that it needs hears of the fault, too.
        end = now() + PATIENCE
        while now() < end:
            self.look()
        self.stay()

    def join(self) -> None:
        """The newcomer."""
        self.wait_for("grown")
        identity = UniqueId.from_buffer_copy((self.run / "grown").read_bytes())
        self.check(self.nccl.ncclCommGrow(None, self.nranks + 1, ctypes.byref(identity), self.rank, ctypes.byref(self.comm), None))
        self.stay()

    def play(self) -> None:
        if self.rank == self.nranks:
            self.join()
        self.initialize()
        if self.phase == "middle":
            self.work(20)
        elif self.phase != "first":
            self.work(2)
        if self.phase == "grow":
            self.share_id("grown", lambda unique: self.nccl.ncclCommGetUniqueId(self.comm, ctypes.byref(unique)))
        if self.phase not in ("first", "middle") or self.fault in matrix.EXTERNAL:
            self.meet("between")
        if self.is_culprit:
            if self.phase == "between":
                time.sleep(0.2)
            self.misbehave()
        if self.fault in matrix.EXTERNAL:
            self.wait_for("applied")
        if self.fault in matrix.HEALTHY:
            # All leave after the same operation.
            self.work(matrix.HEALTHY_TURNS[self.fault])
            self.say("RIGHT")
            self.stay()
        self.others()


def run_rank(*arguments) -> None:
    try:
        Cell(*arguments).play()
    except Over:
        pass


def main(library, run, ranks, *rest) -> None:
    shared = Library(pathlib.Path(library))
    shared.nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
    threads = [threading.Thread(target=run_rank, args=(shared, run, rank, *rest), daemon=True) for rank in ranks.split(",")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os._exit(0)


main(*sys.argv[1:])
