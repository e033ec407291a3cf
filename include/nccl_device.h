/* nccl_device.h - what a program needs on the host to prepare kernels that communicate by
 * themselves (NCCL's device API, level 2.30): teams, properties, requirements and device
 * communicators.
 *
 * The functions that kernels call are not here. Kernels compiled with NVIDIA's headers of 2.28.7 to
 * 2.32 have them, and run on this library's device communicators; kernels written for this library
 * take niccolite/device.h. What there is: memory of the load-store team and its barriers; multicast
 * addresses where the team has a multicast object; and networking by proxy, also between machines,
 * for kernels of headers from 2.30 on. ncclCommQueryProperties says what a communicator has.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef NCCL_DEVICE_H_
#define NCCL_DEVICE_H_

#if defined(__CUDACC__) && !defined(NCCL_DEVICE_HOST_ONLY)
#error \
    "Niccolite's nccl_device.h has the host part of the device API only. Kernels that communicate: include niccolite/device.h, or compile with NVIDIA's headers. A file without such kernels: compile it with -DNCCL_DEVICE_HOST_ONLY. A program that can leave such kernels out (nccl-tests): compile it with -DNICCOLITE_WITHOUT_DEVICE_API, with which nccl.h says that it is that of NCCL 2.27."
#endif

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nccl.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Teams ----
 *
 * A team is `nRanks` ranks of a communicator at equal distances: the caller is its `rank`-th, and
 * its neighbour in the team is `stride` ranks away in the communicator. */
typedef struct ncclTeam {
  int nRanks;
  int rank;
  int stride;
} ncclTeam_t;

/* All ranks; the ranks whose memory kernels of this rank can load and store, which are consecutive;
 * and the ranks with this one's place in each of those. A team of zeros where `comm` is no
 * communicator, or not ready. */
ncclTeam_t ncclTeamWorld(ncclComm_t comm);
ncclTeam_t pncclTeamWorld(ncclComm_t comm);
ncclTeam_t ncclTeamLsa(ncclComm_t comm);
ncclTeam_t pncclTeamLsa(ncclComm_t comm);
ncclTeam_t ncclTeamRail(ncclComm_t comm);
ncclTeam_t pncclTeamRail(ncclComm_t comm);

/* The rank in the communicator, or in the load-store team, of member `rank` of `team`; -1 where
 * `comm` is no communicator, or not ready. */
int ncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank);
int pncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank);
int ncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank);
int pncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank);

/* ---- Compute Fabric Transport (since 2.31) ----
 *
 * Endpoints in the fabric of racks with drivers from 13.3 on, which this library does not make: a
 * rank's team of those that it reaches so is the rank alone, and no window has an endpoint. */

typedef uint32_t ncclCftLeId;
typedef enum {
  NCCL_CFT_TEAM_FLAT = 0,
  NCCL_CFT_TEAM_HIER_MULTIMEM = 1,
  NCCL_CFT_TEAM_HIER_LSA = 2
} ncclCftTeamMode_t;

/* A team of zeros where `comm` is no communicator, or not ready, and for a `mode` that is none. */
#ifdef __cplusplus
ncclTeam_t ncclTeamCft(ncclComm_t comm, ncclCftTeamMode_t mode = NCCL_CFT_TEAM_FLAT);
#else
ncclTeam_t ncclTeamCft(ncclComm_t comm, ncclCftTeamMode_t mode);
#endif
ncclTeam_t pncclTeamCft(ncclComm_t comm, ncclCftTeamMode_t mode);
ncclTeam_t ncclTeamCftMultimem(ncclComm_t comm);
ncclTeam_t pncclTeamCftMultimem(ncclComm_t comm);

/* The endpoint of a peer's copy of a window, by the peer's rank in the communicator or in a team,
 * or of all copies. ncclInvalidArgument: there is none. */
