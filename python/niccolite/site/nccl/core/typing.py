"""Types of nccl.core: element types, operators, and the types of buffers, devices and streams."""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING, Any, Protocol, Union, runtime_checkable

if TYPE_CHECKING:
    import numpy

    from nccl.core.cuda import Device
    from nccl.core.memory import Buffer

__all__ = [
    "NcclBufferSpec",
    "NcclCftCap",
    "NcclCftTeamMode",
    "NcclCommMemStat",
    "NcclDataType",
    "NcclDeviceSpec",
    "NcclEventSpec",
    "NcclGinConnectionType",
    "NcclGinType",
    "NcclHostCftMode",
    "NcclInvalid",
    "NcclNvlsHostMode",
    "NcclRedOp",
    "NcclScalarSpec",
    "NcclStreamSpec",
    "NcclSupportedBuffer",
    "SupportsCAI",
    "SupportsCudaStream",
    "SupportsDLPack",
    "SupportsHandle",
]


class NcclInvalid(Exception):
    """An argument is wrong, which was seen without the library's help. `msg` says which and why."""

    def __init__(self, msg: str) -> None:
        super().__init__(msg)
        self.msg = msg

    def __repr__(self) -> str:
        return f"<NcclInvalid: {self.msg}>"


class NcclDataType(IntEnum):
    """The type of the elements of a buffer.

    ``NcclDataType(x)`` takes the library's number, or any argument of ``numpy.dtype``: a name, a NumPy
    scalar type, a Python type. ``format()`` gives NumPy's name ("float32"), ``str()`` the number.
    ValueError: no type has this number or name. NcclInvalid: the type is not communicated.
    """

    INT8 = CHAR = 0
    UINT8 = 1
    INT32 = INT = 2
    UINT32 = 3
    INT64 = 4
    UINT64 = 5
    FLOAT16 = HALF = 6
    FLOAT32 = FLOAT = 7
    FLOAT64 = DOUBLE = 8
    BFLOAT16 = 9
    FLOAT8E4M3 = 10
    FLOAT8E5M2 = 11

    def __str__(self) -> str:  # as in NVIDIA's package
        return str(int(self))

    def __format__(self, spec: str) -> str:
        # IntEnum would format the number, which specifications such as "d" still do.
        return format(int(self), spec) if spec else _NUMPY_NAMES[self]

    @classmethod
    def _missing_(cls, value: object) -> NcclDataType | None:
        import numpy

        try:
            dtype = numpy.dtype(value)  # type: ignore[call-overload]
        except (TypeError, ValueError):
            return None
        return cls.from_numpy_dtype(dtype)

    @classmethod
    def from_numpy_dtype(cls, dtype: Any) -> NcclDataType:
        """The type of elements of a ``numpy.dtype``. Types of ml_dtypes are found by name.

        NcclInvalid: a type that is not communicated, such as bool, int16 or complex.
        """
        number = _BY_NUMPY_NAME.get(dtype.name)
        if number is None:
            raise NcclInvalid(
                f"dtype {dtype} is not communicated. The dtypes are {', '.join(_BY_NUMPY_NAME)}. "
                "Convert the array (x.astype(numpy.float32)), or take a view of another type of the same size."
            )
        if not dtype.isnative:
            raise NcclInvalid(f"dtype {dtype.str} is not in this machine's byte order")
        return cls(number)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return _ITEM_SIZES[self]

    @property
    def numpy_dtype(self) -> numpy.dtype[Any]:
        """The NumPy type. NcclInvalid: bfloat16 and fp8 before ``import ml_dtypes``."""
        import numpy

        name = _NUMPY_NAMES[self]
        try:
            return numpy.dtype(name)
        except TypeError:
            raise NcclInvalid(f"NumPy does not know {name}: import ml_dtypes first") from None


_NUMPY_NAMES = (
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64",
    "bfloat16", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
_BY_NUMPY_NAME = {name: number for number, name in enumerate(_NUMPY_NAMES)}
_ITEM_SIZES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)


