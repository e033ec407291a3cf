#include "cli/perf/pattern.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

namespace niccolite::perf {
namespace {

TEST(Encoding, KeepsEveryFiniteValueOfTheSmallTypes) {
  for (const char* name : {"f8e4m3", "f8e5m2", "half", "bfloat16"}) {
    const ElementType& type = *find_type(name);
    for (uint64_t bits = 0; bits < uint64_t{1} << (8 * type.bytes); ++bits) {
      const double value = decode(type, bits);
      if (!std::isfinite(value)) continue;
      ASSERT_EQ(encode(type, value), bits) << name << " bits " << bits << " value " << value;
    }
  }
}

TEST(Encoding, AgreesWithTheCompilersFloatAndDouble) {
  for (const double value :
       {0.0, -0.0, 1.0, -2.5, 1.0 / 3, 3.4e38, 1e-40, -1e-45, 16777217.0, 0x1.fffffep10}) {
    EXPECT_EQ(encode(*find_type("float"), value),
              std::bit_cast<uint32_t>(static_cast<float>(value)))
        << value;
    EXPECT_EQ(encode(*find_type("double"), value), std::bit_cast<uint64_t>(value)) << value;
    EXPECT_EQ(decode(*find_type("double"), std::bit_cast<uint64_t>(value)), value);
  }
}

TEST(Encoding, KnowsTheFormatsLandmarks) {
  const ElementType& e4m3 = *find_type("f8e4m3");
  EXPECT_EQ(decode(e4m3, 0x7e), 448);
  EXPECT_TRUE(std::isnan(decode(e4m3, 0x7f)));
  EXPECT_EQ(decode(e4m3, 0x01), 0x1p-9);
  const ElementType& e5m2 = *find_type("f8e5m2");
  EXPECT_EQ(decode(e5m2, 0x7b), 57344);
  EXPECT_EQ(decode(e5m2, 0x7c), std::numeric_limits<double>::infinity());
  EXPECT_EQ(decode(*find_type("half"), 0x3c00), 1);
  EXPECT_EQ(decode(*find_type("bfloat16"), 0xbf80), -1);
}

// One all-reduce as a library might do it: operands in the given order, the result of each step
// rounded to the type.
class Library {
 public:
  Library(const ElementType& type, ncclRedOp_t operation, int nranks)
      : type_(type), operation_(operation), nranks_(nranks) {}

  uint64_t reduce(const std::vector<uint64_t>& operands, bool scale_first) const {
    const bool is_average = operation_ == ncclAvg;
    uint64_t result = is_average && scale_first ? scaled(operands[0]) : operands[0];
    for (size_t i = 1; i < operands.size(); ++i)
      result = reduce(result, is_average && scale_first ? scaled(operands[i]) : operands[i]);
    return is_average && !scale_first ? scaled(result) : result;
  }

  // A rank's operand times its scalar, which is 2, 3, 1, 2, 3, 1 and so on.
  uint64_t multiplied(uint64_t bits, int rank) const {
    const int scalar = rank % 3 == 0 ? 2 : rank % 3 == 1 ? 3 : 1;
    if (type_.is_floating()) return encode(type_, decode(type_, bits) * scalar);
    return bits * static_cast<uint64_t>(scalar);
  }

