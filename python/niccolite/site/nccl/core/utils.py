"""The library's version and file, unique ids, texts of results."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from niccolite import _native

if TYPE_CHECKING:
    import pathlib

    import numpy
    from packaging.version import Version as PackagingVersion

__all__ = [
    "UniqueId",
    "Version",
    "get_error_string",
    "get_lib_path",
    "get_lib_version",
    "get_unique_id",
    "get_version",
]

_ID_BYTES = 128


def _parse_version(text: str) -> PackagingVersion:
    from packaging.version import Version as Parsed

    return Parsed(text)


class Version:
    """The versions of the library and of the interface. `code` is the library's: 23007 is 2.30.7."""

    nccl_version: PackagingVersion
    nccl4py_version: PackagingVersion

    def __init__(self, code: int) -> None:
        from nccl import __version__

        unit = 10000 if code >= 10000 else 1000  # before 2.9 minor versions had one digit
        major, rest = divmod(code, unit)
        self.nccl_version = _parse_version(f"{major}.{rest // 100}.{rest % 100}")
        self.nccl4py_version = _parse_version(__version__)

    def __repr__(self) -> str:
        return f"Versions:\n  nccl: {self.nccl_version}\n  nccl4py: {self.nccl4py_version}"


@functools.lru_cache(maxsize=None)
def _version() -> Version:
    return Version(_native.library_version())


def get_version() -> Version:
    """Deprecated: nccl.get_version() tells more."""
    import warnings

    warnings.warn(
        "nccl.core.get_version is deprecated; use nccl.get_version", DeprecationWarning, stacklevel=2
    )
    return _version()


def get_lib_version() -> PackagingVersion:
    """The version of the loaded library. ImportError: there is none."""
    return _version().nccl_version


def get_lib_path() -> pathlib.Path | None:
    """The file of the loaded library; None where the loader does not tell."""
    import pathlib

    path = _native.library_path()
    return pathlib.Path(path) if path else None


def get_error_string(nccl_result: int) -> str:
    """The library's text for a result, an integer or a Result."""
    return _native.error_string(int(nccl_result))


class UniqueId:
    """Names one communicator to be: 128 bytes, which one rank makes and all ranks are given.

    ``UniqueId()`` is all zeros; get_unique_id() makes a valid one. It carries the secret by which ranks
    recognise each other, so send it only where the ranks are. It can be pickled.
    """

    __slots__ = ("_memory",)

    _memory: memoryview

    def __init__(self) -> None:
        self._memory = memoryview(bytearray(_ID_BYTES))

    @staticmethod
    def from_bytes(b: Any) -> UniqueId:
        """The id that `b`, 128 bytes, holds. The memory is shared: do not change it.

        ValueError: another length, or items that are no bytes.
        """
        view = memoryview(b)
        if view.itemsize != 1 or view.nbytes != _ID_BYTES or not view.c_contiguous:
            raise ValueError(f"a unique id has {_ID_BYTES} bytes, not {view.nbytes}")
        made = UniqueId()
        made._memory = view.cast("B") if view.format != "B" or view.ndim != 1 else view
        return made

    def __bytes__(self) -> bytes:
        return bytes(self._memory)

    @property
    def as_bytes(self) -> bytes:
        """A copy of the 128 bytes."""
        return bytes(self._memory)

    @property
    def ptr(self) -> int:
        """The address of the 128 bytes, as long as this object lives."""
        return _native.address_of(self._memory)

    @property
    def as_ndarray(self) -> numpy.ndarray[Any, Any]:
        """The bytes as a record array of shape (1,) with the field `internal`, int8[128].

        It shares memory with this object.
        """
        import numpy

        kind = numpy.dtype([("internal", numpy.int8, (_ID_BYTES,))])
        return numpy.frombuffer(self._memory, dtype=kind).view(numpy.recarray)

    def __getstate__(self) -> bytes:
        return bytes(self)

    def __setstate__(self, state: bytes) -> None:
        self._memory = memoryview(bytearray(state))

    def __reduce__(self) -> tuple[Any, ...]:
        return UniqueId, (), bytes(self)

    def __repr__(self) -> str:
        text = bytes(self).hex()
        return f"<UniqueId: {text[:8]}...{text[-8:]}>"


def get_unique_id(empty: bool = False) -> UniqueId:
    """Makes the id of a new communicator; this process must live until all ranks have joined.

    With `empty` it is 128 zeros, for ranks that will receive one. NCCLError: no network interface fits
    the NCCL_SOCKET_ variables.
    """
    made = UniqueId()
    if not empty:
        made._memory[:] = _native.unique_id()
    return made
