#include "cli/perf/report.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/perf/row_json.h"
#include "cli/perf/sweep.h"

namespace niccolite::perf {
namespace {

using nlohmann::json;

constexpr int kMostRanksListed = 64;

std::string first_line_with(const char* file, const std::string& key) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);)
    if (line.starts_with(key)) {
      const size_t colon = line.find(": ");
      return colon == std::string::npos ? line : line.substr(colon + 2);
    }
  return "";
}

json describe_machine(const Start& start) {
  utsname names = {};
  uname(&names);
  json gpus = json::object();
  for (const Participant& each : start.participants) {
    json& count = gpus[each.device_name];
    count = count.is_null() ? 1 : count.get<int>() + 1;
  }
  return {{"cpu", first_line_with("/proc/cpuinfo", "model name")},
          {"cpus", std::thread::hardware_concurrency()},
          {"system", std::string(names.sysname) + " " + names.release + " " + names.machine},
          {"virtual", start.is_virtual},
          {"ranks_on", gpus},
          {"cuda_driver_api", start.driver_version},
          {"nvidia_driver", first_line_with("/proc/driver/nvidia/version", "NVRM version")}};
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

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

uint64_t wrong_in(const std::optional<PlaceResult>& place) {
  if (!place) return 0;
  return place->ours.wrong.value_or(0) +
         static_cast<uint64_t>(place->ours.differing_ranks.value_or(0));
}
uint64_t other_wrong_in(const std::optional<PlaceResult>& place) {
  if (!place || !place->other) return 0;
  return place->other->wrong.value_or(0) +
         static_cast<uint64_t>(place->other->differing_ranks.value_or(0));
}

struct Totals {
  uint64_t wrong = 0;
  uint64_t other_wrong = 0;
  double average_bus_bandwidth = 0;
};

Totals totals_of(const std::vector<Row>& rows) {
  Totals totals;
  double bandwidths = 0;
  int places = 0;
  for (const Row& row : rows)
    for (const auto* place : {&row.out_of_place, &row.in_place}) {
      totals.wrong += wrong_in(*place);
      totals.other_wrong += other_wrong_in(*place);
      if (!*place) continue;
      bandwidths += bus_bandwidth(row.bytes, (*place)->ours.microseconds, row.nranks);
      ++places;
    }
  totals.average_bus_bandwidth = places ? bandwidths / places : 0;
  return totals;
}

json options_to_json(const Options& options) {
  constexpr const char* kAverages[] = {"rank0", "avg", "min", "max"};
  return {{"collective", "all_reduce"},
          {"processes", options.processes},
          {"threads", options.threads},
          {"gpus", options.gpus},
          {"nranks", options.nranks()},
          {"iterations", options.iterations},
          {"warmup_iterations", options.warmup_iterations},
          {"aggregated", options.aggregated},
          {"check_iterations", options.check_iterations},
          {"bitwise", options.bitwise},
          {"graph_launches", options.graph_launches},
          {"blocking", options.blocking},
          {"cpu_time", options.report_cpu_time},
          {"average", kAverages[static_cast<int>(options.average)]},
          {"rounds", options.rounds}};
}

}  // namespace

Report::Report(const Options& options, std::vector<std::string> command)
    : options_(options), command_(std::move(command)) {}

Report::~Report() = default;

void Report::start(const Start& start) {
  const std::lock_guard lock(mutex_);
  start_ = start;
  fmt::print(
      "# nProcesses {} nThread {} nGpus {} minBytes {} maxBytes {} step: {} warmup iters: {} "
      "iters: {} "
      "agg iters: {} validation: {} graph: {}\n#\n# Using devices\n",
      options_.processes, options_.threads, options_.gpus, options_.min_bytes, options_.max_bytes,
      options_.step_bytes > 0 ? fmt::format("{}(bytes)", options_.step_bytes)
                              : fmt::format("{}(factor)", options_.step_factor),
      options_.warmup_iterations, options_.iterations, options_.aggregated,
      options_.check_iterations, options_.graph_launches);
  for (const Participant& each : start.participants) {
    if (each.rank == kMostRanksListed) {
      fmt::print("#  and {} more ranks\n", start.participants.size() - kMostRanksListed);
      break;
    }
    fmt::print("#  Rank {:>3} Pid {:>7} device {:>3} [{}] {}\n", each.rank, each.process_id,
               each.device, each.bus_id, each.device_name);
  }
  fmt::print("# Library {} version {}\n", start.library.path, start.library.version);
  if (start.other)
    fmt::print("# vs      {} version {}; ratio = its time / ours, medians of {} rounds in turn\n",
               start.other->path, start.other->version, options_.rounds);
  print_heads();
}

