"""Communicators, collectives and messages between GPUs, real and virtual.

    >>> import numpy, nccl.core as nccl
    >>> from nccl.virtual import run
    >>> def main(comm):
    ...     x = numpy.full(4, comm.rank)
    ...     comm.allreduce(x, x, nccl.SUM)
    ...     return x
    >>> run(main, ranks=4)[0]
    array([6, 6, 6, 6])
"""

from typing import TYPE_CHECKING, Any

from nccl import __version__
from nccl.core.communicator import (
    Communicator,
    GinBarrierRequirement,
    LLA2ARequirement,
    LsaBarrierRequirement,
    NCCLCollConfig,
    NCCLCommProperties,
    NCCLConfig,
    NCCLDevCommRequirements,
    TeamRequirement,
    VendorOption,
    WaitSignalDesc,
)
from nccl.core.constants import (
    AVG,
    BFLOAT16,
    CHAR,
    DOUBLE,
    FLOAT,
    FLOAT8E4M3,
    FLOAT8E5M2,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    HALF,
    INT,
    INT8,
    INT32,
    INT64,
    MAX,
    MIN,
    PROD,
    SUM,
    UINT8,
    UINT32,
    UINT64,
    CommShrinkFlag,
    CommSuspendFlag,
    CTAPolicy,
    WindowFlag,
)
from nccl.core.group import GroupSimInfo, group, group_end, group_start
from nccl.core.memory import mem_alloc, mem_free
from nccl.core.params import dump_params, params
from nccl.core.resources import (
    CftLeInfo,
    CustomRedOp,
    DevCommResource,
    GinBarrierHandle,
    LLA2AHandle,
    LsaBarrierHandle,
    MultimemHandle,
    RegisteredBufferHandle,
    RegisteredWindowHandle,
)
from nccl.core.team import NCCLTeam
from nccl.core.typing import (
    NcclBufferSpec,
    NcclCftCap,
    NcclCftTeamMode,
    NcclCommMemStat,
    NcclDataType,
    NcclDeviceSpec,
    NcclEventSpec,
    NcclGinConnectionType,
    NcclGinType,
    NcclHostCftMode,
    NcclInvalid,
    NcclNvlsHostMode,
    NcclRedOp,
    NcclScalarSpec,
    NcclStreamSpec,
)
from nccl.core.utils import (
    UniqueId,
    Version,
    get_error_string,
    get_lib_path,
    get_lib_version,
    get_unique_id,
    get_version,
)

if TYPE_CHECKING:
    from nccl import LibraryInfo, VersionInfo, show_versions

# cupy, torch and the versions are imported when they are first asked for.
__all__ = [  # noqa: F822
    "NcclDataType", "NcclRedOp", "NcclGinType", "NcclGinConnectionType", "NcclCommMemStat",
    "NcclHostCftMode", "NcclNvlsHostMode", "NcclCftTeamMode", "NcclCftCap",
    "NcclBufferSpec", "NcclScalarSpec", "NcclDeviceSpec", "NcclStreamSpec", "NcclEventSpec",
    "NcclInvalid",
    "INT8", "CHAR", "UINT8", "INT32", "INT", "UINT32", "INT64", "UINT64", "FLOAT16", "HALF",
    "FLOAT32", "FLOAT", "FLOAT64", "DOUBLE", "BFLOAT16", "FLOAT8E4M3", "FLOAT8E5M2",
    "SUM", "PROD", "MAX", "MIN", "AVG",
    "CTAPolicy", "CommShrinkFlag", "CommSuspendFlag", "WindowFlag",
    "NCCLConfig", "NCCLCollConfig", "VendorOption", "NCCLCommProperties", "WaitSignalDesc",
    "TeamRequirement", "LsaBarrierRequirement", "GinBarrierRequirement", "LLA2ARequirement",
    "NCCLDevCommRequirements", "Communicator", "NCCLTeam",
    "MultimemHandle", "LsaBarrierHandle", "GinBarrierHandle", "LLA2AHandle", "CftLeInfo",
    "RegisteredBufferHandle", "RegisteredWindowHandle", "CustomRedOp", "DevCommResource",
    "group", "group_start", "group_end", "GroupSimInfo",
    "Version", "get_version", "get_lib_version", "get_lib_path", "UniqueId", "get_unique_id",
    "get_error_string",
    "mem_alloc", "mem_free", "params", "dump_params",
    "cupy", "torch",
    "__version__", "LibraryInfo", "VersionInfo", "show_versions",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in ("cupy", "torch"):
        import importlib

        return importlib.import_module(f"nccl.core.interop.{name}")
    if name in ("LibraryInfo", "VersionInfo", "show_versions"):
        import nccl

        return getattr(nccl, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
