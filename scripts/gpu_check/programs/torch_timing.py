"""What the programs of PyTorch that are timed have in common."""

import time

import torch
import torch.distributed as dist


def timed(call, repeats, rounds=5):
    """Microseconds of one call on this rank in each round, the host's work included. Ranks begin each round together."""
    found = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(repeats):
            call()
        torch.cuda.synchronize()
        found.append((time.perf_counter() - begin) / repeats * 1e6)
    return found
