// CUDA's 8-bit floating types on the host: storage and conversions.
#ifndef VCUDA_CUDA_FP8_H
#define VCUDA_CUDA_FP8_H

// The names of CUDA's own header, which programs ask for.
#define __CUDA_FP8_H__
#define __CUDA_FP8_TYPES_EXIST__

#include "cuda_bf16.h"

typedef unsigned char __nv_fp8_storage_t;
typedef unsigned short __nv_fp8x2_storage_t;
typedef unsigned int __nv_fp8x4_storage_t;
typedef enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE } __nv_saturation_t;
typedef enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 } __nv_fp8_interpretation_t;

#ifdef __cplusplus

namespace vcuda {

// e4m3 has no infinity and one NaN, 0x7f; its largest number is 448. e5m2 is laid out as IEEE's
// types.
inline unsigned char fp8_bits(float value, __nv_saturation_t saturation,
                              __nv_fp8_interpretation_t type) {
  const uint32_t sign = bits_of(value) >> 24 & 0x80;
  if (std::isnan(value)) return 0x7f;
  const uint32_t largest = type == __NV_E4M3 ? 0x7e : 0x7b;
  const uint32_t beyond = saturation == __NV_SATFINITE ? largest : type == __NV_E4M3 ? 0x7f : 0x7c;
  uint32_t magnitude = beyond;
  if (!std::isinf(value)) {
    magnitude = type == __NV_E4M3 ? round_magnitude<4, 3>(value) : round_magnitude<5, 2>(value);
    if (magnitude > largest) magnitude = beyond;
  }
  return static_cast<unsigned char>(sign | magnitude);
}

inline float fp8_value(unsigned char bits, __nv_fp8_interpretation_t type) {
  const uint32_t magnitude = bits & 0x7fu;
  float value = 0;
  if (type == __NV_E4M3) {
    value = magnitude == 0x7f ? float_of(0x7fffffff) : magnitude_value<4, 3>(magnitude);
  } else if (magnitude > 0x7c) {
    value = float_of(0x7fffffff);
  } else if (magnitude == 0x7c) {
    value = float_of(0x7f800000);
  } else {
    value = magnitude_value<5, 2>(magnitude);
  }
  return (bits & 0x80) != 0 ? -value : value;
}

}  // namespace vcuda

inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float value, __nv_saturation_t saturation,
                                                __nv_fp8_interpretation_t type) {
  return vcuda::fp8_bits(value, saturation, type);
}
inline __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t bits, __nv_fp8_interpretation_t type) {
  return __half(vcuda::fp8_value(bits, type));
}

#define VCUDA_FP8(name, interpretation)                                                         \
  struct name {                                                                                 \
    __nv_fp8_storage_t __x;                                                                     \
    name() = default;                                                                           \
    explicit name(float value) : __x(vcuda::fp8_bits(value, __NV_SATFINITE, interpretation)) {} \
    explicit name(double value) : name(vcuda::to_odd(value)) {}                                 \
    explicit name(__half value) : name(static_cast<float>(value)) {}                            \
    explicit name(__nv_bfloat16 value) : name(static_cast<float>(value)) {}                     \
    explicit name(int value) : name(static_cast<float>(value)) {}                               \
    explicit operator float() const { return vcuda::fp8_value(__x, interpretation); }           \
    explicit operator double() const { return vcuda::fp8_value(__x, interpretation); }          \
  };
VCUDA_FP8(__nv_fp8_e4m3, __NV_E4M3)
VCUDA_FP8(__nv_fp8_e5m2, __NV_E5M2)
#undef VCUDA_FP8

#endif
#endif
