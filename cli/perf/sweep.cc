#include "cli/perf/sweep.h"

#include <algorithm>
#include <array>

namespace niccolite::perf {
namespace {

double mean_allocation_of(std::span<const RankRecord> records) {
  double sum = 0;
  for (const RankRecord& record : records) sum += record.allocation_microseconds;
  return sum / static_cast<double>(records.size());
}

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

std::span<const Operation* const> operations_of(const Collective& collective,
                                                const Options& options) {
  static const std::array<const Operation*, 1> kNone = {&no_operation()};
  if (collective.reduces) return options.operations;
  return kNone;
}

/// The roots to measure; one, which nobody reads, where there is none.
std::pair<int, int> roots_of(const Collective& collective, const Options& options, int nranks) {
  if (!collective.is_rooted) return {0, 1};
  if (options.root < 0) return {0, nranks};
  return {options.root, options.root + 1};
}

}  // namespace

size_t count_rows(const Options& options, int nranks) {
  size_t rows = 0;
  for (const Collective* collective : options.collectives) {
    const auto [first_root, end_root] = roots_of(*collective, options, nranks);
    rows += operations_of(*collective, options).size() * static_cast<size_t>(end_root - first_root);
  }
  return rows * options.types.size() * sizes_of(options).size() * options.extras.size() *
         options.starts.size();
}

Status Sweep::run() {
  for (const Collective* collective : options_.collectives)
    TRY(measure(*collective).with_context("{}", collective->name));
  TRY(team_.barrier());
  if (sink_ != nullptr && options_.memory) sink_->memory(memory());
  return {};
}

Status Sweep::measure(const Collective& collective) {
  bool is_warm = false;
  const auto [first_root, end_root] = roots_of(collective, options_, team_.nranks());
  for (const ElementType* type : options_.types)
    for (const Operation* operation : operations_of(collective, options_)) {
      TRY(worker_.set_operation(*type, *operation));
      for (int root = first_root; root < end_root; ++root) {
        Call call = {.collective = &collective, .type = type, .operation = operation, .root = root};
        if (!is_warm) TRY(warm_up(call));
        is_warm = true;
        for (const size_t bytes : sizes_of(options_))
          for (const size_t extra : options_.extras)
            for (const size_t start : options_.starts) {
              call.elements = collective.with_extra(bytes / type->bytes, extra, team_.nranks());
              call.start = start;
              TRY(row(call).with_context("{} {} {} bytes", type->name, operation->name, bytes));
            }
      }
    }
  return {};
}

// Largest and smallest size once, as nccl-tests does: connections are made on first use.
Status Sweep::warm_up(Call call) {
  for (call.library = 0; call.library < options_.libraries(); ++call.library)
    for (const size_t bytes : {options_.max_bytes, options_.min_bytes}) {
      call.elements = bytes / call.type->bytes;
      TRY(worker_.warm_up(call));
    }
  return {};
}

Status Sweep::row(Call call) {
  const Collective& collective = *call.collective;
  const Shape shape = collective.shape(call.elements, team_.nranks(), 0);
  Row row = {.collective = collective.name,
             .bytes = shape.area() * call.type->bytes,
             .count = shape.count,
             .type = call.type->name,
             .operation = call.operation->name,
             .root = collective.is_rooted ? call.root : -1,
             .start = call.start,
             .nranks = team_.nranks(),
             .out_of_place = std::nullopt,
             .in_place = std::nullopt};
  if (options_.out_of_place) row.out_of_place = TRY(place(call));
  call.is_in_place = true;
  if (options_.in_place && collective.has_in_place) row.in_place = TRY(place(call));
  if (sink_ != nullptr) sink_->row(row);
  return {};
}

Result<Sweep::Times> Sweep::time(const Call& call, Worker::Parts parts) {
  TRY(worker_.time(call, parts));
  TRY(team_.barrier());
  const Times times = {.operation_us = average_of(team_.records(), options_.average),
                       .allocation_us = mean_allocation_of(team_.records())};
  TRY(team_.barrier());
  return times;
}

// The library that comes second gets memory that the first has used: they change places each round.
Status Sweep::time_first(Call call, std::vector<Measurement>& measurements) {
  const int libraries = options_.libraries();
  const auto calls = static_cast<size_t>(options_.first_calls);
  std::vector<std::vector<std::vector<double>>> samples(  // by library and call, one per round
      measurements.size(), std::vector<std::vector<double>>(calls));
  for (int round = 0; round < options_.rounds; ++round)
    for (int turn = 0; turn < libraries; ++turn) {
      call.library = (round + turn) % libraries;
      size_t number = 0;
      const auto keep = [&]() -> Status {
        TRY(team_.barrier());
        samples[static_cast<size_t>(call.library)][number++].push_back(
            average_of(team_.records(), options_.average));
        return team_.barrier();
      };
      TRY(worker_.time_first(call, keep));
    }
  for (size_t library = 0; library < measurements.size(); ++library)
    for (const std::vector<double>& of_call : samples[library])
      measurements[library].first_us.push_back(median(of_call));
  return {};
}

Result<PlaceResult> Sweep::place(Call call) {
  using Parts = Worker::Parts;
  const bool is_beside = options_.beside > 0;
  struct Samples {
    std::vector<double> operation, product;  // each alone
    std::vector<double> allocation;          // of fresh buffers
  };
  std::vector<Measurement> measurements(static_cast<size_t>(options_.libraries()));
  std::vector<Samples> alone(measurements.size());
  if (options_.first_calls > 0) TRY(time_first(call, measurements));
  // The libraries take turns, so that a machine that warms up or is disturbed treats both alike.
  for (int round = 0; round < options_.rounds; ++round)
    for (call.library = 0; call.library < options_.libraries(); ++call.library) {
      const auto library = static_cast<size_t>(call.library);
      const Times times = TRY(time(call, is_beside ? Parts::Both : Parts::Collective));
      measurements[library].samples.push_back(times.operation_us);
      alone[library].allocation.push_back(times.allocation_us);
      if (!is_beside) continue;
      alone[library].operation.push_back(TRY(time(call, Parts::Collective)).operation_us);
      alone[library].product.push_back(TRY(time(call, Parts::Product)).operation_us);
    }
  for (call.library = 0; call.library < options_.libraries(); ++call.library) {
    Measurement& measurement = measurements[static_cast<size_t>(call.library)];
    measurement.microseconds = median(measurement.samples);
    if (const Samples& parts = alone[static_cast<size_t>(call.library)]; is_beside)
      measurement.alone = {.operation_us = median(parts.operation),
                           .product_us = median(parts.product)};
    if (options_.has_fresh_buffers())
      measurement.allocation_us = median(alone[static_cast<size_t>(call.library)].allocation);
    if (options_.check_iterations > 0) TRY(verify(call, measurement));
  }
  PlaceResult result = {.ours = std::move(measurements[0]), .other = std::nullopt};
  if (measurements.size() > 1) result.other = std::move(measurements[1]);
  return result;
}

Status Sweep::verify(const Call& call, Measurement& measurement) {
  TRY(verifier_.check(call, *patterns_.known(*call.collective, *call.type, *call.operation)));
  TRY(team_.barrier());
  uint64_t wrong = 0;
  for (const RankRecord& record : team_.records()) wrong += record.wrong;
  measurement.wrong = wrong;
  TRY(team_.barrier());
  if (!options_.bitwise || !call.type->is_floating() || !call.collective->has_equal_results())
    return {};
  TRY(verifier_.digest(call, *patterns_.rounding(*call.type)));
  TRY(team_.barrier());
  const std::span<const RankRecord> records = team_.records();
  measurement.differing_ranks =
      static_cast<int>(std::count_if(records.begin(), records.end(), [&](const RankRecord& record) {
        return record.digest != records[0].digest;
      }));
  return team_.barrier();
}

std::vector<MemoryUse> Sweep::memory() const {
  std::vector<MemoryUse> uses(static_cast<size_t>(options_.libraries()));
  for (const RankRecord& record : team_.records())
    for (size_t library = 0; library < uses.size(); ++library) {
      MemoryUse& use = uses[library];
      use.after_init_bytes =
          std::max(use.after_init_bytes, record.device_bytes_after_init[library]);
      use.after_run_bytes = std::max(use.after_run_bytes, record.device_bytes[library]);
    }
  return uses;
}

}  // namespace niccolite::perf
