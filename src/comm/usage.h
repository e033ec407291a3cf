// Usage: one thread at a time is inside a call on a communicator that waits or queues work; others
// wait for it, and this rank's account names the call that waits. Thread safety: any thread.
#pragma once

#include <mutex>

#include "calls/task.h"
#include "comm/exclusive_use.h"
#include "comm/shared_log.h"

namespace niccolite::comm {

class Usage {
 public:
  using Held = std::unique_lock<ExclusiveUse>;

  /// `log` outlives this object.
  explicit Usage(const SharedLog& log) : log_(log) {}

  /// Takes the communicator for a call of the API function.
  [[nodiscard]] Held take(const char* function) {
    if (!in_use_.try_lock()) [[unlikely]]
      await(function);
    return {in_use_, std::adopt_lock};
  }
  [[nodiscard]] Held take(const calls::Call& call) {
    if (!in_use_.try_lock()) [[unlikely]]
      await(function_of(call));
    return {in_use_, std::adopt_lock};
  }
  /// Takes it for a call that gives up at the deadline: then nothing is held.
  [[nodiscard]] Held take_until(const char* function, const Deadline& deadline) {
    const std::shared_ptr<calls::CallLog> log = log_.share();
    const calls::CallLog::BlockedScope blocked(log.get(), function);
    return in_use_.lock_until(deadline) ? Held(in_use_, std::adopt_lock) : Held();
  }

 private:
  void await(const char* function) {
    const std::shared_ptr<calls::CallLog> log = log_.share();
    const calls::CallLog::BlockedScope blocked(log.get(), function);
    in_use_.lock();
  }

  const SharedLog& log_;
  ExclusiveUse in_use_;
};

}  // namespace niccolite::comm
