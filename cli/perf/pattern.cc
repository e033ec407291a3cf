#include "cli/perf/pattern.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>

namespace niccolite::perf {
namespace {

// The finaliser of splitmix64: every input bit changes about half of the output bits.
uint64_t mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}
uint64_t random_bits(size_t rank, size_t index, uint64_t stream) {
  return mix(mix(mix(stream) + rank) + index);
}

/// One integer per rank, whose magnitudes add up to at most `budget`.
void draw(std::span<int64_t> values, size_t index, int64_t budget, bool is_signed) {
  const auto nranks = static_cast<int64_t>(values.size());
  const int64_t share = budget / nranks;
  if (share >= 2) {
    const auto choices = static_cast<uint64_t>(is_signed ? 2 * share + 1 : share + 1);
    for (size_t rank = 0; rank < values.size(); ++rank)
      values[rank] =
          static_cast<int64_t>(random_bits(rank, index, 1) % choices) - (is_signed ? share : 0);
    return;
  }
  // Fewer units than two per rank: throw each unit to some rank; a rank's units all have one sign,
  // or they would cancel.
  std::fill(values.begin(), values.end(), 0);
  for (int64_t unit = 0; unit < budget; ++unit) {
    const size_t rank = random_bits(static_cast<size_t>(unit), index, 2) % values.size();
    values[rank] += is_signed && random_bits(rank, index, 3) % 2 ? -1 : 1;
  }
}

// Largest magnitude up to which sums are made; wide types need no more to show every digit of an
// index.
int64_t sum_budget(const ElementType& type) {
  if (type.is_floating()) return int64_t{1} << std::min(type.precision(), 20);
  if (type.bytes == 1) return type.encoding == Encoding::Signed ? 127 : 255;
  return int64_t{1} << 20;
}

// Largest sum of exponents of a product: it and every part stay normal numbers.
int64_t product_budget(const ElementType& type) { return std::min(type.bias() - 1, 20); }

constexpr int64_t kLargestScalar = 3;  // of scalar_of()

struct Column {
  std::vector<uint64_t> inputs;  // bits, one per rank
  uint64_t result = 0;
  double tolerance = 0;
};

void fill_integers(const ElementType& type, const Operation& op, size_t index,
                   std::span<int64_t> drawn, Column& column) {
  const ncclRedOp_t operation = op.id;
  const int unused_bits = 64 - 8 * static_cast<int>(type.bytes);
  const bool is_signed = type.encoding == Encoding::Signed;
  // Values as the type holds them, widened to 64 bits.
  const auto widen = [&](uint64_t bits) {
    const uint64_t high = bits << unused_bits;
    return is_signed ? static_cast<uint64_t>(static_cast<int64_t>(high) >> unused_bits)
                     : high >> unused_bits;
  };
  const auto less = [&](uint64_t a, uint64_t b) {
    return is_signed ? static_cast<int64_t>(a) < static_cast<int64_t>(b) : a < b;
  };
  if (operation == ncclAvg) draw(drawn, index, sum_budget(type), is_signed);
  for (size_t rank = 0; rank < drawn.size(); ++rank) {
    uint64_t value = 0;
    if (operation == ncclAvg)
      value = static_cast<uint64_t>(drawn[rank]);
    else if (operation == ncclProd)
      value = widen(random_bits(rank, index, 4) |
                    1);  // odd: a product modulo 2^bits keeps all its digits
    else
      value = widen(random_bits(rank, index, 5));
    column.inputs[rank] = value;
    if (op.scalar != Scalar::None)
      value *= static_cast<uint64_t>(scalar_of(static_cast<int>(rank)));
    if (rank == 0)
      column.result = value;
    else if (operation == ncclSum || operation == ncclAvg)
      column.result += value;
    else if (operation == ncclProd)
      column.result *= value;
    else if (operation == ncclMax)
      column.result = less(column.result, value) ? value : column.result;
    else
      column.result = less(value, column.result) ? value : column.result;
  }
  if (operation != ncclAvg) return;
  const auto nranks = static_cast<int64_t>(drawn.size());
  column.result = static_cast<uint64_t>(static_cast<int64_t>(column.result) / nranks);
}

void fill_floats(const ElementType& type, const Operation& op, size_t index,
                 std::span<int64_t> drawn, Column& column) {
  const ncclRedOp_t operation = op.id;
  const auto nranks = static_cast<double>(drawn.size());
  double result = 0;
  double magnitude = 0;
  if (operation == ncclSum || operation == ncclAvg)
    draw(drawn, index, sum_budget(type) / (op.scalar == Scalar::None ? 1 : kLargestScalar), true);
  else if (operation == ncclProd)
    draw(drawn, index, product_budget(type), true);
  else
    for (size_t rank = 0; rank < drawn.size(); ++rank) {
      const auto choices = static_cast<uint64_t>(2 * sum_budget(type) + 1);
      drawn[rank] = static_cast<int64_t>(random_bits(rank, index, 6) % choices) - sum_budget(type);
    }
  for (size_t rank = 0; rank < drawn.size(); ++rank) {
    auto value = static_cast<double>(drawn[rank]);
    if (operation == ncclProd)
      value =
          std::ldexp(random_bits(rank, index, 7) % 2 ? 1.0 : -1.0, static_cast<int>(drawn[rank]));
    column.inputs[rank] = encode(type, value);
    if (op.scalar != Scalar::None) value *= scalar_of(static_cast<int>(rank));
    magnitude += std::fabs(value);
    if (rank == 0)
      result = value;
    else if (operation == ncclSum || operation == ncclAvg)
      result += value;
    else if (operation == ncclProd)
      result *= value;
    else
      result = operation == ncclMax ? std::max(result, value) : std::min(result, value);
  }
  if (operation == ncclAvg) {
    result /= nranks;
    // Every scaled operand and every partial sum may be half a unit in the last place off, in the
    // worst order.
    if (!std::has_single_bit(drawn.size()))
      column.tolerance = (nranks + 1) * std::ldexp(magnitude / nranks, -type.precision()) +
                         std::ldexp(1, 1 - type.bias() - type.mantissa_bits);
  }
  column.result = encode(type, result == 0 ? 0.0 : result);
}

}  // namespace

