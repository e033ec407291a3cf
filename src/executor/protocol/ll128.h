// LL128: a slot is an array of lines of 128 bytes, 120 of data and an 8-byte flag at the end. A
// line is written by one store of a warp's eight neighbouring threads (16 bytes each), which NVLink
// and the memory of one GPU deliver whole: whoever sees the flag sees the data. On the CPU the
// writer stores the data and then the flag with release; the reader acquires the flag. No counter
// on the data path, 15/16 of the bandwidth. Data byte i of a chunk lies in line i / 120; what
// follows the chunk in its last line is undefined.
//
// The flag of step s is s + 1, modulo 2^48, below the call's tag (protocol/call_tag.h): it never
// returns.
#pragma once

#include <cstdint>

#include "executor/protocol/call_tag.h"

namespace niccolite::executor::ll128 {

inline constexpr uint32_t kLineBytes = 128;
inline constexpr uint32_t kDataBytes = 120;
inline constexpr uint32_t kFlagOffset = 120;

constexpr uint64_t flag_of(uint64_t step, uint16_t tag) { return call_tag::tail(step + 1, tag); }
/// A line's flag is not the one waited for: is it of the same step, and thus of another call?
constexpr bool is_mismatch(uint64_t flag, uint64_t expected) {
  return ((flag ^ expected) & call_tag::kStepMask) == 0 && flag != expected;
}
constexpr uint64_t lines_of(uint64_t bytes) { return (bytes + kDataBytes - 1) / kDataBytes; }

}  // namespace niccolite::executor::ll128
