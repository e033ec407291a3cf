// Runs with --hosts: starts this command on each host by a remote shell, a process a host, and
// prints the one table. A host that fails, or cannot be reached, ends the run with a report that
// names it.
//
//   supervisor                                 child (process k of n, by ssh HOST sh -s)
//   a script on its standard input  -------->  runs the command
//                                   <--------  {"id": ...} of process 0, {"ready": k} of the others
//   the id, on standard input       -------->  meets the others (bridge.h), runs its share
//                                   <--------  reports (pipe_sink.h)
//
// The child ends when its standard input does: when the supervisor, the shell or the connection
// between the two is gone. Nothing secret is on a command line.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cli/perf/options.h"
#include "cli/perf/report.h"

namespace niccolite::perf {

struct Host {
  std::string name;  // for the remote shell: "a12", "me@10.0.0.4"
  int threads = 0;   // of its process; 0: as the flags say, else one for every GPU
};

/// Parses "a,b:4,[fe80::1]:2", or the file behind an @: hosts by comma or line, # starts a comment.
/// @return InvalidArgument: no host, one twice, or a count that is none.
Result<std::vector<Host>> parse_hosts(const std::string& text);

/// Returns the script for the shell of a host: `command` in `folder`, where it is there, with the
/// variables NCCL_* and NICCOLITE_* of `environment` (lines of NAME=value). NCCL_HOSTID stays
/// behind: it would make one machine of all.
std::string make_script(const std::vector<std::string>& command, const std::string& folder,
                        const char* const* environment);

/// Starts and follows the processes. Failures, of hosts too, are reported to `report`.
Status supervise_hosts(const Options& options, std::span<const Host> hosts,
                       const std::vector<std::string>& command, Report& report);

/// The body of a process that supervise_hosts() has started. Returns the exit status.
int run_on_host(Options options);

}  // namespace niccolite::perf
