// Value: the content of a chunk during symbolic execution: whose contributions to which block, in
// the order in which they were reduced. For checker use only. Thread safety: as for any value.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "schedule/schedule.h"

namespace niccolite::schedule {

struct Value {
  int block;               // the input block that the contributions come from, at each of `ranks`
  std::vector<int> ranks;  // in reduction order; one where data is only moved
  bool finished = false;
  std::optional<Position>
      folder{};  // the last instruction that changed it; none: an input as it was
};

/// A chunk that is passed on is one value in many places.
using SharedValue = std::shared_ptr<const Value>;

/// One operand of an instruction, with words that name it in messages: "the chunk from rank 1",
/// "input block 2".
struct Operand {
  SharedValue value;
  std::string name;
};

/// The rules of one collective operation for reductions.
struct ReductionRules {
  int nranks;
  bool partial_sums;
};

/// Returns the value of the instruction at `position`. `block`: the block that it handles, if
/// blocks are parts of one buffer; otherwise its operands need only belong to one block. Fails,
/// without naming the position, when an operand belongs to another block, a contribution is in
/// twice, the order or the partial sums are not as claimed, or `finish` is misplaced.
Result<SharedValue> combine(const std::vector<Operand>& operands, std::optional<int> block,
                            bool finish, const Position& position, const ReductionRules& rules);

/// The ranks that `value` lacks, for messages: "rank 3", "ranks 1, 2, 5 and 4 more"; empty when it
/// is complete.
std::string missing_ranks(const Value& value, int nranks);

}  // namespace niccolite::schedule