ncclResult_t ncclGetPeerDeviceLeInfo(ncclWindow_t window, size_t offset, int peerWorld,
                                     ncclCftLeId* leId, size_t* leOffset);
ncclResult_t pncclGetPeerDeviceLeInfo(ncclWindow_t window, size_t offset, int peerWorld,
                                      ncclCftLeId* leId, size_t* leOffset);
ncclResult_t ncclGetCftDeviceLeInfo(ncclWindow_t window, size_t offset, int peerCft,
                                    ncclTeam_t cftTeam, ncclCftLeId* leId, size_t* leOffset);
ncclResult_t pncclGetCftDeviceLeInfo(ncclWindow_t window, size_t offset, int peerCft,
                                     ncclTeam_t cftTeam, ncclCftLeId* leId, size_t* leOffset);
ncclResult_t ncclGetMultimemDeviceLeInfo(ncclWindow_t window, size_t offset, ncclCftLeId* leId,
                                         size_t* leOffset);
ncclResult_t pncclGetMultimemDeviceLeInfo(ncclWindow_t window, size_t offset, ncclCftLeId* leId,
                                          size_t* leOffset);

/* ---- Properties ---- */

/* How the network serves kernels. */
typedef enum {
  NCCL_GIN_TYPE_NONE = 0,
  NCCL_GIN_TYPE_PROXY = 2,
  NCCL_GIN_TYPE_GDAKI = 3,
  NCCL_GIN_TYPE_GPI = 4
} ncclGinType_t;
typedef enum {
  NCCL_GIN_CONNECTION_NONE = 0,
  NCCL_GIN_CONNECTION_FULL = 1,
  NCCL_GIN_CONNECTION_RAIL = 2
} ncclGinConnectionType_t;

/* Start from NCCL_COMM_PROPERTIES_INITIALIZER. */
typedef struct ncclCommProperties {
  /* set by the initializer, not by hand */
  size_t size;
  unsigned int magic;
  unsigned int version;

  int rank;
  int nRanks;
  int cudaDev;
  int nvmlDev;
  bool deviceApiSupport; /* can ncclDevCommCreate succeed? */
  bool multimemSupport;  /* are there multicast addresses? */
  ncclGinType_t ginType;
  int nLsaTeams;       /* load-store teams that the communicator has */
  bool hostRmaSupport; /* ncclPutSignal, ncclSignal, ncclWaitSignal */
  ncclGinType_t railedGinType;
} ncclCommProperties_t;

#define NCCL_COMM_PROPERTIES_INITIALIZER                                            \
  {                                                                                 \
    sizeof(ncclCommProperties_t), NCCL_API_MAGIC,                                   \
        NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH), 0, 0, 0, 0, false, false, \
        NCCL_GIN_TYPE_NONE, 0, false, NCCL_GIN_TYPE_NONE                            \
  }

/* Stores what `comm` can do. ncclInvalidArgument: a null or bad argument, or the communicator is
 * still initializing. ncclInvalidUsage: `props` was not initialized, or by a header whose layout is
 * not known. */
ncclResult_t ncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t* props);
ncclResult_t pncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t* props);

/* ---- Requirements of a device communicator ---- */

typedef uint32_t ncclDevResourceHandle;
typedef ncclDevResourceHandle ncclDevResourceHandle_t;
typedef uint32_t ncclGinSignal_t;
typedef uint32_t ncclGinCounter_t;

typedef struct ncclMultimemHandle {
  void* mcBasePtr;
} ncclMultimemHandle_t;
typedef struct ncclLsaBarrierHandle {
  ncclDevResourceHandle_t bufHandle;
  int nBarriers;
} ncclLsaBarrierHandle_t;
typedef struct ncclGinBarrierHandle {
  ncclGinSignal_t signal0;
  ncclDevResourceHandle_t unused;
} ncclGinBarrierHandle_t;
typedef struct ncclLLA2AHandle {
  ncclDevResourceHandle_t bufHandle;
  uint32_t nSlots;
} ncclLLA2AHandle_t;

