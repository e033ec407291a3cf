// By what prepared plans are found again: all of a call, a batch or a group that its plan depends
// on, and nothing else (buffers and streams come with each launch).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "comm/batches.h"
#include "comm/task.h"
#include "planner/plan.h"

namespace niccolite::comm {

/// Equal for batches that have the same plan, and for no others; not empty.
std::string name_of(const Batch& batch);

/// Equal for equal requests; and for groups of equal calls, whether they come as calls or as tasks.
uint64_t hash_of(const planner::Request& request);
uint64_t hash_of(std::span<const Call> calls);
uint64_t hash_of(std::span<const Task> tasks);

}  // namespace niccolite::comm
