#include "executor/cuda/interpreter/byte_quotient.h"

#include <gtest/gtest.h>

namespace niccolite::executor::cuda {
namespace {

TEST(ByteQuotient, IsThatOfADivision) {
  for (uint32_t divisor = 1; divisor <= 100'000; ++divisor) {
    const uint32_t reciprocal = byte_reciprocal(divisor);
    for (uint32_t magnitude = 0; magnitude <= 255; ++magnitude)
      ASSERT_EQ(byte_quotient(magnitude, reciprocal), magnitude / divisor)
          << magnitude << " / " << divisor;
  }
}

TEST(ByteQuotient, OfFourTruncatesTowardZero) {
  for (uint32_t divisor :
       {1u, 2u, 3u, 4u, 7u, 8u, 16u, 32u, 64u, 127u, 128u, 129u, 256u, 1000u, 1024u}) {
    const uint32_t divider = byte_divider(divisor);
    for (uint32_t first = 0; first <= 255; ++first) {
      // Neighbours of all kinds, so that a carry would show.
      for (uint32_t other : {0u, 1u, first, 127u, 128u, 255u}) {
        const uint32_t elements = first | other << 8 | first << 16 | other << 24;
        const auto expected = [&](bool have_signs) {
          const auto of = [&](uint32_t byte) {
            const int value = have_signs ? static_cast<int8_t>(byte) : static_cast<int>(byte);
            return static_cast<uint32_t>(static_cast<uint8_t>(value / static_cast<int>(divisor)));
          };
          return of(first) | of(other) << 8 | of(first) << 16 | of(other) << 24;
        };
        ASSERT_EQ(byte_quotients(elements, divider, true), expected(true))
            << first << ", " << other << " / " << divisor;
        ASSERT_EQ(byte_quotients(elements, divider, false), expected(false))
            << first << ", " << other << " / " << divisor;
      }
    }
  }
}

}  // namespace
}  // namespace niccolite::executor::cuda
