// BufferImports: buffers of users in other processes, mapped for one rank's GPU (buffer_exports.h).
// Thread safety: any thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "base/thread_annotations.h"
#include "registry/buffer_messages.h"

namespace niccolite::registry {

class BufferImports {
 public:
  /// `tell` only queues its message, for the peer that waits for it.
  BufferImports(gpu::Sharing& sharing, gpu::Mappings& addresses, int device,
                std::function<void(int peer, const MapAnswer& answer)> tell)
      : sharing_(sharing), addresses_(addresses), device_(device), tell_(std::move(tell)) {}
  ~BufferImports();
  BufferImports(const BufferImports&) = delete;

  /// `request`: of rank `from`, which is told the answer. The driver may take as long as kernels
  /// run that other ranks have to answer. Memory that cannot be mapped is answered as such, and
  /// logged. Errors: the request has no number that could be answered.
  Status map(int from, std::span<const std::byte> request) EXCLUDES(mutex_);
  /// No kernel uses it any more.
  Status unmap(int from, std::span<const std::byte> note) EXCLUDES(mutex_);
  /// Nobody is told anything any more.
  void close() EXCLUDES(mutex_);

 private:
  struct Mapping {
    std::shared_ptr<gpu::PoolImport> pool;  // that `allocation` is of; outlives it
    gpu::Memory allocation;                 // of cudaMalloc, or of a pool
    gpu::AddressRange range;                // of virtual memory management
    std::byte* data() const {
      return allocation.valid() ? static_cast<std::byte*>(allocation.data()) : range.data;
    }
  };
  /// Where it is mapped.
  Result<uint64_t> map_whole(int from, std::span<const std::byte> request) EXCLUDES(mutex_);
  Result<std::shared_ptr<Mapping>> make(int from, const MapRequest& request);
  Result<std::shared_ptr<gpu::PoolImport>> import_pool(int from, const MapRequest& request)
      EXCLUDES(pools_mutex_);

  gpu::Sharing& sharing_;
  gpu::Mappings& addresses_;
  const int device_;
  std::mutex mutex_;
  std::function<void(int, const MapAnswer&)> tell_ GUARDED_BY(mutex_);  // null: closed
  std::map<std::pair<int, uint64_t>, std::shared_ptr<Mapping>> mappings_
      GUARDED_BY(mutex_);   // by rank and number
  std::mutex pools_mutex_;  // held while a pool is imported, so that none is imported twice
  std::map<std::pair<int, transport::Token>, std::weak_ptr<gpu::PoolImport>> pools_
      GUARDED_BY(pools_mutex_);  // by rank; each lives as long as a mapping of its memory
};

}  // namespace niccolite::registry
