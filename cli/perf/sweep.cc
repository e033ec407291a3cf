#include "cli/perf/sweep.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>

#include "cli/perf/rank.h"
#include "cli/perf/watchdog.h"

namespace niccolite::perf {
namespace {

/// The inputs in use: made once per process for each type and operation, by the thread that comes
/// first.
class PatternCache {
 public:
  PatternCache(int nranks, int first_rank, int local_ranks)
      : nranks_(nranks), first_rank_(first_rank), local_ranks_(local_ranks) {}

  std::shared_ptr<const Pattern> exact(const ElementType& type, const Operation& operation) {
    const std::lock_guard lock(mutex_);
    if (exact_ == nullptr || exact_type_ != &type || exact_operation_ != &operation)
      exact_ = std::make_shared<Pattern>(
          Pattern::exact(type, operation, nranks_, first_rank_, local_ranks_));
    exact_type_ = &type;
    exact_operation_ = &operation;
    return exact_;
  }
  std::shared_ptr<const Pattern> rounding(const ElementType& type) {
    const std::lock_guard lock(mutex_);
    if (rounding_ == nullptr || &rounding_->type() != &type)
      rounding_ = std::make_shared<Pattern>(Pattern::rounding(type, first_rank_, local_ranks_));
    return rounding_;
  }

 private:
  const int nranks_, first_rank_, local_ranks_;
  std::mutex mutex_;  // guards the rest
  const ElementType* exact_type_ = nullptr;
  const Operation* exact_operation_ = nullptr;
  std::shared_ptr<const Pattern> exact_, rounding_;
};

double average_of(std::span<const RankRecord> records, Average average) {
  double sum = 0;
  double least = records[0].microseconds;
  double most = least;
  for (const RankRecord& record : records) {
    sum += record.microseconds;
    least = std::min(least, record.microseconds);
    most = std::max(most, record.microseconds);
  }
  switch (average) {
    case Average::Rank0:
      return records[0].microseconds;
    case Average::Mean:
      return sum / static_cast<double>(records.size());
    case Average::Least:
      return least;
    case Average::Most:
      return most;
  }
  return 0;
}

double median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const size_t middle = samples.size() / 2;
  return samples.size() % 2 ? samples[middle] : (samples[middle - 1] + samples[middle]) / 2;
}

/// One thread's way through the sweep. All threads of the run make the same calls in the same
/// order.
class SweepThread {
 public:
  SweepThread(const Options& options, Team& team, PatternCache& patterns, Worker& worker,
              Sink* sink)
      : options_(options), team_(team), patterns_(patterns), worker_(worker), sink_(sink) {}

  Status run() {
    TRY(warm_up());
    for (const ElementType* type : options_.types)
      for (const Operation* operation : options_.operations)
        for (const size_t bytes : sizes_of(options_)) {
          const Call call = {.type = type, .operation = operation, .count = bytes / type->bytes};
          TRY(row(call).with_context("{} {} {} bytes", type->name, operation->name, bytes));
        }
    return {};
  }

 private:
  // Largest and smallest size once, as nccl-tests does: connections are made on first use.
  Status warm_up() {
    for (int library = 0; library < options_.libraries(); ++library)
      for (const size_t bytes : {options_.max_bytes, options_.min_bytes}) {
        const ElementType& type = *options_.types[0];
        TRY(worker_.warm_up({.library = library,
                             .type = &type,
                             .operation = options_.operations[0],
                             .count = bytes / type.bytes}));
      }
    return {};
  }

  Status row(Call call) {
    Row row = {.bytes = call.bytes(),
               .count = call.count,
               .type = call.type->name,
               .operation = call.operation->name,
               .nranks = team_.nranks(),
               .out_of_place = std::nullopt,
               .in_place = std::nullopt};
    if (options_.out_of_place) row.out_of_place = TRY(place(call));
    call.is_in_place = true;
    if (options_.in_place) row.in_place = TRY(place(call));
    if (sink_ != nullptr) sink_->row(row);
    return {};
  }

  Result<PlaceResult> place(Call call) {
    std::vector<Measurement> measurements(static_cast<size_t>(options_.libraries()));
    // The libraries take turns, so that a machine that warms up or is disturbed treats both alike.
    for (int round = 0; round < options_.rounds; ++round)
      for (call.library = 0; call.library < options_.libraries(); ++call.library) {
        TRY(worker_.time(call));
        TRY(team_.barrier());
        measurements[static_cast<size_t>(call.library)].samples.push_back(
            average_of(team_.records(), options_.average));
        TRY(team_.barrier());
      }
    for (call.library = 0; call.library < options_.libraries(); ++call.library) {
      Measurement& measurement = measurements[static_cast<size_t>(call.library)];
      measurement.microseconds = median(measurement.samples);
      if (options_.check_iterations > 0) TRY(verify(call, measurement));
    }
    PlaceResult result = {.ours = std::move(measurements[0]), .other = std::nullopt};
    if (measurements.size() > 1) result.other = std::move(measurements[1]);
    return result;
  }