class NcclRedOp(IntEnum):
    """How elements of the ranks are combined. AVG is the sum divided by the number of ranks."""

    SUM = 0
    PROD = 1
    MAX = 2
    MIN = 3
    AVG = 4


class NcclGinType(IntEnum):
    """How the network serves kernels."""

    NONE = 0
    PROXY = 2
    GDAKI = 3
    GPI = 4
    EFA_GDA = 5


class NcclGinConnectionType(IntEnum):
    """The ranks that kernels reach over the network: none, all, the ranks of one rail, or the ranks at
    multiples of a distance (``NCCLDevCommRequirements.gin_custom_stride``)."""

    NONE = 0
    FULL = 1
    RAIL = 2
    CUSTOM_STRIDE = 3


class NcclHostCftMode(IntEnum):
    """May the library's own operations use endpoints in the compute fabric? FALLBACK: where there are any."""

    DEFAULT = -(2**31)
    ENABLE = 1
    DISABLE = 2
    FALLBACK = 3


class NcclNvlsHostMode(IntFlag):
    """The parts of NVLink multicast that the library's own operations do not use; ENABLE: they use all."""

    ENABLE = 0
    DISABLE_TRANSPORT = 1
    DISABLE_SYMMETRIC_MULTIMEM = 2
    DISABLE = 2**31 - 1


class NcclCftTeamMode(IntEnum):
    """A team of the compute fabric: all ranks in it, or the ranks with one place in each multicast or
    load-store team."""

    FLAT = 0
    HIER_MULTIMEM = 1
    HIER_LSA = 2


class NcclCftCap(IntFlag):
    """The features of the compute fabric that a device communicator needs."""

    NONE = 0
    CFT = 1
    MULTIMEM = 2


class NcclCommMemStat(IntEnum):
    """The answers of ``Communicator.get_mem_stat``, in bytes; GPU_MEM_SUSPENDED is 0 or 1."""

    GPU_MEM_SUSPEND = GpuMemSuspend = 0
    GPU_MEM_SUSPENDED = GpuMemSuspended = 1
    GPU_MEM_PERSIST = GpuMemPersist = 2
    GPU_MEM_TOTAL = GpuMemTotal = 3


@runtime_checkable
class SupportsDLPack(Protocol):
    """Memory shown by DLPack."""

    def __dlpack__(self, /, *, stream: Any | None = None) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...


@runtime_checkable
class SupportsCAI(Protocol):
    """Memory shown by the CUDA Array Interface."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


@runtime_checkable
class SupportsCudaStream(Protocol):
    """A stream: ``(version of the protocol, handle)``."""

    def __cuda_stream__(self) -> tuple[int, int]: ...


@runtime_checkable
class SupportsHandle(Protocol):
    """An object of CUDA under its number, as ``cuda.core.Event`` is."""

    @property
    def handle(self) -> Any: ...


if TYPE_CHECKING:
    NcclSupportedBuffer = Union[SupportsDLPack, SupportsCAI, numpy.ndarray, memoryview, bytearray]
    NcclBufferSpec = Union[Buffer, NcclSupportedBuffer]
    NcclScalarSpec = Union[int, float, NcclBufferSpec]
    NcclDeviceSpec = Union[Device, int]
    NcclStreamSpec = Union[SupportsCudaStream, int]
    NcclEventSpec = Union[SupportsHandle, int]
else:
    # At run time names stand for types whose modules are imported only when they are needed.
    NcclSupportedBuffer = Union[SupportsDLPack, SupportsCAI, "numpy.ndarray", memoryview, bytearray]
    NcclBufferSpec = Union["nccl.core.memory.Buffer", NcclSupportedBuffer]
    NcclScalarSpec = Union[int, float, NcclBufferSpec]
    NcclDeviceSpec = Union["nccl.core.cuda.Device", int]
    NcclStreamSpec = Union[SupportsCudaStream, int]
    NcclEventSpec = Union[SupportsHandle, int]
