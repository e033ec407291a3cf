// The subcommand `niccolite perf`: measures and verifies collectives, with the flags and the table
// of nccl-tests.
#pragma once

#include <string>
#include <vector>

#include "cli/perf/options.h"

namespace niccolite::perf {

/// Runs the measurements that the flags select. `command` is the process's argument vector. Returns
/// the exit status.
int run(const RawOptions& raw, const std::vector<std::string>& command);

}  // namespace niccolite::perf