/* Memory, signals and counters that a device communicator is to have: a list. Where they are is
 * stored in the places that the `out` pointers name. */
typedef struct ncclDevResourceRequirements {
  struct ncclDevResourceRequirements* next;
  size_t bufferSize; /* bytes */
  size_t bufferAlign;
  ncclDevResourceHandle_t* outBufferHandle; /* offset in units of 128 bytes */
  int ginSignalCount;
  int ginCounterCount;
  ncclGinSignal_t* outGinSignalStart;
  ncclGinCounter_t* outGinCounterStart;
} ncclDevResourceRequirements_t;

typedef struct ncclTeamRequirements {
  struct ncclTeamRequirements* next;
  ncclTeam_t team;
  bool multimem;
  ncclMultimemHandle_t* outMultimemHandle;
} ncclTeamRequirements_t;

/* Start from NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER. */
typedef struct ncclDevCommRequirements {
  /* set by the initializer, not by hand */
  size_t size;
  unsigned int magic;
  unsigned int version;

  ncclDevResourceRequirements_t* resourceRequirementsList;
  ncclTeamRequirements_t* teamRequirementsList;
  bool lsaMultimem; /* multicast address of the load-store team */
  int barrierCount; /* barriers of all ranks */
  int lsaBarrierCount;
  int railGinBarrierCount;
  int lsaLLA2ABlockCount, lsaLLA2ASlotCount;
  bool ginForceEnable;
  int ginContextCount;
  int ginSignalCount;
  int ginCounterCount;
  ncclGinConnectionType_t ginConnectionType;
  bool ginExclusiveContexts;
  int ginQueueDepth;
  int ginTrafficClass;
  int worldGinBarrierCount;
  bool ginStrongSignalsRequired;
  bool ginVaSignalsRequired;
} ncclDevCommRequirements_t;

#define NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER                                                     \
  {                                                                                                \
    sizeof(ncclDevCommRequirements_t), NCCL_API_MAGIC,                                             \
        NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH), NULL, NULL, false, 0, 0, 0, 0, 0, false, \
        4, 0, 0, NCCL_GIN_CONNECTION_NONE, false, 0, NCCL_CONFIG_UNDEF_INT, 0, true, true          \
  }

/* What a kernel is given, by value, as kernels of 2.30's header read it. Where networking was not
 * required, what concerns it is zero. */
typedef struct ncclDevComm {
  uint32_t magic;
  uint32_t version;
  int32_t rank, nRanks;
  uint32_t nRanks_rcp32;
  int32_t lsaRank, lsaSize;
  uint32_t lsaSize_rcp32;
  void* windowTable;           /* device memory */
  ncclWindow_t resourceWindow; /* NULL: nothing was required */
  struct {
    void* unused;
    char* lsaFlatBase; /* of the load-store team's first rank */
    uint32_t unused_ranks[2];
    uint32_t stride4G; /* from each rank's copy to the next, in units of 4 GiB */
    uint32_t mcOffset4K;
    uint64_t unused_end[4];
  } resourceWindow_inlined;
  ncclGinBarrierHandle_t hybridWorldGinBarrier;
  ncclMultimemHandle_t lsaMultimem;
  ncclLsaBarrierHandle_t lsaBarrier;
  ncclGinBarrierHandle_t railGinBarrier;
  uint8_t ginConnectionCount;
  uint8_t ginNetDeviceTypes[4];
  void* ginHandles[4];
  int32_t ginSignalCount, ginCounterCount;
  uint64_t* ginSignalShadows;
  uint32_t ginContextCount;
  bool ginConnectionsRailed, ginStrongLegacySignals, ginContextsRailed;
  uint32_t* abortFlag; /* in host memory: waits end when it is not zero */
  ncclLsaBarrierHandle_t hybridLsaBarrier;
  ncclGinBarrierHandle_t hybridRailGinBarrier, worldGinBarrier;
} ncclDevComm_t;

