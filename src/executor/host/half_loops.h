// The loops of reduce_loops.h for binary16 on x86 CPUs that convert it in hardware (F16C): about
// eight times as fast as the conversions in integer arithmetic, with the same results to the bit,
// NaN included. Only reduce.cc includes this.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "executor/numeric.h"

namespace niccolite::executor::host::half_loops {

#define NICCOLITE_F16C [[gnu::target("avx2,f16c")]]

inline constexpr size_t kWidth = 8;

NICCOLITE_F16C inline __m256 load(const std::byte* halves) {
  __m128i bits;
  std::memcpy(&bits, halves, sizeof bits);
  return _mm256_cvtph_ps(bits);
}

NICCOLITE_F16C inline void store(std::byte* halves, __m256 values) {
  // The hardware keeps a NaN's sign and payload; the format's own NaN is the positive one of all
  // bits.
  const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffe000));
  values = _mm256_blendv_ps(values, nan, _mm256_cmp_ps(values, values, _CMP_UNORD_Q));
  const __m128i bits = _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  std::memcpy(halves, &bits, sizeof bits);
}

NICCOLITE_F16C inline __m256 load_floats(const std::byte* floats) {
  return _mm256_loadu_ps(reinterpret_cast<const float*>(floats));
}

NICCOLITE_F16C inline void store_floats(std::byte* floats, __m256 values) {
  _mm256_storeu_ps(reinterpret_cast<float*>(floats), values);
}

/// executor::reduce, eight at a time.
template <ReduceOp kOp>
NICCOLITE_F16C inline __m256 reduce(__m256 a, __m256 b) {
  if constexpr (kOp == ReduceOp::Sum) return _mm256_add_ps(a, b);
  if constexpr (kOp == ReduceOp::Product) return _mm256_mul_ps(a, b);
  constexpr bool kMax = kOp == ReduceOp::Max;
  const __m256 takes_a = _mm256_cmp_ps(a, b, kMax ? _CMP_GT_OQ : _CMP_LT_OQ);
  const __m256 equal = kMax ? _mm256_and_ps(a, b) : _mm256_or_ps(a, b);  // for zeros of both signs
  __m256 result = _mm256_blendv_ps(b, a, takes_a);
  result = _mm256_blendv_ps(result, equal, _mm256_cmp_ps(a, b, _CMP_EQ_OQ));
  return _mm256_blendv_ps(result, a, _mm256_cmp_ps(b, b, _CMP_UNORD_Q));
}

// The last, incomplete eight go through the same loop on copies. `Body` is called as
// run(operands..., result), and all arguments advance by their element's size.
struct Stream {
  const std::byte* data;
  size_t element_bytes;
};

template <typename Body, size_t kStreams>
NICCOLITE_F16C inline void for_eights(const Body& body, const Stream (&operands)[kStreams],
                                      std::byte* result, size_t result_element_bytes,
                                      size_t count) {
  const std::byte* at[kStreams];
  size_t i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    for (size_t k = 0; k < kStreams; ++k) at[k] = operands[k].data + i * operands[k].element_bytes;
    body.run(at, result + i * result_element_bytes);
  }
  if (const size_t rest = count - i; rest > 0) {
    std::byte copies[kStreams][kWidth * sizeof(float)] = {};
    std::byte last[kWidth * sizeof(float)];
    for (size_t k = 0; k < kStreams; ++k) {
      std::memcpy(copies[k], operands[k].data + i * operands[k].element_bytes,
                  rest * operands[k].element_bytes);
      at[k] = copies[k];
    }
    body.run(at, last);
    std::memcpy(result + i * result_element_bytes, last, rest * result_element_bytes);
  }
}

inline constexpr size_t kHalf = 2;
inline constexpr size_t kFloat = 4;

template <ReduceOp kOp>
NICCOLITE_F16C void pair(const std::byte* a, const std::byte* b, std::byte* result, size_t count) {
  struct Body {
    NICCOLITE_F16C void run(const std::byte* const* x, std::byte* r) const {
      store(r, reduce<kOp>(load(x[0]), load(x[1])));
    }
  };
  for_eights(Body{}, {{a, kHalf}, {b, kHalf}}, result, kHalf, count);
}

template <ReduceOp kOp>
NICCOLITE_F16C void first(const std::byte* a, const std::byte* b, std::byte* accumulators,
                          size_t count) {
  struct Body {
    NICCOLITE_F16C void run(const std::byte* const* x, std::byte* r) const {
      store_floats(r, reduce<kOp>(load(x[0]), load(x[1])));
    }
  };
  for_eights(Body{}, {{a, kHalf}, {b, kHalf}}, accumulators, kFloat, count);
}

template <ReduceOp kOp>
NICCOLITE_F16C void next(const std::byte* operand, std::byte* accumulators, size_t count) {
  struct Body {
    NICCOLITE_F16C void run(const std::byte* const* x, std::byte* r) const {
      store_floats(r, reduce<kOp>(load_floats(x[0]), load(x[1])));
    }
  };
  for_eights(Body{}, {{accumulators, kFloat}, {operand, kHalf}}, accumulators, kFloat, count);
}

template <ReduceOp kOp>
NICCOLITE_F16C void last(const std::byte* accumulators, const std::byte* operand, std::byte* result,
                         size_t count) {
  struct Body {
    NICCOLITE_F16C void run(const std::byte* const* x, std::byte* r) const {
      store(r, reduce<kOp>(load_floats(x[0]), load(x[1])));
    }
  };
  for_eights(Body{}, {{accumulators, kFloat}, {operand, kHalf}}, result, kHalf, count);
}

NICCOLITE_F16C inline void widen(const std::byte* operand, std::byte* accumulators, size_t count) {
  struct Body {
    NICCOLITE_F16C void run(const std::byte* const* x, std::byte* r) const {
      store_floats(r, load(x[0]));
    }
  };
  for_eights(Body{}, {{operand, kHalf}}, accumulators, kFloat, count);
}

NICCOLITE_F16C inline void finish(const std::byte* accumulators, const Reduction& reduction,
                                  std::byte* result, size_t count) {
  struct Body {
    float scale;
    NICCOLITE_F16C void run(const std::byte* const* x, std::byte* r) const {
      store(r, _mm256_mul_ps(load_floats(x[0]), _mm256_set1_ps(scale)));
    }
  };
  for_eights(Body{static_cast<float>(reduction.finish_scale)}, {{accumulators, kFloat}}, result,
             kHalf, count);
}

NICCOLITE_F16C inline void scale_input(const std::byte* operand, const Reduction& reduction,
                                       std::byte* result, size_t count) {
  struct Body {
    float scale;
    NICCOLITE_F16C void run(const std::byte* const* x, std::byte* r) const {
      store(r, _mm256_mul_ps(load(x[0]), _mm256_set1_ps(scale)));
    }
  };
  for_eights(Body{static_cast<float>(reduction.input_scale)}, {{operand, kHalf}}, result, kHalf,
             count);
}

#undef NICCOLITE_F16C

}  // namespace niccolite::executor::host::half_loops
