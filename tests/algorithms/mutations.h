// Broken copies of right schedules: the checker must refuse each, and say where it is broken.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "schedule/schedule.h"

namespace niccolite::algorithms {

/// What the checker's message must contain.
using Expected = std::vector<std::string>;

struct Mutation {
  const char* name;
  /// Can `schedule` be broken in this way? By what it is, not by what is found in it.
  bool (*applies)(const schedule::Schedule& schedule);
  /// Breaks it; none when there was nothing to break.
  std::optional<Expected> (*apply)(schedule::Schedule& schedule);
};

/// Of the network: blocks, connections, workers, roots.
std::span<const Mutation> mutations_of_moves();
/// Of what is done to operands: order, sums, finishing.
std::span<const Mutation> mutations_of_reductions();

}  // namespace niccolite::algorithms
