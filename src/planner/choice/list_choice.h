// The choice for small operations of a group that share one launch, a batched launch
// (executor::Launch::is_list()): which operations may be in it, by which variant, and their time.
#pragma once

#include <optional>

#include "executor/list_schedule.h"
#include "planner/choice/choice.h"
#include "planner/request.h"

namespace niccolite::planner {

/// Chooses for an operation of a list (executor::Launch::is_list()), on one channel: such
/// operations are small, and end in one step. None: it cannot be in a list.
std::optional<Choice> choose_for_list(const Settings& settings, Collective collective,
                                      size_t bytes);

/// Returns the accesses of the ranks in an operation of a list over buffers that all ranks reach;
/// none if ranks do not reach the buffers, or other settings forbid it.
std::optional<executor::ListAccess> find_list_access(const Settings& settings,
                                                     const executor::ListOperation& operation);
/// True if a list of `operations`, of `bytes` together, is faster than the alternatives.
/// `is_captured`: in a graph, whose buffers are looked up once.
bool pays_direct_list(const Settings& settings, Collective collective, size_t operations,
                      size_t bytes, bool is_captured);
/// Microseconds that such a list takes whatever is in it, and that an operation adds.
double predict_direct_list(const Settings& settings);
double predict_in_direct_list(const Settings& settings, const Request& request);

}  // namespace niccolite::planner
