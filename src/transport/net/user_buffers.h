// UserBuffers: the buffers of this rank's user that the network's device reads and writes itself:
// memory of the rank's GPU that the user has registered, or that a window holds. The network comes
// to know a buffer when a chunk first goes from there, or there: once for each direction, so that
// peers never get a key of a buffer that is only sent from. It forgets it when the registration has
// ended and nothing is on its way. A buffer holds the identity of its memory, because memory may be
// freed before its registration ends, and its addresses may come back as other memory.
//
// With real GPUs the thread that queues a kernel looks at its buffers and registers them, and the
// proxy's thread calls no driver: the driver may be waiting for kernels (cudaFree), which wait for
// the proxy. For the same reason no lock is held over such a call. Thread safety: any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "base/thread_annotations.h"
#include "gpu/memory.h"
#include "transport/net/network.h"

namespace niccolite::transport::net {

class UserBuffers {
 public:
  struct Options {
    std::shared_ptr<Network> network;
    gpu::Allocations& allocations;
    /// Is all of this memory registered, or in a window?
    std::function<bool(const void*, size_t)> is_registered;
    bool registers_ahead = false;  // reaches() does, and find() only knows
  };
  explicit UserBuffers(Options options) : options_(std::move(options)) {}

  /// The user has registered that.
  void add(void* memory, size_t bytes) EXCLUDES(mutex_);
  /// Some registration has ended.
  void remove_ended() EXCLUDES(mutex_);

  bool has_any() const { return count_.load(std::memory_order_relaxed) > 0; }  // a hint
  /// Is all of this memory in one of the buffers, and known to the network, or not refused yet?
  bool reaches(const std::byte* memory, uint64_t bytes, bool is_send) EXCLUDES(mutex_);
  /// Returns the buffer as the network knows it for sending from it, or for receiving there; null:
  /// the memory is in none, or the network refuses it.
  std::shared_ptr<DirectMemory> find(const std::byte* memory, uint64_t bytes, bool is_send)
      EXCLUDES(mutex_);

 private:
  struct Use {
    std::shared_ptr<DirectMemory> known{};
    bool is_refused = false;
  };
  struct Buffer {
    std::byte* begin = nullptr;
    size_t bytes = 0;
    uint64_t memory = 0;  // gpu::PointerInfo::id
    Use send{}, receive{};
    bool is_gone = false;  // as reaches() has seen, where it registers ahead

    bool is_same_as(const Buffer& other) const {
      return begin == other.begin && bytes == other.bytes && memory == other.memory;
    }
    Use& use(bool is_send) { return is_send ? send : receive; }
    bool holds(const std::byte* at, uint64_t length) const {
      const auto offset = static_cast<uint64_t>(at - begin);
      return offset <= bytes && length <= bytes - offset;
    }
  };

  bool is_there(const Buffer& buffer) const;
  /// Calls visit(buffer) for those around the memory, until it returns true.
  template <typename Visit>
  bool visit_around(const std::byte* memory, uint64_t bytes, Visit&& visit) REQUIRES(mutex_);
  Buffer* buffer_of(const std::byte* memory, uint64_t bytes) REQUIRES(mutex_);
  bool register_ahead(const std::byte* memory, uint64_t bytes, bool is_send) EXCLUDES(mutex_);
  Use register_with_network(const Buffer& buffer, bool is_send) const;

  const Options options_;
  std::atomic<size_t> count_{0};
  std::mutex mutex_;
  std::multimap<const std::byte*, Buffer> buffers_ GUARDED_BY(mutex_);  // by their beginnings
};

}  // namespace niccolite::transport::net
