"""Resources of a communicator, which end with it at the latest: registrations, windows, operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

from nccl.core.typing import NcclInvalid
from niccolite import _native
from niccolite._native import ChannelsHandle, GinBarrierHandle, LLA2AHandle, LsaBarrierHandle, MultimemHandle

if TYPE_CHECKING:
    from nccl.core.constants import WindowFlag
    from nccl.core.team import NCCLTeam
    from nccl.core.typing import NcclDataType

__all__ = [
    "CftLeInfo",
    "CommResource",
    "CustomRedOp",
    "DevCommResource",
    "GinBarrierHandle",
    "LLA2AHandle",
    "LsaBarrierHandle",
    "MultimemHandle",
    "RegisteredBufferHandle",
    "RegisteredWindowHandle",
]

ResourceHandle = Union[LsaBarrierHandle, GinBarrierHandle, LLA2AHandle, ChannelsHandle]


@dataclass(frozen=True, slots=True)
class CftLeInfo:
    """An address in the compute fabric: byte `le_offset` of the endpoint `le_id`."""

    le_id: int
    le_offset: int


class CommResource:
    """Something that a communicator has. close() ends it; destroying the communicator does, too."""

    def __init__(self, comm_ptr: int) -> None:
        if comm_ptr == 0:
            raise NcclInvalid(f"{type(self).__name__} needs a communicator, and this one is null")
        self._comm_ptr = comm_ptr
        self._is_closed = False

    def close(self) -> None:
        """Ends it. A second call does nothing. NCCLError: the library refuses; it is closed here nevertheless."""
        if not self._is_closed:
            self._is_closed = True
            self._release()

    def _release(self) -> None:
        raise NotImplementedError

    @property
    def is_valid(self) -> bool:
        """Is it open?"""
        return not self._is_closed

    def _require_open(self) -> None:
        if self._is_closed:
            raise RuntimeError(f"{type(self).__name__} has been closed and is no longer valid")

    def _describe(self) -> str:
        raise NotImplementedError

    def __repr__(self) -> str:
        text = "closed" if self._is_closed else self._describe()
        return f"<{type(self).__name__}: {text}>"


class RegisteredBufferHandle(CommResource):
    """A buffer that the communicator reaches faster. It keeps the buffer alive."""

    def __init__(self, comm_ptr: int, handle: int, size: int, buffer: object) -> None:
        super().__init__(comm_ptr)
        self._handle = handle
        self._size = size
        self._buffer: object = buffer

    @property
    def size(self) -> int:
        """Bytes."""
        return self._size

    @property
    def handle(self) -> int:
        """The library's. RuntimeError: closed."""
        self._require_open()
        return self._handle

    def _release(self) -> None:
        try:
            _native.deregister_buffer(self._comm_ptr, self._handle)
        finally:
            self._buffer = None

    def _describe(self) -> str:
        return f"size={self.size}, handle={self._handle:#x}"


