#include "cli/perf/machines.h"

#include <cstdio>

#include "base/interfaces.h"
#include "base/parameters.h"
#include "cli/grammar/exit_code.h"
#include "cli/perf/bridge.h"
#include "cli/perf/report.h"
#include "cli/perf/share.h"
#include "cli/perf/team.h"
#include "gpu/machine.h"

namespace niccolite::perf {
namespace {

/// The sink of a process that reports no rows.
class ErrorSink : public Sink {
 public:
  explicit ErrorSink(std::string who) : who_(std::move(who)) {}
  void start(const Start&) override {}
  void row(const Row&) override {}
  void memory(const std::vector<MemoryUse>&) override {}
  void failure(const std::string& message) override {
    fmt::print(stderr, "niccolite perf: {}: {}\n", who_, message);
  }

 private:
  const std::string who_;
};

// A process that sees no more GPUs than it drives has been given its own.
Status choose_devices(Options& options) {
  gpu::Machine* const machine = TRY(gpu::machine());
  if (options.wants_every_gpu()) {
    options.threads = machine->device_count();
    options.gpus = 1;
  }
  options.place.first_device = machine->device_count() <= options.ranks_per_process()
                                   ? 0
                                   : options.place.local_process * options.ranks_per_process();
  return {};
}

}  // namespace

Status run_place(Options options, const bootstrap::UniqueId& id, Sink& sink) {
  std::optional<Team> team;  // leaves the others when the failure has been told
  const auto run = [&]() -> Status {
    TRY(choose_devices(options));
    std::unique_ptr<Bridge> bridge =
        TRY(Bridge::meet(id, options.place.process, options.processes));
    team = TRY(Team::span(std::move(bridge), options.threads, options.ranks_per_process()));
    options.place.first_rank = team->first_rank();
    options.place.all_ranks = team->nranks();
    TRY(check_memory(options));
    return run_share(options, *team, sink);
  };
  Status status = run();
  if (!status.is_ok()) sink.failure(status.message());
  return status;
}

int run_launched(Options options, const Launch& launch, const std::vector<std::string>& command) {
  options.processes = launch.processes;
  options.place.process = launch.process;
  options.place.local_process = launch.local_process;
  // A launcher starts a process for each GPU.
  if (options.wants_every_gpu()) options.threads = options.gpus = 1;
  const auto run = [&](Sink& sink) -> Status {
    const auto meet = [&]() -> Result<bootstrap::UniqueId> {
      TRY(authentication::initialize());
      return bootstrap::UniqueId::from_environment(launch.meeting,
                                                   family_from(parameters::socket_family()));
    };
    Result<bootstrap::UniqueId> id = meet();
    if (id.is_ok()) return run_place(options, id.value(), sink);
    Status status = std::move(id).status().with_context("{}, where process 0 of {} is",
                                                        launch.meeting, launch.launcher);
    sink.failure(status.message());
    return status;
  };
  if (launch.process == 0) {
    Report report(options, command);
    run(report).ignore("the report has it");
    return report.finish();
  }
  ErrorSink sink(fmt::format("process {} of {}", launch.process, launch.processes));
  return run(sink).is_ok() ? grammar::kExitFine : grammar::kExitFailed;
}

}  // namespace niccolite::perf
