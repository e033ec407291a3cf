#include "cli/perf/perf.h"

#include <unistd.h>

#include <cstdlib>

#include <cstdio>

#include "base/host_memory.h"
#include "cli/perf/exit_code.h"
#include "cli/perf/json_file.h"
#include "cli/perf/processes.h"
#include "cli/perf/rank.h"
#include "cli/perf/report.h"
#include "cli/perf/share.h"
#include "gpu/machine.h"

namespace niccolite::perf {
namespace {

int fail(const Status& status, int exit_code) {
  fmt::print(stderr, "niccolite perf: {}\n", status.message());
  return exit_code;
}

/// What a command line that says nothing gets.
int list_collectives() {
  fmt::print(
      "Usage: niccolite perf COLLECTIVE [flags]\n\nCollectives:\n{}  {:<15} each of them at a few "
      "sizes\n\nFlags: niccolite perf --help\n",
      describe_collectives(), "all");
  return kExitUsage;
}

/// Virtual GPUs have the machine's own memory, and all of the buffers are touched: too much would
/// get the process killed. Asked once, before any process takes its part.
Status check_memory(const Options& options) {
  Result<gpu::Machine*> machine = gpu::machine();
  // What fails here fails again, and is told, where the machine is used.
  if (!machine.is_ok() || (*machine)->kind() != gpu::Kind::Virtual) return {};
  const HostMemory host = measure_host_memory();
  const auto nranks = static_cast<size_t>(options.nranks());
  const size_t each = Rank::bytes(options);
  if (each <= host.available / nranks) return {};
  constexpr double kGiB = 1 << 30;
  return Status::invalid_argument(
      "{} ranks need {:.1f} GiB for their buffers, and {:.1f} GiB of this machine's memory can be "
      "had for virtual GPUs; try fewer ranks (-t, -g, --processes) or a smaller -e",
      nranks, static_cast<double>(each) * static_cast<double>(nranks) / kGiB,
      static_cast<double>(host.available) / kGiB);
}

Status measure(const Options& options, const std::vector<std::string>& command, Report& report) {
  TRY(check_memory(options));
  if (options.processes > 1) return supervise(options, command, report);
  Team team = TRY(Team::create(options.threads, options.nranks()));
  return run_share(options, team, report);
}

}  // namespace

int run(const RawOptions& raw, const std::vector<std::string>& command) {
  if (command.size() == 2) return list_collectives();
  Result<Options> finished = finish(raw);
  if (!finished.is_ok()) return fail(finished.status(), kExitUsage);
  Options& options = *finished;
  if (options.is_child()) {
    // Before any library reads it.
    if (options.apart)
      setenv("NCCL_HOSTID", fmt::format("perf-{}-{}", getppid(), options.process).c_str(), 1);
    return run_child(options);
  }
  if (!options.json_path.empty())
    if (const Status status = check_writable(options.json_path); !status.is_ok())
      return fail(status, kExitFailed);
  if (options.wants_every_gpu()) {
    Result<gpu::Machine*> machine = gpu::machine();
    if (!machine.is_ok()) return fail(machine.status(), kExitUsage);
    options.threads = (*machine)->device_count();
    options.gpus = 1;
  }
  Report report(options, command);
  if (Status status = measure(options, command, report); !status.is_ok())
    report.failure(status.message());
  return report.finish();
}

}  // namespace niccolite::perf
