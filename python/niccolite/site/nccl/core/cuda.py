"""Devices and streams, in the forms in which programs have them."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

from nccl.core.typing import NcclInvalid
from niccolite import _native

if TYPE_CHECKING:
    from nccl.core.typing import NcclDeviceSpec, NcclEventSpec, NcclStreamSpec

__all__ = [
    "CudaDeviceContext",
    "Device",
    "get_cuda_device",
    "get_cuda_stream",
    "get_device_id",
    "get_event_ptr",
    "get_stream_ptr",
]


_shown: int | None = None  # of the virtual GPUs of this process: how many have been asked for


def device_count() -> int:
    """The devices of this process; of virtual ones as many as have been asked for."""
    return _native.device_count() if _shown is None else _shown


def show_devices(n: int) -> None:
    global _shown
    _shown = n


class Device:
    """A GPU of this process, real or virtual; `device_id` is its ordinal, from 0.

    ``Device()`` is the calling thread's current one. ``int(device)`` is the ordinal.
    """

    __slots__ = ("device_id",)

    device_id: int

    def __init__(self, device_id: int | None = None) -> None:
        self.device_id = _native.current_device() if device_id is None else int(device_id)

    def set_current(self) -> None:
        """Makes it the calling thread's device. RuntimeError: there is no such device."""
        _native.set_current_device(self.device_id)

    def sync(self, stream: NcclStreamSpec | None = None) -> None:
        """Waits until `stream` (None: the default stream) has done all that was queued."""
        _native.wait_idle(self.device_id, stream)

    @property
    def is_virtual(self) -> bool:
        """Is it made of CPU threads?"""
        return _native.is_virtual()

    def __int__(self) -> int:
        return self.device_id

    __index__ = __int__

    def __eq__(self, other: object) -> bool:
        device = getattr(other, "device_id", other)
        return device == self.device_id if isinstance(device, int) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.device_id)

    def __repr__(self) -> str:
        return f"<Device {self.device_id}>"


class CudaDeviceContext:
    """``with CudaDeviceContext(device):`` has it current in this thread meanwhile."""

    def __init__(self, device: NcclDeviceSpec | None = None) -> None:
        self._device = get_cuda_device(device)
        self._before = self._device

    def __enter__(self) -> Device:
        self._before = Device()
        self._device.set_current()
        return self._device

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._before.set_current()


def get_cuda_device(device: NcclDeviceSpec | None = None) -> Device:
    """The device of an ordinal, of an object that has `device_id`, or (None) the current one."""
    return device if isinstance(device, Device) else Device(get_device_id(device))


def get_device_id(device: NcclDeviceSpec | None = None) -> int:
    """The ordinal of a device given in any of these forms."""
    if device is None:
        return _native.current_device()
    return int(getattr(device, "device_id", device))


def get_stream_ptr(stream: NcclStreamSpec | None = None) -> int:
    """The handle of a stream: None is the default stream 0.

    NcclInvalid: neither None nor an integer nor an object with ``__cuda_stream__``.
    """
    return _native.stream_handle(stream)


def get_cuda_stream(stream: NcclStreamSpec | None = None) -> Any:
    """`stream` itself, once it is known to be one."""
    get_stream_ptr(stream)
    return stream


def get_event_ptr(event: NcclEventSpec | None = None) -> int:
    """The handle of an event: None is 0.

    NcclInvalid: neither None nor an integer nor an object that has its number as `handle` (cuda.core),
    `ptr` (CuPy) or `cuda_event` (PyTorch).
    """
    if event is None:
        return 0
    for name in ("handle", "ptr", "cuda_event"):
        if (handle := getattr(event, name, None)) is not None:
            return int(handle)
    if isinstance(event, int):
        return event
    raise NcclInvalid(
        f"event is of type {type(event).__name__}; it must be an integer (a cudaEvent_t), or an object with "
        "handle, ptr or cuda_event"
    )
