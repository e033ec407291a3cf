"""`nccl.core` with tensors of a framework, ranks as threads of this process: Niccolite's package, or NVIDIA's nccl4py.

    python_program.py PyTorch|CuPy|NumPy RANKS

Each rank has a stream of its own, since ranks may share a GPU. Nothing here depends on whose package `nccl` is. NumPy is for
trying the program itself on virtual GPUs.
"""

import ctypes
import os
import sys
import threading
import time

import numpy as np

from report import Skip, run

FRAMEWORK, RANKS = sys.argv[1], int(sys.argv[2])
COUNT = 10_007
LIMIT = 60  # seconds a case may take


class Torch:
    types = ("float32", "bfloat16", "int8")

    def __init__(self):
        import torch

        self.torch = torch
        self.devices = torch.cuda.device_count()

    def choose(self, device):
        self.torch.cuda.set_device(device)

    def stream(self):
        return self.torch.cuda.Stream()

    def on(self, stream):
        return self.torch.cuda.stream(stream)

    def handle(self, stream):
        return stream.cuda_stream

    def full(self, count, value, dtype="float32"):
        return self.torch.full((count,), value, dtype=getattr(self.torch, dtype), device="cuda")

    def host(self, count):
        return self.torch.zeros(count)

    def empty(self, nccl, count):
        return nccl.torch.empty(count, dtype=self.torch.float32).fill_(0)

    def values(self, tensor):
        return tensor.float().cpu().numpy()

    def capture(self, stream, function):
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            function()
            graph.capture_end()
        return graph.replay


class Cupy:
    types = ("float32", "int8")

    def __init__(self):
        import cupy

        self.cupy = cupy
        self.devices = cupy.cuda.runtime.getDeviceCount()

    def choose(self, device):
        self.cupy.cuda.Device(device).use()

    def stream(self):
        return self.cupy.cuda.Stream(non_blocking=True)

    def on(self, stream):
        return stream

    def handle(self, stream):
        return stream.ptr

    def full(self, count, value, dtype="float32"):
        return self.cupy.full(count, value, dtype)

    def host(self, count):
        return np.zeros(count, np.float32)

    def empty(self, nccl, count):
        made = nccl.cupy.empty(count, np.float32)
        made[...] = 0
        return made

    def values(self, array):
        return self.cupy.asnumpy(array).astype(np.float32)

    def capture(self, stream, function):
        with stream:
            stream.begin_capture()
            function()
            graph = stream.end_capture()
        return lambda: graph.launch(stream)


class Numpy:
    types = ("float32", "int8")

    def __init__(self):
        from nccl import virtual

        self.virtual = virtual
        self.devices = len(virtual.devices(RANKS))

    def choose(self, device):
        self.virtual.devices()[device].set_current()

    def stream(self):
        return self.virtual.stream()

    def on(self, stream):
        class Done:
            __enter__ = staticmethod(stream.synchronize)

            def __exit__(self, *error):
                pass

        return Done()

    def handle(self, stream):
        return stream.handle

    def full(self, count, value, dtype="float32"):
        return np.full(count, value, dtype)

    def host(self, count):
        raise Skip("virtual GPUs take memory of the host")

    def empty(self, nccl, count):
        return self.virtual.array(np.zeros(count, np.float32))

    def values(self, array):
        return array.astype(np.float32)


framework = {"PyTorch": Torch, "CuPy": Cupy, "NumPy": Numpy}[FRAMEWORK]()  # before the package: it may load a library
import nccl.core as nccl  # noqa: E402

together = threading.Barrier(RANKS)


class Rank:
    """What a case has: the communicator, the stream, and shorthands."""

    def __init__(self, rank, identity):
        self.rank = rank
        framework.choose(rank % framework.devices)
        self.stream = framework.stream()
        with framework.on(self.stream):
            # Loads every kernel of the framework's that a case needs: later it would wait for a peer's.
            warm = framework.full(COUNT, 1)
            for dtype in framework.types:
                framework.values(framework.full(COUNT, 1, dtype))
            warm *= 2
            warm += 1
            framework.full(1, 0.25)
            framework.values(warm[:1])
        self.stream.synchronize()
        together.wait()
        self.comm = nccl.Communicator.init(RANKS, rank, identity)

    def full(self, count, value, dtype="float32"):
        with framework.on(self.stream):
            return framework.full(count, value, dtype)

    def expect(self, name, tensor, wanted):
        self.stream.synchronize()
        with framework.on(self.stream):
            got = framework.values(tensor)
        if not np.array_equal(got, np.broadcast_to(np.asarray(wanted, np.float32), got.shape)):
            raise AssertionError(f"rank {self.rank}, {name}: {got[:4]}..., not {np.ravel(wanted)[:4]}...")


