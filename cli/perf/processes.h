// Runs with --processes: the supervisor starts copies of this command, each with its share of the
// ranks, hands them the team's memory, and prints the one table. A child that dies ends the run
// with a report, within a few seconds (supervisor.h).
#pragma once

#include <string>
#include <vector>

#include "cli/perf/options.h"
#include "cli/perf/report.h"

namespace niccolite::perf {

/// Starts options.processes children with the arguments of this process and follows them to their
/// end. Failures, of children too, are reported to `report`; the Status tells of errors that keep
/// the supervisor itself from working.
Status supervise(const Options& options, const std::vector<std::string>& command, Report& report);

/// The body of a child: its part of the sweep, reported to the supervisor. Returns the exit status.
int run_child(const Options& options);

}  // namespace niccolite::perf
