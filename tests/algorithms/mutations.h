// Broken copies of right schedules: the checker must refuse each, and say where it is broken.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "schedule/schedule.h"

namespace niccolite::algorithms {

struct Mutation {
  const char* name;
  /// Breaks `schedule`, and returns what the checker's message must contain; none when the schedule
  /// has nothing to break in this way.
  std::optional<std::vector<std::string>> (*apply)(schedule::Schedule& schedule);
  /// Algorithms to which it does not apply, by name; `apply` returns none for exactly these.
  std::vector<std::string> not_for;
};

const std::vector<Mutation>& mutations();

}  // namespace niccolite::algorithms
