// Suspending and resuming a communicator: all ranks take each step together.
#include "base/log.h"
#include "base/parameters.h"
#include "comm/communicator.h"
#include "operations/one_sided.h"
#include "registry/buffer_exports.h"
#include "registry/windows.h"
#include "transport/endpoint.h"

namespace niccolite::comm {

MemoryUse Communicator::memory_use() {
  const InUse in_use = use("ncclCommMemStats");
  return {.suspendable = (endpoint_ == nullptr ? 0 : endpoint_->allocated_bytes()) +
                         (operations_ == nullptr ? 0 : operations_->scratch().bytes()),
          .others = (endpoint_ == nullptr ? 0 : endpoint_->lasting_bytes()) +
                    (one_sided_ == nullptr ? 0 : one_sided_->allocated_bytes()) + buffers_.bytes(),
          .is_suspended = is_suspended_};
}

Status Communicator::suspend() {
  const InUse in_use = use("ncclCommSuspend");
  if (is_over()) return lifetime_.gone();
  const calls::CallLog::HostCallScope in_call(log_.get(), "ncclCommSuspend");
  Status mine;
  if (is_suspended_) {
    mine = Status::invalid_usage("the communicator is suspended already");
  } else if (const Result<bool> is_idle = operations_->drain(Deadline::after({}));
             !is_idle.is_ok() || !is_idle.value()) {
    mine = is_idle.is_ok() ? Status::invalid_usage(
                                 "operations are under way: wait for the streams "
                                 "before ncclCommSuspend")
                           : is_idle.status().copy();
  }
  TRY(peers_.agree(mine));
  TRY(swap_memory(/*is_suspension=*/true));
  is_suspended_ = true;
  return {};
}

Status Communicator::resume() {
  const InUse in_use = use("ncclCommResume");
  if (is_over()) return lifetime_.gone();
  const calls::CallLog::HostCallScope in_call(log_.get(), "ncclCommResume");
  TRY(peers_.agree(is_suspended_ ? Status()
                                 : Status::invalid_usage("the communicator is not suspended")));
  TRY(swap_memory(/*is_suspension=*/false));
  is_suspended_ = false;
  return {};
}

// A step that fails leaves ranks with memory and others without: the communicator is of no more
// use.
Status Communicator::swap_memory(bool is_suspension) {
  operations::Scratch& scratch = operations_->scratch();
  if (endpoint_ == nullptr) return is_suspension ? scratch.suspend() : scratch.resume();
  Status status = guarded([&]() -> Status {
    // Memory that somebody still maps is not given back, and memory that is not there yet cannot be
    // mapped.
    TRY(is_suspension ? endpoint_->suspend_peers() : endpoint_->resume_own());
    TRY(is_suspension ? scratch.suspend() : scratch.resume());
    TRY(member_->barrier(Deadline::never()));
    TRY(is_suspension ? endpoint_->suspend_own()
                      : endpoint_->resume_peers(Deadline::after(kConnectTime)));
    return member_->barrier(Deadline::never());
  });
  if (!status.is_ok()) fail_all(status);
  return status;
}

}  // namespace niccolite::comm
