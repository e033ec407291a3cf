"""Two ranks on virtual GPUs, of which one is late: with nothing but Python and the libraries, on a machine without a compiler.

Prints the sum. With NCCL_DEBUG=WARN and NICCOLITE_STALL_WARNING=1 the library says, before, for whom rank 0 waits.
LD_LIBRARY_PATH has the folders of libnccl.so.2 and of the virtual GPUs' libcudart.so.13.
"""

import array
import ctypes
import sys
import time

nccl = ctypes.CDLL("libnccl.so.2")
cuda = ctypes.CDLL("libcudart.so.13")
COUNT, FLOAT, SUM, TO_DEVICE, TO_HOST = 4, 7, 0, 1, 2


def check(result, call):
    if result != 0:
        sys.exit(f"{call} failed: {result}")


comms = (ctypes.c_void_p * 2)()
check(nccl.ncclCommInitAll(comms, 2, None), "ncclCommInitAll")
buffers, streams = [], []
for rank in range(2):
    check(cuda.cudaSetDevice(rank), "cudaSetDevice")
    buffer, stream = ctypes.c_void_p(), ctypes.c_void_p()
    check(cuda.cudaMalloc(ctypes.byref(buffer), ctypes.c_size_t(4 * COUNT)), "cudaMalloc")
    check(cuda.cudaStreamCreate(ctypes.byref(stream)), "cudaStreamCreate")
    values = (ctypes.c_float * COUNT)(*[rank + 1] * COUNT)
    check(cuda.cudaMemcpy(buffer, values, ctypes.c_size_t(4 * COUNT), TO_DEVICE), "cudaMemcpy")
    buffers.append(buffer)
    streams.append(stream)
for rank in range(2):
    if rank == 1:
        time.sleep(4)
    check(cuda.cudaSetDevice(rank), "cudaSetDevice")
    check(
        nccl.ncclAllReduce(
            buffers[rank], buffers[rank], ctypes.c_size_t(COUNT), FLOAT, SUM, ctypes.c_void_p(comms[rank]), streams[rank]
        ),
        "ncclAllReduce",
    )
for rank in range(2):
    result = (ctypes.c_float * COUNT)()
    check(cuda.cudaStreamSynchronize(streams[rank]), "cudaStreamSynchronize")
    check(cuda.cudaMemcpy(result, buffers[rank], ctypes.c_size_t(4 * COUNT), TO_HOST), "cudaMemcpy")
    print(f"rank {rank}: {array.array('f', result).tolist()}")
for comm in comms:
    check(nccl.ncclCommDestroy(ctypes.c_void_p(comm)), "ncclCommDestroy")