/* Makes a device communicator that satisfies `reqs`; all ranks call with equal requirements. In a
 * group, `outDevComm` is written and the handles of `reqs` are stored when the group ends. Its
 * layout is that of the caller's header, whose version `reqs` says: 2.29.2 to 2.32, or 2.28.7 to
 * 2.28.9, which say none. ncclInvalidArgument: a null or bad argument, requirements that differ
 * between ranks, or one that cannot be met: networking (for an older header), or multicast where
 * there is none. ncclInvalidUsage: the header is not known, or ranks of one machine cannot map each
 * other's memory. */
ncclResult_t ncclDevCommCreate(ncclComm_t comm, const ncclDevCommRequirements_t* reqs,
                               ncclDevComm_t* outDevComm);
ncclResult_t pncclDevCommCreate(ncclComm_t comm, const ncclDevCommRequirements_t* reqs,
                                ncclDevComm_t* outDevComm);

/* Ends a device communicator, a copy of whose struct suffices. No kernel of any rank of the team
 * may use it any more: synchronize before. ncclInvalidArgument: a null argument, or none that
 * ncclDevCommCreate made for `comm`. */
ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const ncclDevComm_t* devComm);
ncclResult_t pncclDevCommDestroy(ncclComm_t comm, const ncclDevComm_t* devComm);

/* Each stores in `outReq` what its object needs of a device communicator, to be put into the list
 * of requirements, and in `outHandle` the handle that ncclDevCommCreate completes. Both belong to
 * the caller, and live until ncclDevCommCreate has returned. ncclInvalidArgument: a null pointer,
 * or a negative number. */
ncclResult_t ncclLsaBarrierCreateRequirement(ncclTeam_t team, int nBarriers,
                                             ncclLsaBarrierHandle_t* outHandle,
                                             ncclDevResourceRequirements_t* outReq);
ncclResult_t pncclLsaBarrierCreateRequirement(ncclTeam_t team, int nBarriers,
                                              ncclLsaBarrierHandle_t* outHandle,
                                              ncclDevResourceRequirements_t* outReq);
ncclResult_t ncclGinBarrierCreateRequirement(ncclComm_t comm, ncclTeam_t team, int nBarriers,
                                             ncclGinBarrierHandle_t* outHandle,
                                             ncclDevResourceRequirements_t* outReq);
ncclResult_t pncclGinBarrierCreateRequirement(ncclComm_t comm, ncclTeam_t team, int nBarriers,
                                              ncclGinBarrierHandle_t* outHandle,
                                              ncclDevResourceRequirements_t* outReq);
/* Slots of an exchange of up to `maxElts` elements of up to `maxEltSize` bytes. */
int ncclLLA2ACalcSlots(int maxElts, int maxEltSize);
int pncclLLA2ACalcSlots(int maxElts, int maxEltSize);
ncclResult_t ncclLLA2ACreateRequirement(int nBlocks, int nSlots, ncclLLA2AHandle_t* outHandle,
                                        ncclDevResourceRequirements_t* outReq);
ncclResult_t pncclLLA2ACreateRequirement(int nBlocks, int nSlots, ncclLLA2AHandle_t* outHandle,
                                         ncclDevResourceRequirements_t* outReq);

/* ---- Addresses in windows ----
 *
 * Each stores an address that is valid in this process, on the device of every rank that it has:
 * of byte `offset` of the copy that a member of the load-store team or a rank has in `window`; null
 * for a rank outside of the team. The own copy's address is not the one that was registered, but is
 * the same memory. ncclInvalidArgument: no live window, a null pointer, a rank or an offset out of
 * range. */
ncclResult_t ncclGetLsaDevicePointer(ncclWindow_t window, size_t offset, int lsaRank,
                                     void** outPtr);
ncclResult_t pncclGetLsaDevicePointer(ncclWindow_t window, size_t offset, int lsaRank,
                                      void** outPtr);
ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void** outPtr);
ncclResult_t pncclGetPeerDevicePointer(ncclWindow_t window, size_t offset, int peer, void** outPtr);

