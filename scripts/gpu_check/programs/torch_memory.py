"""All-reduces of PyTorch's tensors as its allocator gives them, timed and verified: large ones, many in turn, groups of small ones, and
tensors that are new in each call. torch_memory.py, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set; PYTORCH_CUDA_ALLOC_CONF chooses
the allocator. Rank 0 prints a line `TIME {"name": ..., "us": ..., "wrong": ...}` for each case, and `ALLOCATOR {...}` once."""

import gc
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch_timing import timed

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
DEVICE = torch.device("cuda", RANK)
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
PERIOD = 2048  # elements after which the values of a tensor repeat; divides every size
SCALE = float(os.environ.get("TORCH_MEMORY_SCALE", "1"))  # of sizes, for machines with little memory


def tensor(size):
    """A bf16 tensor of `size` bytes. Its contents are undefined."""
    count = max(PERIOD, int(size * SCALE) // 2 // PERIOD * PERIOD)
    return torch.empty(count, dtype=torch.bfloat16, device=DEVICE)


def values(rank):
    """Small integers, so that sums over a few ranks are exact in bf16."""
    return (torch.arange(PERIOD, device=DEVICE) % 13 + rank).to(torch.bfloat16)


def fill(one):
    one.view(-1, PERIOD).copy_(values(RANK))


def count_wrong(one):
    expected = sum(values(rank) for rank in range(WORLD))
    rows = one.view(-1, PERIOD)
    # Piece by piece: the comparison of a whole tensor takes half its size.
    return sum(int((piece != expected).sum()) for piece in rows.split(32768))


def verify(tensors, call):
    """Elements over all ranks that are wrong after one call of `call`."""
    for one in tensors:
        fill(one)
    call()
    torch.cuda.synchronize()
    wrong = torch.tensor([sum(count_wrong(one) for one in tensors)], dtype=torch.int64, device=DEVICE)
    dist.all_reduce(wrong)
    return int(wrong.item())


def report(name, rounds, wrong):
    """Of each round, the slowest rank's time; of the rounds, the median."""
    slowest = torch.tensor(rounds, dtype=torch.float64, device=DEVICE)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    if RANK == 0:
        print("TIME " + json.dumps({"name": name, "us": round(statistics.median(slowest.tolist()), 2), "wrong": wrong}), flush=True)


def one_by_one():
    for name, size, repeats in (("64 MiB", 64 * MIB, 20), ("256 MiB", 256 * MIB, 10), ("2 GiB", 2 * GIB, 4)):
        one = tensor(size)
        wrong = verify([one], lambda: dist.all_reduce(one))
        for _ in range(max(5, repeats)):
            dist.all_reduce(one)
        report(f"all-reduce of {name}", timed(lambda: dist.all_reduce(one), repeats), wrong)
        del one


def in_turn():
    for count, name, size in ((40, "64 MiB", 64 * MIB), (8, "256 MiB", 256 * MIB)):
        tensors = [tensor(size) for _ in range(count)]

        def all_of_them(tensors=tensors):
            for one in tensors:
                dist.all_reduce(one)

        wrong = verify(tensors, all_of_them)
        for _ in range(3):
            all_of_them()
        report(f"{count} tensors of {name} in turn", [round_ / count for round_ in timed(all_of_them, 2)], wrong)
        del tensors, all_of_them


def coalesced():
    for name, size in (("256 KiB", 256 * KIB), ("4 KiB", 4 * KIB)):
        tensors = [tensor(size) for _ in range(64)]

        def together(tensors=tensors):
            with dist._coalescing_manager(device=DEVICE):
                for one in tensors:
                    dist.all_reduce(one)

        wrong = verify(tensors, together)
        for _ in range(20):
            together()
        report(f"64 all-reduces of {name} in a group", timed(together, 20), wrong)


def new_each_time():
    """A tensor for each call. Three are alive at a time, and sizes differ, so that addresses do."""
    for name, size, calls, empties in (("16 MiB, cached", 16 * MIB, 200, False), ("1 MiB, cached", MIB, 200, False),
                                       ("64 MiB, not cached", 64 * MIB, 40, True)):
        rounds, wrong = [], 0
        for _ in range(3):
            alive, last = [], None
            torch.cuda.synchronize()
            dist.barrier()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for call in range(calls):
                if len(alive) == 3:
                    alive.pop(0)
                    if empties:
                        torch.cuda.empty_cache()
                alive.append(tensor(size + call % 8 * 64 * KIB))
                dist.all_reduce(alive[-1])
            torch.cuda.synchronize()
            rounds.append((time.perf_counter() - begin) / calls * 1e6)
            last = alive
            del alive
        # Only now: a tensor that is used again is mapped by peers, which the next round would pay for.
        for one in last:
            wrong += verify([one], lambda one=one: dist.all_reduce(one))
        del last, one
        report(f"a new tensor each call, {name}", rounds, wrong)


def say_allocator():
    """What PyTorch's allocator really does."""
    segments = torch.cuda.memory_snapshot()
    expandable = sum(1 for segment in segments if segment.get("is_expandable"))
    if RANK == 0:
        conf = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
        print("ALLOCATOR " + json.dumps({"conf": conf, "segments": len(segments), "expandable": expandable}), flush=True)


gc.disable()  # a collection takes 0.2 s
torch.cuda.set_device(DEVICE)
dist.init_process_group("nccl", device_id=DEVICE)
for part in (one_by_one, in_turn, coalesced, new_each_time):
    part()
    gc.collect()
    if part is one_by_one:
        say_allocator()
dist.destroy_process_group()
