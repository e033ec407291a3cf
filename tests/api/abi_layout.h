/* What a compiled program knows about nccl.h: values, sizes and offsets of NCCL 2.30.7 on LP64, and
 * the configuration structs of every older header. All of it is checked by the compiler; C11 and
 * C++17 alike. */
#pragma once

#include <assert.h>
#include <nccl.h>
#include <nccl_device.h>
#include <stddef.h>

#define HAS_VALUE(name, value) static_assert((long long)(name) == (value), #name " has changed")
#define HAS_OFFSET(type, field, offset) \
  static_assert(offsetof(type, field) == (offset), #type "::" #field " has moved")
#define HAS_SIZE(type, bytes) static_assert(sizeof(type) == (bytes), #type " has another size")

/* ---- version and constants */
HAS_VALUE(NCCL_MAJOR, 2);
HAS_VALUE(NCCL_MINOR, 30);
HAS_VALUE(NCCL_PATCH, 7);
HAS_VALUE(NCCL_VERSION_CODE, 23007);
HAS_VALUE(NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH), NCCL_VERSION_CODE);
HAS_VALUE(NCCL_VERSION(2, 8, 4), 2804);
HAS_VALUE(NCCL_VERSION(2, 9, 6), 20906);
HAS_VALUE(NCCL_VERSION(3, 1, 0), 30100);
static_assert(sizeof(NCCL_SUFFIX) == 1, "the suffix is empty");
HAS_VALUE(NCCL_UNIQUE_ID_BYTES, 128);
HAS_VALUE(NCCL_CONFIG_UNDEF_INT, INT_MIN);
HAS_VALUE(NCCL_SPLIT_NOCOLOR, -1);
HAS_VALUE(NCCL_API_MAGIC, 0xcafebeef);
HAS_VALUE(NCCL_WIN_DEFAULT, 0);
HAS_VALUE(NCCL_WIN_COLL_SYMMETRIC, 1);
HAS_VALUE(NCCL_WIN_STRICT_ORDERING, 2);
HAS_VALUE(NCCL_WIN_REQUIRED_ALIGNMENT, 4096);
HAS_VALUE(NCCL_CTA_POLICY_DEFAULT, 0);
HAS_VALUE(NCCL_CTA_POLICY_EFFICIENCY, 1);
HAS_VALUE(NCCL_CTA_POLICY_ZERO, 2);
HAS_VALUE(NCCL_SHRINK_DEFAULT, 0);
HAS_VALUE(NCCL_SHRINK_ABORT, 1);
HAS_VALUE(NCCL_REVOKE_DEFAULT, 0);
HAS_VALUE(NCCL_SUSPEND_MEM, 1);
static_assert(NCCL_UNDEF_FLOAT == -1.0f, "NCCL_UNDEF_FLOAT has changed");

/* ---- enumerations */
HAS_SIZE(ncclResult_t, 4);
HAS_VALUE(ncclSuccess, 0);
HAS_VALUE(ncclUnhandledCudaError, 1);
HAS_VALUE(ncclSystemError, 2);
HAS_VALUE(ncclInternalError, 3);
HAS_VALUE(ncclInvalidArgument, 4);
HAS_VALUE(ncclInvalidUsage, 5);
HAS_VALUE(ncclRemoteError, 6);
HAS_VALUE(ncclInProgress, 7);
HAS_VALUE(ncclTimeout, 8);
HAS_VALUE(ncclNumResults, 9);

HAS_SIZE(ncclDataType_t, 4);
HAS_VALUE(ncclInt8, 0);
HAS_VALUE(ncclChar, 0);
HAS_VALUE(ncclUint8, 1);
HAS_VALUE(ncclInt32, 2);
HAS_VALUE(ncclInt, 2);
HAS_VALUE(ncclUint32, 3);
HAS_VALUE(ncclInt64, 4);
HAS_VALUE(ncclUint64, 5);
HAS_VALUE(ncclFloat16, 6);
HAS_VALUE(ncclHalf, 6);
HAS_VALUE(ncclFloat32, 7);
HAS_VALUE(ncclFloat, 7);
HAS_VALUE(ncclFloat64, 8);
HAS_VALUE(ncclDouble, 8);
HAS_VALUE(ncclBfloat16, 9);
HAS_VALUE(ncclFloat8e4m3, 10);
HAS_VALUE(ncclFloat8e5m2, 11);
HAS_VALUE(ncclNumTypes, 12);

