// PackedSlot: the present slot of a port whose data bring flags (LL and LL128), strip by strip.
// Thread safety: one thread at a time for each end.
#pragma once

#include <cstddef>
#include <cstdint>

#include "executor/host/port.h"
#include "executor/protocol/fifo.h"

namespace niccolite::executor::host {

constexpr bool is_packed(Protocol protocol) { return protocol != Protocol::Simple; }

class PackedSlot {
 public:
  /// Strips start at multiples of this many bytes: of whole words and lines of whole elements.
  static constexpr uint64_t kGrain = 240;

  PackedSlot(Protocol protocol, const PortState& port) : PackedSlot(protocol, port, port.slot()) {}
  /// `slot`: another rank's, for the same step.
  PackedSlot(Protocol protocol, const PortState& port, std::byte* slot);

  /// Is the strip [offset, offset + bytes) there? Looks at its last flag, which usually arrives
  /// last; and when that is missing at its first, since another call may have sent less.
  Arrival arrival(uint64_t offset, uint64_t bytes) const;

  /// False when some have not arrived: `data` is then undefined.
  bool unpack(uint64_t offset, uint64_t bytes, std::byte* data) const;
  void pack(uint64_t offset, uint64_t bytes, const std::byte* data) const;

 private:
  uint64_t flag_at(uint64_t byte) const;
  /// The arrival of data that bring `flag`.
  Arrival judge(uint64_t flag) const;

  std::byte* slot_;
  uint64_t flag_;  // of the present step
  bool is_ll_;
};

}  // namespace niccolite::executor::host
