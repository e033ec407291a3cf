"""What a call costs in Python: a small all-reduce, beside the same call in C (bench/python_calls.cc) and in NVIDIA's nccl4py.

    python bench/python_calls.py --c build/release/bin/python_calls --nccl4py <python with nccl4py> --json result.json

Rank 0 queues operations that cannot begin before rank 1's come: nothing but the call is measured. Nanoseconds, of the
round that was disturbed least; all are measured in turns, since machines are faster at one time than at another.
nccl4py runs on the same library: on virtual GPUs, through their libcuda.so.1 (docs/python.md says how to install it).
"""

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time

os.environ.setdefault("NICCOLITE_DEVICES", "virtual:2")

CALLS, ROUNDS, COUNT, TURNS = 100, 40, 8, 4


class Protocol:
    """A stream of somebody else."""

    def __init__(self, handle):
        self._handle = handle

    def __cuda_stream__(self):
        return (0, self._handle)


class Array:
    """Floats of somebody else, on a device."""

    def __init__(self, memory):
        self.memory = memory
        self.__cuda_array_interface__ = {"shape": (COUNT,), "typestr": "<f4", "data": (int(memory.handle), False),
                                         "version": 3, "strides": None}


def measure(nccl, comms, synchronize, forms, arrays):
    """`forms`: what each rank gives as its stream. All ranks have `arrays`, to send and to receive."""
    best = float("inf")

    def queue(rank):
        call, (send, receive), form = comms[rank].allreduce, arrays[rank], forms[rank]
        for _ in range(CALLS):
            call(send, receive, nccl.SUM, stream=form)

    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        queue(0)
        best = min(best, (time.perf_counter_ns() - start) / CALLS)
        queue(1)
        synchronize()
    return best


def print_nccl4py():
    """One turn with NVIDIA's package, in an interpreter that has it."""
    import nccl.core
    from cuda.core import Device

    devices = [Device(rank) for rank in range(2)]
    comms = nccl.core.Communicator.init_all(2)
    streams = []
    for device in devices:
        device.set_current()
        streams.append(device.create_stream())
    memory = [[nccl.core.mem_alloc(4 * COUNT, rank) for _ in range(2)] for rank in range(2)]
    kinds = {"mem_alloc": memory, "__cuda_array_interface__": [[Array(one) for one in pair] for pair in memory]}
    forms = {"integer": [int(stream.handle) for stream in streams], "cuda.core.Stream": streams}
    costs = {f"{kind}, stream: {form}": measure(nccl.core, comms, lambda: [stream.sync() for stream in streams], given, arrays)
             for kind, arrays in kinds.items() for form, given in forms.items()}
    print(json.dumps({"version": importlib.metadata.version("nccl4py"), "ns": costs}))
    sys.stdout.flush()
    os._exit(0)


def with_nccl4py(python):
    folder = subprocess.check_output([python, "-c", "import niccolite; print(niccolite.get_virtual_cuda())"], text=True)
    environment = {**os.environ, "LD_LIBRARY_PATH": folder.strip()}
    environment.pop("PYTHONPATH", None)
    return json.loads(subprocess.check_output([python, __file__, "--print-nccl4py"], env=environment))


def import_milliseconds():
    code = "import time; t = time.perf_counter(); import nccl.core; print((time.perf_counter() - t) * 1e3)"
    return min(float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(10))


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), platform.machine())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--c", metavar="PROGRAM", help="bench/python_calls.cc, compiled")
    parser.add_argument("--nccl4py", metavar="PYTHON", help="an interpreter that has nccl4py, cuda-core and niccolite")
    parser.add_argument("--json", metavar="FILE", help="write the result there, too")
    parser.add_argument("--print-nccl4py", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.print_nccl4py:
        print_nccl4py()

    import nccl.core as nccl
    import numpy as np
    from nccl import virtual

    comms = nccl.Communicator.init_all(2)
    streams = [virtual.stream(rank) for rank in range(2)]
    memory = [[nccl.mem_alloc(4 * COUNT, rank) for _ in range(2)] for rank in range(2)]
    kinds = {
        "NumPy arrays": [[np.zeros(COUNT, np.float32) for _ in range(2)] for _ in range(2)],
        "nccl.virtual.array": [[virtual.array(np.zeros(COUNT), "f4", rank) for _ in range(2)] for rank in range(2)],
        "mem_alloc": memory,
        "__cuda_array_interface__": [[Array(one) for one in pair] for pair in memory],
    }
    handles = [stream.handle for stream in streams]
    forms = {"integer": handles, "nccl.virtual.Stream": streams, "__cuda_stream__": [Protocol(handle) for handle in handles]}

    def synchronize():
        for stream in streams:
            stream.synchronize()

    in_c, ours, theirs, version = [], {}, {}, None
    for _ in range(TURNS):
        if options.c:
            in_c.append(float(subprocess.check_output([options.c])))
        for kind, arrays in kinds.items():
            for form, given in forms.items():
                ours.setdefault(f"{kind}, stream: {form}", []).append(measure(nccl, comms, synchronize, given, arrays))
        if options.nccl4py:
            answer = with_nccl4py(options.nccl4py)
            version = answer["version"]
            for name, cost in answer["ns"].items():
                theirs.setdefault(name, []).append(cost)
    result = {
        "cpu": processor(), "cores": len(os.sched_getaffinity(0)), "python": platform.python_version(),
        "import_ms": round(import_milliseconds(), 1),
        "c_ns": round(min(in_c)) if in_c else None,
        "ours_ns": {name: round(min(costs)) for name, costs in ours.items()},
        "nccl4py": version, "nccl4py_ns": {name: round(min(costs)) for name, costs in theirs.items()},
    }
    base = result["c_ns"]
    if base:
        print(f"{'C':58} {base:6}")
    for title, costs in [("", result["ours_ns"]), (f"nccl4py {version}: ", result["nccl4py_ns"])]:
        for name, cost in costs.items():
            print(f"{title + name:58} {cost:6}" + (f"  {cost - base:+6}" if base else ""))
    print(f"{'import nccl.core':58} {result['import_ms']:6} ms")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
            file.write("\n")
    sys.stdout.flush()
    os._exit(0)  # operations of the last round may be left


main()
