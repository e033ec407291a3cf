// The host's side of the device API: teams, properties, requirements and device communicators.
// Source: c-api reference, section 13.

#include <algorithm>
#include <cstring>

#include "api/arguments.h"
#include "api/call.h"
#include "api/device_layouts.h"
#include "api/device_requirements.h"
#include "base/parameters.h"
#pragma GCC visibility push(default)
#include "gpu/machine.h"
#include "nccl_device.h"
#pragma GCC visibility pop

namespace niccolite::api {
namespace {

using comm::Communicator;

constexpr ncclTeam_t kNoTeam = {0, 0, 0};

ncclTeam_t world(const Communicator& communicator) {
  return {communicator.nranks(), communicator.rank(), 1};
}
ncclTeam_t load_store(const Communicator& communicator) {
  const int size = communicator.ways().load_store_ranks(communicator.membership());
  return {size, communicator.rank() % size, 1};
}
ncclTeam_t rail(const Communicator& communicator) {
  const ncclTeam_t inner = load_store(communicator);
  return {communicator.nranks() / inner.nRanks, communicator.rank() / inner.nRanks, inner.nRanks};
}

/// These functions have no result to put an error in: it is said, and `otherwise` returned.
template <typename Value, typename Function>
Value of_ready(const char* function, ncclComm_t handle, Value otherwise, Function&& value) {
  Value answer = otherwise;
  call(function, [&]() -> Status {
    const auto communicator = TRY(find(handle));
    TRY(communicator->lifetime().check_usable());
    answer = value(*communicator);
    return {};
  });
  return answer;
}

/// Why kernels have no networking; null: they have, by proxy.
const char* without_network(const Communicator& communicator) {
  if (!communicator.ways().has_windows())
    return "kernels have no networking here, because ranks of one machine lack peer access and "
           "cannot map each other's memory (ncclCommQueryProperties says ginType NONE)";
  if (parameters::gin_enable() == 0)
    return "NCCL_GIN_ENABLE=0 has switched networking for kernels off (ncclCommQueryProperties "
           "says ginType NONE)";
  if (parameters::gin_type() >= 0 && parameters::gin_type() != NCCL_GIN_TYPE_PROXY)
    return "NCCL_GIN_TYPE asks for networking of another type than 2, which is by proxy "
           "(ncclCommQueryProperties says ginType NONE)";
  return nullptr;
}

/// The bytes of ncclCommProperties that a caller's header has.
size_t properties_size(unsigned version) {
  constexpr size_t kBytesBefore22905 = 40;
  return version < 22905 ? kBytesBefore22905 : sizeof(ncclCommProperties_t);
}

Status query_properties(ncclComm_t handle, ncclCommProperties_t* props) {
  constexpr const char* kFunction = "ncclCommQueryProperties";
  const auto communicator = TRY(find(handle));
  if (props == nullptr) return Status::invalid_argument("{} : props argument is NULL", kFunction);
  TRY(communicator->lifetime().check_usable());
  TRY(check_version(kFunction, props->magic, props->version));
  ncclCommProperties_t answer = NCCL_COMM_PROPERTIES_INITIALIZER;
  answer.size = props->size;
  answer.version = props->version;
  answer.rank = communicator->rank();
  answer.nRanks = communicator->nranks();
  answer.cudaDev = communicator->device();
  answer.nvmlDev = comm::nvml_device(communicator->machine(), communicator->device());
  // Callers of 2.29 take "yes" for: of all ranks.
  constexpr unsigned kFirstWithTeams = 23000;
  answer.deviceApiSupport = communicator->ways().has_windows() && parameters::win_enable() != 0 &&
                            (props->version >= kFirstWithTeams || rail(*communicator).nRanks == 1);
  answer.multimemSupport = communicator->may_have_multicast();
  const bool has_network =
      props->version >= kFirstWithNetwork && without_network(*communicator) == nullptr;
  answer.ginType = answer.railedGinType = has_network ? NCCL_GIN_TYPE_PROXY : NCCL_GIN_TYPE_NONE;
  answer.nLsaTeams = rail(*communicator).nRanks;
  answer.hostRmaSupport =
      communicator->configuration().one_sided && communicator->ways().has_windows();
  // The type before 2.29.5 is one byte, with the same value.
  std::memcpy(static_cast<void*>(props), &answer,
              std::min(props->size, properties_size(props->version)));
  // commHash (the commId of the log) is the first field that 2.31 adds behind this header's fields.
  constexpr size_t kHashAt = 56;
  static_assert(sizeof answer == kHashAt);
  const uint64_t hash = communicator->id_hash();
  if (props->version >= 23100 && props->size >= kHashAt + sizeof hash)
    std::memcpy(reinterpret_cast<std::byte*>(props) + kHashAt, &hash, sizeof hash);
  // devCommRuntimeVersionSize: of the layout that useRuntimeVersion asks for.
  constexpr size_t kRuntimeSizeAt = 136;
  const size_t runtime_size = device_layout_bytes(NCCL_VERSION_CODE);
  if (props->version >= 23100 && props->size >= kRuntimeSizeAt + sizeof runtime_size)
    std::memcpy(reinterpret_cast<std::byte*>(props) + kRuntimeSizeAt, &runtime_size,
                sizeof runtime_size);
  // ginMinStride, ginConnectionType, and ginSupport by type.
  struct {
    int min_stride = 1;
    int connection = NCCL_GIN_CONNECTION_FULL;
    bool is_supported[64] = {};
  } network;
  constexpr size_t kNetworkAt = 64;
  network.is_supported[NCCL_GIN_TYPE_PROXY] = true;
  if (has_network && props->version >= 23100 && props->size >= kNetworkAt + sizeof network)
    std::memcpy(reinterpret_cast<std::byte*>(props) + kNetworkAt, &network, sizeof network);
  return {};
}

/// Answers the queries for a window's endpoint in the compute fabric: there is none. Source:
/// reference c-api-2.32, section 8.
ncclResult_t without_endpoint(const char* function) {
  return call(function, [&] {
    return Status::invalid_argument(
        "{} : no window has an endpoint of the Compute Fabric Transport: this library does not "
        "make "
        "any (the team of ncclTeamCft is this rank alone)",
        function);
  });
}

/// Refuses builders of handles for networking from within a kernel. NCCL's own kernels call them;
/// no header lays out the handles.
ncclResult_t without_network_of_devices(const char* function) {
  return call(function, [&] {
    return Status::invalid_usage(
        "{} : this library has no boxes of networking by kernels. It has signals, counters and "
        "barriers of it (ncclDevCommCreate, ncclGinBarrierCreateRequirement)",
        function);
  });
}

ncclTeam_t alone(const Communicator&) { return {1, 0, 1}; }

// Collective: the other ranks wait for this one in the communicator, not here.
Result<comm::Completion> create_device_communicator(ncclComm_t handle,
                                                    const ncclDevCommRequirements_t* reqs,
                                                    ncclDevComm_t* answer) {
  static constexpr const char* kFunction = "ncclDevCommCreate";
  const auto communicator = TRY(find(handle));
  if (reqs == nullptr) return Status::invalid_argument("{} : reqs argument is NULL", kFunction);
  if (answer == nullptr)
    return Status::invalid_argument("{} : outDevComm argument is NULL", kFunction);
  TRY(communicator->lifetime().check_ready());
  DeviceRequirements requirements = TRY(read_requirements(reqs, without_network(*communicator)));
  if (!communicator->ways().has_windows())
    return Status::invalid_usage(
        "{} : rank {}: ranks of one machine lack peer access and cannot map each other's memory, "
        "and so kernels reach no windows (ncclCommQueryProperties says so: deviceApiSupport is "
        "false). Use the calls of the host",
        kFunction, communicator->rank());
  const ncclTeam_t lsa = load_store(*communicator);
  for (const auto& team : requirements.multicast_teams)
    if (team.ranks != lsa.nRanks || team.rank != lsa.rank || team.stride != lsa.stride)
      return Status::invalid_argument(
          "{} : reqs argument requires multimem of a team of {} ranks, rank {}, stride {}: the "
          "load-store team alone can have it (ncclTeamLsa: {} ranks, rank {}, stride {})",
          kFunction, team.ranks, team.rank, team.stride, lsa.nRanks, lsa.rank, lsa.stride);
  auto* const device = reinterpret_cast<std::byte*>(answer);
  const auto job = [communicator, device, requirements = std::move(requirements)]() -> Status {
    Result<registry::DeviceComm> made = communicator->make_device_comm(requirements.needs);
    if (!made.is_ok())
      return std::move(made).status().with_context("{} : rank {}", kFunction, communicator->rank());
    const ncclTeam_t team = load_store(*communicator);
    for (const auto& wish : requirements.multicast_teams)
      if (wish.base != nullptr) *wish.base = made.value().multicast_base;
    write_device_layout({.version = requirements.version,
                         .rank = communicator->rank(),
                         .nranks = communicator->nranks(),
                         .lsa_rank = team.rank,
                         .lsa_ranks = team.nRanks,
                         .window_table = made.value().table,
                         .resource_window = made.value().window,
                         .resource_base = made.value().base,
                         .resource_stride_4g = made.value().stride_4g,
                         .resource_multicast_4k = made.value().multicast_offset_4k,
                         .multicast_base = made.value().multicast_base,
                         .lsa_barrier_handle = made.value().lsa_barrier_handle,
                         .lsa_barriers = requirements.needs.lsa_barriers,
                         .gin_contexts = made.value().gin_contexts,
                         .gin_context_count = made.value().gin.contexts,
                         .gin_signals = made.value().gin.signals,
                         .gin_counters = made.value().gin.counters,
                         .gin_signal_shadows = made.value().signal_shadows,
                         .world_signal = made.value().world_signal,
                         .rail_signal = made.value().rail_signal,
                         .dense_signal = made.value().dense_signal,
                         .hybrid_rail_signal = made.value().hybrid_rail_signal,
                         .hybrid_barrier_handle = made.value().hybrid_barrier_handle,
                         .hybrid_barriers = requirements.needs.hybrid_barriers,
                         .abort_flag = communicator->abort_flag()},
                        device);
    return {};
  };
  return comm::Group::current().add_job(communicator, communicator->configuration().blocking, job);
}

Status destroy_device_communicator(ncclComm_t handle, const ncclDevComm_t* device) {
  constexpr const char* kFunction = "ncclDevCommDestroy";
  const auto communicator = TRY(find(handle));
  if (device == nullptr)
    return Status::invalid_argument("{} : devComm argument is NULL", kFunction);
  return communicator
      ->end_device_comm(resource_window_of(reinterpret_cast<const std::byte*>(device)))
      .with_context("{} : rank {}", kFunction, communicator->rank());
}

/// Checks the arguments that all builders of requirements have, and clears the requirement.
template <typename Handle>
Status begin_requirement(const char* function, const Handle* handle, bool numbers_are_good,
                         ncclDevResourceRequirements_t* requirement) {
  if (handle == nullptr || requirement == nullptr)
    return Status::invalid_argument("{} : outHandle or outReq argument is NULL", function);
  if (!numbers_are_good)
    return Status::invalid_argument("{} : a number of ranks, barriers, blocks or slots is negative",
                                    function);
  *requirement = {};
  return {};
}

}  // namespace
}  // namespace niccolite::api

