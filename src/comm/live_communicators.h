// LiveCommunicators: which handles are communicators. A handle from outside is looked up here
// before anything of it is read, so that null, freed and foreign pointers are an error and not a
// crash; and whoever looks one up keeps it alive, so that one thread may abort what another is
// using. Thread safety: any thread.
#pragma once

#include <memory>
#include <shared_mutex>
#include <unordered_map>

#include "comm/communicator.h"

namespace niccolite::comm {

class LiveCommunicators {
 public:
  /// The process's table; never destroyed.
  static LiveCommunicators& instance();

  void add(std::shared_ptr<Communicator> communicator);
  /// Null when `handle` is none.
  std::shared_ptr<Communicator> find(const void* handle) const;
  /// Takes it out: its handle means nothing from here on. Null when it was not there.
  std::shared_ptr<Communicator> remove(const void* handle);

 private:
  mutable std::shared_mutex mutex_;
  std::unordered_map<const void*, std::shared_ptr<Communicator>> live_ GUARDED_BY(mutex_);
};

}  // namespace niccolite::comm
