// Planned: calls that have a plan, and the launch that carries it out, as far as it is known.
#pragma once

#include <string>
#include <vector>

#include "calls/task.h"
#include "executor/launch.h"
#include "planner/plan.h"

namespace niccolite::operations {

/// What is planned, on its way to a launcher.
struct Planned {
  planner::Plan plan;
  executor::Launch launch;
  calls::Call first;  // of the calls
  std::string name;   // of the batch, for OperationQueue; empty for a collective by itself
  std::vector<planner::Choice> choices{};  // by work, where they differ
};

}  // namespace niccolite::operations
