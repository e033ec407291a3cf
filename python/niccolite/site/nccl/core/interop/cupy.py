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


def resolve_array(array: Any) -> tuple[int, int, NcclDataType, int]:
    """(address, elements, type, ordinal of the GPU). NcclInvalid: no array, or a type that is not
    communicated; bool counts as uint8."""
    cupy = _import_cupy()
    if not isinstance(array, cupy.ndarray):
        raise NcclInvalid(f"{type(array).__name__} is not a cupy.ndarray")
    if array.dtype.kind == "b":
        kind = NcclDataType.UINT8
    else:
        kind = NcclDataType.from_numpy_dtype(array.dtype)
    return array.data.ptr, array.size, kind, array.device.id


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
