// Value: what a chunk holds during symbolic execution: whose contributions, in the order in which
// they were folded. For checker use only. Thread safety: as for any value.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "schedule/schedule.h"

namespace niccolite::schedule {

struct Value {
  int block;               // the block of the user's data that the contributions come from
  std::vector<int> ranks;  // in fold order
  bool finished = false;
  std::optional<Position>
      folder{};  // the last instruction that changed it; none: an input as it was
};

/// One operand of an instruction, with words that name it in messages: "the chunk from rank 1",
/// "input block 2".
struct Operand {
  const Value* value;
  std::string name;
};

/// What the rules of one collective operation allow a fold to do.
struct FoldRules {
  int nranks;
  bool partial_sums;
};

/// The value of the instruction at `position`, which handles `block`. Fails, without saying where
/// it stands, when an operand belongs to another block, a contribution is in twice, the order or
/// the partial sums are not as claimed, or `finish` is misplaced.
Result<Value> combine(const std::vector<Operand>& operands, int block, bool finish,
                      const Position& position, const FoldRules& rules);

/// The ranks that `value` lacks, for messages: "rank 3", "ranks 1, 2, 5 and 4 more"; empty when it
/// is complete.
std::string missing_ranks(const Value& value, int nranks);

}  // namespace niccolite::schedule
