// The keys of prepared plans: all of a call, a batch or a group that its plan depends
// on, and nothing else (buffers and streams come with each launch).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "calls/task.h"
#include "operations/batches.h"
#include "planner/plan.h"

namespace niccolite::operations {

/// Equal for batches that have the same plan, and for no others; not empty.
std::string name_of(const Batch& batch);

/// Equal for equal requests; and for groups of equal calls, whether they come as calls or as tasks.
uint64_t hash_of(const planner::Request& request);
uint64_t hash_of(std::span<const calls::Call> calls);
uint64_t hash_of(std::span<const calls::Task> tasks);

}  // namespace niccolite::operations
