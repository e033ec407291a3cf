"""PyTorch: tensors in memory of nccl.core, and the memory of tensors."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from nccl.core.memory import mem_alloc
from nccl.core.typing import NcclDataType, NcclInvalid

if TYPE_CHECKING:
    import torch

__all__ = ["empty", "resolve_tensor"]


def _import_torch() -> Any:
    try:
        import torch
    except ImportError:
        raise ModuleNotFoundError("PyTorch is not installed") from None
    return torch


@functools.lru_cache(maxsize=None)
def _types() -> dict[Any, NcclDataType]:
    torch = _import_torch()
    names = {
        "int8": NcclDataType.INT8,
        "uint8": NcclDataType.UINT8,
        "bool": NcclDataType.UINT8,
        "int32": NcclDataType.INT32,
        "uint32": NcclDataType.UINT32,
        "int64": NcclDataType.INT64,
        "uint64": NcclDataType.UINT64,
        "float16": NcclDataType.FLOAT16,
        "float32": NcclDataType.FLOAT32,
        "float64": NcclDataType.FLOAT64,
        "bfloat16": NcclDataType.BFLOAT16,
        "float8_e4m3fn": NcclDataType.FLOAT8E4M3,
        "float8_e5m2": NcclDataType.FLOAT8E5M2,
    }
    return {getattr(torch, name): kind for name, kind in names.items() if hasattr(torch, name)}


def resolve_tensor(tensor: torch.Tensor) -> tuple[int, int, NcclDataType, int | None]:
    """(address, elements, type, ordinal of the GPU; None: in memory of the host).

    NcclInvalid: no tensor, or a type that is not communicated.
    """
    torch = _import_torch()
    if not isinstance(tensor, torch.Tensor):
        raise NcclInvalid(f"{type(tensor).__name__} is not a torch.Tensor")
    kind = _types().get(tensor.dtype)
    if kind is None:
        raise NcclInvalid(f"tensors of {tensor.dtype} are not communicated")
    return tensor.data_ptr(), tensor.numel(), kind, tensor.device.index


def empty(
    *size: Any,
    dtype: torch.dtype | None = None,
    device: Any = None,
    morder: str = "C",
) -> torch.Tensor:
    """A tensor of `size` in memory of mem_alloc(), for windows and registration.

    `size`: integers, or one sequence. `device`: None (current), ordinal, name or torch.device of a GPU;
    on virtual GPUs the tensor is PyTorch's "cpu". `morder`: "C", or "F" for the first index fastest.
    NcclInvalid: another order, or no GPU.
    """
    torch = _import_torch()
    if morder not in ("C", "F"):
        raise NcclInvalid(f"morder is {morder!r}; it must be 'C' or 'F'")
    shape = tuple(size[0]) if len(size) == 1 and isinstance(size[0], (tuple, list)) else size
    dtype = torch.get_default_dtype() if dtype is None else dtype
    count = 1
    for extent in shape:
        count *= extent
    buffer = mem_alloc(max(1, count * dtype.itemsize), _ordinal(torch, device))
    flat = torch.from_dlpack(buffer).view(torch.uint8)[: count * dtype.itemsize].view(dtype)
    if morder == "C":
        return flat.view(shape)
    return flat.view(shape[::-1]).permute(*reversed(range(len(shape))))


def _ordinal(torch: Any, device: Any) -> int | None:
    if device is None or isinstance(device, int):
        return device
    device = torch.device(device)
    if device.type != "cuda":
        raise NcclInvalid(f"device is {device}; memory of nccl.core is on a GPU")
    index: int | None = device.index
    return index