def collectives(r):
    comm, n, rank, stream = r.comm, RANKS, r.rank, r.stream
    root, total, ranks = n - 1, n * (n + 1) // 2, np.arange(n)
    for dtype in framework.types:
        mine, out = r.full(COUNT, rank + 1, dtype), r.full(COUNT, 0, dtype)
        wide, wide_out = r.full(COUNT * n, rank + 1, dtype), r.full(COUNT * n, 0, dtype)
        comm.allreduce(mine, out, nccl.SUM, stream=stream)
        r.expect(f"allreduce {dtype}", out, total)
        comm.allreduce(mine, out, nccl.MAX, stream=framework.handle(stream))
        r.expect(f"allreduce max, {dtype}, the stream as a number", out, n)
        comm.reduce(mine, out, nccl.SUM, root, stream=stream)
        r.expect(f"reduce {dtype}", out, total if rank == root else n)
        comm.broadcast(mine, out, root, stream=stream)
        r.expect(f"broadcast {dtype}", out, n)
        comm.allgather(mine, wide_out, stream=stream)
        r.expect(f"allgather {dtype}", wide_out, np.repeat(ranks + 1, COUNT))
        comm.gather(mine, wide_out, 0, stream=stream)
        comm.scatter(wide, out, 0, stream=stream)
        r.expect(f"scatter {dtype}", out, 1)
        comm.reduce_scatter(wide, out, nccl.SUM, stream=stream)
        r.expect(f"reduce_scatter {dtype}", out, total)
        comm.alltoall(wide, wide_out, stream=stream)
        r.expect(f"alltoall {dtype}", wide_out, np.repeat(ranks + 1, COUNT))
        comm.allreduce(mine, mine, nccl.SUM, stream=stream)
        r.expect(f"allreduce in place, {dtype}", mine, total)


def messages(r):
    out, mine = r.full(COUNT, 0), r.full(COUNT, r.rank)
    with nccl.group():
        r.comm.send(mine, (r.rank + 1) % RANKS, stream=r.stream)
        r.comm.recv(out, (r.rank - 1) % RANKS, stream=r.stream)
    r.expect("send and recv", out, (r.rank - 1) % RANKS)


def streams_order_work(r):
    """What the framework queues before and behind an operation, without waiting in between."""
    if FRAMEWORK == "NumPy":
        raise Skip("NumPy queues nothing")
    x, y = r.full(1 << 22, 1), r.full(1 << 22, 0)
    with framework.on(r.stream):
        for _ in range(10):
            x *= 2
            x += r.rank
            r.comm.allreduce(x, y, nccl.SUM, stream=r.stream)
            y *= 2
    value, wanted = np.ones(RANKS), 0
    for _ in range(10):
        value = value * 2 + np.arange(RANKS)
        wanted = 2 * value.sum()
    r.expect("ten rounds", y, wanted)


def buffers_live(r):
    """Nobody holds the buffers but the operations."""
    kept = r.full(COUNT, 0)
    for i in range(100):
        r.comm.allreduce(r.full(COUNT, i), kept if i == 99 else r.full(COUNT, 0), nccl.SUM, stream=r.stream)
    r.expect("the last of 100", kept, 99 * RANKS)


def graphs(r):
    if FRAMEWORK == "NumPy":
        raise Skip("NumPy captures no graphs")
    x, y, z = r.full(COUNT, 1), r.full(COUNT, 0), r.full(COUNT, 0)

    def step():
        r.comm.allreduce(x, y, nccl.SUM, stream=r.stream)
        r.comm.broadcast(y, z, 0, stream=r.stream)
        r.comm.allreduce(x, x, nccl.AVG, stream=r.stream)

    step()
    r.stream.synchronize()
    together.wait()
    replay = framework.capture(r.stream, step)
    together.wait()
    for i in range(20):
        with framework.on(r.stream):
            x *= 0
            x += i + r.rank
            replay()
    wanted = sum(19 + rank for rank in range(RANKS))
    r.expect("replays, sums", z, wanted)
    r.expect("replays, averages", x, wanted / RANKS)
    together.wait()


