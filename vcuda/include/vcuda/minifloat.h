// Conversions between float and floating types of 8 and 16 bits, for the host: to the nearest, ties
// to even.
#ifndef VCUDA_MINIFLOAT_H
#define VCUDA_MINIFLOAT_H

#ifdef __cplusplus

#include <cmath>
#include <cstdint>
#include <cstring>

namespace vcuda {

inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

/// Returns the float next to `value` towards zero, with its last bit set if it differs from
/// `value`. Rounding this float to a shorter type gives the rounding of `value`.
inline float to_odd(long double value) {
  float near = static_cast<float>(value);
  if (near == value || std::isnan(near)) return near;
  if (std::fabs(static_cast<long double>(near)) > std::fabs(value))
    near = std::nextafter(near, 0.0f);
  return float_of(bits_of(near) | 1);
}

/// Returns exponent and mantissa of |value|, which is finite, in a type with kExponentBits and
/// kMantissaBits. A value that is too large gives a number beyond the type's largest, which the
/// caller sees.
template <int kExponentBits, int kMantissaBits>
inline uint32_t round_magnitude(float value) {
  const int bias = (1 << (kExponentBits - 1)) - 1;
  const uint32_t magnitude = bits_of(value) & 0x7fffffff;
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  if (exponent < -bias - kMantissaBits)
    return 0;  // below half of the smallest; float's own subnormals too
  const uint32_t mantissa = (magnitude & 0x7fffff) | 0x800000;
  const bool is_subnormal = exponent < 1 - bias;
  const int shift = 23 - kMantissaBits + (is_subnormal ? 1 - bias - exponent : 0);
  uint32_t kept = mantissa >> shift;
  const uint32_t lost = mantissa & ((1u << shift) - 1);
  const uint32_t tie = 1u << (shift - 1);
  if (lost > tie || (lost == tie && (kept & 1) != 0)) ++kept;
  // A carry out of the mantissa lands in the exponent, where it belongs.
  return is_subnormal ? kept : (static_cast<uint32_t>(exponent + bias - 1) << kMantissaBits) + kept;
}

/// The value of an exponent and mantissa that stand for a finite number.
template <int kExponentBits, int kMantissaBits>
inline float magnitude_value(uint32_t bits) {
  const int bias = (1 << (kExponentBits - 1)) - 1;
  const int exponent = static_cast<int>(bits >> kMantissaBits);
  const uint32_t fraction = bits & ((1u << kMantissaBits) - 1);
  const uint32_t mantissa = exponent == 0 ? fraction : fraction | (1u << kMantissaBits);
  return std::ldexp(static_cast<float>(mantissa),
                    (exponent == 0 ? 1 : exponent) - bias - kMantissaBits);
}

}  // namespace vcuda

#endif
#endif