using namespace niccolite;

extern "C" {

ncclTeam_t pncclTeamWorld(ncclComm_t comm) {
  return api::of_ready("ncclTeamWorld", comm, api::kNoTeam, api::world);
}

ncclTeam_t pncclTeamLsa(ncclComm_t comm) {
  return api::of_ready("ncclTeamLsa", comm, api::kNoTeam, api::load_store);
}

ncclTeam_t pncclTeamRail(ncclComm_t comm) {
  return api::of_ready("ncclTeamRail", comm, api::kNoTeam, api::rail);
}

ncclTeam_t pncclTeamCft(ncclComm_t comm, ncclCftTeamMode_t mode) {
  const int number = api::number_of(mode);
  if (number < NCCL_CFT_TEAM_FLAT || number > NCCL_CFT_TEAM_HIER_LSA) return api::kNoTeam;
  return api::of_ready("ncclTeamCft", comm, api::kNoTeam, api::alone);
}

ncclTeam_t pncclTeamCftMultimem(ncclComm_t comm) {
  return api::of_ready("ncclTeamCftMultimem", comm, api::kNoTeam, api::alone);
}

ncclResult_t pncclGetPeerDeviceLeInfo(ncclWindow_t, size_t, int, ncclCftLeId*, size_t*) {
  return api::without_endpoint("ncclGetPeerDeviceLeInfo");
}

ncclResult_t pncclGetCftDeviceLeInfo(ncclWindow_t, size_t, int, ncclTeam_t, ncclCftLeId*, size_t*) {
  return api::without_endpoint("ncclGetCftDeviceLeInfo");
}

ncclResult_t pncclGetMultimemDeviceLeInfo(ncclWindow_t, size_t, ncclCftLeId*, size_t*) {
  return api::without_endpoint("ncclGetMultimemDeviceLeInfo");
}

int pncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank) {
  return api::of_ready("ncclTeamRankToWorld", comm, -1, [&](const comm::Communicator& c) {
    return c.rank() + (rank - team.rank) * team.stride;
  });
}

int pncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank) {
  return api::of_ready("ncclTeamRankToLsa", comm, -1, [&](const comm::Communicator& c) {
    return api::load_store(c).rank + (rank - team.rank) * team.stride;
  });
}

ncclResult_t pncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t* props) {
  return api::call("ncclCommQueryProperties", [&] { return api::query_properties(comm, props); });
}

ncclResult_t pncclDevCommCreate(ncclComm_t comm, const ncclDevCommRequirements_t* reqs,
                                ncclDevComm_t* outDevComm) {
  return api::call("ncclDevCommCreate",
                   [&] { return api::create_device_communicator(comm, reqs, outDevComm); });
}

ncclResult_t pncclDevCommDestroy(ncclComm_t comm, const ncclDevComm_t* devComm) {
  return api::call("ncclDevCommDestroy",
                   [&] { return api::destroy_device_communicator(comm, devComm); });
}

ncclResult_t pncclLsaBarrierCreateRequirement(ncclTeam_t team, int nBarriers,
                                              ncclLsaBarrierHandle_t* outHandle,
                                              ncclDevResourceRequirements_t* outReq) {
  return api::call("ncclLsaBarrierCreateRequirement", [&]() -> Status {
    const bool is_good = team.nRanks >= 0 && nBarriers >= 0;
    TRY(api::begin_requirement("ncclLsaBarrierCreateRequirement", outHandle, is_good, outReq));
    // Each barrier has three words of its own state and one word for each member.
    const size_t words = size_t{3} * static_cast<size_t>(nBarriers) +
                         static_cast<size_t>(nBarriers) * static_cast<size_t>(team.nRanks);
    *outHandle = {.bufHandle = 0, .nBarriers = nBarriers};
    outReq->bufferSize = words * sizeof(uint32_t);
    outReq->bufferAlign = alignof(uint32_t);
    outReq->outBufferHandle = &outHandle->bufHandle;
    return {};
  });
}

