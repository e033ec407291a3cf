"""One rank of an all-reduce by Gloo over TCP, for bench/versus_gloo: rank, port, sizes. Rank 0 prints JSON.

Each operation is waited for, as Gloo's calls do; the time is the mean of `iterations`, behind some that are not counted.
"""

import json
import sys
import time

import torch
import torch.distributed as dist


def iterations_of(size):
    return 1000 if size <= 4096 else 200 if size <= 1 << 20 else 20


def measure(size):
    data = torch.ones(max(size // 4, 1), dtype=torch.float32)
    dist.all_reduce(data)
    is_right = bool((data == 2).all())
    data.fill_(0)
    for _ in range(5):
        dist.all_reduce(data)
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(iterations_of(size)):
        dist.all_reduce(data)
    return (time.perf_counter() - begin) / iterations_of(size) * 1e6, is_right


def main():
    rank, port, sizes = int(sys.argv[1]), sys.argv[2], [int(size) for size in sys.argv[3].split(",")]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    rows = {}
    for size in sizes:
        microseconds, is_right = measure(size)
        if not is_right:
            sys.exit(f"gloo_all_reduce: wrong result of {size} bytes")
        rows[size] = microseconds
    if rank == 0:
        print(json.dumps({"torch": torch.__version__, "us": rows}))
    dist.barrier()


main()
