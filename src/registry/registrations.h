// Registrations: the ranges of memory that a communicator's user has marked for direct use
// (ncclCommRegister). A registration is a promise about addresses, and costs a look at the driver's
// table: nothing is mapped or kept alive by it.
//
// Memory may be freed before its registration ends, and its addresses may come back as other
// memory. So a registration holds the identity of its memory (gpu::PointerInfo::id), and means
// nothing for other memory. Thread safety: any thread.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>

#include "base/thread_annotations.h"
#include "gpu/memory.h"

namespace niccolite::registry {

class Registrations {
 public:
  explicit Registrations(gpu::Allocations& allocations) : allocations_(allocations) {}

  /// Names a registration; never used again in this process. Null for none.
  using Handle = void*;

  /// Registers the pages of the range, or counts the registration that holds them already. Null for
  /// memory that the driver does not know, and for an empty range: there is nothing to gain by it.
  Result<Handle> add(const void* pointer, size_t bytes);
  /// InvalidUsage: not a live registration of these.
  Status remove(Handle handle);

  /// Is the whole range in one registration, of the memory that is there now?
  bool covers(const void* pointer, size_t bytes) const;
  /// Does any registration reach into the range, whatever its memory is?
  bool touches(const void* pointer, size_t bytes) const;
  size_t size() const;

 private:
  struct Range {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    uint64_t memory = 0;  // gpu::PointerInfo::id
    bool holds(const Range& other) const {
      return begin <= other.begin && other.end <= end && memory == other.memory;
    }
  };
  struct Entry {
    Range range;
    size_t count = 0;
  };

  static Range pages_of(const void* pointer, size_t bytes, uint64_t memory);
  Handle find(const Range& range) const REQUIRES(mutex_);

  gpu::Allocations& allocations_;
  mutable std::mutex mutex_;
  std::unordered_map<Handle, Entry> entries_ GUARDED_BY(mutex_);
  std::multimap<uintptr_t, Handle> by_begin_ GUARDED_BY(mutex_);
};

}  // namespace niccolite::registry
