"""What a call costs in Python: a small all-reduce, beside the same call in C (bench/python_calls.cc).

    python bench/python_calls.py build/release/bin/python_calls

Rank 0 queues operations that cannot begin before rank 1's come: nothing but the call is measured. Nanoseconds,
of the round that was disturbed least.
"""

import os
import subprocess
import sys
import time

os.environ.setdefault("NICCOLITE_DEVICES", "virtual:2")

import nccl.core as nccl
import numpy as np
from nccl import virtual

CALLS, ROUNDS, COUNT = 100, 200, 8


def import_milliseconds():
    code = "import time; t = time.perf_counter(); import nccl.core; print((time.perf_counter() - t) * 1e3)"
    return min(float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(5))


def measure(comms, streams, forms, arrays):
    """`forms`: what each rank gives as its stream. All ranks have `arrays`, to send and to receive."""
    rounds = []

    def queue(rank):
        call, (send, receive), form = comms[rank].allreduce, arrays[rank], forms[rank]
        for _ in range(CALLS):
            call(send, receive, nccl.SUM, stream=form)

    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        queue(0)
        rounds.append((time.perf_counter_ns() - start) / CALLS)
        queue(1)
        for stream in streams:
            stream.synchronize()
    return min(rounds)


class Protocol:
    """A stream of somebody else."""

    def __init__(self, handle):
        self._handle = handle

    def __cuda_stream__(self):
        return (0, self._handle)


def main():
    comms = nccl.Communicator.init_all(2)
    streams = [virtual.stream(rank) for rank in range(2)]
    handles = [stream.handle for stream in streams]
    kinds = {
        "NumPy arrays": [[np.zeros(COUNT, np.float32) for _ in range(2)] for _ in range(2)],
        "nccl.virtual.array": [[virtual.array(np.zeros(COUNT), "f4", rank) for _ in range(2)] for rank in range(2)],
        "mem_alloc": [[nccl.mem_alloc(4 * COUNT, rank) for _ in range(2)] for rank in range(2)],
    }
    base = None
    if len(sys.argv) > 1:
        base = float(subprocess.check_output([sys.argv[1]]))
        print(f"{'C':40} {base:6.0f}")
    for name, arrays in kinds.items():
        for form, given in {"integer": handles, "nccl.virtual.Stream": streams,
                            "__cuda_stream__": [Protocol(handle) for handle in handles]}.items():
            cost = measure(comms, streams, given, arrays)
            more = "" if base is None else f"  {cost - base:+6.0f}"
            print(f"{name + ', stream: ' + form:40} {cost:6.0f}{more}")
    print(f"{'import nccl.core':40} {import_milliseconds():6.1f} ms")
    for comm in comms:
        comm.abort()


main()
