"""What PyTorch's calls of NCCL's API take its thread, and the GPU, beside what the whole operation takes: two processes of

  RANK=0|1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 LD_PRELOAD=build/bench/libcall_times.so[:build/lib/libnccl.so.2]
      python3 bench/torch_host_time.py build/bench/libcall_times.so

Rank 0 prints a line of JSON for each: microseconds of an operation, of them those before its calls have returned, the library's calls
(number, microseconds of each), and of a traced run the kernels' time and that of their launches. Operations are measured when they
have been called 500 times, since buffers are mapped by the other process meanwhile.
"""

import ctypes
import json
import os
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
DEVICE = torch.device("cuda", RANK)
REPEATS = 20
TIMES = ctypes.CDLL(sys.argv[1])


def tensor(count, start=0):
    return torch.ones(count + start, dtype=torch.bfloat16, device=DEVICE)[start:]


def meet():
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()


def one_round(call):
    meet()
    begin = time.perf_counter()
    for _ in range(REPEATS):
        call()
    returned = time.perf_counter()
    torch.cuda.synchronize()
    return [1e6 * (end - begin) / REPEATS for end in (time.perf_counter(), returned)]


def traced(call):
    """Microseconds of kernels and of launches, medians."""
    meet()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        for _ in range(REPEATS):
            call()
        torch.cuda.synchronize()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiled.export_chrome_trace(file.name)
        events = json.load(open(file.name))["traceEvents"]
    kernels = [e["dur"] for e in events
               if e.get("cat") == "kernel" and ("nccl" in e["name"].lower() or "niccolite" in e["name"])]
    launches = [e["dur"] for e in events if e.get("name", "").startswith("cuLaunchKernelEx")]
    return [round(statistics.median(each), 2) if each else None for each in (kernels, launches)]


def measure(name, call):
    for _ in range(5):
        for _ in range(100):
            call()
        torch.cuda.synchronize()
        time.sleep(0.03)
    rounds = [one_round(call) for _ in range(7)]
    text = ctypes.create_string_buffer(4096)
    meet()
    TIMES.call_times_start()
    for _ in range(REPEATS):
        call()
    TIMES.call_times_stop(text, len(text))
    kernel, launch = traced(call)
    if RANK == 0:
        total, returned = (round(statistics.median(each), 1) for each in zip(*rounds))
        print(json.dumps({"what": name, "us": total, "host_us": returned, "calls": json.loads(text.value),
                          "kernel_us": kernel, "launch_us": launch}), flush=True)


torch.cuda.set_device(DEVICE)
dist.init_process_group("nccl", device_id=DEVICE)
for name, count in (("1 KiB", 512), ("100 KB", 50_000), ("2 MiB", 1 << 20)):
    one = tensor(count)
    measure(f"all-reduce of {name}", lambda one=one: dist.all_reduce(one))
    measure(f"broadcast of {name}", lambda one=one: dist.broadcast(one, 0))
for calls, size in ((8, 16 << 10), (64, 256 << 10), (200, 16 << 10)):
    parts = [tensor(size // 2) for _ in range(calls)]

    def together(parts=parts):
        with dist._coalescing_manager(device=DEVICE):
            for part in parts:
                dist.all_reduce(part)

    measure(f"{calls} all-reduces of {size >> 10} KiB in one group", together)
odd = tensor(15_000_000, start=1)
measure("all-reduce of 30 MB, start 1", lambda: dist.all_reduce(odd))
measure("reduce of 30 MB, start 1", lambda: dist.reduce(odd, 0))
dist.destroy_process_group()
