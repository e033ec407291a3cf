#include "cli/perf/share.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <thread>

#include "base/host_memory.h"
#include "cli/grammar/exit_code.h"
#include "cli/perf/rank.h"
#include "cli/perf/sweep.h"
#include "cli/perf/watchdog.h"

namespace niccolite::perf {
namespace {

/// The ranks of this process and the threads that drive them.
class Process {
 public:
  Process(gpu::Machine& machine, const Options& options, std::span<const Library> libraries,
          Team& team, const KernelLibrary* kernels, Sink& sink)
      : machine_(machine),
        options_(options),
        libraries_(libraries),
        team_(team),
        kernels_(kernels),
        sink_(sink),
        first_rank_(options.first_rank()),
        patterns_(options.nranks(), {first_rank_, options.ranks_per_process()}),
        watchdog_(team, options.timeout_seconds,
                  [this](Status status) { end_process(std::move(status)); }) {}

  Status run() {
    TRY(create_ranks());
    std::vector<std::thread> threads;
    for (int index = 1; index < options_.threads; ++index)
      threads.emplace_back([this, index] { keep_first_failure(thread_body(index)); });
    keep_first_failure(thread_body(0));
    for (std::thread& thread : threads) thread.join();
    watchdog_.unwatch();
    const std::lock_guard lock(mutex_);
    return std::move(first_failure_);
  }

 private:
  Status create_ranks() {
    // A process that others have joined from elsewhere answers for its own GPUs.
    const Place& place = options_.place;
    const int needed = options_.is_placed() ? place.first_device + options_.ranks_per_process()
                                            : options_.nranks();
    const char* shared = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    const bool may_share = shared != nullptr && std::strcmp(shared, "1") == 0;
    const int devices = machine_.device_count();
    if (needed > devices && !may_share)
      return Status::invalid_argument(
          "{} ranks need {} GPUs, and this machine has {} {}; ask for fewer (-t, -g, "
          "--processes){}",
          needed, needed, devices, machine_.kind() == gpu::Kind::Virtual ? "virtual ones" : "",
          machine_.kind() == gpu::Kind::Virtual ? " or set NICCOLITE_DEVICES=virtual:N" : "");
    for (int i = 0; i < options_.ranks_per_process(); ++i) {
      const int rank = first_rank_ + i;
      const int device = (options_.is_placed() ? place.first_device + i : rank) % devices;
      ranks_.push_back(TRY(Rank::create(machine_, options_, libraries_, rank, device)));
    }
    return {};
  }

  Status thread_body(int index) {
    const std::span<Rank> all = ranks_;
    const auto gpus = static_cast<size_t>(options_.gpus);
    Worker worker(machine_, options_, libraries_, team_, kernels_,
                  all.subspan(static_cast<size_t>(index) * gpus, gpus));
    Worker whole_process(machine_, options_, libraries_, team_, kernels_, all);
    const bool is_first = first_rank_ == 0 && index == 0;
    if (is_first) TRY(make_ids());
    TRY(team_.barrier());
    if (options_.parallel_init)
      TRY(worker.init_communicators());
    else if (index == 0)
      TRY(whole_process.init_communicators());
    if (index == 0) TRY(introduce_ranks());
    TRY(team_.barrier());
    if (index == 0) watchdog_.watch(ranks_);
    if (is_first) sink_.start(start());

    TRY(Sweep(options_, team_, patterns_, worker, is_first ? &sink_ : nullptr).run());

    TRY(team_.barrier());
    if (index != 0) return {};
    watchdog_.unwatch();
    return whole_process.destroy_communicators();
  }

  Status make_ids() {
    size_t number = 0;
    for (const Library& library : libraries_)
      for (int i = 0; i < options_.communicators; ++i, ++number)
        TRY(library.check(library.get_unique_id(&team_.id(number)), "ncclGetUniqueId"));
    return {};
  }

  Status introduce_ranks() {
    for (const Rank& rank : ranks_) {
      const gpu::DeviceInfo info = TRY(machine_.device_info(rank.device));
      RankRecord& record = team_.records()[static_cast<size_t>(rank.rank)];
      record.process_id = getpid();
      record.device = rank.device;
      gethostname(record.host, sizeof record.host - 1);
      std::snprintf(record.bus_id, sizeof record.bus_id, "%s", info.bus_id.c_str());
      std::snprintf(record.device_name, sizeof record.device_name, "%s", info.name.c_str());
    }
    return {};
  }

