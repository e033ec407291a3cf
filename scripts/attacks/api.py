"""The C API of a build's libnccl.so.2 and of its virtual driver, by ctypes."""

import ctypes
import os
import pathlib

TYPES = {"int8": (0, 1), "int32": (2, 4), "half": (6, 2), "float": (7, 4), "double": (8, 8)}
OPERATIONS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
IN_PROGRESS = 7


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


class Library:
    def __init__(self, folder: pathlib.Path):
        self.cuda = ctypes.CDLL(str(folder / "vcuda/libcudart.so.13"), mode=os.RTLD_GLOBAL | os.RTLD_NOW)
        self.nccl = ctypes.CDLL(str(folder / "libnccl.so.2"), mode=os.RTLD_LOCAL | os.RTLD_NOW)
        self.nccl.ncclGetLastError.restype = ctypes.c_char_p

    def last_error(self, comm) -> str:
        return (self.nccl.ncclGetLastError(comm) or b"").decode(errors="replace")


class Device:
    """A virtual GPU of this process, with a stream."""

    def __init__(self, library: Library, ordinal: int):
        self.cuda = library.cuda
        self.check(self.cuda.cudaSetDevice(ordinal))
        self.stream = ctypes.c_void_p()
        # Non-blocking: copies of other buffers must not wait for an operation that never ends.
        self.check(self.cuda.cudaStreamCreateWithFlags(ctypes.byref(self.stream), 1))

    @staticmethod
    def check(code: int) -> None:
        if code != 0:
            raise RuntimeError(f"CUDA error {code}")

    def allocate(self, size: int) -> ctypes.c_void_p:
        pointer = ctypes.c_void_p()
        self.check(self.cuda.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(max(size, 256))))
        return pointer

    def write(self, pointer: ctypes.c_void_p, data: bytes) -> None:
        self.check(self.cuda.cudaMemcpy(pointer, data, ctypes.c_size_t(len(data)), 1))

    def read(self, pointer: ctypes.c_void_p, size: int) -> bytes:
        data = ctypes.create_string_buffer(size)
        self.check(self.cuda.cudaMemcpy(data, pointer, ctypes.c_size_t(size), 2))
        return data.raw

    def is_idle(self) -> bool:
        return self.cuda.cudaStreamQuery(self.stream) == 0
