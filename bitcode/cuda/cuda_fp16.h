// __half, with its conversions to and from float alone.
#ifndef NICCOLITE_BITCODE_CUDA_FP16_H_
#define NICCOLITE_BITCODE_CUDA_FP16_H_

#include "cuda_runtime.h"

struct __half {
  unsigned short bits;

  __half() = default;
  __device__ __forceinline__ explicit __half(float value) {
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  }
  __device__ __forceinline__ explicit operator float() const {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
  }
};

#endif
