// The floating-point formats narrower than float, and their conversions from and to float. Every
// conversion is free of branches, so that loops over it vectorise, and uses no subnormal float as
// an operand whose value matters, so that its result does not depend on a thread's flush-to-zero
// mode. Rounding is to nearest even. As on CUDA: NaN converts to the format's NaN with all
// magnitude bits set, and the 8-bit formats saturate to the largest finite value, infinity
// included.
#pragma once

#include <bit>
#include <cstdint>

namespace niccolite::executor {

/// IEEE 754 binary16.
struct Half {
  using Bits = uint16_t;
  static constexpr int kMantissaBits = 10;
  static constexpr int kExponentBias = 15;
  static constexpr uint32_t kOverflow = 0x7c00;  // infinity, for a too large magnitude
  static constexpr uint32_t kNan = 0x7fff;  // all magnitude bits; also the mask of the magnitude
  static constexpr uint32_t kFirstSpecial =
      0x7c00;  // this magnitude and those above are infinity or NaN
};

/// OCP 8-bit formats. E4M3 has no infinity and one NaN; E5M2 is the upper half of a Half.
struct E4m3 {
  using Bits = uint8_t;
  static constexpr int kMantissaBits = 3;
  static constexpr int kExponentBias = 7;
  static constexpr uint32_t kOverflow = 0x7e;  // 448
  static constexpr uint32_t kNan = 0x7f;
  static constexpr uint32_t kFirstSpecial = 0x7f;
};
struct E5m2 {
  using Bits = uint8_t;
  static constexpr int kMantissaBits = 2;
  static constexpr int kExponentBias = 15;
  static constexpr uint32_t kOverflow = 0x7b;  // 57344
  static constexpr uint32_t kNan = 0x7f;
  static constexpr uint32_t kFirstSpecial = 0x7c;
};

/// The upper half of a float.
struct Bfloat16 {
  using Bits = uint16_t;
};

inline constexpr uint32_t kFloatSign = 0x80000000u;
inline constexpr uint32_t kFloatInfinity = 0x7f800000u;
inline constexpr int kFloatMantissaBits = 23;
inline constexpr int kFloatExponentBias = 127;

/// The exact value of `bits`.
template <typename Format>
constexpr float widen(typename Format::Bits bits) {
  constexpr int kShift = kFloatMantissaBits - Format::kMantissaBits;
  constexpr int kSignShift = 32 - 8 * static_cast<int>(sizeof(bits));
  constexpr uint32_t kRebias = uint32_t{kFloatExponentBias - Format::kExponentBias}
                               << kFloatMantissaBits;
  constexpr uint32_t kOne = 1u << kFloatMantissaBits;  // of the exponent

  const uint32_t magnitude = bits & Format::kNan;
  const uint32_t shifted = magnitude << kShift;
  const uint32_t normal = shifted + kRebias;
  // A subnormal has no hidden bit: read it with one, then subtract that bit's value. Both are
  // normal floats.
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(normal + kOne) -
                                                     std::bit_cast<float>(kRebias + kOne));
  const uint32_t special = shifted | kFloatInfinity;
  uint32_t value = shifted < kOne ? subnormal : normal;
  value = shifted >= (Format::kFirstSpecial << kShift) ? special : value;
  return std::bit_cast<float>(value | ((uint32_t{bits} << kSignShift) & kFloatSign));
}

template <typename Format>
constexpr typename Format::Bits narrow(float value) {
  constexpr int kShift = kFloatMantissaBits - Format::kMantissaBits;
  constexpr int kSignShift = 32 - 8 * static_cast<int>(sizeof(typename Format::Bits));
  constexpr uint32_t kRebias = uint32_t{kFloatExponentBias - Format::kExponentBias}
                               << kFloatMantissaBits;
  constexpr uint32_t kLeastNormal = kRebias + (1u << kFloatMantissaBits);
  // A float whose last mantissa bit is worth the format's smallest subnormal: adding it rounds to a
  // multiple of that.
  constexpr uint32_t kRounder = kLeastNormal + (uint32_t{kShift} << kFloatMantissaBits);

  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & ~kFloatSign;
  // Adds just less than half of the last bit that stays, and the rest if that bit is odd. A carry
  // ends in the exponent, where it belongs. Too large magnitudes, infinity too, come out above
  // kOverflow.
  const uint32_t even = (magnitude >> kShift) & 1;
  uint32_t normal = (magnitude - kRebias + ((1u << (kShift - 1)) - 1) + even) >> kShift;
  normal = normal > Format::kOverflow ? Format::kOverflow : normal;
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + std::bit_cast<float>(kRounder)) -
      kRounder;
  uint32_t result = magnitude < kLeastNormal ? subnormal : normal;
  result |= (bits & kFloatSign) >> kSignShift;
  result = magnitude > kFloatInfinity ? Format::kNan : result;
  return static_cast<typename Format::Bits>(result);
}

template <>
constexpr float widen<Bfloat16>(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

template <>
constexpr uint16_t narrow<Bfloat16>(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return static_cast<uint16_t>((bits & ~kFloatSign) > kFloatInfinity ? 0x7fffu : rounded);
}

}  // namespace niccolite::executor