Pattern::Pattern(const ElementType& type, Ranks ranks)
    : type_(&type),
      ranks_(ranks),
      inputs_(static_cast<size_t>(ranks.count), Tile(2 * kPeriod * type.bytes)) {}

void Pattern::put(Tile& tile, size_t index, uint64_t bits) {
  store_bits(*type_, tile.data(), index, bits);
  store_bits(*type_, tile.data(), index + kPeriod, bits);
}

const std::byte* Pattern::data(int source, size_t index) const {
  const Tile& tile =
      source == kReduced ? reduced_ : inputs_[static_cast<size_t>(source - ranks_.first)];
  return tile.data() + index % kPeriod * type_->bytes;
}

Pattern Pattern::exact(const ElementType& type, const Operation& operation, int nranks,
                       Ranks ranks) {
  Pattern pattern(type, ranks);
  pattern.reduced_.resize(2 * kPeriod * type.bytes);
  const bool is_bounded = type.is_floating() && operation.id == ncclAvg &&
                          !std::has_single_bit(static_cast<unsigned>(nranks));
  if (is_bounded) pattern.tolerance_.resize(kPeriod);
  Column column;
  column.inputs.resize(static_cast<size_t>(nranks));
  std::vector<int64_t> drawn(static_cast<size_t>(nranks));
  for (size_t index = 0; index < kPeriod; ++index) {
    const auto fill = type.is_floating() ? fill_floats : fill_integers;
    fill(type, operation, index, drawn, column);
    for (int rank = 0; rank < ranks.count; ++rank)
      pattern.put(pattern.inputs_[static_cast<size_t>(rank)], index,
                  column.inputs[static_cast<size_t>(ranks.first) + static_cast<size_t>(rank)]);
    pattern.put(pattern.reduced_, index, column.result);
    if (is_bounded) pattern.tolerance_[index] = column.tolerance;
  }
  return pattern;
}

Pattern Pattern::moving(const ElementType& type, Ranks ranks) {
  Pattern pattern(type, ranks);
  for (int rank = 0; rank < ranks.count; ++rank)
    for (size_t index = 0; index < kPeriod; ++index)
      pattern.put(
          pattern.inputs_[static_cast<size_t>(rank)], index,
          random_bits(static_cast<size_t>(ranks.first) + static_cast<size_t>(rank), index, 9));
  return pattern;
}

Pattern Pattern::rounding(const ElementType& type, Ranks ranks) {
  Pattern pattern(type, ranks);
  const uint64_t mantissa = (uint64_t{1} << type.mantissa_bits) - 1;
  for (int rank = 0; rank < ranks.count; ++rank)
    for (size_t index = 0; index < kPeriod; ++index) {
      const uint64_t random =
          random_bits(static_cast<size_t>(ranks.first) + static_cast<size_t>(rank), index, 8);
      // Exponents -1, 0 and 1: sums of neighbours differ in exponent from their operands, and lose
      // bits.
      const uint64_t exponent = static_cast<uint64_t>(type.bias() - 1) + (random >> 60) % 3;
      const uint64_t sign = (random >> 59) & 1;
      pattern.put(pattern.inputs_[static_cast<size_t>(rank)], index,
                  (sign << (type.exponent_bits + type.mantissa_bits)) |
                      (exponent << type.mantissa_bits) | (random & mantissa));
    }
  return pattern;
}

bool Pattern::is_right(int source, uint64_t expected_bits, size_t period_index,
                       uint64_t bits) const {
  if (bits == expected_bits) return true;
  if (source != kReduced || !type_->is_floating()) return false;
  const double expected = decode(*type_, expected_bits);
  const double value = decode(*type_, bits);
  if (tolerance_.empty()) return value == expected;  // the two zeros are equal
  return std::fabs(value - expected) <= tolerance_[period_index];
}

uint64_t Pattern::count_wrong(int source, size_t index, const std::byte* got, size_t count) const {
  uint64_t wrong = 0;
  for (size_t done = 0; done < count;) {
    const size_t period_index = (index + done) % kPeriod;
    const size_t piece = std::min(kPeriod, count - done);
    const std::byte* right = data(source, period_index);
    const std::byte* piece_got = got + done * type_->bytes;
    if (std::memcmp(piece_got, right, piece * type_->bytes) != 0)
      for (size_t i = 0; i < piece; ++i)
        if (!is_right(source, load_bits(*type_, right, i), (period_index + i) % kPeriod,
                      load_bits(*type_, piece_got, i)))
          ++wrong;
    done += piece;
  }
  return wrong;
}

}  // namespace niccolite::perf
