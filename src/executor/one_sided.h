// One-sided operations as executors run them: a put that ends with a signal, and a wait for
// signals. protocol/signal.h has their counters. Each is one kernel on a stream; nothing orders it
// but the stream.
#pragma once

#include <cstddef>
#include <vector>

#include "executor/launch.h"
#include "executor/protocol/signal.h"

namespace niccolite::executor {

struct Put {
  const std::byte* source = nullptr;  // with 0 bytes, nothing but the signal
  std::byte* target = nullptr;
  size_t bytes = 0;
  SignalLine* own = nullptr;    // this rank's line for the target
  uint64_t* arrived = nullptr;  // in the target's line for this rank
};

struct SignalWait {
  struct Item {
    SignalLine* line = nullptr;  // this rank's, for the origin
    uint64_t count = 0;
  };
  std::vector<Item> items;
  ControlWords* control = nullptr;
};

/// More bytes than that are faster copied by the device's copy engines, before a put of the signal
/// alone.
inline constexpr size_t kMostPutBytes = 128 << 10;
/// Items of one launch.
inline constexpr size_t kMostSignalWaits = 32;

}  // namespace niccolite::executor
