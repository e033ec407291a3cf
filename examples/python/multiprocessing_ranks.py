"""Ranks as processes of the standard library: each has a GPU; the unique id goes through a queue.

    python examples/python/multiprocessing_ranks.py [ranks]
"""

import multiprocessing
import sys

import nccl.core as nccl
import numpy as np
from nccl.core.cuda import Device


def main(rank: int, ranks: int, ids: "multiprocessing.Queue[nccl.UniqueId]") -> None:
    Device(rank).set_current()
    if rank == 0:
        identity = nccl.get_unique_id()
        for _ in range(ranks - 1):
            ids.put(identity)
    else:
        identity = ids.get()
    comm = nccl.Communicator.init(ranks, rank, identity)

    x = np.arange(1000, dtype=np.float32) + rank
    total = np.empty_like(x)
    comm.allreduce(x, total, nccl.SUM)
    expected = ranks * np.arange(1000) + sum(range(ranks))
    if not np.array_equal(total, expected):
        raise SystemExit(f"rank {rank}: wrong sum")
    comm.destroy()
    if rank == 0:
        print(f"{ranks} processes agree")


if __name__ == "__main__":
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    context = multiprocessing.get_context("spawn")  # a forked child cannot use the GPUs of its parent
    ids: "multiprocessing.Queue[nccl.UniqueId]" = context.Queue()
    processes = [context.Process(target=main, args=(rank, ranks, ids)) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(max(process.exitcode or 0 for process in processes))
