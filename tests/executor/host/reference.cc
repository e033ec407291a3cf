#include "tests/executor/host/reference.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "executor/numeric/small_float.h"

namespace niccolite::executor {
namespace {

// Calls body with a value of the C++ type that holds `type` (the accumulator's for the small
// floats).
template <typename Body>
auto with_type(DataType type, Body body) {
  switch (type) {
    case DataType::Int8:
      return body(int8_t{});
    case DataType::Uint8:
      return body(uint8_t{});
    case DataType::Int32:
      return body(int32_t{});
    case DataType::Uint32:
      return body(uint32_t{});
    case DataType::Int64:
      return body(int64_t{});
    case DataType::Uint64:
      return body(uint64_t{});
    case DataType::Float64:
      return body(double{});
    default:
      return body(float{});
  }
}

template <typename Format>
float load_small(const std::byte* element) {
  typename Format::Bits bits;
  std::memcpy(&bits, element, sizeof bits);
  return widen<Format>(bits);
}

template <typename Format>
void store_small(float value, std::byte* element) {
  const typename Format::Bits bits = narrow<Format>(value);
  std::memcpy(element, &bits, sizeof bits);
}

template <typename T>
T load(DataType type, const std::byte* element) {
  if constexpr (std::is_same_v<T, float>) {
    if (type == DataType::Float16) return load_small<Half>(element);
    if (type == DataType::Bfloat16) return load_small<Bfloat16>(element);
    if (type == DataType::Float8e4m3) return load_small<E4m3>(element);
    if (type == DataType::Float8e5m2) return load_small<E5m2>(element);
  }
  T value;
  std::memcpy(&value, element, sizeof value);
  return value;
}

template <typename T>
void store(DataType type, T value, std::byte* element) {
  if constexpr (std::is_same_v<T, float>) {
    if (type == DataType::Float16) return store_small<Half>(value, element);
    if (type == DataType::Bfloat16) return store_small<Bfloat16>(value, element);
    if (type == DataType::Float8e4m3) return store_small<E4m3>(value, element);
    if (type == DataType::Float8e5m2) return store_small<E5m2>(value, element);
  }
  std::memcpy(element, &value, sizeof value);
}

template <typename T>
T combine(ReduceOp op, T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    // Not std::fmax and std::fmin: they make a NaN of a signalling NaN and a number.
    if (op == ReduceOp::Max || op == ReduceOp::Min) {
      if (std::isnan(a)) return b;
      if (std::isnan(b)) return a;
    }
    switch (op) {
      case ReduceOp::Sum:
        return a + b;
      case ReduceOp::Product:
        return a * b;
      case ReduceOp::Max:
        if (a == 0 && b == 0) return std::signbit(a) ? b : a;
        return a < b ? b : a;
      case ReduceOp::Min:
        if (a == 0 && b == 0) return std::signbit(a) ? a : b;
        return b < a ? b : a;
    }
  } else {
    const auto wide_a = static_cast<uint64_t>(a);
    const auto wide_b = static_cast<uint64_t>(b);
    switch (op) {
      case ReduceOp::Sum:
        return static_cast<T>(wide_a + wide_b);
      case ReduceOp::Product:
        return static_cast<T>(wide_a * wide_b);
      case ReduceOp::Max:
        return a < b ? b : a;
      case ReduceOp::Min:
        return b < a ? b : a;
    }
  }
  return a;
}

}  // namespace

bool is_nan(DataType type, const std::byte* element) {
  return with_type(type, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_floating_point_v<T>) return std::isnan(load<T>(type, element));
    return false;
  });
}

void reference_reduction(DataType type, const Reduction& reduction,
                         std::span<const std::byte* const> operands, bool finish,
                         std::byte* result) {
  const bool scales =
      finish && (is_floating(type) ? reduction.finish_scale != 1 : reduction.finish_divisor != 1);
  if (operands.size() == 1 && !scales) {
    std::memcpy(result, operands[0], size_of(type));  // a copy, whatever the bits
    return;
  }
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    T value = load<T>(type, operands[0]);
    for (const std::byte* operand : operands.subspan(1)) {
      value = combine(reduction.op, value, load<T>(type, operand));
    }
    if constexpr (std::is_floating_point_v<T>) {
      if (finish) value *= static_cast<T>(reduction.finish_scale);
    } else if constexpr (std::is_signed_v<T>) {
      if (finish) value = static_cast<T>(int64_t{value} / reduction.finish_divisor);
    } else {
      if (finish)
        value = static_cast<T>(uint64_t{value} / static_cast<uint64_t>(reduction.finish_divisor));
    }
    store(type, value, result);
  });
}

void reference_scale_input(DataType type, const Reduction& reduction, const std::byte* operand,
                           std::byte* result) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    const T value = load<T>(type, operand);
    if constexpr (std::is_floating_point_v<T>) {
      store<T>(type, value * static_cast<T>(reduction.input_scale), result);
    } else {
      store<T>(type, combine(ReduceOp::Product, value, static_cast<T>(reduction.input_factor)),
               result);
    }
  });
}

void store_number(DataType type, double number, std::byte* result) {
  with_type(type, [&](auto zero) { store(type, static_cast<decltype(zero)>(number), result); });
}

}  // namespace niccolite::executor
