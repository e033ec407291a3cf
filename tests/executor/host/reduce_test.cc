// Reducer against a scalar reduce by definition, for all types and reductions, on special values
// too.
#include "executor/host/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tests/executor/host/reference.h"
#include "tests/executor/host/sanitizers.h"

namespace niccolite::executor::host {
namespace {

using Bytes = std::vector<std::byte>;

Bytes random_bytes(size_t bytes, uint32_t seed) {
  std::mt19937 random(seed);
  Bytes data(bytes);
  for (std::byte& b : data) b = static_cast<std::byte>(random());
  return data;
}

// Bitwise, but any NaN of float and double stands for another: the sign of a sum's NaN is the CPU's
// affair. Narrower types have one NaN of their own.
bool same(DataType type, const std::byte* a, const std::byte* b) {
  if (std::memcmp(a, b, size_of(type)) == 0) return true;
  return size_of(type) >= 4 && is_nan(type, a) && is_nan(type, b);
}

struct ReductionCase {
  InstructionSet set;
  DataType type;
  Reduction reduction;
};

void PrintTo(const ReductionCase& c, std::ostream* out) {
  *out << (c.set == InstructionSet::Best ? "best " : "baseline ") << name_of(c.type) << " reduce "
       << static_cast<int>(c.reduction.op) << " scales " << c.reduction.input_scale << " "
       << c.reduction.finish_scale << " " << c.reduction.finish_divisor;
}

std::vector<ReductionCase> all_cases() {
  std::vector<ReductionCase> cases;
  for (const InstructionSet set : {InstructionSet::Baseline, InstructionSet::Best}) {
    for (int i = 0; i < kDataTypes; ++i) {
      const auto type = static_cast<DataType>(i);
      for (int op = 0; op < kReduceOps; ++op) {
        cases.push_back({set, type, {.op = static_cast<ReduceOp>(op)}});
      }
      cases.push_back({set,
                       type,
                       {.op = ReduceOp::Sum,
                        .input_scale = 0.7,
                        .finish_scale = 1.0 / 3,
                        .finish_divisor = 300,
                        .input_factor = -5}});
    }
  }
  return cases;
}

class FolderOf : public testing::TestWithParam<ReductionCase> {};

// Random bits: every NaN, infinity and subnormal of the 8-bit types, many of the others.
TEST_P(FolderOf, AgreesWithTheDefinitionOnAnyBits) {
  const auto& [set, type, reduction] = GetParam();
  const Reducer reducer(type, reduction, set);
  const size_t size = size_of(type);
  for (const size_t operands : {1u, 2u, 3u, 5u}) {
    for (const size_t count : {1u, 31u, 1024u, kIsSanitized ? 1029u : 2500u}) {
      for (const size_t misalignment : {0u, 1u}) {
        std::vector<Bytes> data;
        std::vector<const std::byte*> pointers;
        for (size_t k = 0; k < operands; ++k) {
          data.push_back(
              random_bytes(count * size + misalignment, static_cast<uint32_t>(7 * k + count)));
          pointers.push_back(data[k].data() + misalignment);
        }
        Bytes result(misalignment + count * size + 1, std::byte{0x5a});
        reducer.reduce(pointers, true, result.data() + misalignment, count);
        ASSERT_EQ(result.back(), std::byte{0x5a});
        for (size_t i = 0; i < count; ++i) {
          std::vector<const std::byte*> elements;
          for (const std::byte* p : pointers) elements.push_back(p + i * size);
          std::byte expected[8];
          reference_reduction(type, reduction, elements, true, expected);
          ASSERT_TRUE(same(type, expected, result.data() + misalignment + i * size))
              << "element " << i << " of " << count << ", " << operands << " operands";
        }
      }
    }
  }
}

TEST_P(FolderOf, MayStoreOverAnOperand) {
  const auto& [set, type, reduction] = GetParam();
  const Reducer reducer(type, reduction, set);
  const size_t count = 2100;
  const size_t size = size_of(type);
  for (const size_t operands : {1u, 2u, 4u}) {
    for (size_t over = 0; over < operands; ++over) {
      std::vector<Bytes> data;
      std::vector<const std::byte*> pointers;
      for (size_t k = 0; k < operands; ++k) {
        data.push_back(random_bytes(count * size, static_cast<uint32_t>(k)));
        pointers.push_back(data[k].data());
      }
      Bytes apart(count * size);
      reducer.reduce(pointers, true, apart.data(), count);
      reducer.reduce(pointers, true, data[over].data(), count);
      ASSERT_EQ(data[over], apart);
    }
  }
}

TEST_P(FolderOf, ScalesAndRoundsInput) {
  const auto& [set, type, reduction] = GetParam();
  const Reducer reducer(type, reduction, set);
  const size_t size = size_of(type);
  const Bytes data = random_bytes(1000 * size, 3);
  Bytes scaled(data.size());
  reducer.scale_input(data.data(), scaled.data(), 1000);
  for (size_t i = 0; i < 1000; ++i) {
    std::byte expected[8];
    reference_scale_input(type, reduction, data.data() + i * size, expected);
    ASSERT_TRUE(same(type, expected, scaled.data() + i * size)) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(TypesAndReductions, FolderOf, testing::ValuesIn(all_cases()));

TEST(Reducer, MinAndMaxPreferNumbersAndOrderZeros) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const struct {
    float a, b, max, min;
  } cases[] = {
      {1, nan, 1, 1}, {nan, -2, -2, -2}, {0.0f, -0.0f, 0.0f, -0.0f}, {-0.0f, 0.0f, 0.0f, -0.0f}};
  for (const auto& c : cases) {
    const std::byte* operands[] = {reinterpret_cast<const std::byte*>(&c.a),
                                   reinterpret_cast<const std::byte*>(&c.b)};
    float max, min;
    Reducer(DataType::Float32, {.op = ReduceOp::Max})
        .reduce(operands, false, reinterpret_cast<std::byte*>(&max), 1);
    Reducer(DataType::Float32, {.op = ReduceOp::Min})
        .reduce(operands, false, reinterpret_cast<std::byte*>(&min), 1);
    EXPECT_EQ(std::bit_cast<uint32_t>(max), std::bit_cast<uint32_t>(c.max)) << c.a << " " << c.b;
    EXPECT_EQ(std::bit_cast<uint32_t>(min), std::bit_cast<uint32_t>(c.min)) << c.a << " " << c.b;
  }
}

TEST(Reducer, RoundsOnceForManyLowPrecisionOperands) {
  // 1 + 8 * 2^-4 in E4M3 steps of 1/8 from 1: rounding after each addition would lose every 2^-4.
  const uint8_t one = 0x38, sixteenth = 0x18, expected = 0x3c;  // 1.5
  std::vector<const std::byte*> operands = {reinterpret_cast<const std::byte*>(&one)};
  for (int i = 0; i < 8; ++i) operands.push_back(reinterpret_cast<const std::byte*>(&sixteenth));
  uint8_t result = 0;
  Reducer(DataType::Float8e4m3, {})
      .reduce(operands, false, reinterpret_cast<std::byte*>(&result), 1);
  EXPECT_EQ(result, expected);
}

}  // namespace
}  // namespace niccolite::executor::host
