// Reducer: the arithmetic of one operation on the CPU: reduces any number of operands of a (type,
// reduction) into one result, as numeric.h defines it. Operands and results have any alignment. The
// values depend on the operands and their order only, never on the CPU, the strip or the alignment:
// what several ranks compute for themselves is bitwise equal. Thread safety: immutable.
#pragma once

#include <cstddef>
#include <span>

#include "executor/numeric.h"

namespace niccolite::executor::host {

struct ReductionLoops;

/// Baseline: what every CPU of the architecture has. Best: what this one has. Results are the same.
enum class InstructionSet : unsigned char { Baseline, Best };

/// `reduction` with the scale that its device_scale holds now, if it has one.
Reduction read_scale(DataType type, const Reduction& reduction);

class Reducer {
 public:
  Reducer(DataType type, const Reduction& reduction, InstructionSet set = InstructionSet::Best);

  size_t element_bytes() const { return element_bytes_; }
  /// Does scale_input() change anything?
  bool scales_input() const { return scales_input_; }
  /// Does `finish` change anything?
  bool scales_result() const { return scales_result_; }

  /// Reduces `count` elements of all operands (at least one) in their order, with the final scaling
  /// if `finish`. `result` may equal operands, but not overlap them otherwise.
  void reduce(std::span<const std::byte* const> operands, bool finish, std::byte* result,
              size_t count) const;

  /// The scaling of an operand that is read from the input. `result` may equal `operand`.
  void scale_input(const std::byte* operand, std::byte* result, size_t count) const;

 private:
  const ReductionLoops* loops_;  // static tables
  Reduction reduction_;
  size_t element_bytes_;
  bool scales_input_;
  bool scales_result_;
};

}  // namespace niccolite::executor::host
