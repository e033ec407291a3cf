// Tag: 16 bits that stand for a call (its kind, count, type, operation, root), equal on ranks whose
// calls match. It travels in every flag and tail of the operation, in bits that the step does not
// need, and so costs nothing: what arrives with the right step and another tag comes from a call
// that does not match, and is never taken for data. Host and device include it.
//
//   LL flag      32 bits: tag << 16 | (step + 1) mod 2^16
//   LL128 flag   64 bits: tag << 48 | (step + 1) mod 2^48
//   Simple tail  64 bits: tag << 48 | steps produced, mod 2^48
//
// The tag of a tail speaks of the last step produced. A sender that is done with an operation may
// have begun the next, so that a receiver judges the tag only while the tail is not beyond the
// steps of its own operation. Heads (credit) carry no tag, and are full 64-bit counters.
#pragma once

#include <cstdint>

namespace niccolite::executor::call_tag {

inline constexpr int kStepBits = 48;
inline constexpr uint64_t kStepMask = (uint64_t{1} << kStepBits) - 1;

constexpr uint64_t tail(uint64_t steps, uint16_t tag) {
  return uint64_t{tag} << kStepBits | (steps & kStepMask);
}
constexpr uint16_t tag_in(uint64_t tail) { return static_cast<uint16_t>(tail >> kStepBits); }
/// The full counter of a tail's 48 bits, given a counter `near` that is less than 2^47 away.
constexpr uint64_t steps_in(uint64_t tail, uint64_t near) {
  const uint64_t distance = (tail - near) & kStepMask;  // forward, modulo 2^48
  const uint64_t half = uint64_t{1} << (kStepBits - 1);
  return distance < half ? near + distance : near - (kStepMask + 1 - distance);
}

}  // namespace niccolite::executor::call_tag