ncclResult_t pncclGinBarrierCreateRequirement(ncclComm_t comm, ncclTeam_t team, int nBarriers,
                                              ncclGinBarrierHandle_t* outHandle,
                                              ncclDevResourceRequirements_t* outReq) {
  return api::call("ncclGinBarrierCreateRequirement", [&]() -> Status {
    TRY(api::find(comm));
    const bool is_good = team.nRanks >= 0 && nBarriers >= 0;
    TRY(api::begin_requirement("ncclGinBarrierCreateRequirement", outHandle, is_good, outReq));
    *outHandle = {};
    outReq->ginSignalCount = nBarriers * team.nRanks;
    outReq->outGinSignalStart = &outHandle->signal0;
    return {};
  });
}

int pncclLLA2ACalcSlots(int maxElts, int maxEltSize) {
  constexpr int kSlotBytes = 8;
  return maxElts * ((maxEltSize + kSlotBytes - 1) / kSlotBytes);
}

ncclResult_t pncclLLA2ACreateRequirement(int nBlocks, int nSlots, ncclLLA2AHandle_t* outHandle,
                                         ncclDevResourceRequirements_t* outReq) {
  return api::call("ncclLLA2ACreateRequirement", [&]() -> Status {
    const bool is_good = nBlocks >= 0 && nSlots >= 0;
    TRY(api::begin_requirement("ncclLLA2ACreateRequirement", outHandle, is_good, outReq));
    // Each block has one line of state and two lines for every slot: for this epoch and the next.
    constexpr size_t kLine = 16;
    *outHandle = {.bufHandle = 0, .nSlots = static_cast<uint32_t>(nSlots)};
    outReq->bufferSize =
        static_cast<size_t>(nBlocks) * (1 + 2 * static_cast<size_t>(nSlots)) * kLine;
    outReq->bufferAlign = kLine;
    outReq->outBufferHandle = &outHandle->bufHandle;
    return {};
  });
}

ncclResult_t pncclGinOutboxCreateRequirement(int, int, void*, ncclDevResourceRequirements_t*) {
  return api::without_network_of_devices("ncclGinOutboxCreateRequirement");
}

ncclResult_t pncclGinInboxA2ACreateRequirement(ncclTeam_t, int, int, void*,
                                               ncclDevResourceRequirements_t*) {
  return api::without_network_of_devices("ncclGinInboxA2ACreateRequirement");
}

}  // extern "C"

NICCOLITE_EXPORT(ncclTeamWorld);
NICCOLITE_EXPORT(ncclTeamLsa);
NICCOLITE_EXPORT(ncclTeamRail);
NICCOLITE_EXPORT(ncclTeamCft);
NICCOLITE_EXPORT(ncclTeamCftMultimem);
NICCOLITE_EXPORT(ncclGetPeerDeviceLeInfo);
NICCOLITE_EXPORT(ncclGetCftDeviceLeInfo);
NICCOLITE_EXPORT(ncclGetMultimemDeviceLeInfo);
NICCOLITE_EXPORT(ncclTeamRankToWorld);
NICCOLITE_EXPORT(ncclTeamRankToLsa);
NICCOLITE_EXPORT(ncclCommQueryProperties);
NICCOLITE_EXPORT(ncclDevCommCreate);
NICCOLITE_EXPORT(ncclDevCommDestroy);
NICCOLITE_EXPORT(ncclLsaBarrierCreateRequirement);
NICCOLITE_EXPORT(ncclGinBarrierCreateRequirement);
NICCOLITE_EXPORT(ncclLLA2ACalcSlots);
NICCOLITE_EXPORT(ncclLLA2ACreateRequirement);
NICCOLITE_EXPORT(ncclGinOutboxCreateRequirement);
NICCOLITE_EXPORT(ncclGinInboxA2ACreateRequirement);
