// Making, asking and ending communicators.

#include <cstring>
#include <set>

#include "api/call.h"
#include "api/configuration.h"
#include "api/encryption.h"
#include "api/making.h"
#include "base/forks.h"
#include "bootstrap/root.h"
#include "comm/live_communicators.h"
#include "gpu/machine.h"
#include "ras/service.h"

namespace niccolite::api {

constexpr int kCudaVersion = 13'000;  // that the version line names

using comm::Communicator;
using comm::Completion;
using comm::Group;
using comm::LiveCommunicators;

void give_up(ncclComm_t* handle, const std::shared_ptr<Communicator>& communicator) {
  LiveCommunicators::instance().begin_end(communicator.get());
  communicator->abort(Status::invalid_usage("the group that made this communicator failed"));
  communicator->end().ignore("the failure of the group is the error to report");
  LiveCommunicators::instance().forget(communicator.get());
  *handle = nullptr;
}

Result<Completion> make(ncclComm_t* handle, const comm::Identity& identity, comm::Meeting meeting,
                        const comm::Configuration& configuration) {
  TRY(check_encryption(identity.function));
  gpu::Machine* machine = TRY(gpu::machine());
  ras::start_service({.library = fmt::format("{}.{}.{}", NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH),
                      .cuda = kCudaVersion,
                      .runtime = kCudaVersion,
                      .driver = machine->driver_version()},
                     identity.rank);
  forks::make_orphans();
  auto communicator = std::make_shared<Communicator>(*machine, identity, configuration);
  LiveCommunicators::instance().add(communicator);
  *handle = reinterpret_cast<ncclComm_t>(communicator.get());
  return Group::current().add_job(
      communicator, configuration.blocking,
      // A parent is not kept alive by its children.
      [communicator, meeting = std::move(meeting)]() mutable {
        return communicator->initialize(std::exchange(meeting, {}));
      },
      [handle, communicator] { give_up(handle, communicator); });
}

namespace {

Result<Completion> meet(const char* function, ncclComm_t* handle, int nranks,
                        const bootstrap::UniqueId& id, int rank, int device,
                        const comm::Configuration& configuration) {
  return make(handle, {.nranks = nranks, .rank = rank, .device = device, .function = function},
              {.find_id = [id](const Deadline&, Abort&) { return id; }, .parent = {}},
              configuration);
}

Result<Completion> init_rank(const char* function, ncclComm_t* handle, int nranks,
                             const ncclUniqueId& id_bytes, int rank, const ncclConfig_t* config) {
  if (handle == nullptr) return Status::invalid_argument("{} : comm argument is NULL", function);
  *handle = nullptr;
  if (nranks < 1 || rank < 0 || rank >= nranks)
    return Status::invalid_argument("{} : invalid rank requested : rank {} of {} ranks", function,
                                    rank, nranks);
  const comm::Configuration configuration = TRY(resolve(config));
  const auto bytes = std::as_bytes(std::span(id_bytes.internal));
  const bootstrap::UniqueId id = TRY(bootstrap::UniqueId::parse(bytes));
  gpu::Machine* machine = TRY(gpu::machine());
  const int device = TRY(machine->current_device());
  return meet(function, handle, nranks, id, rank, device, configuration);
}

// All ranks meet at the root of the first id, which serves thousands. The others, if they are of
// this process, are not needed.
Result<Completion> init_rank_scalable(ncclComm_t* handle, int nranks, int rank, int nids,
                                      const ncclUniqueId* ids, const ncclConfig_t* config) {
  constexpr const char* kFunction = "ncclCommInitRankScalable";
  if (ids == nullptr) return Status::invalid_argument("{} : commIds argument is NULL", kFunction);
  if (nids < 1 || nids > nranks)
    return Status::invalid_argument("{} : nId is {}: allowed are 1 to nranks, which is {}",
                                    kFunction, nids, nranks);
  for (int i = 1; i < nids; ++i) {
    const bootstrap::UniqueId id =
        TRY(bootstrap::UniqueId::parse(std::as_bytes(std::span(ids[i].internal))));
    bootstrap::Root::dismiss(id);
  }
  return init_rank(kFunction, handle, nranks, ids[0], rank, config);
}

Result<Completion> init_all(ncclComm_t* handles, int ndev, const int* devlist) {
  constexpr const char* kFunction = "ncclCommInitAll";
  if (handles == nullptr) return Status::invalid_argument("{} : comm argument is NULL", kFunction);
  if (ndev < 0) return Status::invalid_argument("{} : ndev {} is negative", kFunction, ndev);
  if (ndev == 0) return Completion::Done;
  gpu::Machine* machine = TRY(gpu::machine());
  std::set<int> used;
  for (int i = 0; i < ndev; ++i) {
    const int device = devlist != nullptr ? devlist[i] : i;
    if (device < 0 || device >= machine->device_count())
      return Status::invalid_argument(
          "{} : invalid device ordinal {} for rank {}: this process sees {} devices", kFunction,
          device, i, machine->device_count());
    if (!used.insert(device).second)
      return Status::invalid_usage("{} : device {} is listed twice", kFunction, device);
  }
  TRY(check_encryption(kFunction));
  const comm::Configuration configuration = TRY(resolve(nullptr));
  const bootstrap::UniqueId id = TRY(bootstrap::create_unique_id());
  Group::current().start();
  for (int i = 0; i < ndev; ++i) {
    handles[i] = nullptr;
    const int device = devlist != nullptr ? devlist[i] : i;
    if (auto made = meet(kFunction, &handles[i], ndev, id, i, device, configuration); !made.is_ok())
      Group::current().poison(made.status());
  }
  return Group::current().end();
}

// The common part of all queries: checks that the communicator is usable and `answer` is
// not null.
template <typename Value>
ncclResult_t query(const char* function, ncclComm_t handle, const char* name, int* answer,
                   Value&& value) {
  return call(function, [&]() -> Status {
    const auto communicator = TRY(find(handle));
    if (answer == nullptr)
      return Status::invalid_argument("{} : {} argument is NULL", function, name);
    TRY(communicator->lifetime().check_usable());
    *answer = value(*communicator);
    return {};
  });
}

Result<Completion> finalize(ncclComm_t handle) {
  if (handle == nullptr) return Completion::Done;
  const auto communicator = TRY(find(handle));
  TRY(communicator->lifetime().check_ready());
  if (communicator->lifetime().is_revoked())
    return Status::invalid_argument(
        "the communicator of rank {} was revoked: only ncclCommDestroy and ncclCommAbort end it",
        communicator->rank());
  return Group::current().add_job(communicator, communicator->configuration().blocking,
                                  [communicator] { return communicator->finalize(); });
}

Status end(ncclComm_t handle, const std::shared_ptr<Communicator>& communicator) {
  if (LiveCommunicators::instance().begin_end(handle) == nullptr)
    return Status::invalid_argument("ncclCommDestroy : another thread destroyed the communicator");
  const Status ended = communicator->end();
  LiveCommunicators::instance().forget(handle);
  TRY(ended.copy());
  if (communicator->lifetime().has_outlived_failure()) return {};
  return communicator->lifetime()
      .waits()
      .reason();  // the failure, or that another thread aborted it meanwhile
}

// In a group, after all that the group has recorded.
Result<Completion> destroy(ncclComm_t handle) {
  if (handle == nullptr) return Completion::Done;
  const auto communicator = TRY(find(handle));
  if (communicator->lifetime().state() == comm::State::InProgress)
    TRY(communicator->lifetime().check_ready());
  if (Group::current().is_open())
    Group::current().add_end(communicator,
                             [handle, communicator] { return end(handle, communicator); });
  else
    TRY(end(handle, communicator));
  return Completion::Done;
}

// May overtake ncclCommDestroy, which may be waiting for a peer.
Status abort(ncclComm_t handle) {
  if (handle == nullptr) return {};
  auto communicator = LiveCommunicators::instance().begin_end(handle);
  if (communicator == nullptr) communicator = LiveCommunicators::instance().find_ending(handle);
  if (communicator == nullptr) return find(handle).status().copy();
  communicator->abort(Status::invalid_usage(
      "the communicator of rank {} was aborted (ncclCommAbort)", communicator->rank()));
  const Status ended = communicator->end();
  LiveCommunicators::instance().forget(handle);
  return ended.copy();
}

Status get_async_error(ncclComm_t handle, ncclResult_t* answer) {
  const auto communicator = TRY(find(handle));
  if (answer == nullptr)
    return Status::invalid_argument("ncclCommGetAsyncError : asyncError argument is NULL");
  switch (communicator->lifetime().state()) {
    case comm::State::InProgress:
      *answer = ncclInProgress;
      break;
    case comm::State::Ready:
    case comm::State::Finalized:
      *answer = ncclSuccess;
      break;
    case comm::State::Failed:
      *answer = communicator->lifetime().has_outlived_failure()
                    ? ncclSuccess
                    : translate(communicator->report_failure().code());
      break;
  }
  return {};
}

}  // namespace
}  // namespace niccolite::api

