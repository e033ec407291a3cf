"""The members of the enumerations under the library's names, and flags."""

from __future__ import annotations

from enum import IntEnum, IntFlag

from nccl.core.typing import NcclDataType, NcclRedOp

INT8 = CHAR = NcclDataType.INT8
UINT8 = NcclDataType.UINT8
INT32 = INT = NcclDataType.INT32
UINT32 = NcclDataType.UINT32
INT64 = NcclDataType.INT64
UINT64 = NcclDataType.UINT64
FLOAT16 = HALF = NcclDataType.FLOAT16
FLOAT32 = FLOAT = NcclDataType.FLOAT32
FLOAT64 = DOUBLE = NcclDataType.FLOAT64
BFLOAT16 = NcclDataType.BFLOAT16
FLOAT8E4M3 = NcclDataType.FLOAT8E4M3
FLOAT8E5M2 = NcclDataType.FLOAT8E5M2

SUM = NcclRedOp.SUM
PROD = NcclRedOp.PROD
MAX = NcclRedOp.MAX
MIN = NcclRedOp.MIN
AVG = NcclRedOp.AVG


class CTAPolicy(IntFlag):
    """How many CTAs a communicator takes from computation: as few as keep the bandwidth, or none."""

    DEFAULT = Default = 0
    EFFICIENCY = Efficiency = 1
    ZERO = Zero = 2


class CommShrinkFlag(IntEnum):
    """ABORT: a shrink first ends the operations that the parent has in flight."""

    DEFAULT = Default = 0
    ABORT = Abort = 1


class CommSuspendFlag(IntFlag):
    """MEM: a suspension gives the communicator's device memory back."""

    MEM = Mem = 1


class WindowFlag(IntFlag):
    """COLL_SYMMETRIC: every rank uses the same offset in each call. STRICT_ORDERING: remote writes
    become visible in order. GIN_ONLY: only kernels reach it, over the network. CFT_COUNTED: with
    counting endpoints in the compute fabric."""

    DEFAULT = Default = 0
    COLL_SYMMETRIC = CollSymmetric = 1
    STRICT_ORDERING = StrictOrdering = 2
    GIN_ONLY = 4
    CFT_COUNTED = 8
