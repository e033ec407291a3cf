// __nv_bfloat16, with its conversions to and from float alone.
#ifndef NICCOLITE_BITCODE_CUDA_BF16_H_
#define NICCOLITE_BITCODE_CUDA_BF16_H_

#include "cuda_runtime.h"

struct __nv_bfloat16 {
  unsigned short bits;

  __nv_bfloat16() = default;
  __device__ __forceinline__ explicit __nv_bfloat16(float value) {
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  }
  __device__ __forceinline__ explicit operator float() const {
    return __uint_as_float(static_cast<unsigned>(bits) << 16);
  }
};

#endif
