"""Rounds of a program that runs out of memory and goes on: fills the device with tensors until PyTorch refuses, all-reduces some of them,
frees all, and allocates one tensor of almost all memory that was free before. torch_oom.py ROUNDS SECONDS, with RANK, WORLD_SIZE,
MASTER_ADDR and MASTER_PORT set. Ends after so many rounds or seconds. Rank 0 prints a line `OOM {...}` at the end, each rank
`FAILED {...}` where a step fails; exit status 1 then."""

import datetime
import gc
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
DEVICE = torch.device("cuda", RANK)
MIB, GIB = 1 << 20, 1 << 30
CLASSES = (4 * GIB, GIB, 256 * MIB, 64 * MIB, 20 * MIB, 2 * MIB)  # bytes, each until it no longer fits
ALMOST_ALL = 0.97
AGREES = 32 * MIB     # of free memory, before and after
AT_ONCE = 0.1         # seconds in which it is there again
AT_LAST = 5.0         # and in which the program gives up waiting
PIECE = 64 * MIB // 4  # elements that are compared at a time


def free_bytes():
    return torch.cuda.mem_get_info(DEVICE)[0]


class Exchange:
    """A tensor that is there from the beginning: the device may be full when ranks must agree."""

    def __init__(self):
        self.numbers = torch.zeros(len(CLASSES), dtype=torch.int64, device=DEVICE)
        self.host = torch.zeros(len(CLASSES), dtype=torch.int64).pin_memory()

    def least(self, numbers):
        """Of each number, the least of all ranks."""
        self.host.copy_(torch.tensor(numbers + [0] * (len(CLASSES) - len(numbers))))
        self.numbers.copy_(self.host)
        dist.all_reduce(self.numbers, op=dist.ReduceOp.MIN)
        self.host.copy_(self.numbers)
        return self.host.tolist()[:len(numbers)]


def fill_device():
    """Tensors of each class."""
    found = []
    for size in CLASSES:
        tensors = []
        while True:
            try:
                tensors.append(torch.empty(size // 4, dtype=torch.float32, device=DEVICE))
            except torch.cuda.OutOfMemoryError:
                break
        found.append(tensors)
    return found


def count_wrong(tensor, value):
    return sum(int((piece != value).sum()) for piece in tensor.split(PIECE))


def warm_up():
    """Libraries connect, and kernels are loaded, while there is memory for it."""
    for size in CLASSES:
        tensor = torch.empty(size // 4, dtype=torch.float32, device=DEVICE).fill_(1)
        for _ in range(3):
            dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
            dist.all_reduce(tensor)
            tensor.fill_(1)
        if count_wrong(tensor, 1):
            raise ValueError("a fill is wrong")
        del tensor
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def wait_until_free(before):
    """Seconds until as much is free as before, and what is missing then."""
    begin = time.perf_counter()
    while True:
        missing = before - free_bytes()
        spent = time.perf_counter() - begin
        if missing <= AGREES or spent > AT_LAST:
            return spent, missing
        time.sleep(0.001)


def run_round(number, exchange, before):
    """Seconds until the memory was free again. Raises what fails."""
    tensors = fill_device()
    counts = exchange.least([len(of_class) for of_class in tensors])
    chosen = [of_class[number % count] for of_class, count in zip(tensors, counts) if count > 0]
    if not chosen:
        raise RuntimeError(f"no tensor fits into {before >> 20} MiB")
    for tensor in chosen:
        tensor.fill_(RANK + 1 + number % 5)
    for tensor in chosen:
        dist.all_reduce(tensor)
    torch.cuda.synchronize()
    del tensors  # now there is room for a comparison
    value = WORLD * (WORLD + 1) // 2 + WORLD * (number % 5)
    wrong = sum(count_wrong(tensor, value) for tensor in chosen)
    if wrong:
        raise ValueError(f"{wrong} elements are wrong")
    del chosen, tensor
    torch.cuda.empty_cache()
    spent, missing = wait_until_free(before)
    if missing > AGREES:
        raise MemoryError(f"{missing >> 20} MiB are still missing {spent:.1f} s after all tensors were freed")
    whole = torch.empty(int(before * ALMOST_ALL) // MIB * MIB, dtype=torch.uint8, device=DEVICE)
    whole[::GIB].fill_(1)
    torch.cuda.synchronize()
    del whole
    torch.cuda.empty_cache()
    wait_until_free(before)
    return spent


def main():
    rounds, seconds = int(sys.argv[1]), float(sys.argv[2])
    gc.disable()
    torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl", device_id=DEVICE, timeout=datetime.timedelta(seconds=60))
    exchange = Exchange()
    warm_up()
    begin = time.monotonic()
    before = free_bytes()
    waits, done, problem = [], 0, None
    while done < rounds:
        try:
            waits.append(run_round(done, exchange, before))
        except Exception as error:  # of the library, or of PyTorch
            problem = f"round {done}: {type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:300]}"
            break
        done += 1
        # One that stops makes all stop, at the same round.
        if exchange.least([int(time.monotonic() - begin < seconds)])[0] == 0:
            break
    if problem:
        print("FAILED " + json.dumps({"rank": RANK, "rounds": done, "problem": problem}), flush=True)
        os._exit(1)  # another rank may wait for this one
    late = sum(wait > AT_ONCE for wait in waits)
    slowest = torch.tensor([max(waits, default=0.0), float(late)], dtype=torch.float64, device=DEVICE)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    if RANK == 0:
        print("OOM " + json.dumps({"rounds": done, "seconds": round(time.monotonic() - begin, 1),
                                   "free_mib": before >> 20, "lost_mib": (before - free_bytes()) >> 20,
                                   "free_again_ms": {"median": round(statistics.median(waits or [0.0]) * 1e3, 2),
                                                     "most": round(slowest[0].item() * 1e3, 2)},
                                   "late_rounds": int(slowest[1].item())}), flush=True)
    dist.destroy_process_group()


main()