 private:
  int64_t widened(uint64_t bits) const {
    const int unused = 64 - 8 * static_cast<int>(type_.bytes);
    return type_.encoding == Encoding::Signed ? static_cast<int64_t>(bits << unused) >> unused
                                              : static_cast<int64_t>(bits << unused >> unused);
  }
  uint64_t scaled(uint64_t bits) const {
    if (type_.is_floating()) return encode(type_, decode(type_, bits) / nranks_);
    return static_cast<uint64_t>(widened(bits) / nranks_);
  }
  uint64_t reduce(uint64_t a, uint64_t b) const {
    if (type_.is_floating()) {
      const double x = decode(type_, a);
      const double y = decode(type_, b);
      switch (operation_) {
        case ncclProd:
          return encode(type_, x * y);
        case ncclMin:
          return encode(type_, std::min(x, y));
        case ncclMax:
          return encode(type_, std::max(x, y));
        default:
          return encode(type_, x + y);
      }
    }
    const bool is_less = type_.encoding == Encoding::Signed ? widened(a) < widened(b)
                                                            : static_cast<uint64_t>(widened(a)) <
                                                                  static_cast<uint64_t>(widened(b));
    switch (operation_) {
      case ncclProd:
        return static_cast<uint64_t>(widened(a)) * static_cast<uint64_t>(widened(b));
      case ncclMin:
        return is_less ? a : b;
      case ncclMax:
        return is_less ? b : a;
      default:
        return a + b;
    }
  }
  const ElementType& type_;
  ncclRedOp_t operation_;
  int nranks_;
};

TEST(Pattern, GivesOneResultInEveryOrderOfTheRanks) {
  constexpr size_t kElements = 2048;  // each is drawn by itself: a part stands for the period
  for (const ElementType& type : element_types())
    for (const Operation& operation : operations())
      for (const int nranks : {1, 2, 3, 4, 7, 8, 33}) {
        SCOPED_TRACE(::testing::Message()
                     << type.name << " " << operation.name << " " << nranks << " ranks");
        const Pattern pattern = Pattern::exact(type, operation, nranks, {0, nranks});
        const Library library(type, operation.id, nranks);
        std::vector<int> order(static_cast<size_t>(nranks));
        std::iota(order.begin(), order.end(), 0);
        for (int rotation = 0; rotation < std::min(nranks, 3); ++rotation) {
          std::vector<std::byte> result(kElements * type.bytes);
          for (size_t i = 0; i < kElements; ++i) {
            std::vector<uint64_t> operands;
            for (const int rank : order) {
              const uint64_t bits = load_bits(type, pattern.data(rank, 0), i);
              operands.push_back(operation.scalar == Scalar::None ? bits
                                                                  : library.multiplied(bits, rank));
            }
            // Scaling before the sum is the floating types' freedom; integers are divided once.
            store_bits(type, result.data(), i,
                       library.reduce(operands, type.is_floating() && rotation == 1));
          }
          ASSERT_EQ(pattern.count_wrong(Pattern::kReduced, 0, result.data(), kElements), 0u)
              << "rotation " << rotation;
          std::reverse(order.begin(), order.end());
          std::rotate(order.begin(), order.begin() + nranks / 2, order.end());
        }
      }
}

TEST(Pattern, SeesOneWrongElementAnywhere) {
  for (const ElementType& type : element_types()) {
    SCOPED_TRACE(type.name);
    const Pattern pattern = Pattern::exact(type, *find_operation("sum"), 4, {0, 4});
    const size_t count = 3 * Pattern::kPeriod + 5;
    const size_t shift = 1009;
    std::vector<std::byte> result(count * type.bytes);
    for (size_t i = 0; i < count; ++i)
      store_bits(
          type, result.data(), i,
          load_bits(type, pattern.data(Pattern::kReduced, 0), (i + shift) % Pattern::kPeriod));
    ASSERT_EQ(pattern.count_wrong(Pattern::kReduced, shift, result.data(), count), 0u);
    for (const size_t index : {size_t{0}, Pattern::kPeriod - 1, Pattern::kPeriod, count - 1}) {
      const std::vector<std::byte> right = result;
      result[index * type.bytes] ^= std::byte{0x14};
      EXPECT_EQ(pattern.count_wrong(Pattern::kReduced, shift, result.data(), count), 1u) << index;
      // The same through a window that begins elsewhere in the buffer.
      const size_t first = std::min<size_t>(index, 77);
      EXPECT_EQ(pattern.count_wrong(Pattern::kReduced, first + shift,
                                    result.data() + first * type.bytes, count - first),
                1u)
          << index;
      result = right;
    }
  }
}

TEST(Pattern, SeesABlockInTheWrongPlaceAndAMissingRank) {
  const ElementType& type = *find_type("float");
  const Pattern pattern = Pattern::exact(type, *find_operation("sum"), 4, {0, 4});
  // Block 1 where block 0 belongs, for usual block sizes.
  for (const size_t block : {size_t{1}, size_t{2}, size_t{512}, size_t{4096}, size_t{1} << 20})
    EXPECT_GT(pattern.count_wrong(Pattern::kReduced, 0, pattern.data(Pattern::kReduced, block), 64),
              0u)
        << block;
  // Rank 2 left out.
  std::vector<float> partial(Pattern::kPeriod);
  for (const int rank : {0, 1, 3})
    for (size_t i = 0; i < partial.size(); ++i) {
      float value;
      std::memcpy(&value, pattern.data(rank, i), sizeof value);
      partial[i] += value;
    }
  EXPECT_GT(pattern.count_wrong(Pattern::kReduced, 0,
                                reinterpret_cast<const std::byte*>(partial.data()), partial.size()),
            Pattern::kPeriod * 9 / 10);
}

TEST(Pattern, GivesEachProcessItsOwnRanks) {
  const ElementType& type = *find_type("int32");
  const Operation& sum = *find_operation("sum");
  const Pattern all = Pattern::exact(type, sum, 6, {0, 6});
  const Pattern part = Pattern::exact(type, sum, 6, {2, 3});
  for (int rank = 2; rank < 5; ++rank)
    EXPECT_EQ(std::memcmp(all.data(rank, 0), part.data(rank, 0), all.period_bytes()), 0) << rank;
  EXPECT_EQ(std::memcmp(all.data(Pattern::kReduced, 0), part.data(Pattern::kReduced, 0),
                        all.period_bytes()),
            0);
  EXPECT_NE(std::memcmp(all.data(0, 0), all.data(1, 0), all.period_bytes()), 0);
}

TEST(MovingPattern, DiffersBetweenRanks) {
  for (const ElementType& type : element_types()) {
    SCOPED_TRACE(type.name);
    const Pattern pattern = Pattern::moving(type, {0, 3});
    for (int rank = 0; rank < 3; ++rank)
      for (int other = 0; other < 3; ++other) {
        const uint64_t wrong =
            pattern.count_wrong(rank, 5, pattern.data(other, 5), Pattern::kPeriod);
        if (rank == other)
          EXPECT_EQ(wrong, 0u);
        else
          EXPECT_GT(wrong, Pattern::kPeriod * 9 / 10);
      }
  }
}

TEST(MovingPattern, TakesTheTwoZerosForDifferent) {
  const ElementType& type = *find_type("f8e4m3");
  const Pattern pattern = Pattern::moving(type, {0, 1});
  const std::byte negative_zero{0x80};
  size_t zeros = 0;
  for (size_t i = 0; i < Pattern::kPeriod; ++i) {
    if (load_bits(type, pattern.data(0, i), 0) != 0) continue;
    ++zeros;
    EXPECT_EQ(pattern.count_wrong(0, i, &negative_zero, 1), 1u);
  }
  EXPECT_GT(zeros, 0u);
}

TEST(RoundingPattern, RoundsSoThatTheOrderShows) {
  const ElementType& type = *find_type("float");
  const Pattern pattern = Pattern::rounding(type, {0, 4});
  size_t differences = 0;
  for (size_t i = 0; i < Pattern::kPeriod; ++i) {
    float x[4];
    for (int rank = 0; rank < 4; ++rank)
      std::memcpy(&x[rank], pattern.data(rank, i), sizeof(float));
    const float ascending = ((x[0] + x[1]) + x[2]) + x[3];
    const float rotated = ((x[1] + x[2]) + x[3]) + x[0];
    differences += ascending != rotated;
  }
  EXPECT_GT(differences, Pattern::kPeriod / 10);
}

}  // namespace
}  // namespace niccolite::perf
