// The element types and reductions that the executors know, with their sizes. Values equal NCCL's
// ncclDataType_t and ncclRedOp_t (api/ asserts it), so that translation is a range check. Plain
// C++: host and device include it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace niccolite::executor {

// X(enumerator, bytes, "name as nccl-tests prints it")
#define NICCOLITE_DATA_TYPES(X) \
  X(Int8, 1, "int8")            \
  X(Uint8, 1, "uint8")          \
  X(Int32, 4, "int32")          \
  X(Uint32, 4, "uint32")        \
  X(Int64, 8, "int64")          \
  X(Uint64, 8, "uint64")        \
  X(Float16, 2, "half")         \
  X(Float32, 4, "float")        \
  X(Float64, 8, "double")       \
  X(Bfloat16, 2, "bfloat16")    \
  X(Float8e4m3, 1, "f8e4m3")    \
  X(Float8e5m2, 1, "f8e5m2")

enum class DataType : uint8_t {
#define X(name, bytes, text) name,
  NICCOLITE_DATA_TYPES(X)
#undef X
};
inline constexpr int kDataTypes = 12;

constexpr size_t size_of(DataType type) {
  constexpr uint8_t sizes[] = {
#define X(name, bytes, text) bytes,
      NICCOLITE_DATA_TYPES(X)
#undef X
  };
  return sizes[static_cast<int>(type)];
}
constexpr const char* name_of(DataType type) {
  constexpr const char* names[] = {
#define X(name, bytes, text) text,
      NICCOLITE_DATA_TYPES(X)
#undef X
  };
  return names[static_cast<int>(type)];
}
constexpr bool is_floating(DataType type) {
  return type == DataType::Float16 || type == DataType::Float32 || type == DataType::Float64 ||
         type == DataType::Bfloat16 || type == DataType::Float8e4m3 || type == DataType::Float8e5m2;
}

/// How two operands combine. An average is a Sum with scaling.
enum class ReduceOp : uint8_t { Sum, Product, Max, Min };
inline constexpr int kReduceOps = 4;

/// Do switches reduce elements of this type so? As multimem.ld_reduce does (PTX ISA).
constexpr bool switch_reduces(DataType type, ReduceOp op) {
  switch (type) {
    case DataType::Float32:
    case DataType::Float64:
      return op == ReduceOp::Sum;
    case DataType::Float16:
    case DataType::Bfloat16:
    case DataType::Int32:
    case DataType::Uint32:
    case DataType::Int64:
    case DataType::Uint64:
      return op != ReduceOp::Product;
    default:
      return false;
  }
}

/// A reduction as executors see it.
///  - Every operand read from the input, to be reduced or copied, is first multiplied by the input
///  scale (when != 1) and
///    rounded to its type. Rounded, because it meets the other operands here and is sent to other
///    ranks that reduce it there: all must see the same value. A floating type uses `input_scale`
///    in the accumulator's type (float; double for Float64), an integer type `input_factor` modulo
///    2^bits.
///  - An instruction with `finish` scales its result: a floating type multiplies by `finish_scale`
///  (when != 1) in the
///    accumulator's type before the one rounding, an integer type divides by `finish_divisor` (when
///    != 1; positive), truncating toward zero.
/// Min and Max of a number and a NaN are the number, and -0 is less than +0, as for CUDA's fmin and
/// fmax.
struct Reduction {
  ReduceOp op = ReduceOp::Sum;
  double input_scale = 1;
  double finish_scale = 1;
  int64_t finish_divisor = 1;
  int64_t input_factor = 1;
  /// Not null: the input scale (or factor) is this element, of the operation's type, in memory of
  /// the device (or of the host, page-locked), read whenever the operation runs.
  const void* device_scale = nullptr;
};

constexpr bool scales_input(DataType type, const Reduction& reduction) {
  return reduction.device_scale != nullptr ||
         (is_floating(type) ? reduction.input_scale != 1 : reduction.input_factor != 1);
}

}  // namespace niccolite::executor