  Start start() {
    Start start = {.is_virtual = machine_.kind() == gpu::Kind::Virtual,
                   .driver_version = machine_.driver_version(),
                   .library = {libraries_[0].path(), libraries_[0].version_text()},
                   .other = std::nullopt,
                   .participants = {},
                   .skipped = options_.skipped};
    if (libraries_.size() > 1) start.other = {libraries_[1].path(), libraries_[1].version_text()};
    for (const RankRecord& record : team_.records())
      start.participants.push_back({.rank = static_cast<int>(start.participants.size()),
                                    .process_id = record.process_id,
                                    .device = record.device,
                                    .host = record.host,
                                    .bus_id = record.bus_id,
                                    .device_name = record.device_name});
    return start;
  }

  void keep_first_failure(Status status) {
    if (status.is_ok()) return;
    {
      const std::lock_guard lock(mutex_);
      if (first_failure_.is_ok()) first_failure_ = std::move(status);
    }
    // The others may wait for this thread in a barrier; those inside the library are the watchdog's
    // business.
    team_.abort();
  }

  // Called by the watchdog's thread while other threads are stuck: no destructor may run.
  void end_process(Status status) {
    team_.abort();
    {
      const std::lock_guard lock(mutex_);
      if (!first_failure_.is_ok()) status = std::move(first_failure_);
    }
    sink_.failure(status.message());
    std::_Exit(grammar::kExitFailed);
  }

  gpu::Machine& machine_;
  const Options& options_;
  std::span<const Library> libraries_;
  Team& team_;
  const KernelLibrary* const kernels_;  // null without --device
  Sink& sink_;
  const int first_rank_;
  PatternCache patterns_;
  std::mutex mutex_;
  Status first_failure_;     // guarded by mutex_
  std::vector<Rank> ranks_;  // ends after the watchdog, which looks at it
  Watchdog watchdog_;
};

/// Removes collectives that the ranks or a library cannot do from `options`, or refuses them if
/// they were named.
Status select_collectives(std::span<const Library> libraries, Options& options) {
  if (options.root >= options.nranks())
    return Status::invalid_argument("--root: the roots of {} ranks are 0 to {}, not {}",
                                    options.nranks(), options.nranks() - 1, options.root);
  if (options.by_kernels()) return {};  // which call none of the library's collectives
  const auto check = [&](const Collective& collective) -> Status {
    for (const Library& library : libraries)
      TRY(collective.check_available(library, options.nranks(), options.send_recv));
    return {};
  };
  TRY(keep_collectives(options, check));
  if (options.collectives.empty())
    return Status::invalid_usage("no collective can be measured: {}", options.skipped.front());
  return {};
}

}  // namespace

Status check_memory(const Options& options) {
  Result<gpu::Machine*> machine = gpu::machine();
  // A failure here comes again, and is reported, where the machine is used.
  if (!machine.is_ok() || (*machine)->kind() != gpu::Kind::Virtual) return {};
  const HostMemory host = measure_host_memory();
  // Ranks of other machines have memory of their own.
  const auto nranks =
      static_cast<size_t>(options.is_placed() ? options.ranks_per_process() : options.nranks());
  const size_t each = Rank::bytes(options);
  if (each <= host.available / nranks) return {};
  constexpr double kGiB = 1 << 30;
  return Status::invalid_argument(
      "{} ranks need {:.1f} GiB for their buffers, and {:.1f} GiB of this machine's memory can be "
      "had for virtual GPUs; try fewer ranks (-t, -g, --processes) or a smaller -e",
      nranks, static_cast<double>(each) * static_cast<double>(nranks) / kGiB,
      static_cast<double>(host.available) / kGiB);
}

Status run_share(const Options& options, Team& team, Sink& sink) {
  gpu::Machine* machine = TRY(gpu::machine());
  const std::string library_path =
      options.library.empty() ? TRY(default_library_path()) : options.library;
  std::vector<Library> libraries;
  libraries.push_back(TRY(Library::open(library_path)));
  if (!options.other_library.empty())
    libraries.push_back(TRY(Library::open(options.other_library)));
  const KernelLibrary* kernels = nullptr;
  if (options.by_kernels()) {
    if (machine->kind() == gpu::Kind::Virtual && options.graph_launches > 0)
      return Status::invalid_usage(
          "--cudagraph: graphs of virtual GPUs do not hold the kernels of --device");
    kernels = TRY(open_kernels(machine->kind()));
  }
  Options possible = options;
  TRY(select_collectives(libraries, possible));
  return Process(*machine, possible, libraries, team, kernels, sink).run();
}

}  // namespace niccolite::perf