class RegisteredWindowHandle(CommResource):
    """Memory that every rank can address in each rank. It keeps the buffer alive."""

    def __init__(
        self,
        comm_ptr: int,
        place: _native.WindowPlace,
        size: int,
        flags: WindowFlag,
        buffer: object,
    ) -> None:
        super().__init__(comm_ptr)
        self._place = place
        self._size = size
        self._flags = flags
        self._buffer: object = buffer

    @property
    def size(self) -> int:
        """Bytes."""
        return self._size

    @property
    def handle(self) -> int:
        """The library's; 0 once closed, and while a group or a nonblocking communicator makes it."""
        return 0 if self._is_closed else self._place.handle

    @property
    def is_valid(self) -> bool:
        """Is it open, and made?"""
        return self.handle != 0

    @property
    def user_ptr(self) -> int:
        """Address of the memory that was registered. RuntimeError: closed."""
        self._require_open()
        return _native.window_user_pointer(self._comm_ptr, self._place.handle)

    def get_lsa_multimem_device_pointer(self, offset: int = 0) -> int | None:
        """Multicast address of byte `offset`; None where there is none. RuntimeError: closed."""
        self._require_open()
        return _native.lsa_multimem_pointer(self._place.handle, offset) or None

    def get_multimem_device_pointer(self, multimem: MultimemHandle, offset: int = 0) -> int | None:
        """The address that get_lsa_multimem_device_pointer() returns, for the team of `multimem`.

        NCCLError: `multimem` has no address.
        """
        self._require_open()
        return _native.multimem_pointer(self._place.handle, offset, multimem) or None

    def get_lsa_device_pointer(self, lsa_rank: int, offset: int = 0) -> int:
        """Address of byte `offset` in member `lsa_rank` of the load-store team.

        RuntimeError: closed. NCCLError: no such member or byte.
        """
        self._require_open()
        return _native.lsa_pointer(self._place.handle, offset, lsa_rank)

    def get_peer_device_pointer(self, peer: int, offset: int = 0) -> int | None:
        """Address of byte `offset` in rank `peer`; None where it cannot be reached by loads and stores.

        RuntimeError: closed. NCCLError: no such rank or byte.
        """
        self._require_open()
        return _native.peer_pointer(self._place.handle, offset, peer) or None

    def get_multimem_le_info(self, offset: int = 0) -> CftLeInfo:
        """Byte `offset` of all copies, in the compute fabric. NCCLError: the window has no endpoint there."""
        self._require_open()
        return CftLeInfo(*_native.multimem_endpoint(self._place.handle, offset))

    def get_cft_le_info(self, peer_cft: int, cft_team: NCCLTeam, offset: int = 0) -> CftLeInfo:
        """Byte `offset` of the copy of member `peer_cft` of `cft_team`. NCCLError: it has no endpoint."""
        self._require_open()
        return CftLeInfo(
            *_native.cft_endpoint(self._place.handle, offset, peer_cft, cft_team._lowered)
        )

    def get_peer_le_info(self, peer: int, offset: int = 0) -> CftLeInfo:
        """Byte `offset` of rank `peer`'s copy. NCCLError: it has no endpoint."""
        self._require_open()
        return CftLeInfo(*_native.peer_endpoint(self._place.handle, offset, peer))

    def _release(self) -> None:
        try:
            if handle := self._place.handle:
                _native.deregister_window(self._comm_ptr, handle)
        finally:
            self._buffer = None

    def _describe(self) -> str:
        return f"size={self.size}, handle={self.handle:#x}, flags={self._flags!r}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._describe()}>"


class CustomRedOp(CommResource):
    """An operator of one communicator; ``int(op)`` is the library's number."""

    def __init__(
        self, comm_ptr: int, op: int, datatype: NcclDataType, residence: str, scalar: object
    ) -> None:
        super().__init__(comm_ptr)
        self._op = op
        self._datatype = datatype
        self._residence = residence
        self._scalar = scalar  # the library may read it again

    @property
    def op(self) -> int:
        """The library's number. RuntimeError: closed."""
        self._require_open()
        return self._op

    def __int__(self) -> int:
        return self.op

    def _release(self) -> None:
        try:
            _native.destroy_operator(self._comm_ptr, self._op)
        finally:
            self._scalar = None

    def _describe(self) -> str:
        return (
            f"type=PreMulSum, dtype={self._datatype}, residence={self._residence}, op={self._op}"
        )


class DevCommResource(CommResource):
    """A device communicator, for kernels that communicate."""

    def __init__(
        self,
        comm_ptr: int,
        dev_comm: _native.DevComm,
        multimem: Mapping[NCCLTeam, MultimemHandle],
        handles: Sequence[ResourceHandle],
    ) -> None:
        super().__init__(comm_ptr)
        self._dev_comm = dev_comm
        self._multimem = dict(multimem)
        self._handles = tuple(handles)

    @property
    def dev_comm(self) -> _native.DevComm:
        """The struct. RuntimeError: closed."""
        self._require_open()
        return self._dev_comm

    @property
    def ptr(self) -> int:
        """Its address. RuntimeError: closed."""
        return int(self.dev_comm.ptr)

    def multimem_handle(self, team: NCCLTeam) -> MultimemHandle:
        """Multicast memory of `team`. KeyError: it was not required. RuntimeError: closed."""
        self._require_open()
        if team not in self._multimem:
            raise KeyError(f"{team!r} has no multicast memory: its TeamRequirement lacks multimem=True")
        return self._multimem[team]

    @property
    def resource_handles(self) -> tuple[ResourceHandle, ...]:
        """Handles for the requirements' `resources`, in their order. RuntimeError: closed."""
        self._require_open()
        return self._handles

    def _release(self) -> None:
        _native.destroy_dev_comm(self._comm_ptr, self._dev_comm)

    def _describe(self) -> str:
        return f"ptr={self._dev_comm.ptr:#x}"
