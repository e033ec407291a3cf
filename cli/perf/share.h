// This process's share of a run: its ranks, a thread per worker, and the watchdog over them.
#pragma once

#include "cli/perf/options.h"
#include "cli/perf/row.h"
#include "cli/perf/team.h"

namespace niccolite::perf {

/// Virtual GPUs have the machine's own memory, and all of the buffers are touched: too much would
/// get a process killed. Asked once for the processes of a machine, before any takes its part.
Status check_memory(const Options& options);

/// Runs this process's share of the sweep to its end. Rows go to `sink` from the process that has
/// rank 0; failures from any. When the run cannot go on, `sink` gets the failure and the process
/// exits with kExitFailed.
/// @param team   of the callers of barrier() in all processes that share its memory, and
///               options.nranks() records.
Status run_share(const Options& options, Team& team, Sink& sink);

}  // namespace niccolite::perf