using namespace niccolite;

extern "C" {

ncclResult_t pncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank) {
  return api::call("ncclCommInitRank", [&] {
    return api::init_rank("ncclCommInitRank", comm, nranks, commId, rank, nullptr);
  });
}

ncclResult_t pncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank,
                                     ncclConfig_t* config) {
  return api::call("ncclCommInitRankConfig", [&] {
    return api::init_rank("ncclCommInitRankConfig", comm, nranks, commId, rank, config);
  });
}

ncclResult_t pncclCommInitRankScalable(ncclComm_t* newcomm, int nranks, int myrank, int nId,
                                       ncclUniqueId* commIds, ncclConfig_t* config) {
  return api::call("ncclCommInitRankScalable", [&] {
    return api::init_rank_scalable(newcomm, nranks, myrank, nId, commIds, config);
  });
}

ncclResult_t pncclCommInitAll(ncclComm_t* comm, int ndev, const int* devlist) {
  return api::call("ncclCommInitAll", [&] { return api::init_all(comm, ndev, devlist); });
}

ncclResult_t pncclCommFinalize(ncclComm_t comm) {
  return api::call("ncclCommFinalize", [&] { return api::finalize(comm); });
}

// Destructors of a program end its communicators, in a child made by fork(), too, which has none.
ncclResult_t pncclCommDestroy(ncclComm_t comm) {
  if (forks::is_orphan()) return ncclSuccess;
  return api::call("ncclCommDestroy", [&] { return api::destroy(comm); });
}

