#include "executor/cuda/byte_quotient.h"

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

}  // namespace
}  // namespace niccolite::executor::cuda
