// __half on the host: storage, conversions, and arithmetic by way of float.
#ifndef VCUDA_CUDA_FP16_H
#define VCUDA_CUDA_FP16_H

// The names of CUDA's own header, which programs ask for.
#define __CUDA_FP16_H__
#define __CUDA_FP16_TYPES_EXIST__

#include "host_defines.h"

typedef struct __attribute__((aligned(2))) {
  unsigned short x;
} __half_raw;

#ifdef __cplusplus

#include "vcuda/minifloat.h"

namespace vcuda {

inline unsigned short half_bits(float value) {
  const uint32_t sign = bits_of(value) >> 16 & 0x8000;
  if (std::isnan(value)) return 0x7fff;
  uint32_t magnitude = 0x7c00;  // infinity
  if (!std::isinf(value)) magnitude = round_magnitude<5, 10>(value);
  if (magnitude > 0x7c00) magnitude = 0x7c00;
  return static_cast<unsigned short>(sign | magnitude);
}

inline float half_value(unsigned short bits) {
  const uint32_t magnitude = bits & 0x7fffu;
  float value = 0;
  if (magnitude > 0x7c00) return float_of(0x7fffffff);
  if (magnitude == 0x7c00) {
    value = float_of(0x7f800000);
  } else {
    value = magnitude_value<5, 10>(magnitude);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

}  // namespace vcuda

struct __attribute__((aligned(2))) __half {
  unsigned short __x;

  __half() = default;
  __half(const __half_raw& raw) : __x(raw.x) {}
  __half(float value) : __x(vcuda::half_bits(value)) {}
  __half(double value) : __x(vcuda::half_bits(vcuda::to_odd(value))) {}
  __half(int value) : __x(vcuda::half_bits(vcuda::to_odd(value))) {}
  operator float() const { return vcuda::half_value(__x); }
  operator __half_raw() const {
    __half_raw raw;
    raw.x = __x;
    return raw;
  }
};
typedef __half half;

inline __half __float2half(float value) { return __half(value); }
inline __half __float2half_rn(float value) { return __half(value); }
inline __half __double2half(double value) { return __half(value); }
#define VCUDA_FROM_INTEGER(name, type) \
  inline __half name(type value) { return __half(vcuda::to_odd(value)); }
VCUDA_FROM_INTEGER(__int2half_rn, int)
VCUDA_FROM_INTEGER(__uint2half_rn, unsigned int)
VCUDA_FROM_INTEGER(__ll2half_rn, long long)
VCUDA_FROM_INTEGER(__ull2half_rn, unsigned long long)
VCUDA_FROM_INTEGER(__short2half_rn, short)
VCUDA_FROM_INTEGER(__ushort2half_rn, unsigned short)
#undef VCUDA_FROM_INTEGER
inline float __half2float(__half value) { return static_cast<float>(value); }
inline __half __ushort_as_half(unsigned short bits) {
  __half value;
  value.__x = bits;
  return value;
}
inline unsigned short __half_as_ushort(__half value) { return value.__x; }

inline __half operator+(__half a, __half b) { return __half(float(a) + float(b)); }
inline __half operator-(__half a, __half b) { return __half(float(a) - float(b)); }
inline __half operator*(__half a, __half b) { return __half(float(a) * float(b)); }
inline __half operator/(__half a, __half b) { return __half(float(a) / float(b)); }
inline __half operator-(__half a) {
  return __ushort_as_half(static_cast<unsigned short>(a.__x ^ 0x8000));
}
inline __half& operator+=(__half& a, __half b) { return a = a + b; }
inline bool operator==(__half a, __half b) { return float(a) == float(b); }
inline bool operator!=(__half a, __half b) { return float(a) != float(b); }
inline bool operator<(__half a, __half b) { return float(a) < float(b); }
inline bool operator>(__half a, __half b) { return float(a) > float(b); }

struct __attribute__((aligned(4))) __half2 {
  __half x, y;
};
typedef __half2 half2;

#endif
#endif
