"""What PyTorch does to a library, timed: lists of calls, odd tensors, messages, process groups side by side, and a matrix
multiplication beside an all-reduce. torch_patterns.py, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set; rank 0 prints a
line `TIME {"name": ..., "us": ...}` for each."""

import gc
import json
import os

import torch
import torch.distributed as dist
from torch_timing import timed as rounds_of

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
DEVICE = torch.device("cuda", RANK)
MIB = 1 << 20


def tensor(count, dtype=torch.bfloat16, start=0):
    return torch.ones(count + start, dtype=dtype, device=DEVICE)[start:]


def timed(name, call, repeats=20, rounds=5):
    """Microseconds of one call, the host's work included: of `rounds`, in each the slowest rank's, the least. As after many steps of a program:
    buffers are known to the peers by then, which takes some dozens of calls."""
    for _ in range(100):
        call()
    slowest = torch.tensor(rounds_of(call, repeats, rounds), device=DEVICE)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    least = slowest.min().item()
    if RANK == 0:
        print("TIME " + json.dumps({"name": name, "us": round(least, 2)}), flush=True)
    return least


def lists():
    for calls, size in ((8, 16 << 10), (64, 256 << 10), (200, 16 << 10)):
        tensors = [tensor(size // 2) for _ in range(calls)]

        def together(tensors=tensors):
            with dist._coalescing_manager(device=DEVICE):
                for each in tensors:
                    dist.all_reduce(each)

        timed(f"{calls} all-reduces of {size >> 10} KiB in one group", together)


def odd():
    for start, count in ((0, 15_000_000), (1, 15_000_000), (0, 15_000_001), (3, 15_000_001)):
        one = tensor(count, start=start)
        timed(f"all-reduce bf16 of {count}, start {start}", lambda: dist.all_reduce(one))
        timed(f"reduce bf16 of {count}, start {start}", lambda: dist.reduce(one, 0))
        block, blocks = tensor(count // WORLD, start=start), tensor(count // WORLD * WORLD, start=start)
        timed(f"reduce-scatter bf16 of {count // WORLD} a rank, start {start}", lambda: dist.reduce_scatter_tensor(block, blocks))
        timed(f"all-gather bf16 of {count // WORLD} a rank, start {start}", lambda: dist.all_gather_into_tensor(blocks, block))


def messages():
    peer, source = (RANK + 1) % WORLD, (RANK - 1) % WORLD
    for count in (8, 32):
        sends = [tensor(4096) for _ in range(count)]
        receives = [tensor(4096) for _ in range(count)]

        def exchange(sends=sends, receives=receives):
            operations = [dist.P2POp(dist.isend, each, peer) for each in sends]
            operations += [dist.P2POp(dist.irecv, each, source) for each in receives]
            for work in dist.batch_isend_irecv(operations):
                work.wait()

        timed(f"{count} sends and receives of 8 KiB", exchange)
    for size in (32 << 10, 512 << 10):
        parts = [size // 2 * (peer % 2 + 1) // 2 for peer in range(WORLD)]
        outputs = [parts[RANK]] * WORLD
        source_, target = tensor(sum(parts)), tensor(sum(outputs))
        timed(f"uneven all-to-all of {size >> 10} KiB", lambda s=source_, t=target, p=parts, o=outputs: dist.all_to_all_single(t, s, o, p))


def cores():
    """The same work for both libraries. Two runs in which it differs were not on cores of one speed: hyper-threads that others use are half
    as fast, and so are the calls of a process that has one, mostly for as long as it lives."""
    timed("plain Python beside it, no call", lambda: sum(i * i for i in range(200)))


def small():
    timed("barrier", dist.barrier)
    for name, count in (("1 KiB", 512), ("100 KB", 50_000), ("2 MiB", MIB)):
        one = tensor(count)
        timed(f"broadcast of {name}", lambda one=one: dist.broadcast(one, 0))
        timed(f"all-reduce of {name}", lambda one=one: dist.all_reduce(one))


def groups():
    others = [dist.new_group(list(range(WORLD))) for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in others]
    for mib in (2, 32):
        tensors = [tensor(mib * MIB // 2) for _ in others]

        def both(tensors=tensors):
            works = []
            for group, stream, one in zip(others, streams, tensors):
                with torch.cuda.stream(stream):
                    works.append(dist.all_reduce(one, group=group, async_op=True))
            for work in works:
                work.wait()

        timed(f"two groups on two streams, all-reduce of {mib} MiB each", both)
        twice = tensor(mib * MIB)
        timed(f"one all-reduce of {2 * mib} MiB", lambda twice=twice: dist.all_reduce(twice))


def beside():
    """A multiplication that takes about as long as the all-reduce beside it."""
    side = torch.cuda.Stream()
    for mib, edge in ((32, 4096), (256, 8192)):
        a, b = (torch.randn(edge, edge, dtype=torch.bfloat16, device=DEVICE) for _ in range(2))
        one = tensor(mib * MIB // 2)

        def multiply(a=a, b=b):
            torch.mm(a, b)

        def together(a=a, b=b, one=one):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.mm(a, b)
            dist.all_reduce(one)
            torch.cuda.current_stream().wait_stream(side)

        timed(f"product of {edge} x {edge}", multiply)
        timed(f"all-reduce of {mib} MiB", lambda one=one: dist.all_reduce(one))
        timed(f"product of {edge} x {edge} beside an all-reduce of {mib} MiB", together)


gc.disable()  # a collection takes 0.2 s
torch.cuda.set_device(DEVICE)
dist.init_process_group("nccl", device_id=DEVICE)
for part in (cores, small, lists, odd, messages, groups, beside):
    part()
dist.destroy_process_group()
