// Pattern: the inputs of ranks for one type and operation, and the result that they must give. The
// data repeat with a prime period, which no block or chunk size divides: a block in the wrong place
// is seen. Inputs that are only moved are random bits, and must arrive bit for bit. Inputs that are
// reduced are made so that every order and grouping of the operands, with rounding after every
// step, gives the same bits.
//
// How exactness is had: sums share a budget of magnitude within which all integers are exact in the
// type (16 in f8e4m3, 2048 in half), so that every partial sum is exact too; products are of powers
// of two with a budget of exponents; integers wrap, as the C API says. The one inexact case is the
// average of a floating type over a rank count that is no power of two: libraries may scale before
// or after the sum, so there `tolerance` bounds the effect of rounding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cli/perf/element.h"

namespace niccolite::perf {

class Pattern {
 public:
  static constexpr size_t kPeriod = 8191;  // elements; a prime
  static constexpr int kReduced = -1;      // as a source: the result of all ranks' inputs

  /// Which ranks' inputs a pattern holds.
  struct Ranks {
    int first = 0;
    int count = 0;
  };

  /// Inputs of `ranks` and the result of all `nranks`.
  static Pattern exact(const ElementType& type, const Operation& operation, int nranks,
                       Ranks ranks);
  /// Inputs to be moved, not reduced.
  static Pattern moving(const ElementType& type, Ranks ranks);
  /// Inputs that round in every step (floating types only): no reference, but all ranks must get
  /// equal bits.
  static Pattern rounding(const ElementType& type, Ranks ranks);

  const ElementType& type() const { return *type_; }
  size_t period_bytes() const { return kPeriod * type_->bytes; }

  /// kPeriod elements, which repeat, from element `index` of the buffer on: of a rank's input or,
  /// for kReduced, of the result.
  const std::byte* data(int source, size_t index) const;

  /// Counts the elements, of `count` at `got`, that differ from `source` from element `index` on.
  uint64_t count_wrong(int source, size_t index, const std::byte* got, size_t count) const;

 private:
  // Two periods one after the other, so that a period from any shift lies in one piece.
  using Tile = std::vector<std::byte>;
  Pattern(const ElementType& type, Ranks ranks);
  void put(Tile& tile, size_t index, uint64_t bits);
  bool is_right(int source, uint64_t expected_bits, size_t period_index, uint64_t bits) const;

  const ElementType* type_;
  Ranks ranks_;
  std::vector<Tile> inputs_;
  Tile reduced_;
  std::vector<double> tolerance_;  // per index of the period; empty: exact
};

}  // namespace niccolite::perf
