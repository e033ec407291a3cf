// Element: one element of a DataType in the C++ code of the host: how it is stored, in
// which type it is reduced, and the way between the two. `op` combines two values in the
// accumulator's type, as numeric.h defines it.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "executor/numeric.h"
#include "executor/numeric/small_float.h"

namespace niccolite::executor {

template <typename T>
struct PlainElement {
  using Storage = T;
  using Accumulator = T;
  static constexpr T widen(T value) { return value; }
  static constexpr T narrow(T value) { return value; }
};

template <typename Format>
struct SmallFloatElement {
  using Storage = typename Format::Bits;
  using Accumulator = float;
  static constexpr float widen(Storage bits) { return executor::widen<Format>(bits); }
  static constexpr Storage narrow(float value) { return executor::narrow<Format>(value); }
};

template <DataType kType>
struct Element;
template <>
struct Element<DataType::Int8> : PlainElement<int8_t> {};
template <>
struct Element<DataType::Uint8> : PlainElement<uint8_t> {};
template <>
struct Element<DataType::Int32> : PlainElement<int32_t> {};
template <>
struct Element<DataType::Uint32> : PlainElement<uint32_t> {};
template <>
struct Element<DataType::Int64> : PlainElement<int64_t> {};
template <>
struct Element<DataType::Uint64> : PlainElement<uint64_t> {};
template <>
struct Element<DataType::Float16> : SmallFloatElement<Half> {};
template <>
struct Element<DataType::Float32> : PlainElement<float> {};
template <>
struct Element<DataType::Float64> : PlainElement<double> {};
template <>
struct Element<DataType::Bfloat16> : SmallFloatElement<Bfloat16> {};
template <>
struct Element<DataType::Float8e4m3> : SmallFloatElement<E4m3> {};
template <>
struct Element<DataType::Float8e5m2> : SmallFloatElement<E5m2> {};

namespace detail {

// Min and Max of floating types. A comparison cannot tell -0 from +0: of equal values, which differ
// in the sign of zero at most, Max takes the common bits (+0 unless both are -0) and Min takes all
// (-0 unless both are +0).
template <bool kMax, typename T>
constexpr T extreme(T a, T b) {
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  const Bits bits_a = std::bit_cast<Bits>(a);
  const Bits bits_b = std::bit_cast<Bits>(b);
  const Bits equal = kMax ? bits_a & bits_b : bits_a | bits_b;
  Bits result = (kMax ? a > b : a < b) ? bits_a : bits_b;
  result = a == b ? equal : result;
  result = b != b ? bits_a : result;  // b is NaN; if a is, the comparisons were false and left b
  return std::bit_cast<T>(result);
}

}  // namespace detail

template <ReduceOp kOp, typename T>
constexpr T reduce(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if constexpr (kOp == ReduceOp::Sum) return a + b;
    if constexpr (kOp == ReduceOp::Product) return a * b;
    if constexpr (kOp == ReduceOp::Max) return detail::extreme<true>(a, b);
    if constexpr (kOp == ReduceOp::Min) return detail::extreme<false>(a, b);
  } else {
    // Unsigned, for signed overflow is undefined. Narrow types are widened by themselves, to an int
    // that cannot overflow.
    using Wrapping = std::make_unsigned_t<T>;
    const auto x = static_cast<Wrapping>(a);
    const auto y = static_cast<Wrapping>(b);
    if constexpr (kOp == ReduceOp::Sum) return static_cast<T>(static_cast<Wrapping>(x + y));
    if constexpr (kOp == ReduceOp::Product) return static_cast<T>(static_cast<Wrapping>(x * y));
    if constexpr (kOp == ReduceOp::Max) return a > b ? a : b;
    if constexpr (kOp == ReduceOp::Min) return a < b ? a : b;
  }
}

}  // namespace niccolite::executor
