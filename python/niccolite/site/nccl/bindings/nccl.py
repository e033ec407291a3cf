"""Results of the library, and the exception that carries them."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from nccl.bindings._internal.utils import FunctionNotFoundError, NotSupportedError

__all__ = ["FunctionNotFoundError", "NCCLError", "NotSupportedError", "Result"]


class Result(IntEnum):
    """The result of a call of the library: ncclResult_t."""

    Success = 0
    UnhandledCudaError = 1
    SystemError = 2
    InternalError = 3
    InvalidArgument = 4
    InvalidUsage = 5
    RemoteError = 6
    InProgress = 7
    Timeout = 8
    NumResults = 9


class NCCLError(Exception):
    """The library has refused a call, or a communicator has failed.

    `status` is the number of the result. `detail` is the library's message: call, rank, cause and
    remedy; "" if there is none.
    """

    def __init__(self, status: int, detail: str = "") -> None:
        from niccolite import _native

        self.status = int(status)
        self.detail = detail
        try:
            name = Result(self.status).name
        except ValueError:
            name = "Unknown result"
        super().__init__(f"{name} ({self.status}): {detail or _native.error_string(self.status)}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.status, self.detail)
