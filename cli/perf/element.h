// The data types and operations of the C API as the command needs them: names, sizes, and the
// encoding of values that a type represents exactly. Written apart from the library's own
// conversions on purpose: one checks the other.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace niccolite::perf {

enum class Encoding : unsigned char { Signed, Unsigned, Floating };

struct ElementType {
  ncclDataType_t id;
  const char* name;  // as nccl-tests prints it
  size_t bytes;
  Encoding encoding;
  // Floating types: the layout of the bits below the sign.
  int exponent_bits = 0;
  int mantissa_bits = 0;

  bool is_floating() const { return encoding == Encoding::Floating; }
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  /// Integers up to 2^precision in magnitude are exact in a floating type.
  int precision() const { return mantissa_bits + 1; }
};

/// Where an operation that multiplies each rank's operand by a scalar of the rank finds the scalar.
enum class Scalar : unsigned char { None, Host, Device };

struct Operation {
  ncclRedOp_t id;  // with a scalar: the operation on the products
  const char* name;
  Scalar scalar = Scalar::None;
};

std::span<const ElementType> element_types();
std::span<const Operation> operations();
/// The operation of collectives that only move data.
const Operation& no_operation();
/// Null when there is no such type. Knows nccl-tests' spellings of fp8 too.
const ElementType* find_type(std::string_view name);
const Operation* find_operation(std::string_view name);

/// The bits of `value` in the floating `type`, rounded to nearest even. Finite values inside the
/// type's range only.
uint64_t encode(const ElementType& type, double value);
/// The value that the low bits of `bits` stand for; infinities and NaNs of the 8-bit types as the
/// formats define them.
double decode(const ElementType& type, uint64_t bits);

/// Returns the factor of the operand of `rank` in an operation with a scalar. It differs between
/// neighbours, and is not 1 for a rank alone.
int scalar_of(int rank);
/// The bits of the small integer `value` in any type.
uint64_t encode_integer(const ElementType& type, int value);

uint64_t load_bits(const ElementType& type, const void* data, size_t index);
void store_bits(const ElementType& type, void* data, size_t index, uint64_t bits);

}  // namespace niccolite::perf
