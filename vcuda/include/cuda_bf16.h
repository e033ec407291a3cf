// __nv_bfloat16 on the host: storage, conversions, and arithmetic by way of float.
#ifndef VCUDA_CUDA_BF16_H
#define VCUDA_CUDA_BF16_H

// The names of CUDA's own header, which programs ask for.
#define __CUDA_BF16_H__
#define __CUDA_BF16_TYPES_EXIST__

#include "cuda_fp16.h"

typedef struct __attribute__((aligned(2))) {
  unsigned short x;
} __nv_bfloat16_raw;

#ifdef __cplusplus

namespace vcuda {

inline unsigned short bfloat16_bits(float value) {
  if (std::isnan(value)) return 0x7fff;
  const uint32_t bits = bits_of(value);
  // To the nearest, ties to even; a carry into the exponent ends at infinity, as it must.
  return static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace vcuda

struct __attribute__((aligned(2))) __nv_bfloat16 {
  unsigned short __x;

  __nv_bfloat16() = default;
  __nv_bfloat16(const __nv_bfloat16_raw& raw) : __x(raw.x) {}
  __nv_bfloat16(float value) : __x(vcuda::bfloat16_bits(value)) {}
  __nv_bfloat16(double value) : __x(vcuda::bfloat16_bits(vcuda::to_odd(value))) {}
  __nv_bfloat16(int value) : __x(vcuda::bfloat16_bits(vcuda::to_odd(value))) {}
  operator float() const { return vcuda::float_of(static_cast<uint32_t>(__x) << 16); }
  operator __nv_bfloat16_raw() const {
    __nv_bfloat16_raw raw;
    raw.x = __x;
    return raw;
  }
};
typedef __nv_bfloat16 nv_bfloat16;

inline __nv_bfloat16 __float2bfloat16(float value) { return __nv_bfloat16(value); }
inline __nv_bfloat16 __float2bfloat16_rn(float value) { return __nv_bfloat16(value); }
inline __nv_bfloat16 __double2bfloat16(double value) { return __nv_bfloat16(value); }
#define VCUDA_FROM_INTEGER(name, type) \
  inline __nv_bfloat16 name(type value) { return __nv_bfloat16(vcuda::to_odd(value)); }
VCUDA_FROM_INTEGER(__int2bfloat16_rn, int)
VCUDA_FROM_INTEGER(__uint2bfloat16_rn, unsigned int)
VCUDA_FROM_INTEGER(__ll2bfloat16_rn, long long)
VCUDA_FROM_INTEGER(__ull2bfloat16_rn, unsigned long long)
VCUDA_FROM_INTEGER(__short2bfloat16_rn, short)
VCUDA_FROM_INTEGER(__ushort2bfloat16_rn, unsigned short)
#undef VCUDA_FROM_INTEGER
inline float __bfloat162float(__nv_bfloat16 value) { return static_cast<float>(value); }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
  __nv_bfloat16 value;
  value.__x = bits;
  return value;
}
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 value) { return value.__x; }

inline __nv_bfloat16 operator+(__nv_bfloat16 a, __nv_bfloat16 b) {
  return __nv_bfloat16(float(a) + float(b));
}
inline __nv_bfloat16 operator-(__nv_bfloat16 a, __nv_bfloat16 b) {
  return __nv_bfloat16(float(a) - float(b));
}
inline __nv_bfloat16 operator*(__nv_bfloat16 a, __nv_bfloat16 b) {
  return __nv_bfloat16(float(a) * float(b));
}
inline __nv_bfloat16 operator/(__nv_bfloat16 a, __nv_bfloat16 b) {
  return __nv_bfloat16(float(a) / float(b));
}
inline __nv_bfloat16 operator-(__nv_bfloat16 a) {
  return __ushort_as_bfloat16(static_cast<unsigned short>(a.__x ^ 0x8000));
}
inline __nv_bfloat16& operator+=(__nv_bfloat16& a, __nv_bfloat16 b) { return a = a + b; }
inline bool operator==(__nv_bfloat16 a, __nv_bfloat16 b) { return float(a) == float(b); }
inline bool operator!=(__nv_bfloat16 a, __nv_bfloat16 b) { return float(a) != float(b); }
inline bool operator<(__nv_bfloat16 a, __nv_bfloat16 b) { return float(a) < float(b); }
inline bool operator>(__nv_bfloat16 a, __nv_bfloat16 b) { return float(a) > float(b); }

struct __attribute__((aligned(4))) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
typedef __nv_bfloat162 nv_bfloat162;

#endif
#endif
