// The device memory of communicators: how much it is, giving it back and taking it again.

#include "api/arguments.h"
#include "api/call.h"

namespace niccolite::api {
namespace {

using comm::Completion;
using comm::Group;

Result<Completion> suspend(ncclComm_t handle, int flags) {
  const auto communicator = TRY(find(handle));
  TRY(communicator->lifetime().check_ready());
  if ((flags & ~NCCL_SUSPEND_MEM) != 0)
    return Status::invalid_argument("ncclCommSuspend : unknown flags 0x{:x}: NCCL_SUSPEND_MEM is 1",
                                    flags);
  if ((flags & NCCL_SUSPEND_MEM) == 0) return Completion::Done;
  return Group::current().add_job(communicator, communicator->configuration().blocking,
                                  [communicator] { return communicator->suspend(); });
}

Result<Completion> resume(ncclComm_t handle) {
  const auto communicator = TRY(find(handle));
  TRY(communicator->lifetime().check_ready());
  return Group::current().add_job(communicator, communicator->configuration().blocking,
                                  [communicator] { return communicator->resume(); });
}

Status memory_statistic(ncclComm_t handle, int stat, uint64_t* value) {
  const auto communicator = TRY(find(handle));
  if (value == nullptr)
    return Status::invalid_argument("ncclCommMemStats : value argument is NULL");
  TRY(communicator->lifetime().check_usable());
  const comm::MemoryUse use = communicator->memory_use();
  switch (stat) {
    case ncclStatGpuMemSuspend:
      *value = use.suspendable;
      return {};
    case ncclStatGpuMemTotal:
      *value = use.suspendable + use.others;
      return {};
    case ncclStatGpuMemSuspended:
      *value = use.is_suspended ? 1 : 0;
      return {};
    case ncclStatGpuMemPersist:
      *value = use.others;
      return {};
    default:
      return Status::invalid_argument("ncclCommMemStats : unknown statistic {}", stat);
  }
}

}  // namespace
}  // namespace niccolite::api

using namespace niccolite;

extern "C" {

ncclResult_t pncclCommSuspend(ncclComm_t comm, int flags) {
  return api::call("ncclCommSuspend", [&] { return api::suspend(comm, flags); });
}

ncclResult_t pncclCommResume(ncclComm_t comm) {
  return api::call("ncclCommResume", [&] { return api::resume(comm); });
}

ncclResult_t pncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t* value) {
  return api::call("ncclCommMemStats",
                   [&] { return api::memory_statistic(comm, api::number_of(stat), value); });
}

}  // extern "C"

NICCOLITE_EXPORT(ncclCommSuspend);
NICCOLITE_EXPORT(ncclCommResume);
NICCOLITE_EXPORT(ncclCommMemStats);