HAS_SIZE(ncclRedOp_t, 4);
HAS_SIZE(ncclRedOp_dummy_t, 4);
HAS_VALUE(ncclSum, 0);
HAS_VALUE(ncclProd, 1);
HAS_VALUE(ncclMax, 2);
HAS_VALUE(ncclMin, 3);
HAS_VALUE(ncclAvg, 4);
HAS_VALUE(ncclNumOps, 5);
HAS_VALUE(ncclNumOps_dummy, 5);
HAS_VALUE(ncclMaxRedOp, 0x7fffffff);

HAS_SIZE(ncclScalarResidence_t, 4);
HAS_VALUE(ncclScalarDevice, 0);
HAS_VALUE(ncclScalarHostImmediate, 1);

HAS_SIZE(ncclCommMemStat_t, 4);
HAS_VALUE(ncclStatGpuMemSuspend, 0);
HAS_VALUE(ncclStatGpuMemSuspended, 1);
HAS_VALUE(ncclStatGpuMemPersist, 2);
HAS_VALUE(ncclStatGpuMemTotal, 3);

/* ---- structs */
HAS_SIZE(ncclComm_t, 8);
HAS_SIZE(ncclWindow_t, 8);
HAS_SIZE(ncclParamHandle_t, 8);
HAS_SIZE(cudaStream_t, 8);

HAS_SIZE(ncclUniqueId, 128);
HAS_OFFSET(ncclUniqueId, internal, 0);

HAS_SIZE(ncclWaitSignalDesc_t, 16);
HAS_OFFSET(ncclWaitSignalDesc_t, opCnt, 0);
HAS_OFFSET(ncclWaitSignalDesc_t, peer, 4);
HAS_OFFSET(ncclWaitSignalDesc_t, sigIdx, 8);
HAS_OFFSET(ncclWaitSignalDesc_t, ctx, 12);

/* 2.31 and 2.32 */
HAS_SIZE(ncclConfigExt_t, 24);
HAS_OFFSET(ncclConfigExt_t, key, 8);
HAS_OFFSET(ncclConfigExt_t, val, 16);
HAS_SIZE(ncclCollConfig_t, 72);
HAS_OFFSET(ncclCollConfig_t, ext, 16);
HAS_OFFSET(ncclCollConfig_t, minCTAs, 24);
HAS_OFFSET(ncclCollConfig_t, maxCTAs, 28);
HAS_OFFSET(ncclCollConfig_t, nvlsCTAs, 32);
HAS_OFFSET(ncclCollConfig_t, cgaClusterSize, 36);
HAS_OFFSET(ncclCollConfig_t, algSelection, 40);
HAS_OFFSET(ncclCollConfig_t, forceAlgSelection, 48);
HAS_OFFSET(ncclCollConfig_t, CTAPolicy, 52);
HAS_OFFSET(ncclCollConfig_t, userProfilerTag, 56);
HAS_OFFSET(ncclCollConfig_t, launchCompletionEvent, 64);
HAS_SIZE(ncclEncryptionConfig_t, 32);
HAS_OFFSET(ncclEncryptionConfig_t, mode, 16);
HAS_OFFSET(ncclEncryptionConfig_t, psk, 24);
HAS_VALUE(NCCL_ENCRYPTION_MODE_NONE, 0);
HAS_VALUE(NCCL_ENCRYPTION_MODE_PSK, 1);
HAS_SIZE(ncclCftLeId, 4);
HAS_VALUE(NCCL_CFT_TEAM_FLAT, 0);
HAS_VALUE(NCCL_CFT_TEAM_HIER_MULTIMEM, 1);
HAS_VALUE(NCCL_CFT_TEAM_HIER_LSA, 2);

