#include "cli/perf/report.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "cli/grammar/exit_code.h"
#include "cli/perf/plot.h"
#include "cli/perf/sweep.h"

namespace niccolite::perf {
namespace {

constexpr int kMostRanksListed = 64;

// Seven characters wide at least, with the digits that carry information, as nccl-tests prints
// times.
std::string format_time(double microseconds) {
  if (microseconds >= 10000) return fmt::format("{:>8.0f}", microseconds);
  if (microseconds >= 100) return fmt::format("{:>8.1f}", microseconds);
  return fmt::format("{:>8.2f}", microseconds);
}

std::string format_wrong(const Measurement& measurement) {
  if (!measurement.wrong) return fmt::format("{:>6}", "N/A");
  const uint64_t differing = static_cast<uint64_t>(measurement.differing_ranks.value_or(0));
  return fmt::format("{:>6}", *measurement.wrong + differing);
}

}  // namespace

Report::Report(const Options& options, std::vector<std::string> command)
    : options_(options), command_(std::move(command)), has_terminal_(isatty(STDERR_FILENO) == 1) {}

Report::~Report() = default;

void Report::start(const Start& start) {
  const std::lock_guard lock(mutex_);
  start_ = start;
  print(
      "# nProcesses {} nThread {} nGpus {} minBytes {} maxBytes {} step: {} warmup iters: {} "
      "iters: {} "
      "agg iters: {} validation: {} graph: {}\n#\n# Using devices\n",
      options_.processes, options_.threads > 0 ? std::to_string(options_.threads) : "by host",
      std::max(options_.gpus, 1), options_.min_bytes, options_.max_bytes, describe_step(options_),
      options_.warmup_iterations, options_.iterations, options_.aggregated,
      options_.check_iterations, options_.graph_launches);
  for (const Participant& each : start.participants) {
    if (each.rank == kMostRanksListed) {
      print("#  and {} more ranks\n", start.participants.size() - kMostRanksListed);
      break;
    }
    print("#  Rank {:>3} Pid {:>7} on {} device {:>3} [{}] {}\n", each.rank, each.process_id,
          each.host, each.device, each.bus_id, each.device_name);
  }
  print("# Library {} version {}\n", start.library.path, start.library.version);
  if (start.other)
    print("# vs      {} version {}; ratio = its time / ours, medians of {} rounds in turn\n",
          start.other->path, start.other->version, options_.rounds);
  if (options_.by_kernels())
    print("# By kernels that communicate by themselves (--device {})\n",
          name_of(options_.device_way));
  if (options_.allocator != Allocator::Malloc || options_.buffer_pairs != 1)
    print("# Buffers {}: {}\n", name_of(options_.allocator),
          options_.has_fresh_buffers() ? "a fresh pair for each call"
                                       : fmt::format("{} pairs in turn", options_.buffer_pairs));
  for (const std::string& each : start.skipped) print("# Skipped: {}\n", each);
  std::fflush(stdout);
  expected_rows_ = count_rows(options_, static_cast<int>(start.participants.size()));
  show_progress(fmt::format("0 of {} rows", expected_rows_));
}

void Report::show_progress(const std::string& text) {
  if (!has_terminal_) return;
  constexpr const char* kEraseLine = "\r\033[K";
  fmt::print(stderr, "{}{}", kEraseLine, text);
  std::fflush(stderr);
}

void Report::print_heads(const std::string& collective) {
  const bool has_other = start_.other.has_value();
  const int width = has_other ? 50 : 32;
  const std::string other_names = has_other ? fmt::format(" {:>9} {:>7}", "vs time", "ratio") : "";
  const std::string other_units = has_other ? fmt::format(" {:>9} {:>7}", "(us)", "") : "";
  const std::string names =
      fmt::format(" {:>8} {:>7} {:>7} {:>6}{}", "time", "algbw", "busbw", "#wrong", other_names);
  const std::string units =
      fmt::format(" {:>8} {:>7} {:>7} {:>6}{}", "(us)", "(GB/s)", "(GB/s)", "", other_units);
  print("#\n# {}\n#{:>56} {:^{}} {:^{}}\n", collective, "", "out-of-place", width, "in-place",
        width);
  print("#{:>12} {:>13} {:>9} {:>7} {:>7}    {} {}\n", "size", "count", "type", "redop", "root",
        names, names);
  print("#{:>12} {:>13} {:>9} {:>7} {:>7}    {} {}\n", "(B)", "(elements)", "", "", "", units,
        units);
}

void Report::print_place(const std::optional<PlaceResult>& place, const Row& row) {
  const bool has_other = start_.other.has_value();
  if (!place) {
    print("  {:>8} {:>7} {:>7} {:>6}", "N/A", "N/A", "N/A", "N/A");
    if (has_other) print(" {:>9} {:>7}", "N/A", "N/A");
    return;
  }
  const double time = place->ours.microseconds;
  print("  {} {:>7.2f} {:>7.2f} {}", format_time(time), algorithm_bandwidth(row, time),
        bus_bandwidth(row, time), format_wrong(place->ours));
  if (place->other) print("  {} {:>7.2f}", format_time(place->other->microseconds), ratio(*place));
}

void Report::print_alone(const Row& row) {
  for (const auto* const place : {&row.out_of_place, &row.in_place}) {
    if (!*place || !(*place)->ours.alone) continue;
    const auto print_one = [&](const char* whose, const Measurement& measurement) {
      print("#   {}, {}: {:.2f} us beside a product, {:.2f} alone; the product alone {:.2f}\n",
            place == &row.out_of_place ? "out-of-place" : "in-place", whose,
            measurement.microseconds, measurement.alone->operation_us,
            measurement.alone->product_us);
    };
    print_one("ours", (*place)->ours);
    if ((*place)->other) print_one("vs", *(*place)->other);
  }
}

void Report::print_buffers(const Row& row) {
  for (const auto* const place : {&row.out_of_place, &row.in_place}) {
    if (!*place) continue;
    const auto print_one = [&](const char* whose, const Measurement& measurement) {
      const char* where = place == &row.out_of_place ? "out-of-place" : "in-place";
      if (measurement.allocation_us)
        print("#   {}, {}: {:.2f} us to allocate and free the buffers of a call\n", where, whose,
              *measurement.allocation_us);
      if (measurement.first_us.empty()) return;
      print("#   {}, {}: first calls on fresh buffers, us:", where, whose);
      for (const double each : measurement.first_us) print(" {:.1f}", each);
      print("\n");
    };
    print_one("ours", (*place)->ours);
    if ((*place)->other) print_one("vs", *(*place)->other);
  }
}

void Report::row(const Row& row) {
  const std::lock_guard lock(mutex_);
  show_progress("");
  if (rows_.empty() || rows_.back().collective != row.collective) print_heads(row.collective);
  rows_.push_back(row);
  // "float+1": the buffers begin one element behind an aligned address.
  const std::string type = row.start == 0 ? row.type : fmt::format("{}+{}", row.type, row.start);
  print(" {:>12} {:>13} {:>9} {:>7} {:>7}   ", row.bytes, row.count, type, row.operation, row.root);
  print_place(row.out_of_place, row);
  print_place(row.in_place, row);
  print("\n");
  print_alone(row);
  print_buffers(row);
  std::fflush(stdout);  // one row at a time, for people who watch
  show_progress(fmt::format("{} of {} rows, {} {} {}", rows_.size(), expected_rows_, row.collective,
                            row.type, size_text(row.bytes)));
}

void Report::memory(const std::vector<MemoryUse>& uses) {
  const std::lock_guard lock(mutex_);
  show_progress("");
  memory_ = uses;
  constexpr double kMiB = 1 << 20;
  print("#\n");
  for (size_t i = 0; i < uses.size(); ++i)
    print("# Device memory of {}: {:.1f} MiB after init, {:.1f} MiB after the run\n",
          i == 0 ? start_.library.path : start_.other->path,
          static_cast<double>(uses[i].after_init_bytes) / kMiB,
          static_cast<double>(uses[i].after_run_bytes) / kMiB);
}

void Report::failure(const std::string& message) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(is_closed_, true)) return;
  show_progress("");
  failure_ = message;
  std::fflush(stdout);
  fmt::print(stderr, "niccolite perf: {}\n", message);
  if (Status status = write(); !status.is_ok())
    fmt::print(stderr, "niccolite perf: {}\n", status.message());
}

int Report::finish() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(is_closed_, true)) return grammar::kExitFailed;
  show_progress("");
  const Totals totals = totals_of(rows_);
  print("# Out of bounds values : {} {}\n# Avg bus bandwidth    : {:g}\n#\n", totals.wrong,
        options_.check_iterations == 0 ? "(not checked)"
        : totals.wrong                 ? "FAILED"
                                       : "OK",
        totals.average_bus_bandwidth);
  if (totals.other_wrong > 0)
    print("# The library named by --vs got {} elements wrong; its times mean little\n#\n",
          totals.other_wrong);
  std::fflush(stdout);
  if (Status status = write(); !status.is_ok()) {
    fmt::print(stderr, "niccolite perf: {}\n", status.message());
    return grammar::kExitFailed;
  }
  return totals.wrong ? grammar::kExitWrong : grammar::kExitFine;
}

Status Report::write() const {
  return write_files({.options = options_,
                      .command = command_,
                      .start = start_,
                      .rows = rows_,
                      .memory = memory_,
                      .failure = failure_});
}

}  // namespace niccolite::perf
