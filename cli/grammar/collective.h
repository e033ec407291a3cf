// The collectives of the planner, as command lines name them. Pure: any thread.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "schedule/schedule.h"

namespace niccolite::grammar {

/// As `niccolite perf` and all output spell it: "alltoall" and "sendrecv" where schedules say
/// "all_to_all" and "point_to_point".
const char* collective_name(schedule::Collective collective);

/// Takes every spelling. InvalidArgument names the nearest one, and the option `flag` unless that
/// is empty.
Result<schedule::Collective> parse_collective(const char* flag, const std::string& name);

/// A comma-separated list, or "all".
Result<std::vector<schedule::Collective>> parse_collectives(const char* flag,
                                                            const std::string& list);

}  // namespace niccolite::grammar
