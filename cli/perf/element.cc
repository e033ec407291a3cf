#include "cli/perf/element.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace niccolite::perf {
namespace {

constexpr std::array<ElementType, 12> kTypes = {{
    {ncclInt8, "int8", 1, Encoding::Signed},
    {ncclUint8, "uint8", 1, Encoding::Unsigned},
    {ncclInt32, "int32", 4, Encoding::Signed},
    {ncclUint32, "uint32", 4, Encoding::Unsigned},
    {ncclInt64, "int64", 8, Encoding::Signed},
    {ncclUint64, "uint64", 8, Encoding::Unsigned},
    {ncclFloat16, "half", 2, Encoding::Floating, 5, 10},
    {ncclFloat32, "float", 4, Encoding::Floating, 8, 23},
    {ncclFloat64, "double", 8, Encoding::Floating, 11, 52},
    {ncclBfloat16, "bfloat16", 2, Encoding::Floating, 8, 7},
    {ncclFloat8e4m3, "f8e4m3", 1, Encoding::Floating, 4, 3},
    {ncclFloat8e5m2, "f8e5m2", 1, Encoding::Floating, 5, 2},
}};
constexpr std::array<Operation, 7> kOperations = {{
    {ncclSum, "sum"},
    {ncclProd, "prod"},
    {ncclMin, "min"},
    {ncclMax, "max"},
    {ncclAvg, "avg"},
    {ncclSum, "mulsum", Scalar::Host},
    {ncclSum, "mulsumd", Scalar::Device},
}};
constexpr Operation kNoOperation = {ncclSum, "none"};

template <typename Table>
auto find(const Table& table, std::string_view name) -> decltype(table.data()) {
  const auto found = std::find_if(table.begin(), table.end(),
                                  [&](const auto& entry) { return name == entry.name; });
  return found == table.end() ? nullptr : &*found;
}

}  // namespace

std::span<const ElementType> element_types() { return kTypes; }
std::span<const Operation> operations() { return kOperations; }
const Operation& no_operation() { return kNoOperation; }

const ElementType* find_type(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kOtherNames = {{
      {"fp8_e4m3", "f8e4m3"},
      {"fp8_e5m2", "f8e5m2"},
      {"float8e4m3", "f8e4m3"},
      {"float8e5m2", "f8e5m2"},
      {"bf16", "bfloat16"},
      {"fp16", "half"},
  }};
  for (const auto& [other, ours] : kOtherNames)
    if (name == other) name = ours;
  return find(kTypes, name);
}

const Operation* find_operation(std::string_view name) { return find(kOperations, name); }

uint64_t encode(const ElementType& type, double value) {
  const uint64_t sign =
      std::signbit(value) ? uint64_t{1} << (type.exponent_bits + type.mantissa_bits) : 0;
  const double magnitude = std::fabs(value);
  if (magnitude == 0) return sign;
  const int least_exponent = 1 - type.bias();  // of normal numbers; subnormal ones share it
  const int exponent = std::max(std::ilogb(magnitude), least_exponent);
  // In units of the last place, an integer below 2^(mantissa_bits + 1), or equal to it when
  // rounding carries over: the addition below then moves on to the next exponent by itself.
  // nearbyint rounds half to even.
  const auto units =
      static_cast<uint64_t>(std::nearbyint(std::ldexp(magnitude, type.mantissa_bits - exponent)));
  return sign + (static_cast<uint64_t>(exponent - least_exponent) << type.mantissa_bits) + units;
}

double decode(const ElementType& type, uint64_t bits) {
  const uint64_t mantissa = bits & ((uint64_t{1} << type.mantissa_bits) - 1);
  const auto exponent_field =
      static_cast<int>((bits >> type.mantissa_bits) & ((uint64_t{1} << type.exponent_bits) - 1));
  const bool negative = (bits >> (type.mantissa_bits + type.exponent_bits)) & 1;
  const int top = (1 << type.exponent_bits) - 1;
  double magnitude = 0;
  if (type.id == ncclFloat8e4m3 && exponent_field == top && mantissa == 7)
    magnitude = std::numeric_limits<double>::quiet_NaN();  // e4m3 has no infinity and one NaN
  else if (type.id != ncclFloat8e4m3 && exponent_field == top)
    magnitude = mantissa ? std::numeric_limits<double>::quiet_NaN()
                         : std::numeric_limits<double>::infinity();
  else if (exponent_field == 0)
    magnitude = std::ldexp(static_cast<double>(mantissa), 1 - type.bias() - type.mantissa_bits);
  else
    magnitude = std::ldexp(static_cast<double>(mantissa + (uint64_t{1} << type.mantissa_bits)),
                           exponent_field - type.bias() - type.mantissa_bits);
  return negative ? -magnitude : magnitude;
}

int scalar_of(int rank) {
  constexpr int kScalars[] = {2, 3, 1};
  return kScalars[rank % 3];
}

uint64_t encode_integer(const ElementType& type, int value) {
  return type.is_floating() ? encode(type, value) : static_cast<uint64_t>(int64_t{value});
}

uint64_t load_bits(const ElementType& type, const void* data, size_t index) {
  uint64_t bits = 0;  // little endian, as every machine with these GPUs
  std::memcpy(&bits, static_cast<const char*>(data) + index * type.bytes, type.bytes);
  return bits;
}

void store_bits(const ElementType& type, void* data, size_t index, uint64_t bits) {
  std::memcpy(static_cast<char*>(data) + index * type.bytes, &bits, type.bytes);
}

}  // namespace niccolite::perf
