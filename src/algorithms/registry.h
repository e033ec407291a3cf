// The algorithms there are, by collective and name. Constant data: any thread.
#pragma once

#include <span>
#include <string_view>

#include "algorithms/options.h"
#include "schedule/schedule.h"

namespace niccolite::algorithms {

struct Algorithm {
  const char* name;  // equals Schedule::algorithm of what it builds
  schedule::Collective collective;
  int min_ranks;
  int max_ranks;
  Result<schedule::Schedule> (*build)(int nranks, const Options& options);
};

std::span<const Algorithm> all();

/// Null when there is none of that name.
const Algorithm* find(schedule::Collective collective, std::string_view name);

}  // namespace niccolite::algorithms
