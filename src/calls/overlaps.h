// Buffers of one call, or of the messages of one group, that overlap: looked for only when the user
// asks for it (NCCL_CHECK_MODE, NCCL_CHECK_POINTERS). Thread safety: any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "base/status.h"
#include "calls/task.h"

namespace niccolite::calls {

/// Does the user ask for checks of buffers? nullopt: the default of the device holds.
std::optional<bool> asked_buffer_checks();

/// The bytes that a buffer has.
struct Range {
  const void* start = nullptr;
  size_t bytes = 0;

  const std::byte* begin() const { return static_cast<const std::byte*>(start); }
  const std::byte* end() const { return begin() + bytes; }
  bool overlaps(const Range& other) const {
    return bytes > 0 && other.bytes > 0 && begin() < other.end() && other.begin() < end();
  }
  /// "0x7f00 to 0x7f40 (64 bytes)".
  std::string describe() const;
};

struct GroupMessage {
  const Task* task;
  int rank;  // that sends or receives
};

/// Checks a group's messages, which are under way together: the buffer of a receive must not
/// overlap the buffer of another message.
Status check_overlaps(std::span<const GroupMessage> messages);

}  // namespace niccolite::calls