void Report::print_heads() {
  const bool has_other = start_.other.has_value();
  const int width = has_other ? 50 : 32;
  const std::string other_names = has_other ? fmt::format(" {:>9} {:>7}", "vs time", "ratio") : "";
  const std::string other_units = has_other ? fmt::format(" {:>9} {:>7}", "(us)", "") : "";
  const std::string names =
      fmt::format(" {:>8} {:>7} {:>7} {:>6}{}", "time", "algbw", "busbw", "#wrong", other_names);
  const std::string units =
      fmt::format(" {:>8} {:>7} {:>7} {:>6}{}", "(us)", "(GB/s)", "(GB/s)", "", other_units);
  fmt::print("#\n#{:>56} {:^{}} {:^{}}\n", "", "out-of-place", width, "in-place", width);
  fmt::print("#{:>12} {:>13} {:>9} {:>7} {:>7}    {} {}\n", "size", "count", "type", "redop",
             "root", names, names);
  fmt::print("#{:>12} {:>13} {:>9} {:>7} {:>7}    {} {}\n", "(B)", "(elements)", "", "", "", units,
             units);
  std::fflush(stdout);
}

void Report::print_place(const std::optional<PlaceResult>& place, const Row& row) {
  const bool has_other = start_.other.has_value();
  if (!place) {
    fmt::print("  {:>8} {:>7} {:>7} {:>6}", "N/A", "N/A", "N/A", "N/A");
    if (has_other) fmt::print(" {:>9} {:>7}", "N/A", "N/A");
    return;
  }
  const double time = place->ours.microseconds;
  fmt::print("  {} {:>7.2f} {:>7.2f} {}", format_time(time), algorithm_bandwidth(row.bytes, time),
             bus_bandwidth(row.bytes, time, row.nranks), format_wrong(place->ours));
  if (place->other)
    fmt::print("  {} {:>7.2f}", format_time(place->other->microseconds), ratio(*place));
}

void Report::row(const Row& row) {
  const std::lock_guard lock(mutex_);
  rows_.push_back(row);
  fmt::print(" {:>12} {:>13} {:>9} {:>7} {:>7}   ", row.bytes, row.count, row.type, row.operation,
             -1);
  print_place(row.out_of_place, row);
  print_place(row.in_place, row);
  fmt::print("\n");
  std::fflush(stdout);  // one row at a time, for those who watch
}

void Report::failure(const std::string& message) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(is_closed_, true)) return;
  failure_ = message;
  std::fflush(stdout);
  fmt::print(stderr, "niccolite perf: {}\n", message);
  if (Status status = write_json(); !status.is_ok())
    fmt::print(stderr, "niccolite perf: {}\n", status.message());
}

int Report::finish() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(is_closed_, true)) return kExitFailed;
  const Totals totals = totals_of(rows_);
  fmt::print("# Out of bounds values : {} {}\n# Avg bus bandwidth    : {:g}\n#\n", totals.wrong,
             options_.check_iterations == 0 ? "(not checked)"
             : totals.wrong                 ? "FAILED"
                                            : "OK",
             totals.average_bus_bandwidth);
  if (totals.other_wrong > 0)
    fmt::print("# The library named by --vs got {} elements wrong; its times mean little\n#\n",
               totals.other_wrong);
  std::fflush(stdout);
  if (Status status = write_json(); !status.is_ok()) {
    fmt::print(stderr, "niccolite perf: {}\n", status.message());
    return kExitFailed;
  }
  return totals.wrong ? kExitWrong : kExitFine;
}

Status Report::write_json() {
  if (options_.json_path.empty()) return {};
  const Totals totals = totals_of(rows_);
  json rows = json::array();
  for (const Row& row : rows_) rows.push_back(to_json(row));
  json document = {{"schema", "niccolite-perf-1"},
                   {"date", utc_now()},
                   {"command", command_},
                   {"machine", describe_machine(start_)},
                   {"run", to_json(start_)},
                   {"options", options_to_json(options_)},
                   {"rows", rows},
                   {"wrong", totals.wrong},
                   {"vs_wrong", totals.other_wrong},
                   {"average_busbw_gbs", totals.average_bus_bandwidth},
                   {"failure", failure_.empty() ? json() : json(failure_)}};
  // Written beside and renamed: a reader never sees half a file.
  const std::string temporary = options_.json_path + ".partial";
  {
    std::ofstream stream(temporary);
    stream << document.dump(1) << '\n';
    stream.close();
    if (!stream) return Status::from_errno(errno, "cannot write " + temporary);
  }
  if (std::rename(temporary.c_str(), options_.json_path.c_str()) != 0)
    return Status::from_errno(errno, "cannot rename " + temporary);
  return {};
}

}  // namespace niccolite::perf