def windows_and_puts(r):
    with framework.on(r.stream):
        memory = framework.empty(nccl, 2 * COUNT)
        memory += r.rank + 1
    r.stream.synchronize()
    together.wait()
    registered = r.comm.register_buffer(memory)
    window = r.comm.register_window(memory, nccl.WindowFlag.COLL_SYMMETRIC)
    together.wait()
    r.comm.allreduce(memory[:COUNT], memory[:COUNT], nccl.SUM, stream=r.stream)
    r.expect("in a window", memory[:COUNT], RANKS * (RANKS + 1) // 2)
    r.expect("the rest of it", memory[COUNT:], r.rank + 1)
    together.wait()
    what = {"window": window is not None, "puts": bool(r.comm.host_rma_support)}
    if window is not None and r.comm.host_rma_support:
        r.comm.put_signal(memory[:COUNT], (r.rank + 1) % RANKS, window, COUNT, stream=r.stream)
        r.comm.wait_signal(nccl.WaitSignalDesc((r.rank - 1) % RANKS), stream=r.stream)
        r.expect("what was put", memory[COUNT:], RANKS * (RANKS + 1) // 2)
    together.wait()
    registered.close()
    if window is not None:
        window.close()
    return what


def operators(r):
    x, y = r.full(COUNT, r.rank + 1), r.full(COUNT, 0)
    half = r.comm.create_pre_mul_sum(0.5, nccl.FLOAT32)
    r.comm.allreduce(x, y, half, stream=r.stream)
    r.expect("a number as factor", y, RANKS * (RANKS + 1) / 4)
    if FRAMEWORK != "NumPy":
        factor = r.full(1, 0.25)
        r.stream.synchronize()
        together.wait()
        quarter = r.comm.create_pre_mul_sum(factor, nccl.FLOAT32)
        r.comm.allreduce(x, y, quarter, stream=r.stream)
        r.expect("device memory as factor", y, RANKS * (RANKS + 1) / 8)


def derived(r):
    turned = r.comm.split(color=0, key=-r.rank)
    x = r.full(COUNT, r.rank)
    turned.broadcast(x, x, 0, stream=r.stream)
    r.expect("rank 0 is the last one", x, RANKS - 1)
    if turned.rank != RANKS - 1 - r.rank:
        raise AssertionError(f"rank {r.rank} became {turned.rank}")
    turned.destroy()


def refusals(r):
    x = r.full(4, 1)
    for call, what in [(lambda: r.comm.allreduce(framework.host(4), x, nccl.SUM, stream=r.stream), "host memory"),
                       (lambda: r.comm.allreduce(x, x[:3], nccl.SUM, stream=r.stream), "too small"),
                       (lambda: r.comm.alltoall(x[:1], x, stream=r.stream) if RANKS > 1 else r.comm.alltoall(x, x[:3]), "less than a block")]:
        try:
            call()
        except nccl.NcclInvalid:
            continue
        raise AssertionError(f"{what} is taken")


def call_cost(r):
    """Microseconds that a caller spends in a small all-reduce: rank 0 queues what cannot begin before the others come."""
    calls, rounds, costs = 50, 30, {}
    x, y = r.full(8, 1), r.full(8, 0)
    kinds = {FRAMEWORK: (x, y)}
    if FRAMEWORK != "NumPy":
        kinds["mem_alloc"] = (nccl.mem_alloc(32), nccl.mem_alloc(32))
    for name, (send, receive) in kinds.items():
        for form, stream in (("object", r.stream), ("number", framework.handle(r.stream))):
            best = float("inf")
            for _ in range(rounds):
                r.stream.synchronize()
                together.wait()
                for turn in range(RANKS):
                    if turn == r.rank:
                        start = time.perf_counter()
                        for _ in range(calls):
                            r.comm.allreduce(send, receive, nccl.SUM, stream=stream)
                        best = min(best, (time.perf_counter() - start) / calls)
                    together.wait()
            costs[f"{name}, stream: {form}"] = round(best * 1e6, 2)
    return {"call_us": costs}


CASES = (collectives, call_cost, messages, streams_order_work, buffers_live, graphs, operators, derived, refusals, windows_and_puts)


def on_all(ranks, case):
    """One case on all ranks at once; what rank 0's function returns. The process ends where a rank does not come back."""
    answers, errors = {}, []
    together.reset()  # a case that was skipped has broken it

    def main(r):
        framework.choose(r.rank % framework.devices)
        try:
            answers[r.rank] = case(r)
        except BaseException as error:
            errors.append(error)
            together.abort()

    threads = [threading.Thread(target=main, args=(r,), daemon=True) for r in ranks]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + LIMIT
    while any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
        if errors:
            deadline = min(deadline, time.monotonic() + 2)  # the others may wait for that rank
        time.sleep(0.001)
    if errors:
        raise next((error for error in errors if not isinstance(error, threading.BrokenBarrierError)), errors[0])
    if any(thread.is_alive() for thread in threads):
        raise TimeoutError(f"not done after {LIMIT} s")
    return answers.get(0)


def library():
    """The version and the file of the library that made the communicators: of several in the process the first one."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        files = [line.split()[-1] for line in maps if "libnccl" in line]
    preloaded = os.environ.get("LD_PRELOAD")
    file = os.path.realpath(preloaded) if preloaded else next((file for file in files if "niccolite" in file), files[0])
    version = ctypes.c_int()
    ctypes.CDLL(file).ncclGetVersion(ctypes.byref(version))
    return f"{version.value // 10000}.{version.value // 100 % 100}.{version.value % 100} {file}"


def main():
    identity = nccl.get_unique_id()
    ranks = [None] * RANKS

    def begin(rank):
        ranks[rank] = Rank(rank, identity)

    threads = [threading.Thread(target=begin, args=(rank,), daemon=True) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    if None in ranks:
        print("the ranks did not meet", flush=True)
        os._exit(1)
    print(f"LIBRARY {library()}", flush=True)
    is_right = run([(case.__name__, lambda case=case: on_all(ranks, case)) for case in CASES])
    sys.stdout.flush()
    os._exit(0 if is_right else 1)


main()
