// Frames on an authenticated connection: length (u32), payload, code (16 bytes) over counter,
// length and payload. The counter is the frame's number in its direction, so that frames can be
// neither made, changed, repeated nor left out. Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "base/authentication.h"
#include "base/status.h"
#include "base/wire.h"

namespace niccolite::wire {

/// The longest payload: the contributions of 2,000 ranks of one process at their longest.
inline constexpr size_t kMaxFrame = 128u << 20;

class FrameSealer {
 public:
  explicit FrameSealer(const authentication::Secret& key) : key_(key) {}
  /// Appends the frame of `payload` (at most kMaxFrame) to `out`.
  void seal(std::span<const std::byte> payload, Bytes& out);

 private:
  authentication::Secret key_;
  uint64_t counter_ = 0;
};

class FrameOpener {
 public:
  /// A payload above `most` is refused as soon as its length is read.
  FrameOpener(const authentication::Secret& key, size_t most) : key_(key), most_(most) {}
  /// Adds bytes as they arrived. Memory grows with the bytes that arrive, not with an announced
  /// length.
  void feed(std::span<const std::byte> bytes);
  /// The next whole frame's payload, valid until the next call; nothing when more bytes are needed.
  /// Fails for good on a wrong code or length.
  Result<std::optional<std::span<const std::byte>>> next();

 private:
  authentication::Secret key_;
  size_t most_;
  uint64_t counter_ = 0;
  Bytes buffer_;
  size_t start_ = 0;  // of the first byte not yet returned
};

}  // namespace niccolite::wire
