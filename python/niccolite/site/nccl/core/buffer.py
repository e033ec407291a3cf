"""Finds the memory that an object shows.

The extension reads Python's buffer protocol by itself (NumPy, memoryview, Buffer) and asks resolve()
about everything else.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from nccl.core.typing import NcclDataType, NcclInvalid
from niccolite import _native

if TYPE_CHECKING:
    from nccl.core.typing import NcclBufferSpec, NcclStreamSpec

__all__ = ["NcclBuffer", "View", "resolve"]

HOST = -1

# DLPack's codes of types, with bits: https://dmlc.github.io/dlpack
_DLPACK_TYPES = {
    (0, 8): NcclDataType.INT8, (0, 32): NcclDataType.INT32, (0, 64): NcclDataType.INT64,
    (1, 8): NcclDataType.UINT8, (1, 32): NcclDataType.UINT32, (1, 64): NcclDataType.UINT64,
    (2, 16): NcclDataType.FLOAT16, (2, 32): NcclDataType.FLOAT32, (2, 64): NcclDataType.FLOAT64,
    (4, 16): NcclDataType.BFLOAT16, (6, 8): NcclDataType.UINT8,
    (10, 8): NcclDataType.FLOAT8E4M3, (12, 8): NcclDataType.FLOAT8E5M2,
}  # fmt: skip
_DLPACK_CUDA = (2, 13)  # device, managed

# The array interfaces' names of types, with bytes.
_TYPESTRS = {
    prefix + code: (NcclDataType(value), size)
    for code, value, size in [
        ("i1", 0, 1), ("u1", 1, 1), ("i4", 2, 4), ("u4", 3, 4), ("i8", 4, 8), ("u8", 5, 8),
        ("f2", 6, 2), ("f4", 7, 4), ("f8", 8, 8),
    ]
    for prefix in ("<", "=", "|")
    if prefix != "|" or size == 1
}  # fmt: skip


class View(NamedTuple):
    """Memory as a call needs it: `elements` of `dtype` at `ptr`, of the device or HOST."""

    ptr: int
    elements: int
    dtype: NcclDataType
    device_id: int
    owner: object


def is_dense(shape: Sequence[int], strides: Sequence[float] | None) -> bool:
    """Do the elements lie side by side, in whatever order? `strides` in elements; None: they do."""
    if strides is None or 0 in shape:
        return True
    expected = 1
    for stride, extent in sorted(zip(strides, shape)):
        if extent == 1:
            continue
        if stride != expected:
            return False
        expected *= extent
    return True


def _check(name: str, shape: Sequence[int], strides: Sequence[float] | None, readonly: bool) -> int:
    if not is_dense(shape, strides):
        raise NcclInvalid(
            f"{name} is not contiguous: its elements must lie side by side (make a contiguous copy)"
        )
    if readonly:
        raise NcclInvalid(f"{name} is read-only, and the call writes to it")
    count = 1
    for extent in shape:
        count *= extent
    return count


def _type_of_interface(obj: Any, interface: dict[str, Any], name: str) -> tuple[NcclDataType, int]:
    """(type, bytes of an element)"""
    known = _TYPESTRS.get(interface["typestr"])
    if known is not None:
        return known
    import numpy

    # A typestr does not tell the types of ml_dtypes from raw bytes; their dtype does.
    dtype = getattr(obj, "dtype", None)
    dtype = numpy.dtype(interface["typestr"]) if dtype is None else dtype
    try:
        return NcclDataType.from_numpy_dtype(dtype), dtype.itemsize
    except NcclInvalid as error:
        raise NcclInvalid(f"{name}: {error}") from None


def _from_array_interface(
    obj: Any, interface: dict[str, Any], name: str, written: bool, is_device: bool
) -> View:
    kind, itemsize = _type_of_interface(obj, interface, name)
    strides = interface.get("strides")
    if strides is not None:
        strides = [stride / itemsize for stride in strides]
    address, readonly = interface["data"]
    count = _check(name, interface["shape"], strides, written and readonly)
    device = _native.device_of(address) if is_device and address else HOST
    return View(address, count, kind, device, obj)


def _from_cuda_array_interface(obj: Any, name: str, written: bool) -> View:
    return _from_array_interface(obj, obj.__cuda_array_interface__, name, written, True)


def _from_host_interface(obj: Any, name: str, written: bool) -> View:
    return _from_array_interface(obj, obj.__array_interface__, name, written, False)


def _from_dlpack(obj: Any, name: str, written: bool) -> View:
    address, shape, strides, code, bits, lanes, kind, ordinal = _native.describe_dlpack(obj)
    dtype = _DLPACK_TYPES.get((code, bits))
    if dtype is None or lanes != 1:
        raise NcclInvalid(f"{name} has elements that are not communicated (DLPack type {code}, {bits} bits)")
    count = _check(name, shape, strides, False)
    return View(address, count, dtype, ordinal if kind in _DLPACK_CUDA else HOST, obj)


def _from_torch(obj: Any, name: str, written: bool) -> View:
    from nccl.core.interop.torch import resolve_tensor

    _check(name, obj.shape, obj.stride(), False)
    ptr, count, dtype, device = resolve_tensor(obj)
    return View(ptr, count, dtype, HOST if device is None else device, obj)


def _from_cupy(obj: Any, name: str, written: bool) -> View:
    from nccl.core.interop.cupy import resolve_array

    if not obj.flags.c_contiguous:
        _check(name, obj.shape, [stride / obj.itemsize for stride in obj.strides], False)
    return View(*resolve_array(obj), obj)


def _from_memory(obj: Any, name: str, written: bool) -> View:
    import numpy

    array = numpy.asarray(obj)
    return _from_array_interface(obj, array.__array_interface__, name, written, False)


def resolve(obj: Any, name: str, written: bool) -> View:
    """The memory of `obj`, which is the argument `name` of a call that writes to it, or only reads.

    NcclInvalid: it shows none, or it cannot be used, with the reason.
    """
    framework = type(obj).__module__.partition(".")[0]
    if framework == "torch" and isinstance(obj, sys.modules["torch"].Tensor):
        return _from_torch(obj, name, written)
    if framework == "cupy" and isinstance(obj, sys.modules["cupy"].ndarray):
        return _from_cupy(obj, name, written)
    if isinstance(obj, _native.DeviceMemory):
        return View(obj.address, obj.nbytes, NcclDataType.INT8, obj.device, obj)
    for attribute, read in _INTERFACES:
        if getattr(obj, attribute, None) is not None:
            return read(obj, name, written)
    if isinstance(obj, (bytes, bytearray, memoryview)):
        return _from_memory(obj, name, written)
    what = "None" if obj is None else f"of type {type(obj).__name__}, which is no array"
    raise NcclInvalid(
        f"{name} is {what}: pass a NumPy or CuPy array, a tensor, or anything with __dlpack__, "
        "__cuda_array_interface__ or the buffer protocol (numpy.array() makes an array of numbers or a list)"
    )


_INTERFACES = (
    ("__cuda_array_interface__", _from_cuda_array_interface),
    ("__array_interface__", _from_host_interface),
    ("__dlpack__", _from_dlpack),
)


class NcclBuffer:
    """The memory of any buffer: `ptr`, `count` (elements), `dtype`, `device_id` (-1: the host's).

    NcclInvalid: it cannot be communicated. Keeps the buffer alive. `stream` is ignored: the stream of the
    call that uses the buffer orders the accesses to its memory.
    """

    __slots__ = ("_view",)

    def __init__(self, buffer: NcclBufferSpec, stream: NcclStreamSpec | None = None) -> None:
        self._view = resolve(buffer, "buffer", False)

    @property
    def ptr(self) -> int:
        """Address of the first element."""
        return self._view.ptr

    @property
    def count(self) -> int:
        """Elements."""
        return self._view.elements

    @property
    def dtype(self) -> NcclDataType:
        """Their type."""
        return self._view.dtype

    @property
    def device_id(self) -> int:
        """Ordinal of the device that has the memory."""
        if self._view.device_id == HOST and _native.is_virtual():
            return _native.device_of(self._view.ptr)
        return self._view.device_id

    def __repr__(self) -> str:
        device = self.device_id
        where = "host" if device == HOST else f"device {device}"
        return f"<NcclBuffer: {self.count} x {self.dtype} at {self.ptr:#x}, {where}>"
