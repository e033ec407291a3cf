"""One rank of a job that loses ranks and takes in new ones (kills.py):

  python3 survivor.py LIBRARY_FOLDER RUN_FOLDER DEVICE NRANKS RANK     a first one; RANK -1: one that joins in round $ROUND

Prints a line of JSON for each round: when it knew of the death, when it had the shrunk communicator's first result, when the grown
one's, and what it has open.
"""

import ctypes
import json
import os
import pathlib
import re
import struct
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from attacks.api import Device, Library, UniqueId  # noqa: E402

COUNT = 5000
SHRINK_ABORT = 1


def now() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def is_worker(task: str) -> bool:
    """Of the virtual GPUs, which start when they are needed and stay; or one that has ended."""
    try:
        return pathlib.Path(f"/proc/self/task/{task}/comm").read_text().startswith("virtual-gpu")
    except (FileNotFoundError, ProcessLookupError):
        return True


def resources() -> dict:
    """The least of some looks: connections that begin, and those that end, are open for some milliseconds."""
    looks = []
    for _ in range(8):
        looks.append(resources_now())
        time.sleep(0.005)
    return {what: min(look[what] for look in looks) for what in looks[0]}


def resources_now() -> dict:
    status = pathlib.Path("/proc/self/status").read_text()
    return {"descriptors": len(os.listdir("/proc/self/fd")),
            "threads": sum(not is_worker(task) for task in os.listdir("/proc/self/task")),
            "mappings": pathlib.Path("/proc/self/maps").read_text().count("\n"),
            "kilobytes": int(re.search(r"VmRSS:\s+(\d+)", status)[1])}


class Lost(Exception):
    pass


class Survivor:
    def __init__(self, library: str, run: str, device: str, nranks: str):
        self.library, self.run, self.nranks = Library(pathlib.Path(library)), pathlib.Path(run), int(nranks)
        self.nccl, self.device = self.library.nccl, Device(self.library, int(device))
        self.buffer = self.device.allocate(4 * COUNT)
        self.nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
        self.comm, self.why = ctypes.c_void_p(), ""  # why: it recovers

    def must(self, code: int) -> None:
        if code != 0:
            step = sys._getframe(1).f_lineno
            print(json.dumps({"failed": f"{now():.3f} {code} {self.library.last_error(self.comm)} (line {step}; {self.why})"}),
                  flush=True)
            os._exit(1)

    def rank_of(self, comm) -> int:
        rank = ctypes.c_int()
        self.ask_if_lost(comm, self.nccl.ncclCommUserRank(comm, ctypes.byref(rank)))
        return rank.value

    def ask_if_lost(self, comm, code: int) -> None:
        if code == 6:
            raise Lost(self.library.last_error(comm))
        self.must(code)

    def all_reduce(self, comm, nranks: int) -> None:
        self.device.write(self.buffer, struct.pack("<f", self.rank_of(comm) + 1.0) * COUNT)
        self.ask_if_lost(comm, self.nccl.ncclAllReduce(self.buffer, self.buffer, ctypes.c_size_t(COUNT), 7, 0, comm,
                                                       self.device.stream))
        while not self.device.is_idle():
            state = ctypes.c_int()
            self.must(self.nccl.ncclCommGetAsyncError(comm, ctypes.byref(state)))
            self.ask_if_lost(comm, state.value)
            time.sleep(0.0005)
        got = struct.unpack("<f", self.device.read(self.buffer, 4))[0]
        if got != nranks * (nranks + 1) / 2:
            print(json.dumps({"failed": f"wrong result {got} of {nranks} ranks"}), flush=True)
            os._exit(1)

    def begin(self, rank: int) -> None:
        file = self.run / "id"
        if rank == 0:
            identity = UniqueId()
            self.must(self.nccl.ncclGetUniqueId(ctypes.byref(identity)))
            (self.run / "id.new").write_bytes(bytes(identity.internal))
            (self.run / "id.new").rename(file)
        while not file.exists():
            time.sleep(0.002)
        identity = UniqueId.from_buffer_copy(file.read_bytes())
        self.must(self.nccl.ncclCommInitRank(ctypes.byref(self.comm), self.nranks, identity, rank))

    def join(self, round_: int) -> None:
        file = self.run / f"grow.{round_}"
        while not file.exists():
            time.sleep(0.002)
        identity = UniqueId.from_buffer_copy(file.read_bytes())
        self.must(self.nccl.ncclCommGrow(None, self.nranks, ctypes.byref(identity), self.nranks - 1,
                                         ctypes.byref(self.comm), None))

    def recover(self, why: str, round_: int) -> dict:
        known = now()
        lost = re.search(r"\brank (\d+)\b", why)
        self.why = why
        excluded, smaller = ctypes.c_int(int(lost[1])), ctypes.c_void_p()
        self.must(self.nccl.ncclCommShrink(self.comm, ctypes.byref(excluded), 1, ctypes.byref(smaller), None, SHRINK_ABORT))
        self.device.check(self.library.cuda.cudaStreamSynchronize(self.device.stream))
        self.must(self.nccl.ncclCommAbort(self.comm))
        self.all_reduce(smaller, self.nranks - 1)
        shrunk = now()
        if self.rank_of(smaller) == 0:
            identity = UniqueId()
            self.must(self.nccl.ncclCommGetUniqueId(smaller, ctypes.byref(identity)))
            (self.run / "grow.new").write_bytes(bytes(identity.internal))
            (self.run / "grow.new").rename(self.run / f"grow.{round_}")
        self.must(self.nccl.ncclCommGrow(smaller, self.nranks, None, -1, ctypes.byref(self.comm), None))
        self.must(self.nccl.ncclCommDestroy(smaller))
        return {"known": known, "shrunk": shrunk}

    def play(self, rank: int) -> None:
        round_ = int(os.environ.get("ROUND", "0"))
        if rank >= 0:
            self.begin(rank)
        else:
            self.join(round_)
        times = {}
        while True:
            self.all_reduce(self.comm, self.nranks)
            print(json.dumps({"round": round_, "whole": now(), **times, **resources()}), flush=True)
            try:
                while not (self.run / "end").exists():
                    self.all_reduce(self.comm, self.nranks)
            except Lost as why:
                round_ += 1
                times = self.recover(str(why), round_)
                continue
            self.must(self.nccl.ncclCommDestroy(self.comm))
            return


Survivor(*sys.argv[1:5]).play(int(sys.argv[5]))
