// The routes of a form's schedule (lowering/routes.h) for a rank that builds its own part of
// the schedule alone. Thread safety: any thread.
#pragma once

#include "lowering/routes.h"
#include "planner/variant.h"

namespace niccolite::planner {

/// Returns the routes of the whole schedule, since both ends of every connection must find equal
/// ones. `part` is the part of one rank, and `options` are the options with which it was built. If
/// this part or the root's already shows that all connections of `part` have slots, as in rings,
/// nothing else is built. Otherwise the whole schedule is built, once for all ranks of the process:
/// algorithms whose bytes go direct have few instructions, or few ranks. Errors: as building the
/// schedule.
Result<lowering::Routes> find_routes(const Form& form, int nranks, algorithms::Options options,
                                     const schedule::Schedule& part,
                                     ByTeam by_team = ByTeam::Nothing);

struct Settings;
/// Does anything of the form's schedule go by a team, among the ranks of `settings`?
bool goes_by_team(const Settings& settings, const Form& form, executor::Protocol protocol);

}  // namespace niccolite::planner
