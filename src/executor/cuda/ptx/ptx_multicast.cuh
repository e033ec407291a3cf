// Accesses to the addresses of a multicast team (gpu/multicast.h): a store reaches the memory of
// all members, a load reduces over it, in the switch. No other instruction may use such addresses.
// From compute capability 9.0 on; kernels for older ones have the functions, and never call them.
//
// A team's address is an alias of each member's own: fence_aliases() stands between accesses by the
// one and by the other.
//
// ptx.cuh includes it.
#pragma once

#include "executor/numeric.h"

namespace niccolite::executor::cuda::ptx {

/// Orders the accesses of the thread through one address of a place in memory, and all that it
/// acquired, with its accesses to come through another.
__device__ __forceinline__ void fence_aliases() { asm volatile("fence.proxy.alias;" ::: "memory"); }

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

__device__ __forceinline__ void store_to_team(std::byte* address, const Vec16& vec16) {
  const auto word = [&](int i) { return static_cast<uint32_t>(vec16.half[i / 2] >> (i % 2 * 32)); };
  asm volatile("multimem.st.weak.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address),
               "f"(__uint_as_float(word(0))), "f"(__uint_as_float(word(1))),
               "f"(__uint_as_float(word(2))), "f"(__uint_as_float(word(3)))
               : "memory");
}

/// Each word is stored whole, so that no member sees a flag without its data; but not both as one.
/// Relaxed: a word says by itself that it is there.
__device__ __forceinline__ void store_words_to_team(std::byte* address, const Words& words) {
  asm volatile("multimem.st.relaxed.sys.global.b64 [%0], %1;" ::"l"(address), "l"(words.first)
               : "memory");
  asm volatile("multimem.st.relaxed.sys.global.b64 [%0], %1;" ::"l"(address + sizeof(uint64_t)),
               "l"(words.second)
               : "memory");
}

// The instructions name type and operation, so each pair has its text.
#define NICCOLITE_LOAD_V4(text)                                                  \
  asm volatile("multimem.ld_reduce.weak.global." text " {%0, %1, %2, %3}, [%4];" \
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])  \
               : "l"(address)                                                    \
               : "memory")
#define NICCOLITE_LOAD_WORDS(text)                                 \
  for (int i = 0; i < 4; ++i)                                      \
  asm volatile("multimem.ld_reduce.weak.global." text " %0, [%1];" \
               : "=r"(words[i])                                    \
               : "l"(address + 4 * i)                              \
               : "memory")
#define NICCOLITE_LOAD_HALVES(text)                                \
  for (int i = 0; i < 2; ++i)                                      \
  asm volatile("multimem.ld_reduce.weak.global." text " %0, [%1];" \
               : "=l"(vec16.half[i])                               \
               : "l"(address + 8 * i)                              \
               : "memory")

/// The 16 bytes there of all members, reduced element by element; halves in float, rounded once.
/// switch_reduces(kType, kOp); the type is as reduced_as() says.
template <DataType kType, ReduceOp kOp>
__device__ __forceinline__ Vec16 load_from_team(const std::byte* address) {
  static_assert(switch_reduces(kType, kOp));
  constexpr bool kIsSum = kOp == ReduceOp::Sum;
  constexpr bool kIsMax = kOp == ReduceOp::Max;
  Vec16 vec16{};
  uint32_t words[4] = {};
  if constexpr (kType == DataType::Float64) {
    double values[2];
    for (int i = 0; i < 2; ++i)
      asm volatile("multimem.ld_reduce.weak.global.add.f64 %0, [%1];"
                   : "=d"(values[i])
                   : "l"(address + 8 * i)
                   : "memory");
    for (int i = 0; i < 2; ++i)
      vec16.half[i] = static_cast<uint64_t>(__double_as_longlong(values[i]));
    return vec16;
  } else if constexpr (kType == DataType::Int64 || kType == DataType::Uint64) {
    constexpr bool kIsSigned = kType == DataType::Int64;
    if constexpr (kIsSum) {
      NICCOLITE_LOAD_HALVES("add.u64");
    } else if constexpr (kIsMax && kIsSigned) {
      NICCOLITE_LOAD_HALVES("max.s64");
    } else if constexpr (kIsMax) {
      NICCOLITE_LOAD_HALVES("max.u64");
    } else if constexpr (kIsSigned) {
      NICCOLITE_LOAD_HALVES("min.s64");
    } else {
      NICCOLITE_LOAD_HALVES("min.u64");
    }
    return vec16;
  } else if constexpr (kType == DataType::Float32) {
    float values[4];
    asm volatile("multimem.ld_reduce.weak.global.add.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(values[0]), "=f"(values[1]), "=f"(values[2]), "=f"(values[3])
                 : "l"(address)
                 : "memory");
    for (int i = 0; i < 4; ++i) words[i] = __float_as_uint(values[i]);
  } else if constexpr (kType == DataType::Float16) {
    if constexpr (kIsSum) {
      NICCOLITE_LOAD_V4("add.acc::f32.v4.f16x2");
    } else if constexpr (kIsMax) {
      NICCOLITE_LOAD_V4("max.v4.f16x2");
    } else {
      NICCOLITE_LOAD_V4("min.v4.f16x2");
    }
  } else if constexpr (kType == DataType::Bfloat16) {
    if constexpr (kIsSum) {
      NICCOLITE_LOAD_V4("add.acc::f32.v4.bf16x2");
    } else if constexpr (kIsMax) {
      NICCOLITE_LOAD_V4("max.v4.bf16x2");
    } else {
      NICCOLITE_LOAD_V4("min.v4.bf16x2");
    }
  } else {
    constexpr bool kIsSigned = kType == DataType::Int32;
    if constexpr (kIsSum) {
      NICCOLITE_LOAD_WORDS("add.u32");
    } else if constexpr (kIsMax && kIsSigned) {
      NICCOLITE_LOAD_WORDS("max.s32");
    } else if constexpr (kIsMax) {
      NICCOLITE_LOAD_WORDS("max.u32");
    } else if constexpr (kIsSigned) {
      NICCOLITE_LOAD_WORDS("min.s32");
    } else {
      NICCOLITE_LOAD_WORDS("min.u32");
    }
  }
  vec16.half[0] = pair(words[0], words[1]);
  vec16.half[1] = pair(words[2], words[3]);
  return vec16;
}

#undef NICCOLITE_LOAD_V4
#undef NICCOLITE_LOAD_WORDS
#undef NICCOLITE_LOAD_HALVES

#else

__device__ __forceinline__ void store_to_team(std::byte*, const Vec16&) { __trap(); }
__device__ __forceinline__ void store_words_to_team(std::byte*, const Words&) { __trap(); }
template <DataType, ReduceOp>
__device__ __forceinline__ Vec16 load_from_team(const std::byte*) {
  __trap();
  return {};
}

#endif

}  // namespace niccolite::executor::cuda::ptx
