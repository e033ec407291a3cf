// LiveCommunicators: which handles are communicators. A handle from outside is looked up here
// before anything of it is read, so that null, freed and foreign pointers are an error and not a
// crash; and whoever looks one up keeps it alive, so that one thread may abort a communicator that
// another is using. One that is being destroyed is known to its abort alone. Thread safety: any
// thread.
#pragma once

#include <atomic>
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
  /// Somebody ends it: find() has it no more, find_ending() has it until forget(). Null when it was
  /// not there.
  std::shared_ptr<Communicator> begin_end(const void* handle);
  std::shared_ptr<Communicator> find_ending(const void* handle) const;
  void forget(const void* handle);
  /// Returns how many communicators have begun to end. While the number is as it was before find(),
  /// a caller that keeps the result of find() need not repeat it.
  uint64_t ends() const {
    return ends_.load(std::memory_order_acquire);  // pairs with begin_end()
  }

 private:
  using Table = std::unordered_map<const void*, std::shared_ptr<Communicator>>;
  static std::shared_ptr<Communicator> find_in(const Table& table, const void* handle);

  std::atomic<uint64_t> ends_{0};
  mutable std::shared_mutex mutex_;
  Table live_ GUARDED_BY(mutex_);
  Table ending_ GUARDED_BY(mutex_);
};

}  // namespace niccolite::comm
