// The routes of an algorithm's schedule (lowering/routes.h) for a rank that builds its own part of
// the schedule alone. Thread safety: any thread.
#pragma once

#include "algorithms/registry.h"
#include "lowering/routes.h"

namespace niccolite::planner {

/// Routes are of whole schedules, since both ends of every connection have to find the same. `part`
/// is that of one rank; where it, or the root's, already says that all of its connections have
/// slots, as those of rings do, nothing else is built. Else the whole schedule is, once for all
/// ranks of the process: algorithms whose bytes go direct have few instructions, or few ranks.
/// Errors: those of building the schedule.
/// `options` are those that the part was built with.
Result<lowering::Routes> find_routes(const algorithms::Algorithm& algorithm, int nranks,
                                     algorithms::Options options, const schedule::Schedule& part);

}  // namespace niccolite::planner
