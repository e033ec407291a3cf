#include "cli/perf/perf.h"

#include <unistd.h>

#include <cstdlib>

#include <cstdio>

#include "cli/grammar/exit_code.h"
#include "cli/grammar/file.h"
#include "cli/perf/hosts.h"
#include "cli/perf/launch.h"
#include "cli/perf/machines.h"
#include "cli/perf/processes.h"
#include "cli/perf/report.h"
#include "cli/perf/share.h"
#include "gpu/machine.h"

namespace niccolite::perf {
namespace {

int fail(const Status& status, int exit_code) {
  fmt::print(stderr, "niccolite perf: {}\n", status.message());
  return exit_code;
}

Status measure(const Options& options, const std::vector<std::string>& command, Report& report) {
  TRY(check_memory(options));
  if (options.processes > 1) return supervise(options, command, report);
  Team team = TRY(Team::create(options.threads, options.nranks()));
  return run_share(options, team, report);
}

int run_over_hosts(Options& options, const std::vector<std::string>& command) {
  Result<std::vector<Host>> hosts = parse_hosts(options.hosts);
  if (!hosts.is_ok()) return fail(hosts.status(), grammar::kExitUsage);
  options.processes = static_cast<int>(hosts->size());
  Report report(options, command);
  if (Status status = supervise_hosts(options, *hosts, command, report); !status.is_ok())
    report.failure(status.message());
  return report.finish();
}

}  // namespace

int run(const RawOptions& raw, const std::vector<std::string>& command) {
  Result<Options> finished = finish(raw);
  if (!finished.is_ok()) return fail(finished.status(), grammar::kExitUsage);
  Options& options = *finished;
  // Before any library reads the environment. Processes that this one starts get it, too.
  if (!options.algorithm.empty()) setenv("NCCL_ALGO", options.algorithm.c_str(), 1);
  if (options.is_child()) {
    if (options.apart)
      setenv("NCCL_HOSTID", fmt::format("perf-{}-{}", getppid(), options.process).c_str(), 1);
    return run_child(options);
  }
  if (options.is_placed()) return run_on_host(options);
  // With --hosts this process belongs to no launcher.
  const bool may_be_launched = options.hosts.empty();
  Result<std::optional<Launch>> launch = find_launch(
      [&](const char* name) -> const char* { return may_be_launched ? getenv(name) : nullptr; });
  if (!launch.is_ok()) return fail(launch.status(), grammar::kExitUsage);
  if (*launch && options.processes > 1)
    return fail(Status::invalid_argument("--processes: {} has started {} already",
                                         (*launch)->launcher, (*launch)->processes),
                grammar::kExitUsage);
  if (*launch && (*launch)->process != 0) return run_launched(options, **launch, command);
  for (const std::string& path : options.paths())
    if (const Status status = grammar::check_writable(path); !status.is_ok())
      return fail(status, grammar::kExitFailed);
  if (*launch) return run_launched(options, **launch, command);
  if (!options.hosts.empty()) return run_over_hosts(options, command);
  if (options.wants_every_gpu()) {
    Result<gpu::Machine*> machine = gpu::machine();
    if (!machine.is_ok()) return fail(machine.status(), grammar::kExitUsage);
    options.threads = (*machine)->device_count();
    options.gpus = 1;
  }
  Report report(options, command);
  if (Status status = measure(options, command, report); !status.is_ok())
    report.failure(status.message());
  return report.finish();
}

}  // namespace niccolite::perf
