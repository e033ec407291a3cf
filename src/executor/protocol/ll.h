// LL: the low-latency protocol. A slot is an array of 8-byte words, 4 bytes of data and a 4-byte
// flag each, so that data and its arrival are one atomic store: no fence, no counter on the data
// path, half of the bandwidth. Data byte i of a chunk lies in word i / 4; the last word is padded.
// The flag of step s is the low half of s + 1.
//
// Stale flags: a slot's unused words keep flags of older steps, and a 32-bit flag returns after
// 2^32 steps. Whenever the low 31 bits of a step are in the last `depth` before they wrap, the
// sender therefore writes every word of the slot (for an empty chunk too), so that no word is ever
// older than 2^31 steps.
#pragma once

#include <cstdint>

namespace niccolite::executor::ll {

inline constexpr uint32_t kDataBytes = 4;
inline constexpr uint32_t kWordBytes = 8;

constexpr uint32_t flag_of(uint64_t step) { return static_cast<uint32_t>(step + 1); }
constexpr uint64_t pack(uint32_t data, uint32_t flag) { return uint64_t{flag} << 32 | data; }
constexpr uint32_t data_of(uint64_t word) { return static_cast<uint32_t>(word); }
constexpr uint32_t flag_in(uint64_t word) { return static_cast<uint32_t>(word >> 32); }

/// Must the sender fill the whole slot at this step (see above)?
constexpr bool cleans(uint64_t step, uint32_t depth) {
  return ((step + depth) & 0x7fffffffu) < depth;
}

constexpr uint64_t words_of(uint64_t bytes) { return (bytes + kDataBytes - 1) / kDataBytes; }

}  // namespace niccolite::executor::ll
