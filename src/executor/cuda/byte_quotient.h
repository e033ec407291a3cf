// Quotients of elements of one byte, four at a time: a multiplication and a shift instead of a
// division, which takes some twenty instructions and made averages of such types take twice the
// time of their sums.
#pragma once

#include <cstdint>

namespace niccolite::executor::cuda {

/// Of a divisor from 1 on, for byte_quotient().
constexpr uint32_t byte_reciprocal(uint64_t divisor) {
  return static_cast<uint32_t>((uint64_t{1} << 16) / divisor + 1);
}

/// `magnitude` (0 to 255) divided by the divisor, rounded down. Exact: the reciprocal is too large
/// by at most 1, and the product by at most 255, which is less than 2^16 / divisor for divisors up
/// to 256; for larger ones the product is less than 2^16.
constexpr uint32_t byte_quotient(uint32_t magnitude, uint32_t reciprocal) {
  return magnitude * reciprocal >> 16;
}

/// Of four elements, a byte each: truncated toward zero.
constexpr uint32_t byte_quotients(uint32_t elements, uint32_t reciprocal, bool have_signs) {
  constexpr uint32_t kUpper = 0x80808080u;
  const uint32_t ones = have_signs ? (elements & kUpper) >> 7 : 0;  // in the bytes below zero
  const uint32_t all = ones * 0xff;
  // No carry leaves its byte: an element below zero has at most 127, inverted.
  const uint32_t magnitudes = (elements ^ all) + ones;
  const auto quotient_of = [&](uint32_t byte) {
    return byte_quotient(magnitudes >> 8 * byte & 0xff, reciprocal) << 8 * byte;
  };
  const uint32_t quotients = quotient_of(0) | quotient_of(1) | quotient_of(2) | quotient_of(3);
  // A quotient of zero has 255, inverted: upper bits are added apart, so that there is no carry.
  const uint32_t inverted = quotients ^ all;
  return ((inverted & ~kUpper) + ones) ^ (inverted & kUpper);
}

}  // namespace niccolite::executor::cuda
