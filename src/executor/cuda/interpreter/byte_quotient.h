// Quotients of elements of one byte, four at a time: a multiplication and a shift instead of a
// division, which takes some twenty instructions and made averages of such types take twice the
// time of their sums; or, by a power of two, shifts of all four.
#pragma once

#include <bit>
#include <cstdint>

namespace niccolite::executor::cuda {

/// Returns the reciprocal of a divisor from 1 on, for byte_quotient().
constexpr uint32_t byte_reciprocal(uint64_t divisor) {
  return static_cast<uint32_t>((uint64_t{1} << 16) / divisor + 1);
}

/// `magnitude` (0 to 255) divided by the divisor, rounded down. Exact: the reciprocal is too large
/// by at most 1, and the product by at most 255, which is less than 2^16 / divisor for divisors up
/// to 256; for larger ones the product is less than 2^16.
constexpr uint32_t byte_quotient(uint32_t magnitude, uint32_t reciprocal) {
  return magnitude * reciprocal >> 16;
}

inline constexpr uint32_t kBytesShift = 1u << 31;

/// How byte_quotients() divides by a divisor from 1 on: by its reciprocal, or, with kBytesShift, by
/// a shift of 0 to 7 bits, which takes a third of the instructions.
constexpr uint32_t byte_divider(uint64_t divisor) {
  return std::has_single_bit(divisor) && divisor <= 128
             ? kBytesShift | static_cast<uint32_t>(std::countr_zero(divisor))
             : byte_reciprocal(divisor);
}

namespace of_bytes {

inline constexpr uint32_t kEach = 0x01010101u;
inline constexpr uint32_t kUpper = 0x80808080u;

/// Adds four bytes to four bytes. The highest bits are added apart, so that no carry leaves its
/// byte. The highest bits of `addends` are zero.
constexpr uint32_t plus(uint32_t bytes, uint32_t addends) {
  return ((bytes & ~kUpper) + addends) ^ (bytes & kUpper);
}

constexpr uint32_t shifted(uint32_t elements, uint32_t bits, bool have_signs) {
  const auto below_zero = [&](uint32_t bytes) { return have_signs ? (bytes & kUpper) >> 7 : 0; };
  // A shift rounds down. The addition makes negative elements round toward zero.
  const uint32_t rounded = plus(elements, below_zero(elements) * ((1u << bits) - 1));
  return (rounded >> bits & kEach * (0xffu >> bits)) |
         below_zero(rounded) * (0xff00u >> bits & 0xffu);
}

constexpr uint32_t multiplied(uint32_t elements, uint32_t reciprocal, bool have_signs) {
  const uint32_t ones = have_signs ? (elements & kUpper) >> 7 : 0;  // in the bytes below zero
  const uint32_t all = ones * 0xff;
  // No carry leaves its byte: an element below zero has at most 127, inverted.
  const uint32_t magnitudes = (elements ^ all) + ones;
  const auto quotient_of = [&](uint32_t byte) {
    return byte_quotient(magnitudes >> 8 * byte & 0xff, reciprocal) << 8 * byte;
  };
  const uint32_t quotients = quotient_of(0) | quotient_of(1) | quotient_of(2) | quotient_of(3);
  return plus(quotients ^ all, ones);  // a quotient of zero has 255, inverted
}

}  // namespace of_bytes

/// Divides four elements, a byte each, truncating toward zero.
constexpr uint32_t byte_quotients(uint32_t elements, uint32_t divider, bool have_signs) {
  return (divider & kBytesShift) != 0
             ? of_bytes::shifted(elements, divider & ~kBytesShift, have_signs)
             : of_bytes::multiplied(elements, divider, have_signs);
}

}  // namespace niccolite::executor::cuda