  Status verify(const Call& call, Measurement& measurement) {
    TRY(worker_.check(call, *patterns_.exact(*call.type, *call.operation)));
    TRY(team_.barrier());
    uint64_t wrong = 0;
    for (const RankRecord& record : team_.records()) wrong += record.wrong;
    measurement.wrong = wrong;
    TRY(team_.barrier());
    if (!options_.bitwise || !call.type->is_floating()) return {};
    TRY(worker_.digest(call, *patterns_.rounding(*call.type)));
    TRY(team_.barrier());
    const std::span<const RankRecord> records = team_.records();
    measurement.differing_ranks = static_cast<int>(std::count_if(
        records.begin(), records.end(),
        [&](const RankRecord& record) { return record.digest != records[0].digest; }));
    return team_.barrier();
  }

  const Options& options_;
  Team& team_;
  PatternCache& patterns_;
  Worker& worker_;
  Sink* sink_;  // null but for the thread that reports
};

/// The ranks of this process and the threads that drive them.
class Process {
 public:
  Process(gpu::Machine& machine, const Options& options, std::span<const Library> libraries,
          Team& team, Sink& sink)
      : machine_(machine),
        options_(options),
        libraries_(libraries),
        team_(team),
        sink_(sink),
        first_rank_(std::max(options.process, 0) * options.ranks_per_process()),
        patterns_(options.nranks(), first_rank_, options.ranks_per_process()),
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
    const int needed = options_.nranks();
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
      ranks_.push_back(TRY(Rank::create(machine_, options_, rank, rank % devices)));
    }
    return {};
  }

  Status thread_body(int index) {
    const std::span<Rank> all = ranks_;
    const auto gpus = static_cast<size_t>(options_.gpus);
    Worker worker(machine_, options_, libraries_, team_,
                  all.subspan(static_cast<size_t>(index) * gpus, gpus));
    Worker whole_process(machine_, options_, libraries_, team_, all);
    const bool is_first = first_rank_ == 0 && index == 0;
    if (is_first)
      for (size_t i = 0; i < libraries_.size(); ++i)
        TRY(libraries_[i].check(libraries_[i].get_unique_id(&team_.id(static_cast<int>(i))),
                                "ncclGetUniqueId"));
    TRY(team_.barrier());
    if (options_.parallel_init)
      TRY(worker.init_communicators());
    else if (index == 0)
      TRY(whole_process.init_communicators());
    if (index == 0) TRY(introduce_ranks());
    TRY(team_.barrier());
    if (index == 0) watchdog_.watch(ranks_);
    if (is_first) sink_.start(start());

    TRY(SweepThread(options_, team_, patterns_, worker, is_first ? &sink_ : nullptr).run());

    TRY(team_.barrier());
    if (index != 0) return {};
    watchdog_.unwatch();
    return whole_process.destroy_communicators();
  }

  Status introduce_ranks() {
    for (const Rank& rank : ranks_) {
      const gpu::DeviceInfo info = TRY(machine_.device_info(rank.device));
      RankRecord& record = team_.records()[static_cast<size_t>(rank.rank)];
      record.process_id = getpid();
      record.device = rank.device;
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
                   .participants = {}};
    if (libraries_.size() > 1) start.other = {libraries_[1].path(), libraries_[1].version_text()};
    for (const RankRecord& record : team_.records())
      start.participants.push_back({.rank = static_cast<int>(start.participants.size()),
                                    .process_id = record.process_id,
                                    .device = record.device,
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
    std::_Exit(kExitFailed);
  }

  gpu::Machine& machine_;
  const Options& options_;
  std::span<const Library> libraries_;
  Team& team_;
  Sink& sink_;
  const int first_rank_;
  PatternCache patterns_;
  std::mutex mutex_;
  Status first_failure_;     // guarded by mutex_
  std::vector<Rank> ranks_;  // ends after the watchdog, which looks at it
  Watchdog watchdog_;
};

}  // namespace

Status run_sweep(const Options& options, Team& team, Sink& sink) {
  gpu::Machine* machine = TRY(gpu::machine());
  const std::string library_path =
      options.library.empty() ? TRY(default_library_path()) : options.library;
  std::vector<Library> libraries;
  libraries.push_back(TRY(Library::open(library_path)));
  if (!options.other_library.empty())
    libraries.push_back(TRY(Library::open(options.other_library)));
  return Process(*machine, options, libraries, team, sink).run();
}

}  // namespace niccolite::perf
