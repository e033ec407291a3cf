// GroupProfile: the events of one group of the API for profiler plug-ins. Thread safety: belongs to
// the group's thread.
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "profiling/profiling.h"

namespace niccolite::comm {

/// One group of the API (comm/group.h), in the thread that has it: from its first call to the end
/// of its launches. Communicators without a profiler leave it empty.
class GroupProfile {
 public:
  GroupProfile() = default;
  GroupProfile(GroupProfile&&) = default;
  GroupProfile& operator=(GroupProfile&&) = default;
  ~GroupProfile() { end(); }

  /// `depth`: of the group's nesting, 1 for a call by itself.
  void add(const std::shared_ptr<Communicator>& communicator, const calls::Task& task, int depth);
  /// ncclGroupEnd has been called.
  void close();
  /// All is launched, or it failed.
  void end();

 private:
  std::vector<std::shared_ptr<profiling::Profiling>>
      profilings_;  // the first one's plug-in has the event
  observe::ProfilerHandle event_ = nullptr;
};

}  // namespace niccolite::comm