ncclResult_t pncclCommAbort(ncclComm_t comm) {
  if (forks::is_orphan()) return ncclSuccess;
  return api::call("ncclCommAbort", [&] { return api::abort(comm); });
}

ncclResult_t pncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* asyncError) {
  return api::call("ncclCommGetAsyncError", [&] { return api::get_async_error(comm, asyncError); });
}

ncclResult_t pncclCommCount(const ncclComm_t comm, int* count) {
  return api::query("ncclCommCount", comm, "count", count,
                    [](comm::Communicator& c) { return c.nranks(); });
}

ncclResult_t pncclCommCuDevice(const ncclComm_t comm, int* device) {
  return api::query("ncclCommCuDevice", comm, "device", device,
                    [](comm::Communicator& c) { return c.device(); });
}

ncclResult_t pncclCommUserRank(const ncclComm_t comm, int* rank) {
  return api::query("ncclCommUserRank", comm, "rank", rank,
                    [](comm::Communicator& c) { return c.rank(); });
}

}  // extern "C"

NICCOLITE_EXPORT(ncclCommInitRank);
NICCOLITE_EXPORT(ncclCommInitRankConfig);
NICCOLITE_EXPORT(ncclCommInitRankScalable);
NICCOLITE_EXPORT(ncclCommInitAll);
NICCOLITE_EXPORT(ncclCommFinalize);
NICCOLITE_EXPORT(ncclCommDestroy);
NICCOLITE_EXPORT(ncclCommAbort);
NICCOLITE_EXPORT(ncclCommGetAsyncError);
NICCOLITE_EXPORT(ncclCommCount);
NICCOLITE_EXPORT(ncclCommCuDevice);
NICCOLITE_EXPORT(ncclCommUserRank);
