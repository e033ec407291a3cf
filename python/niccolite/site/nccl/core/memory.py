"""Memory that all kinds of access reach best: of ncclMemAlloc, which can be registered and mapped by
other processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nccl.core.cuda import Device, get_device_id
from niccolite import _native

if TYPE_CHECKING:
    from nccl.core.typing import NcclDeviceSpec, NcclStreamSpec

__all__ = ["Buffer", "NcclMemoryResource", "get_memory_resource", "mem_alloc", "mem_free"]

_DLPACK_CPU = 1
_DLPACK_CUDA = 2


class Buffer(_native.DeviceMemory):
    """A range of device memory, from mem_alloc(). It is freed with its last user.

    On GPUs it shows itself by DLPack and the CUDA Array Interface, as bytes (int8). On virtual GPUs
    the memory is the host's, too: it has the buffer protocol, so ``numpy.frombuffer(buffer, "f4")``
    is an array over it.
    """

    @property
    def handle(self) -> int:
        """Its address; 0 once closed."""
        return self.address

    @property
    def size(self) -> int:
        """Bytes, as asked for."""
        return self.nbytes

    @property
    def device_id(self) -> int:
        """The ordinal of its device."""
        return self.device

    @property
    def is_device_accessible(self) -> bool:
        """Can GPUs reach it? Always."""
        return True

    @property
    def is_host_accessible(self) -> bool:
        """Can the host? On virtual GPUs."""
        return _native.is_virtual()

    def close(self, stream: NcclStreamSpec | None = None) -> None:
        """Gives the memory back, as soon as no array over it and no call uses it. A second call does nothing.

        With `stream`, after the work that was queued there.
        """
        if stream is not None:
            _native.wait_idle(self.device, stream)
        super().close()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if _native.is_virtual():
            raise AttributeError("memory of a virtual GPU is the host's: use the buffer protocol")
        return {
            "version": 3,
            "shape": (self.nbytes,),
            "typestr": "|i1",
            "data": (self.address, False),
            "strides": None,
            "stream": None,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_DLPACK_CPU, 0) if _native.is_virtual() else (_DLPACK_CUDA, self.device)

    def __dlpack__(self, *, stream: Any | None = None, **options: Any) -> Any:
        kind, ordinal = self.__dlpack_device__()
        return _native.as_dlpack(self.address, self.nbytes, kind, ordinal, self)

    if TYPE_CHECKING:  # the extension has it, where the host can reach the memory

        def __buffer__(self, flags: int, /) -> memoryview: ...

    def __len__(self) -> int:
        return self.nbytes

    def __repr__(self) -> str:
        if self.address == 0:
            return "<Buffer: closed>"
        return f"<Buffer: size={self.nbytes}, device={self.device}, handle={self.address:#x}>"


class NcclMemoryResource:
    """Allocates on one device."""

    is_device_accessible = True
    is_host_accessible = False

    def __init__(self, device: NcclDeviceSpec | None = None) -> None:
        self.device_id = get_device_id(device)

    def allocate(self, size: int, *, stream: NcclStreamSpec | None = None) -> Buffer:
        """`size` bytes. NCCLError: the device has no such room."""
        return Buffer(size, self.device_id)

    def deallocate(self, ptr: int, size: int, *, stream: NcclStreamSpec | None = None) -> None:
        """Frees the library's memory at `ptr`, after the work that was queued on `stream`."""
        if stream is not None:
            _native.wait_idle(self.device_id, stream)
        _native.free(ptr, self.device_id)


def get_memory_resource(device: NcclDeviceSpec | None = None) -> NcclMemoryResource:
    """The resource that mem_alloc() uses."""
    return NcclMemoryResource(device)


def mem_alloc(size: int, device: NcclDeviceSpec | None = None) -> Buffer:
    """Allocates `size` bytes on `device` (None: the current one), zeroed, for windows and registration.

    NCCLError: the device has no such room.
    """
    return Buffer(size, Device().device_id if device is None else get_device_id(device))


def mem_free(buf: Buffer) -> None:
    """Frees memory of mem_alloc(); calls and arrays that use it keep it until they end."""
    buf.close()
