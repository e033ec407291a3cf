// Group calls.

#include <cstddef>

#include "api/call.h"

namespace niccolite::api {
namespace {

constexpr unsigned int kSimInfoMagic = 0x74685283;

// The struct may be of another version: it has as many bytes as it says.
Result<comm::Completion> simulate(ncclSimInfo_t& info) {
  constexpr size_t kTimeAt = offsetof(ncclSimInfo_t, estimatedTime);
  comm::Group& group = comm::Group::current();
  const bool has_time = info.size >= kTimeAt + sizeof info.estimatedTime;
  if (info.size < kTimeAt || info.magic != kSimInfoMagic || !has_time) {
    Status status = Status::invalid_argument(
        "ncclGroupSimulateEnd : simInfo argument was not initialized: start it from "
        "NCCL_SIM_INFO_INITIALIZER");
    group.poison(status);
    group.end().ignore("the argument is the error to report");
    return status;
  }
  const bool is_outermost = group.depth() <= 1;
  double microseconds = -1;
  const comm::Completion completion = TRY(group.end_simulated(microseconds));
  if (is_outermost) info.estimatedTime = static_cast<float>(microseconds);
  return completion;
}

}  // namespace
}  // namespace niccolite::api

using namespace niccolite;

extern "C" {

ncclResult_t pncclGroupStart(void) {
  comm::Group::current().start();
  return ncclSuccess;
}

ncclResult_t pncclGroupEnd(void) {
  return api::call("ncclGroupEnd", [] { return comm::Group::current().end(); });
}

ncclResult_t pncclGroupSimulateEnd(ncclSimInfo_t* simInfo) {
  if (simInfo == nullptr) return pncclGroupEnd();
  return api::call("ncclGroupSimulateEnd", [&] { return api::simulate(*simInfo); });
}

}  // extern "C"

NICCOLITE_EXPORT(ncclGroupStart);
NICCOLITE_EXPORT(ncclGroupEnd);
NICCOLITE_EXPORT(ncclGroupSimulateEnd);
