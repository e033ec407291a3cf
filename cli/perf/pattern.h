// Pattern: the inputs of all ranks for one type and operation, and the result that they must give,
// made so that every order and grouping of the operands, with rounding after every step, gives the
// same bits. The data repeat with a prime period, which no block or chunk size divides: a block in
// the wrong place is seen.
//
// How exactness is had: sums share a budget of magnitude within which all integers are exact in the
// type (16 in f8e4m3, 2048 in half), so that every partial sum is exact too; products are of powers
// of two with a budget of exponents; integers wrap, as the C API says. The one inexact case is the
// average of a floating type over a rank count that is no power of two: libraries may scale before
// or after the sum, so there `tolerance` bounds what rounding can do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cli/perf/element.h"

namespace niccolite::perf {

class Pattern {
 public:
  static constexpr size_t kPeriod = 8191;  // elements; a prime

  /// Makes the inputs of ranks [first_rank, first_rank + local_ranks) and the result of all
  /// `nranks`.
  static Pattern exact(const ElementType& type, const Operation& operation, int nranks,
                       int first_rank, int local_ranks);
  /// Inputs that round in every step (floating types only): no reference, but all ranks must get
  /// equal bits.
  static Pattern rounding(const ElementType& type, int first_rank, int local_ranks);

  const ElementType& type() const { return *type_; }
  size_t period_bytes() const { return kPeriod * type_->bytes; }

  /// kPeriod elements that repeat; index 0 of a buffer holds element `shift` (below kPeriod) of the
  /// period.
  const std::byte* input(int rank, size_t shift) const {
    return at(inputs_[static_cast<size_t>(rank - first_rank_)], shift);
  }
  const std::byte* expected(size_t shift) const { return at(expected_, shift); }

  /// How many of `count` elements at `result`, which is index `first` of a buffer, are not as
  /// expected.
  uint64_t count_wrong(const std::byte* result, size_t first, size_t count, size_t shift) const;

 private:
  // Two periods one after the other, so that a period from any shift lies in one piece.
  using Tile = std::vector<std::byte>;
  Pattern(const ElementType& type, int first_rank, int local_ranks);
  const std::byte* at(const Tile& tile, size_t shift) const {
    return tile.data() + shift * type_->bytes;
  }
  void put(Tile& tile, size_t index, uint64_t bits);
  bool is_right(uint64_t expected_bits, size_t period_index, uint64_t bits) const;

  const ElementType* type_;
  int first_rank_;
  std::vector<Tile> inputs_;
  Tile expected_;
  std::vector<double> tolerance_;  // per index of the period; empty: exact
};

}  // namespace niccolite::perf
