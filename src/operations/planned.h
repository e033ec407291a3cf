// Planned: calls that have a plan, and the launch that carries it out, as far as it is known.
#pragma once

#include <string>
#include <vector>

#include "calls/task.h"
#include "executor/launch.h"
#include "operations/batches.h"
#include "planner/plan.h"

namespace niccolite::operations {

/// A planned operation on its way to a launcher.
struct Planned {
  planner::Plan plan;
  executor::Launch launch;
  calls::Call first;  // of the calls
  std::string name;   // of the batch, for Plans; empty for a collective by itself
  std::vector<planner::Choice> choices{};  // by work, where they may differ
};

/// From the plans that the batch has, or by `planner`, by which the batch was made.
Result<Planned> plan_batch(Batch batch, planner::Planner& planner, std::string name);

}  // namespace niccolite::operations
