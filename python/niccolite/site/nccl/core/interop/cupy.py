"""CuPy: arrays in memory of nccl.core, and the memory of arrays."""

from __future__ import annotations

from typing import Any

from nccl.core.memory import mem_alloc
from nccl.core.typing import NcclDataType, NcclInvalid

__all__ = ["empty", "resolve_array"]


def _import_cupy() -> Any:
    try:
        import cupy
    except ImportError:
        raise ModuleNotFoundError("CuPy is not installed") from None
    return cupy


_TYPES = {
    "?": NcclDataType.UINT8, "b": NcclDataType.INT8, "B": NcclDataType.UINT8, "i": NcclDataType.INT32,
    "I": NcclDataType.UINT32, "l": NcclDataType.INT64, "L": NcclDataType.UINT64, "q": NcclDataType.INT64,
    "Q": NcclDataType.UINT64, "e": NcclDataType.FLOAT16, "f": NcclDataType.FLOAT32, "d": NcclDataType.FLOAT64,
}  # fmt: skip


def resolve_array(array: Any) -> tuple[int, int, NcclDataType, int]:
    """(address, elements, type, ordinal of the GPU). NcclInvalid: no array, or a type that is not
    communicated; bool counts as uint8."""
    cupy = _import_cupy()
    if not isinstance(array, cupy.ndarray):
        raise NcclInvalid(f"{type(array).__name__} is not a cupy.ndarray")
    kind = _TYPES.get(array.dtype.char)
    if kind is None:
        kind = NcclDataType.from_numpy_dtype(array.dtype)
    memory = array.data
    return memory.ptr, array.size, kind, memory.device_id


def empty(shape: Any, dtype: Any = float, order: str = "C") -> Any:
    """An array of `shape` in memory of mem_alloc() on the current device.

    NcclInvalid: `order` is neither "C" nor "F".
    """
    cupy = _import_cupy()
    if order not in ("C", "F"):
        raise NcclInvalid(f"order is {order!r}; it must be 'C' or 'F'")
    dtype = cupy.dtype(dtype)
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    count = 1
    for extent in shape:
        count *= extent
    size = count * dtype.itemsize
    bytes_ = cupy.from_dlpack(mem_alloc(max(1, size)))
    return bytes_[:size].view(dtype).reshape(shape, order=order)
