// The loops under Reducer, one set for each (type, operation), as plain C++ that compilers
// vectorise: elements are loaded and stored by memcpy, since user memory has any alignment, and
// conversions have no branches. Only reduce.cc includes this; it compiles every loop for each
// instruction set it knows. The results do not depend on that: nothing is contracted to a fused
// multiply-add and no sum is reordered.
//
// `accumulators` has one Element::Accumulator for each element. A result may be the same memory as
// an operand, but no other overlap is allowed: that makes iterations independent, which compilers
// cannot see (kIndependent below).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "executor/numeric/element.h"

#if defined(__clang__)
#define NICCOLITE_INDEPENDENT_ITERATIONS _Pragma("clang loop vectorize(assume_safety)")
#else
#define NICCOLITE_INDEPENDENT_ITERATIONS _Pragma("GCC ivdep")
#endif

namespace niccolite::executor::host::loops {

template <typename T>
[[gnu::always_inline]] inline T load(const std::byte* data, size_t i) {
  T value;
  std::memcpy(&value, data + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
[[gnu::always_inline]] inline void store(std::byte* data, size_t i, T value) {
  std::memcpy(data + i * sizeof(T), &value, sizeof(T));
}

/// result = a op b
template <DataType kType, ReduceOp kOp>
struct ReductionPair {
  [[gnu::always_inline]] static inline void run(const std::byte* a, const std::byte* b,
                                                std::byte* result, size_t count) {
    using E = Element<kType>;
    using Storage = typename E::Storage;
    NICCOLITE_INDEPENDENT_ITERATIONS
    for (size_t i = 0; i < count; ++i) {
      const auto x = E::widen(load<Storage>(a, i));
      const auto y = E::widen(load<Storage>(b, i));
      store<Storage>(result, i, E::narrow(executor::reduce<kOp>(x, y)));
    }
  }
};

/// accumulators = a op b
template <DataType kType, ReduceOp kOp>
struct ReductionFirst {
  [[gnu::always_inline]] static inline void run(const std::byte* a, const std::byte* b,
                                                std::byte* accumulators, size_t count) {
    using E = Element<kType>;
    using Storage = typename E::Storage;
    NICCOLITE_INDEPENDENT_ITERATIONS
    for (size_t i = 0; i < count; ++i) {
      const auto x = E::widen(load<Storage>(a, i));
      const auto y = E::widen(load<Storage>(b, i));
      store(accumulators, i, executor::reduce<kOp>(x, y));
    }
  }
};

/// accumulators = accumulators op operand
template <DataType kType, ReduceOp kOp>
struct ReductionNext {
  [[gnu::always_inline]] static inline void run(const std::byte* operand, std::byte* accumulators,
                                                size_t count) {
    using E = Element<kType>;
    using Accumulator = typename E::Accumulator;
    NICCOLITE_INDEPENDENT_ITERATIONS
    for (size_t i = 0; i < count; ++i) {
      const auto x = load<Accumulator>(accumulators, i);
      const auto y = E::widen(load<typename E::Storage>(operand, i));
      store<Accumulator>(accumulators, i, executor::reduce<kOp>(x, y));
    }
  }
};

/// result = accumulators op operand
template <DataType kType, ReduceOp kOp>
struct ReductionLast {
  [[gnu::always_inline]] static inline void run(const std::byte* accumulators,
                                                const std::byte* operand, std::byte* result,
                                                size_t count) {
    using E = Element<kType>;
    using Storage = typename E::Storage;
    NICCOLITE_INDEPENDENT_ITERATIONS
    for (size_t i = 0; i < count; ++i) {
      const auto x = load<typename E::Accumulator>(accumulators, i);
      const auto y = E::widen(load<Storage>(operand, i));
      store<Storage>(result, i, E::narrow(executor::reduce<kOp>(x, y)));
    }
  }
};

/// accumulators = operand
template <DataType kType>
struct Widen {
  [[gnu::always_inline]] static inline void run(const std::byte* operand, std::byte* accumulators,
                                                size_t count) {
    using E = Element<kType>;
    NICCOLITE_INDEPENDENT_ITERATIONS
    for (size_t i = 0; i < count; ++i) {
      store<typename E::Accumulator>(accumulators, i,
                                     E::widen(load<typename E::Storage>(operand, i)));
    }
  }
};

/// result = accumulators, with the final scaling of `reduction`
template <DataType kType>
struct Finish {
  [[gnu::always_inline]] static inline void run(const std::byte* accumulators,
                                                const Reduction& reduction, std::byte* result,
                                                size_t count) {
    using E = Element<kType>;
    using Accumulator = typename E::Accumulator;
    if constexpr (is_floating(kType)) {
      const auto scale = static_cast<Accumulator>(reduction.finish_scale);
      NICCOLITE_INDEPENDENT_ITERATIONS
      for (size_t i = 0; i < count; ++i) {
        const Accumulator scaled = load<Accumulator>(accumulators, i) * scale;
        store<typename E::Storage>(result, i, E::narrow(scaled));
      }
    } else {
      // In 64 bits: the divisor need not fit the type.
      using Wide = std::conditional_t<std::is_signed_v<Accumulator>, int64_t, uint64_t>;
      const auto divisor = static_cast<Wide>(reduction.finish_divisor);
      for (size_t i = 0; i < count; ++i) {
        const auto wide = static_cast<Wide>(load<Accumulator>(accumulators, i));
        store<Accumulator>(result, i, static_cast<Accumulator>(wide / divisor));
      }
    }
  }
};

/// result = operand, scaled as operands read from the input are
template <DataType kType>
struct ScaleInput {
  [[gnu::always_inline]] static inline void run(const std::byte* operand,
                                                const Reduction& reduction, std::byte* result,
                                                size_t count) {
    using E = Element<kType>;
    using Storage = typename E::Storage;
    using Accumulator = typename E::Accumulator;
    Accumulator scale;
    if constexpr (is_floating(kType)) {
      scale = static_cast<Accumulator>(reduction.input_scale);
    } else {
      scale = static_cast<Accumulator>(reduction.input_factor);
    }
    NICCOLITE_INDEPENDENT_ITERATIONS
    for (size_t i = 0; i < count; ++i) {
      const Accumulator value = E::widen(load<Storage>(operand, i));
      store<Storage>(result, i, E::narrow(executor::reduce<ReduceOp::Product>(value, scale)));
    }
  }
};

}  // namespace niccolite::executor::host::loops
