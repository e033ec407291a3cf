// The conversions of executor/numeric, against the definition of each format, for every bit
// pattern.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "executor/numeric/small_float.h"

namespace niccolite::executor {
namespace {

// A format as its standard defines it, and the way to the code under test.
struct FormatCase {
  const char* name;
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity;  // all exponent bits set: infinity and NaN; otherwise only all magnitude bits
                      // are NaN
  bool saturates;
  float (*widen)(uint32_t);
  uint32_t (*narrow)(float);

  int bits() const { return 1 + exponent_bits + mantissa_bits; }
  uint32_t sign() const { return 1u << (bits() - 1); }
  uint32_t largest() const {  // finite magnitude
    return has_infinity ? (((1u << exponent_bits) - 1) << mantissa_bits) - 1 : sign() - 2;
  }
  double value(uint32_t magnitude) const {
    const int exponent = static_cast<int>(magnitude >> mantissa_bits);
    const uint32_t mantissa = magnitude & ((1u << mantissa_bits) - 1);
    const int bias = (1 << (exponent_bits - 1)) - 1;
    if (exponent == 0) return std::ldexp(mantissa, 1 - bias - mantissa_bits);
    return std::ldexp(mantissa + (1u << mantissa_bits), exponent - bias - mantissa_bits);
  }
};

template <typename Format>
float widen_bits(uint32_t bits) {
  return widen<Format>(static_cast<typename Format::Bits>(bits));
}
template <typename Format>
uint32_t narrow_bits(float value) {
  return narrow<Format>(value);
}

const FormatCase kFormats[] = {
    {"half", 5, 10, true, false, widen_bits<Half>, narrow_bits<Half>},
    {"bfloat16", 8, 7, true, false, widen_bits<Bfloat16>, narrow_bits<Bfloat16>},
    {"f8e4m3", 4, 3, false, true, widen_bits<E4m3>, narrow_bits<E4m3>},
    {"f8e5m2", 5, 2, true, true, widen_bits<E5m2>, narrow_bits<E5m2>},
};

class SmallFloat : public testing::TestWithParam<FormatCase> {};

TEST_P(SmallFloat, WidensEveryPatternToItsValue) {
  const FormatCase& format = GetParam();
  for (uint32_t bits = 0; bits < 2 * format.sign(); ++bits) {
    const uint32_t magnitude = bits & (format.sign() - 1);
    const float value = format.widen(bits);
    ASSERT_EQ(std::signbit(value), (bits & format.sign()) != 0) << bits;
    if (magnitude <= format.largest()) {
      ASSERT_EQ(std::abs(value), format.value(magnitude)) << bits;
    } else if (format.has_infinity && magnitude == format.largest() + 1) {
      ASSERT_TRUE(std::isinf(value)) << bits;
    } else {
      ASSERT_TRUE(std::isnan(value)) << bits;
    }
  }
}

TEST_P(SmallFloat, NarrowsEveryValueOfItsOwnToTheSamePattern) {
  const FormatCase& format = GetParam();
  for (uint32_t magnitude = 0; magnitude <= format.largest(); ++magnitude) {
    ASSERT_EQ(format.narrow(format.widen(magnitude)), magnitude);
    ASSERT_EQ(format.narrow(format.widen(magnitude | format.sign())), magnitude | format.sign());
  }
}

TEST_P(SmallFloat, RoundsToNearestAndTiesToEven) {
  const FormatCase& format = GetParam();
  for (uint32_t below = 0; below < format.largest(); ++below) {
    const auto middle = static_cast<float>((format.value(below) + format.value(below + 1)) / 2);
    const uint32_t even = below % 2 == 0 ? below : below + 1;
    const float inf = std::numeric_limits<float>::infinity();
    ASSERT_EQ(format.narrow(middle), even) << middle;
    ASSERT_EQ(format.narrow(-middle), even | format.sign()) << middle;
    ASSERT_EQ(format.narrow(std::nextafter(middle, 0.0f)), below) << middle;
    ASSERT_EQ(format.narrow(std::nextafter(middle, inf)), below + 1) << middle;
  }
}

TEST_P(SmallFloat, RoundsAnyFloatToANearestValue) {
  const FormatCase& format = GetParam();
  std::mt19937 random(1);
  for (int i = 0; i < 100000; ++i) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::isnan(value) || std::abs(value) > format.value(format.largest())) continue;
    const uint32_t bits = format.narrow(value);
    const uint32_t magnitude = bits & (format.sign() - 1);
    ASSERT_EQ((bits & format.sign()) != 0, std::signbit(value));
    ASSERT_LE(magnitude, format.largest());
    const double distance = std::abs(format.value(magnitude) - std::abs(double{value}));
    if (magnitude > 0) {
      ASSERT_LE(distance, std::abs(format.value(magnitude - 1) - std::abs(double{value})));
    }
    ASSERT_LE(distance, std::abs(format.value(magnitude + 1) - std::abs(double{value})));
  }
}

TEST_P(SmallFloat, SaturatesOrOverflowsToInfinity) {
  const FormatCase& format = GetParam();
  const uint32_t most = format.saturates ? format.largest() : format.largest() + 1;
  const double step = format.value(format.largest()) - format.value(format.largest() - 1);
  const double limit =
      format.value(format.largest()) + step / 2;  // ties away from the (odd) largest
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> values = {inf, std::numeric_limits<float>::max(),
                               std::nextafter(static_cast<float>(limit), inf)};
  // The largest E4M3 is even: a tie rounds down to it. For the others it is odd, and a tie
  // overflows.
  if (limit < std::numeric_limits<float>::max()) values.push_back(static_cast<float>(limit));
  for (const float value : values) {
    ASSERT_EQ(format.narrow(value), most) << value;
    ASSERT_EQ(format.narrow(-value), most | format.sign()) << value;
  }
  ASSERT_EQ(format.narrow(std::nextafter(static_cast<float>(limit), 0.0f)), format.largest());
}

TEST_P(SmallFloat, TurnsEveryNanIntoItsOwn) {
  const FormatCase& format = GetParam();
  for (const uint32_t bits :
       {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffc00000u, 0xffffffffu}) {
    ASSERT_EQ(format.narrow(std::bit_cast<float>(bits)), format.sign() - 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, SmallFloat, testing::ValuesIn(kFormats),
                         [](const auto& format) { return std::string(format.param.name); });

}  // namespace
}  // namespace niccolite::executor
