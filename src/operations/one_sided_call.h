// OneSidedCall: a caller's request to OneSided (one_sided.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpu/streams.h"

namespace niccolite::operations {

/// A put with its signal, a signal alone (0 bytes), or a wait (`waits` is not empty).
struct OneSidedCall {
  const char* function = "ncclPutSignal";  // of the API
  const void* source = nullptr;
  // In the peer's copy of a window: its address in this process; null where the peer is on another
  // machine. The window's number and the place in it.
  std::byte* target = nullptr;
  uint64_t window = 0;
  uint64_t offset = 0;
  size_t bytes = 0;
  int peer = -1;  // of a put
  struct Wait {
    int peer;
    int count;
  };
  std::vector<Wait> waits;
  gpu::StreamHandle stream = nullptr;

  bool is_wait() const { return !waits.empty(); }
};

}  // namespace niccolite::operations
