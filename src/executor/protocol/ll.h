// LL: the low-latency protocol. A slot is an array of 8-byte words, 4 bytes of data and a 4-byte
// flag each, so that data and its arrival are one atomic store: no fence, no counter on the data
// path, half of the bandwidth. Data byte i of a chunk lies in word i / 4; the last word is padded.
// The low half of a flag is the step, plus one, modulo 2^16; the high half is the call's tag
// (protocol/call_tag.h).
//
// Stale flags: a slot's unused words keep flags of older steps, and a step returns after 2^16.
// Whenever the low 15 bits of a step are in the last `depth` before they wrap, the sender therefore
// writes every word of the slot (for an empty chunk too), so that no word is ever older than 2^15
// steps, and a word whose low half is right belongs to this step, whatever its tag.
#pragma once

#include <cstdint>

namespace niccolite::executor::ll {

inline constexpr uint32_t kDataBytes = 4;
inline constexpr uint32_t kWordBytes = 8;

constexpr uint32_t flag_of(uint64_t step, uint16_t tag) {
  return uint32_t{tag} << 16 | (static_cast<uint32_t>(step + 1) & 0xffffu);
}
/// Is it a flag of that step, of any call?
constexpr bool is_of_step(uint32_t flag, uint64_t step) {
  return ((flag ^ flag_of(step, 0)) & 0xffffu) == 0;
}
constexpr uint16_t tag_in(uint32_t flag) { return static_cast<uint16_t>(flag >> 16); }
/// A word's flag is not the one waited for: is it of the same step, and thus of another call?
constexpr bool is_mismatch(uint32_t flag, uint32_t expected) {
  return ((flag ^ expected) & 0xffffu) == 0 && flag != expected;
}
constexpr uint64_t pack(uint32_t data, uint32_t flag) { return uint64_t{flag} << 32 | data; }
constexpr uint32_t data_of(uint64_t word) { return static_cast<uint32_t>(word); }
constexpr uint32_t flag_in(uint64_t word) { return static_cast<uint32_t>(word >> 32); }

/// Must the sender fill the whole slot at this step (see above)?
constexpr bool cleans(uint64_t step, uint32_t depth) { return ((step + depth) & 0x7fffu) < depth; }

constexpr uint64_t words_of(uint64_t bytes) { return (bytes + kDataBytes - 1) / kDataBytes; }

}  // namespace niccolite::executor::ll
