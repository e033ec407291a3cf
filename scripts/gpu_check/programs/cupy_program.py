"""CuPy's binding of the C API: one process over all GPUs, and one communicator made of another."""

import sys

import cupy
from cupy.cuda import nccl

from report import run

N = cupy.cuda.runtime.getDeviceCount()
COUNT = 10_007


def on_all(communicators, call, make):
    """Calls call(communicator, rank, buffers, stream) for every rank in one group; `make(rank)` makes a rank's arrays."""
    buffers, streams = [], []
    for rank in range(N):
        with cupy.cuda.Device(rank):
            buffers.append(make(rank))
            streams.append(cupy.cuda.Stream(non_blocking=True))
            cupy.cuda.Device(rank).synchronize()
    nccl.groupStart()
    for rank in range(N):
        with cupy.cuda.Device(rank):
            call(communicators[rank], rank, buffers[rank], streams[rank].ptr)
    nccl.groupEnd()
    for stream in streams:
        stream.synchronize()
    return buffers


def every(communicators):
    def reduce_all(comm, rank, arrays, stream):
        comm.allReduce(arrays[0].data.ptr, arrays[1].data.ptr, COUNT, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream)

    def gather_all(comm, rank, arrays, stream):
        comm.allGather(arrays[0].data.ptr, arrays[1].data.ptr, COUNT, nccl.NCCL_FLOAT32, stream)

    def spread(comm, rank, arrays, stream):
        comm.broadcast(arrays[0].data.ptr, arrays[1].data.ptr, COUNT, nccl.NCCL_FLOAT32, N - 1, stream)

    def pass_on(comm, rank, arrays, stream):
        comm.send(arrays[0].data.ptr, COUNT, nccl.NCCL_FLOAT32, (rank + 1) % N, stream)
        comm.recv(arrays[1].data.ptr, COUNT, nccl.NCCL_FLOAT32, (rank - 1) % N, stream)

    def arrays(blocks):
        return lambda rank: (cupy.full(COUNT, rank + 1, cupy.float32), cupy.zeros(blocks * COUNT, cupy.float32))

    for _, got in on_all(communicators, reduce_all, arrays(1)):
        assert bool((got == N * (N + 1) // 2).all()), "all-reduce"
    for _, got in on_all(communicators, gather_all, arrays(N)):
        assert all(bool((got[r * COUNT:(r + 1) * COUNT] == r + 1).all()) for r in range(N)), "all-gather"
    for _, got in on_all(communicators, spread, arrays(1)):
        assert bool((got == N).all()), "broadcast"
    for rank, (_, got) in enumerate(on_all(communicators, pass_on, arrays(1))):
        assert bool((got == (rank - 1) % N + 1).all()), "send and receive"


def one_process():
    communicators = nccl.NcclCommunicator.initAll(N)
    every(communicators)
    for communicator in communicators:
        communicator.destroy()


def by_id():
    unique = nccl.get_unique_id()
    communicators = []
    nccl.groupStart()
    for rank in range(N):
        with cupy.cuda.Device(rank):
            communicators.append(nccl.NcclCommunicator(N, unique, rank))
    nccl.groupEnd()
    every(communicators)
    for communicator in communicators:
        assert communicator.size() == N and communicator.check_async_error() is None
        communicator.destroy()


if __name__ == "__main__":
    sys.exit(0 if run([(function.__name__, function) for function in (one_process, by_id)]) else 1)
