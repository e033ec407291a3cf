// The share of one process in a run over processes that share no memory: on several hosts
// (hosts.h), or started by a launcher (launch.h).
#pragma once

#include <string>
#include <vector>

#include "bootstrap/unique_id.h"
#include "cli/perf/launch.h"
#include "cli/perf/options.h"
#include "cli/perf/row.h"

namespace niccolite::perf {

/// Meets the others by `id`, which all have, and runs the share of options.place to its end. A
/// failure is told to `sink` before the others hear of it.
Status run_place(Options options, const bootstrap::UniqueId& id, Sink& sink);

/// Runs this process's share of a run that a launcher has started, and reports it in process 0.
/// Returns the exit status.
int run_launched(Options options, const Launch& launch, const std::vector<std::string>& command);

}  // namespace niccolite::perf