HAS_SIZE(ncclSimInfo_t, 24);
HAS_OFFSET(ncclSimInfo_t, size, 0);
HAS_OFFSET(ncclSimInfo_t, magic, 8);
HAS_OFFSET(ncclSimInfo_t, version, 12);
HAS_OFFSET(ncclSimInfo_t, estimatedTime, 16);

HAS_SIZE(ncclConfig_t, 96);
HAS_OFFSET(ncclConfig_t, size, 0);
HAS_OFFSET(ncclConfig_t, magic, 8);
HAS_OFFSET(ncclConfig_t, version, 12);
HAS_OFFSET(ncclConfig_t, blocking, 16);
HAS_OFFSET(ncclConfig_t, cgaClusterSize, 20);
HAS_OFFSET(ncclConfig_t, minCTAs, 24);
HAS_OFFSET(ncclConfig_t, maxCTAs, 28);
HAS_OFFSET(ncclConfig_t, netName, 32);
HAS_OFFSET(ncclConfig_t, splitShare, 40);
HAS_OFFSET(ncclConfig_t, trafficClass, 44);
HAS_OFFSET(ncclConfig_t, commName, 48);
HAS_OFFSET(ncclConfig_t, collnetEnable, 56);
HAS_OFFSET(ncclConfig_t, CTAPolicy, 60);
HAS_OFFSET(ncclConfig_t, shrinkShare, 64);
HAS_OFFSET(ncclConfig_t, nvlsCTAs, 68);
HAS_OFFSET(ncclConfig_t, nChannelsPerNetPeer, 72);
HAS_OFFSET(ncclConfig_t, nvlinkCentricSched, 76);
HAS_OFFSET(ncclConfig_t, graphUsageMode, 80);
HAS_OFFSET(ncclConfig_t, numRmaCtx, 84);
HAS_OFFSET(ncclConfig_t, maxP2pPeers, 88);
HAS_OFFSET(ncclConfig_t, graphStreamOrdering, 92);

/* ---- the device API's structs (c-api reference, sections 13.2 to 13.5) */
HAS_SIZE(ncclTeam_t, 12);
HAS_SIZE(ncclCommProperties_t, 56);
HAS_OFFSET(ncclCommProperties_t, rank, 16);
HAS_OFFSET(ncclCommProperties_t, deviceApiSupport, 32);
HAS_OFFSET(ncclCommProperties_t, multimemSupport, 33);
HAS_OFFSET(ncclCommProperties_t, ginType, 36);
HAS_OFFSET(ncclCommProperties_t, nLsaTeams, 40);
HAS_OFFSET(ncclCommProperties_t, hostRmaSupport, 44);
HAS_OFFSET(ncclCommProperties_t, railedGinType, 48);
HAS_SIZE(ncclDevCommRequirements_t, 96);
HAS_OFFSET(ncclDevCommRequirements_t, resourceRequirementsList, 16);
HAS_OFFSET(ncclDevCommRequirements_t, lsaMultimem, 32);
HAS_OFFSET(ncclDevCommRequirements_t, barrierCount, 36);
HAS_OFFSET(ncclDevCommRequirements_t, ginForceEnable, 56);
HAS_OFFSET(ncclDevCommRequirements_t, ginConnectionType, 72);
HAS_OFFSET(ncclDevCommRequirements_t, ginQueueDepth, 80);
HAS_OFFSET(ncclDevCommRequirements_t, worldGinBarrierCount, 88);
HAS_OFFSET(ncclDevCommRequirements_t, ginVaSignalsRequired, 93);
HAS_SIZE(ncclDevResourceRequirements_t, 56);
HAS_OFFSET(ncclDevResourceRequirements_t, ginSignalCount, 32);
HAS_SIZE(ncclTeamRequirements_t, 32);
HAS_OFFSET(ncclTeamRequirements_t, multimem, 20);
HAS_SIZE(ncclDevComm_t, 240);
HAS_SIZE(ncclMultimemHandle_t, 8);
HAS_SIZE(ncclLsaBarrierHandle_t, 8);
HAS_SIZE(ncclGinBarrierHandle_t, 8);
HAS_SIZE(ncclLLA2AHandle_t, 8);
