// BufferImports: buffers of users in other processes, mapped for one rank's GPU (buffer_exports.h).
// Thread safety: any thread.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "base/thread_annotations.h"
#include "registry/buffer_messages.h"

namespace niccolite::registry {

class BufferImports {
 public:
  BufferImports(gpu::Machine& machine, int device) : machine_(machine), device_(device) {}
  ~BufferImports();
  BufferImports(const BufferImports&) = delete;

  /// `request`: of rank `from`, which waits for the answer. What cannot be mapped is answered so,
  /// and logged. Errors: it has no number that could be answered.
  Result<MapAnswer> map(int from, std::span<const std::byte> request) EXCLUDES(mutex_);
  /// No kernel uses it any more.
  Status unmap(int from, std::span<const std::byte> note) EXCLUDES(mutex_);

 private:
  struct Mapping {
    gpu::Memory allocation;   // of cudaMalloc
    gpu::AddressRange range;  // of virtual memory management
    std::byte* data() const {
      return allocation.valid() ? static_cast<std::byte*>(allocation.data()) : range.data;
    }
  };
  /// Where it is mapped.
  Result<uint64_t> map_whole(int from, std::span<const std::byte> request) EXCLUDES(mutex_);
  Result<std::shared_ptr<Mapping>> make(const MapRequest& request);

  gpu::Machine& machine_;
  const int device_;
  std::mutex mutex_;
  std::map<std::pair<int, uint64_t>, std::shared_ptr<Mapping>> mappings_
      GUARDED_BY(mutex_);  // by rank and number
};

}  // namespace niccolite::registry
