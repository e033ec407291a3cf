// Quotients of elements of one byte: a multiplication and a shift instead of a division, which
// takes some twenty instructions and made averages of such types take twice the time of their sums.
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

}  // namespace niccolite::executor::cuda
