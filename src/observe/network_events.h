// NetworkEvents: reports of network plug-ins to a profiler on the messages that they send (NCCL's
// ncclProfilerCallback_t). A plug-in hands back the names that it was given, or anything else: so
// names are numbers that are looked up, never addresses. Thread safety: any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "base/thread_annotations.h"
#include "observe/profiler.h"

namespace niccolite::observe {

class NetworkEvents {
 public:
  static NetworkEvents& of_process();

  /// A name for this step of a proxy, until forget(). Null when the step is.
  void* name(const std::shared_ptr<Profiler>& profiler, ProfilerHandle step) EXCLUDES(mutex_);
  void forget(void* name) EXCLUDES(mutex_);
  /// This profiler hears nothing any more.
  void forget_all(const Profiler& profiler) EXCLUDES(mutex_);

  /// The function that plug-ins call. `type`: 0 starts an event of the object with the name `of`,
  /// and stores the event's name in *event; 1 stops it, 2 updates it, 3 does both. Unknown names
  /// are ignored. Always 0.
  static int hear(void** event, int type, void* of, int64_t layout, void* data);

 private:
  struct Named {
    std::shared_ptr<Profiler> profiler;
    ProfilerHandle handle = nullptr;
  };
  void* add(Named named) REQUIRES(mutex_);
  Named find(void* name, bool takes) EXCLUDES(mutex_);

  static constexpr size_t kMost = 1 << 16;  // of names that nobody has forgotten or stopped
  std::mutex mutex_;
  uint64_t last_ GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Named> named_ GUARDED_BY(mutex_);  // steps, and events of plug-ins
};

}  // namespace niccolite::observe
