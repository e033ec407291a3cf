// Puts to ranks of other machines: a put goes as the chunks of a connection of its own (relay.h),
// and nothing on the other machine but the receiver's proxy takes them. Each chunk says where in
// the receiver's windows its bytes belong. Host and device include it.
//
//   chunk    PutHeader | unused | bytes of the put, from kPutDataAt on
//
// Chunks arrive in the order in which they were sent. The last of a put raises the receiver's
// signal (signal.h), so that a signal is seen only after the data of its put and of earlier ones.
// Kernels of several puts take turns on the connection by the numbers of their signals, in the
// origin's line: a put sends while `raised` is its own number.
#pragma once

#include <cstddef>
#include <cstdint>

#include "executor/protocol/fifo.h"

namespace niccolite::executor {

struct PutHeader {
  uint64_t window;  // registry::Window::number(); means nothing without bytes
  uint64_t offset;  // in it
  uint32_t bytes;
  uint32_t is_last;  // 1: the put's last chunk, with its signal
};
static_assert(sizeof(PutHeader) == 24);

inline constexpr uint32_t kPutDataAt = 128;
inline constexpr uint32_t kPutDataBytes = 64 << 10;  // of a chunk at most
/// The connections' shape.
inline constexpr FifoShape kPutShape{
    .channels = 1, .depth = 8, .slot_bytes = kPutDataAt + kPutDataBytes};

/// The chunk of a put of `bytes` that begins at `at`, which is less than `bytes`, or 0.
constexpr PutHeader put_header(uint64_t window, uint64_t offset, uint64_t bytes, uint64_t at) {
  const uint64_t rest = bytes - at;
  const bool is_last = rest <= kPutDataBytes;
  return {.window = window,
          .offset = offset + at,
          .bytes = is_last ? static_cast<uint32_t>(rest) : kPutDataBytes,
          .is_last = is_last ? 1u : 0u};
}

}  // namespace niccolite::executor
