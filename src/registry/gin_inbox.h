// GinInbox: gets of ranks of other machines that the GIN proxy has yet to begin with. A proxy that
// ends closes it, so that no get comes to an inbox that nobody looks into any more.
// Thread safety: any thread.
#pragma once

#include <deque>
#include <mutex>
#include <utility>

#include "base/thread_annotations.h"

namespace niccolite::registry {

template <typename Request>
class GinInbox {
 public:
  /// False: it is closed, and nobody would answer.
  bool add(Request request) EXCLUDES(mutex_) {
    std::lock_guard lock(mutex_);
    if (!is_closed_) requests_.push_back(std::move(request));
    return !is_closed_;
  }
  std::deque<Request> take() EXCLUDES(mutex_) {
    std::lock_guard lock(mutex_);
    return std::exchange(requests_, {});
  }
  /// False: there is something in it, and it stays open.
  bool close_if_empty() EXCLUDES(mutex_) {
    std::lock_guard lock(mutex_);
    is_closed_ = requests_.empty();
    return is_closed_;
  }

 private:
  std::mutex mutex_;
  std::deque<Request> requests_ GUARDED_BY(mutex_);
  bool is_closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace niccolite::registry
