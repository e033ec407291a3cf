// One-sided operations as executors run them: a put that ends with a signal, and a wait for
// signals. protocol/signal.h has their counters. Each is one kernel on a stream; nothing orders it
// but the stream.
#pragma once

#include <cstddef>
#include <vector>

#include "executor/launch.h"
#include "executor/protocol/fifo.h"
#include "executor/protocol/put.h"
#include "executor/protocol/signal.h"

namespace niccolite::executor {

struct Put {
  const std::byte* source = nullptr;  // with 0 bytes, nothing but the signal
  std::byte* target = nullptr;
  size_t bytes = 0;
  SignalLine* own = nullptr;    // this rank's line for the target
  uint64_t* arrived = nullptr;  // in the target's line for this rank
};

/// To a rank of another machine (protocol/put.h).
struct RelayedPut {
  const std::byte* source = nullptr;
  uint64_t bytes = 0;   // 0: nothing but the signal
  uint64_t window = 0;  // of the target, by its number
  uint64_t offset = 0;
  SignalLine* own = nullptr;  // this rank's line for the target
  PortAddress port;           // the sending end of the connection for puts
  ControlWords* control = nullptr;
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
