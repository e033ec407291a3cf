"""Kernels of Triton that communicate: the words of niccolite/device.h, linked as LLVM bitcode.

    import niccolite.triton as nt

    @triton.jit
    def kernel(comm, window, ...):
        if nt.barrier(comm, tl.program_id(0)) == 0: return

    kernel[grid](comm, window, ..., extern_libs=nt.extern_libs())

Each function is one of libniccolite_device.bc with the prefix ``niccolite_``; what it does, and its memory order, is
said in bitcode/device.cc and docs/device-api.md. Arguments are positional and scalar, the same for the whole
program; addresses may be pointers or int64. ``peer``, ``own`` and ``all`` give an address, as int64, and take tensors.
All others but ``rank``, ``nranks``, ``world_rank`` and ``world_nranks`` give 1, or 0 after an abort.

Triton is imported when the first function is looked up. It must be 3.4 or newer.
"""

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nccl.core.team import NCCLTeam

_LIBRARY = "libniccolite_device"
_SYMBOL = "niccolite_"
_STRUCT_BYTES = 512  # of nccl.core's DevComm; ncclDevComm_t, at its beginning, has fewer

# Types of the arguments, then of the result: p an address or a size (64 bits), i an integer of 32 bits. These have no
# effects but their result.
_WHERE = {
    "rank": "p i",
    "nranks": "p i",
    "world_rank": "p i",
    "world_nranks": "p i",
    "peer": "ppi p",
    "own": "pp p",
    "all": "ppp p",
}
_WORDS = {
    "put": "pppipp i",
    "store_all": "ppppp i",
    "load_reduce_f32": "ppppp i",
    "load_reduce_f16": "ppppp i",
    "load_reduce_bf16": "ppppp i",
    "barrier": "pi i",
    "signal": "piii i",
    "signal_all": "pii i",
    "wait": "piii i",
    "wait_all": "pii i",
    "flush": " i",
    "network_put": "pippippp i",
    "network_put_value": "pippip i",
    "network_get": "pippippp i",
    "network_signal": "piiip i",
    "network_wait": "piip i",
    "network_flush": "pi i",
}

__all__ = ["ChannelsRequirement", "extern_libs", "library", "struct_of"]


@dataclass(frozen=True)
class ChannelsRequirement:
    """Signals between all pairs of ranks of a load-store team: one of the ``resources`` of NCCLDevCommRequirements
    (nccl.core). It becomes an object whose ``handle`` is the argument ``channels`` of a kernel.
    """

    team: "NCCLTeam"
    n_channels: int


def library() -> str:
    """The file of the bitcode: what NICCOLITE_DEVICE_BITCODE names, or the package's own.

    FileNotFoundError: the package was built where there was no clang.
    """
    chosen = os.environ.get("NICCOLITE_DEVICE_BITCODE")
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "include", "niccolite")
    path = chosen or os.path.join(folder, f"{_LIBRARY}.bc")
    if not os.path.exists(path):
        raise FileNotFoundError(
            f"{path}: there is no such file. Build Niccolite where clang++ is installed, or say where "
            f"{_LIBRARY}.bc is by NICCOLITE_DEVICE_BITCODE"
        )
    return path


def extern_libs() -> dict[str, str]:
    """The option of that name of a kernel that uses functions of this module."""
    return {_LIBRARY: library()}


def struct_of(made: Any) -> bytes:
    """What ``nccl.core``'s create_dev_comm() has made, as bytes: a copy of them in memory of the GPU is the argument
    ``comm`` of a kernel.
    """
    return ctypes.string_at(made.ptr, _STRUCT_BYTES)


def _declare(name: str) -> Callable[..., Any]:
    from triton.language import core

    types = {"p": core.int64, "i": core.int32}
    arguments, result = (_WHERE.get(name) or _WORDS[name]).split(" ")
    wanted = tuple(types[each] for each in arguments)

    def call(*given: Any, _semantic: Any = None) -> Any:
        if len(given) != len(wanted):
            raise TypeError(f"niccolite.triton.{name} takes {len(wanted)} arguments, and was given {len(given)}")
        converted = [_semantic.cast(_semantic.to_tensor(value), type) for value, type in zip(given, wanted)]
        if name not in _WHERE and any(value.type.is_block() for value in converted):
            raise TypeError(f"niccolite.triton.{name} takes scalars, since the whole program makes one call of it")
        symbol = {wanted: (_SYMBOL + name, types[result])}
        return core.extern_elementwise(_LIBRARY, "", converted, symbol, is_pure=name in _WHERE, _semantic=_semantic)

    call.__name__ = call.__qualname__ = name
    call.__module__ = __name__
    declared: Callable[..., Any] = core.extern(call)
    return declared


def __getattr__(name: str) -> Callable[..., Any]:
    if name not in _WHERE and name not in _WORDS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = _declare(name)
    found: Callable[..., Any] = globals()[name]
    return found
