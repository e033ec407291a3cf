// UserMemory: device memory as users' programs get it (--allocator), from the CUDA driver that the
// process has loaded, CUDA's or the virtual one, or from a library's ncclMemAlloc. Its first
// contents are undefined. Thread safety: a UserMemory belongs to one thread at a time.
#pragma once

#include <functional>
#include <utility>

#include "cli/perf/library.h"
#include "cli/perf/options.h"
#include "gpu/machine.h"

namespace niccolite::perf {

/// Where memory comes from.
struct MemorySource {
  gpu::Machine* machine = nullptr;
  Allocator allocator = Allocator::Malloc;
  const Library* library = nullptr;  // of Allocator::Nccl; outlives the memory
  int device = 0;
  gpu::StreamHandle stream = nullptr;  // which orders Async and Pool; outlives the memory
};

class UserMemory {
 public:
  /// `bytes` > 0. Makes the device current in the calling thread.
  static Result<UserMemory> allocate(const MemorySource& source, size_t bytes);
  /// Memory that other processes can map, as the library itself gets it.
  static Result<UserMemory> allocate_shareable(const MemorySource& source, size_t bytes);

  UserMemory() = default;
  UserMemory(UserMemory&& other) noexcept { *this = std::move(other); }
  UserMemory& operator=(UserMemory&& other) noexcept {
    reset();
    data_ = std::exchange(other.data_, nullptr);
    release_ = std::exchange(other.release_, nullptr);
    return *this;
  }
  ~UserMemory() { reset(); }

  void* data() const { return data_; }
  /// Gives the memory back; the device must have finished its work with it, unless the stream
  /// orders it. Refusals of the driver are logged.
  void reset();

 private:
  UserMemory(void* data, std::function<Status()> release)
      : data_(data), release_(std::move(release)) {}
  void* data_ = nullptr;
  std::function<Status()> release_;
};

/// Is memory of `allocator` allocated and freed in the order of a stream, so that nobody waits?
constexpr bool is_stream_ordered(Allocator allocator) {
  return allocator == Allocator::Async || allocator == Allocator::Pool;
}

}  // namespace niccolite::perf
