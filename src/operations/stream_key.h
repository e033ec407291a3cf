// StreamKey: a stream of a capture. A capturing stream cannot tell its identity, but its handle
// stays its own until the capture ends, except for the one handle that each thread understands in
// its own way.
#pragma once

#include <atomic>
#include <cstdint>

#include "gpu/streams.h"

namespace niccolite::operations {

struct StreamKey {
  gpu::StreamHandle handle = nullptr;
  uint64_t thread = 0;  // of the stream of each thread; else 0
  friend bool operator==(const StreamKey&, const StreamKey&) = default;

  /// Returns the key of `stream` as the calling thread understands it.
  static StreamKey of(gpu::StreamHandle stream) {
    if (stream != reinterpret_cast<gpu::StreamHandle>(2)) return {.handle = stream};
    static std::atomic<uint64_t> next{1};
    // relaxed: only the number matters.
    static thread_local const uint64_t thread = next.fetch_add(1, std::memory_order_relaxed);
    return {.handle = stream, .thread = thread};
  }
};

}  // namespace niccolite::operations
