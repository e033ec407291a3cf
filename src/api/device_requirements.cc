#include "api/device_requirements.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "api/device_layouts.h"
#pragma GCC visibility push(default)
#include "nccl_device.h"
#pragma GCC visibility pop

namespace niccolite::api {
namespace {

constexpr const char* kFunction = "ncclDevCommCreate";
constexpr size_t kMostEntries = 4096;  // of a list; a longer one is a circle

/// The requirements of headers of 2.28, which do not say their version.
struct Unversioned {
  const ncclDevResourceRequirements_t* resources;
  const ncclTeamRequirements_t* teams;
  bool lsaMultimem;
  int barrierCount;
  int lsaBarrierCount;
  int railGinBarrierCount;
  int lsaLLA2ABlockCount, lsaLLA2ASlotCount;
  bool ginForceEnable;
  int ginContextCount;
  int ginSignalCount;
  int ginCounterCount;
};
static_assert(sizeof(Unversioned) == 56 && offsetof(Unversioned, lsaMultimem) == 16 &&
              offsetof(Unversioned, lsaBarrierCount) == 24 &&
              offsetof(Unversioned, ginForceEnable) == 40 &&
              offsetof(Unversioned, ginCounterCount) == 52);
static_assert(sizeof(ncclDevCommRequirements_t) == 96 &&
              offsetof(ncclDevCommRequirements_t, lsaBarrierCount) == 40 &&
              offsetof(ncclDevCommRequirements_t, ginConnectionType) == 72 &&
              offsetof(ncclDevCommRequirements_t, worldGinBarrierCount) == 88);

/// Fields that 2.31 has behind the fields of this library's header.
struct Newer {
  int ginCustomStride;
  int ginType;
  bool useRuntimeVersion;
  int cftCaps;
  int cftBarrierCount;
};
constexpr size_t kNewerAt = 96;
static_assert(kNewerAt + offsetof(Newer, useRuntimeVersion) == 104 &&
              kNewerAt + offsetof(Newer, cftCaps) == 108 &&
              kNewerAt + offsetof(Newer, cftBarrierCount) == 112);

/// Could these 8 bytes be a pointer to a list, as a struct without version begins with two?
bool may_be_list(uint64_t value) {
  constexpr uint64_t kFirstPage = 4096;
  constexpr uint64_t kUserAddresses = uint64_t{1} << 47;
  return value == 0 ||
         (value >= kFirstPage && value < kUserAddresses && value % alignof(void*) == 0);
}

bool is_unversioned(const ncclDevCommRequirements_t* reqs) {
  uint64_t head[2];
  std::memcpy(head, reqs, sizeof head);
  return may_be_list(head[0]) && may_be_list(head[1]);
}

/// Only requirements of one header are named: all others of a struct are read by the same rule.
Status cannot(const char* field, int64_t value, const char* what_there_is) {
  return Status::invalid_argument("{} : reqs argument requires {} = {}: {}", kFunction, field,
                                  value, what_there_is);
}

constexpr const char* kNoNetworking =
    "kernels of headers before 2.30 have no networking here (ncclCommQueryProperties says ginType "
    "NONE): they have lsaBarrierCount and buffers of the load-store team";
constexpr const char* kNotConnected =
    "networking for kernels has to be asked for: set ginConnectionType to "
    "NCCL_GIN_CONNECTION_FULL, or ginForceEnable";
struct Count {
  const char* field;
  int value;
};

Status read_lists(const ncclDevResourceRequirements_t* resources,
                  const ncclTeamRequirements_t* teams, const char* without_network,
                  DeviceRequirements& into) {
  registry::DeviceNeeds& needs = into.needs;
  for (size_t entries = 0; teams != nullptr; teams = teams->next) {
    if (++entries > kMostEntries)
      return Status::invalid_argument(
          "{} : reqs argument: teamRequirementsList has more than {} entries, or is a circle",
          kFunction, kMostEntries);
    if (!teams->multimem) continue;
    needs.multicast = true;
    ncclMultimemHandle_t* const handle = teams->outMultimemHandle;
    into.multicast_teams.push_back({teams->team.nRanks, teams->team.rank, teams->team.stride,
                                    handle == nullptr ? nullptr : &handle->mcBasePtr});
  }
  for (; resources != nullptr; resources = resources->next) {
    for (const Count& count :
         {Count{"ginSignalCount of a list's entry", resources->ginSignalCount},
          Count{"ginCounterCount of a list's entry", resources->ginCounterCount}}) {
      if (count.value < 0) return cannot(count.field, count.value, "a count is not negative");
      if (count.value != 0 && needs.gin.contexts == 0)
        return cannot(count.field, count.value, without_network);
    }
    if (needs.buffers.size() == kMostEntries)
      return Status::invalid_argument(
          "{} : reqs argument: resourceRequirementsList has more than {} entries, or is a circle",
          kFunction, kMostEntries);
    needs.buffers.push_back({.bytes = resources->bufferSize,
                             .align = resources->bufferAlign,
                             .handle = resources->outBufferHandle,
                             .signals = resources->ginSignalCount,
                             .counters = resources->ginCounterCount,
                             .first_signal = resources->outGinSignalStart,
                             .first_counter = resources->outGinCounterStart});
  }
  return {};
}

/// Reads the struct of callers of 2.29.2 and 2.29.3 as NCCL does, and of callers of 2.28 in the
/// same way: a barrier of all ranks is one of the load-store team.
Status read_older(const ncclDevCommRequirements_t& reqs, registry::DeviceNeeds& needs) {
  if (reqs.ginForceEnable || reqs.ginSignalCount != 0 || reqs.ginCounterCount != 0)
    return Status::invalid_usage(
        "{} : reqs argument requires networking for kernels (ginForceEnable, ginSignalCount or "
        "ginCounterCount), and {}",
        kFunction, kNoNetworking);
  needs.lsa_barriers = std::max(reqs.lsaBarrierCount, reqs.barrierCount);
  return {};
}

/// The networking of a caller that has asked for it. Contexts and depth are hints.
Status read_network(const ncclDevCommRequirements_t& reqs, unsigned version,
                    registry::DeviceNeeds& needs) {
  constexpr int kMostContexts = 1024;
  constexpr int kLeastDepth = 64, kMostDepth = 1024;
  if (reqs.ginContextCount > kMostContexts)
    return cannot("ginContextCount", reqs.ginContextCount, "there are at most 1024");
  needs.gin.contexts = std::max(reqs.ginContextCount, 1);
  needs.gin.signals = reqs.ginSignalCount;
  needs.gin.counters = reqs.ginCounterCount;
  needs.gin.depth =
      std::bit_ceil(static_cast<uint32_t>(std::clamp(reqs.ginQueueDepth, kLeastDepth, kMostDepth)));
  needs.gin.context_bytes = context_layout_bytes(version);
  needs.hybrid_barriers = reqs.barrierCount;
  needs.rail_barriers = reqs.railGinBarrierCount;
  needs.world_barriers = reqs.worldGinBarrierCount;
  return {};
}

Status read_current(const ncclDevCommRequirements_t& reqs, unsigned version,
                    const char* without_network, registry::DeviceNeeds& needs) {
  needs.lsa_barriers = reqs.lsaBarrierCount;
  if (version < kFirstWithNetwork) without_network = kNoNetworking;
  const int connection = static_cast<int>(reqs.ginConnectionType);
  const bool is_asked = reqs.ginForceEnable || connection != NCCL_GIN_CONNECTION_NONE;
  if (connection < NCCL_GIN_CONNECTION_NONE || connection > NCCL_GIN_CONNECTION_RAIL)
    return cannot("ginConnectionType", connection, "NONE, FULL and RAIL are known");
  for (const Count& count : {Count{"barrierCount", reqs.barrierCount},
                             Count{"railGinBarrierCount", reqs.railGinBarrierCount},
                             Count{"worldGinBarrierCount", reqs.worldGinBarrierCount},
                             Count{"ginSignalCount", reqs.ginSignalCount},
                             Count{"ginCounterCount", reqs.ginCounterCount}})
    if (count.value < 0) return cannot(count.field, count.value, "a count is not negative");
  if (is_asked && without_network == nullptr) return read_network(reqs, version, needs);
  if (without_network == nullptr) without_network = kNotConnected;
  for (const Count& count : {Count{"barrierCount", reqs.barrierCount},
                             Count{"railGinBarrierCount", reqs.railGinBarrierCount},
                             Count{"worldGinBarrierCount", reqs.worldGinBarrierCount},
                             Count{"ginSignalCount", reqs.ginSignalCount},
                             Count{"ginCounterCount", reqs.ginCounterCount},
                             Count{"ginForceEnable", reqs.ginForceEnable ? 1 : 0},
                             Count{"ginConnectionType", static_cast<int>(reqs.ginConnectionType)}})
    if (count.value != 0) return cannot(count.field, count.value, without_network);
  return {};
}

Status read_newer(const ncclDevCommRequirements_t* reqs, DeviceRequirements& into) {
  constexpr unsigned kFirstWithNewer = 23100;
  if (into.version < kFirstWithNewer || reqs->size < kNewerAt + sizeof(Newer)) return {};
  Newer newer;
  std::memcpy(&newer, reinterpret_cast<const std::byte*>(reqs) + kNewerAt, sizeof newer);
  if (newer.cftCaps != 0)
    return cannot("cftCaps", newer.cftCaps, "there is no Compute Fabric Transport");
  if (newer.ginType != NCCL_GIN_TYPE_NONE && newer.ginType != NCCL_GIN_TYPE_PROXY)
    return cannot("ginType", newer.ginType, "networking is of type PROXY here");
  // The caller compiles its kernels with the header of ncclGetVersion().
  if (newer.useRuntimeVersion) {
    into.version = NCCL_VERSION_CODE;
    into.needs.gin.context_bytes = context_layout_bytes(into.version);
  }
  return {};
}

}  // namespace

Status check_version(const char* function, unsigned magic, unsigned version) {
  if (magic != NCCL_API_MAGIC)
    return Status::invalid_usage(
        "{} : the struct was not initialized with its NCCL_..._INITIALIZER, or by a header before "
        "2.29",
        function);
  const bool is_known = (version >= 22902 && version <= 22903) ||
                        (version >= 22905 && version <= 22907) ||
                        (version >= 23000 && version < 23300);
  if (!is_known)
    return Status::invalid_usage(
        "{} : the caller's header is of version {}: the layouts of 2.29.2 to 2.32 are known",
        function, version);
  return {};
}

Result<DeviceRequirements> read_requirements(const ncclDevCommRequirements_t* reqs,
                                             const char* without_network) {
  DeviceRequirements read;
  ncclDevCommRequirements_t own = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  if (reqs->magic != NCCL_API_MAGIC && is_unversioned(reqs)) {
    Unversioned older;
    std::memcpy(&older, reqs, sizeof older);
    read.version = kUnversioned;
    own.lsaMultimem = older.lsaMultimem;
    own.barrierCount = older.barrierCount;
    own.lsaBarrierCount = older.lsaBarrierCount;
    own.ginForceEnable = older.ginForceEnable;
    own.ginSignalCount = older.ginSignalCount;
    own.ginCounterCount = older.ginCounterCount;
    own.resourceRequirementsList = const_cast<ncclDevResourceRequirements_t*>(older.resources);
    own.teamRequirementsList = const_cast<ncclTeamRequirements_t*>(older.teams);
  } else {
    TRY(check_version(kFunction, reqs->magic, reqs->version));
    read.version = reqs->version;
    std::memcpy(static_cast<void*>(&own), reqs, std::min(reqs->size, sizeof own));
  }
  if (own.lsaBarrierCount < 0 || own.barrierCount < 0)
    return cannot(own.lsaBarrierCount < 0 ? "lsaBarrierCount" : "barrierCount",
                  std::min(own.lsaBarrierCount, own.barrierCount), "a count is not negative");
  read.needs.multicast = own.lsaMultimem;
  constexpr unsigned kFirstOfCurrent = 22905;
  TRY(read.version < kFirstOfCurrent
          ? read_older(own, read.needs)
          : read_current(own, read.version, without_network, read.needs));
  TRY(read_newer(reqs, read));
  TRY(read_lists(own.resourceRequirementsList, own.teamRequirementsList,
                 read.version < kFirstWithNetwork ? kNoNetworking
                 : without_network != nullptr     ? without_network
                                                  : kNotConnected,
                 read));
  return read;
}

}  // namespace niccolite::api