/* The byte at `offset` of all copies of the load-store team at once, for multimem instructions;
 * null before a device communicator has required lsaMultimem, and where the window has no such
 * address. ncclInvalidArgument: no live window, a null pointer, an offset out of range, or a handle
 * without address. */
ncclResult_t ncclGetLsaMultimemDevicePointer(ncclWindow_t window, size_t offset, void** outPtr);
ncclResult_t pncclGetLsaMultimemDevicePointer(ncclWindow_t window, size_t offset, void** outPtr);
ncclResult_t ncclGetMultimemDevicePointer(ncclWindow_t window, size_t offset,
                                          ncclMultimemHandle_t multimem, void** outPtr);
ncclResult_t pncclGetMultimemDevicePointer(ncclWindow_t window, size_t offset,
                                           ncclMultimemHandle_t multimem, void** outPtr);

#ifdef __cplusplus
} /* extern "C" */
#endif

/* ---- Arithmetic of teams and resources, without a communicator ---- */

#ifdef __CUDACC__
#define NCCL_TEAM_FUNCTION static inline __host__ __device__
#else
#define NCCL_TEAM_FUNCTION static inline
#endif

/* Is member `bPeer` of team `b` in team `a`? And which member of `a` is it then? The caller is in
 * both teams. */
NCCL_TEAM_FUNCTION bool ncclTeamRankIsMember(ncclTeam_t a, ncclTeam_t b, int bPeer) {
  const int distance = (bPeer - b.rank) * b.stride;
  const int steps = a.stride == 0 ? 0 : distance / a.stride;
  const int member = a.rank + steps;
  return steps * a.stride == distance && 0 <= member && member < a.nRanks;
}
NCCL_TEAM_FUNCTION int ncclTeamRankToTeam(ncclTeam_t a, ncclTeam_t b, int bPeer) {
  return a.rank + (a.stride == 0 ? 0 : (bPeer - b.rank) * b.stride / a.stride);
}

/* `parent` cut into runs of `innerSize` members: the run that the caller is in; and the members
 * with the caller's place in each run. `innerSize` divides the parent's size. */
NCCL_TEAM_FUNCTION ncclTeam_t ncclTeamInnerFactor(ncclTeam_t parent, int innerSize) {
  ncclTeam_t team;
  team.nRanks = innerSize;
  team.rank = parent.rank % innerSize;
  team.stride = parent.stride;
  return team;
}
NCCL_TEAM_FUNCTION ncclTeam_t ncclTeamOuterFactor(ncclTeam_t parent, int innerSize) {
  ncclTeam_t team;
  team.nRanks = parent.nRanks / innerSize;
  team.rank = parent.rank / innerSize;
  team.stride = parent.stride * innerSize;
  return team;
}

/* The `index`-th of those members of `parent` that are not in `subset`, which has the same stride
 * or a multiple of it. */
NCCL_TEAM_FUNCTION int ncclTeamRankInDifference(ncclTeam_t parent, ncclTeam_t subset, int index) {
  const int step = subset.stride / parent.stride;
  const int first = parent.rank - subset.rank * step;
  const int last = first + (subset.nRanks - 1) * step;
  const int others_between = step - 1; /* members of the parent between two of the subset */
  if (index < first) return index;
  if (others_between > 0 && index - first < (subset.nRanks - 1) * others_between) {
    const int gap = (index - first) / others_between;
    return first + gap * step + 1 + (index - first) % others_between;
  }
  return last + 1 + (index - first - (subset.nRanks - 1) * others_between);
}

NCCL_TEAM_FUNCTION size_t ncclGetResourceBufferOffset(ncclDevResourceHandle_t handle) {
  return (size_t)handle * 128;
}
#undef NCCL_TEAM_FUNCTION

#endif /* NCCL_DEVICE_H_ */
