// The parameters of the one-sided kernels (one_sided.cuh), for host and device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "executor/protocol/fifo.h"
#include "executor/protocol/signal.h"

namespace niccolite::executor::cuda {

struct PutArgs {
  const std::byte* source;
  std::byte* target;
  uint64_t bytes;
  SignalLine* own;
  uint64_t* arrived;
};

struct RelayedPutArgs {
  const std::byte* source;
  uint64_t bytes;
  uint64_t window;
  uint64_t offset;
  SignalLine* own;
  std::byte* slots;  // these: of the connection's sending end
  ControlBlock* control;
  ControlBlock* remote_control;
  uint64_t* notes;
  const uint32_t* command;
};

struct SignalWaitArgs {
  static constexpr uint32_t kMost = 32;  // a thread of one warp each
  struct Item {
    SignalLine* line;
    uint64_t count;
  };
  const uint32_t* command;
  uint32_t items;
  Item item[kMost];
};

/// Threads of a put of so many bytes; a wait has a warp.
constexpr uint32_t put_threads(uint64_t bytes) {
  constexpr uint32_t kMost = 1024;
  const uint64_t vec16s = bytes / 16;
  return vec16s >= kMost ? kMost
         : vec16s <= 32  ? 32
                         : static_cast<uint32_t>((vec16s + 31) / 32 * 32);
}

}  // namespace niccolite::executor::cuda
