// MulticastBindings: the bindings that this process has made to one multicast team, for the back
// ends, which end them with the team. Thread safety: any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "base/thread_annotations.h"

namespace niccolite::gpu {

struct MulticastBinding {
  int device;
  size_t offset;  // in the team's range
  size_t bytes;
  friend bool operator==(const MulticastBinding&, const MulticastBinding&) = default;
};

class MulticastBindings {
 public:
  void add(const MulticastBinding& binding) {
    const std::lock_guard lock(mutex_);
    all_.push_back(binding);
  }
  /// Forgets a binding; false: there is none such.
  bool take(const MulticastBinding& binding) {
    const std::lock_guard lock(mutex_);
    const auto found = std::find(all_.begin(), all_.end(), binding);
    if (found == all_.end()) return false;
    all_.erase(found);
    return true;
  }
  /// Forgets all.
  std::vector<MulticastBinding> take_all() {
    const std::lock_guard lock(mutex_);
    return std::exchange(all_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<MulticastBinding> all_ GUARDED_BY(mutex_);
};

}  // namespace niccolite::gpu
