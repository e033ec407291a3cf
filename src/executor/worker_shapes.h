// What lowering::plan_workers() asks about the workers of a launch. Pure.
#pragma once

#include <vector>

#include "executor/launch.h"
#include "lowering/workers.h"

namespace niccolite::executor {

/// By worker of the program.
std::vector<lowering::WorkerShape> worker_shapes(const Launch& launch);

}  // namespace niccolite::executor
