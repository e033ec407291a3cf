#include "cli/perf/perf.h"

#include <cstdio>

#include "cli/perf/exit_code.h"
#include "cli/perf/processes.h"
#include "cli/perf/report.h"
#include "cli/perf/share.h"
#include "gpu/machine.h"

namespace niccolite::perf {
namespace {

int usage(const Status& status) {
  fmt::print(stderr, "niccolite perf: {}\n", status.message());
  return kExitUsage;
}

/// What a command line that says nothing gets.
int list_collectives() {
  fmt::print(
      "Usage: niccolite perf COLLECTIVE [flags]\n\nCollectives:\n{}  {:<15} each of them at a few "
      "sizes\n\nFlags: niccolite perf --help\n",
      describe_collectives(), "all");
  return kExitUsage;
}

Status measure(const Options& options, const std::vector<std::string>& command, Report& report) {
  if (options.processes > 1) return supervise(options, command, report);
  Team team = TRY(Team::create(options.threads, options.nranks()));
  return run_share(options, team, report);
}

}  // namespace

int run(const RawOptions& raw, const std::vector<std::string>& command) {
  if (command.size() == 2) return list_collectives();
  Result<Options> finished = finish(raw);
  if (!finished.is_ok()) return usage(finished.status());
  Options& options = *finished;
  if (options.is_child()) return run_child(options);
  if (options.wants_every_gpu()) {
    Result<gpu::Machine*> machine = gpu::machine();
    if (!machine.is_ok()) return usage(machine.status());
    options.threads = (*machine)->device_count();
    options.gpus = 1;
  }
  Report report(options, command);
  if (Status status = measure(options, command, report); !status.is_ok())
    report.failure(status.message());
  return report.finish();
}

}  // namespace niccolite::perf
