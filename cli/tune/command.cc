#include "cli/tune/command.h"

#include <fmt/core.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/grammar/collective.h"
#include "cli/grammar/exit_code.h"
#include "cli/grammar/file.h"
#include "cli/grammar/names.h"
#include "cli/grammar/numbers.h"
#include "cli/grammar/options.h"
#include "cli/perf/options.h"
#include "cli/tune/calibrate.h"
#include "cli/tune/check.h"
#include "cli/tune/fit_properties.h"
#include "cli/tune/measure.h"
#include "cli/tune/tuning_file.h"
#include "gpu/machine.h"

namespace niccolite::tune {
namespace {

using grammar::kExitFailed;
using grammar::kExitFine;
using grammar::kExitUsage;
using grammar::kExitWrong;
using planner::CostLine;

// Larger than the sizes that decide; 2 GiB of every collective on GPUs take a minute more.
constexpr const char* kMostOnCuda = "1G";
constexpr const char* kMostOnVirtual = "4M";
// Algorithms on sockets differ most at sizes that take milliseconds, and ranks share the cores.
constexpr const char* kMostOnVirtualBySockets = "64M";
constexpr int kRanksOnVirtualBySockets = 2;

constexpr const char* kFooter =
    R"(Runs `niccolite perf` with every algorithm, protocol and several numbers of channels in turn, in graph replays, fits
the constants of the cost model to the times, and checks the model: at every measured point, the variant that it chooses,
the fastest one, and what is lost. --tuning writes the constants to a file, which NICCOLITE_TUNING names from then on.

Examples:
  niccolite tune -J times.json --tuning mine.json              every GPU, every collective
  niccolite tune --ranks 2,4 --collectives all_reduce,all_gather --limit 120
  niccolite tune --from h200_x2.json --from h200_x4.json       fits and checks again without measuring
  niccolite tune --slots -r 4 --tuning mine_slots.json         data through slots, as between processes
  niccolite tune --sockets -r 2,4 --tuning mine_sockets.json   data through the network, as between machines
  niccolite tune --host-memory --tuning mine_host.json         data through host memory, without peer access
  niccolite tune --from times.json --check                     what the constants in force choose
  niccolite tune --from times.json --check mine.json           what those of a file choose
  niccolite tune --from times.json --check --derived           what prices derived from schedules would choose
  niccolite tune --check mine.json                             is the file one that the library takes?
  NICCOLITE_DEVICES=virtual:4 niccolite tune --sizes 8,64K,1M

Constants that predict badly, as those of few sizes do, are not written.

Exit status: 0 fine; 1 poor constants, or --check found a choice that loses more than 5 %; 2 wrong usage, or a file that
the library does not take; 3 nothing could be measured or written.)";

int fail(const Status& status, int exit_code) {
  fmt::print(stderr, "niccolite tune: {}\n", status.message());
  return exit_code;
}

Result<std::vector<executor::Protocol>> parse_protocols(const std::string& list) {
  std::vector<executor::Protocol> result;
  for (const std::string& name : grammar::split_list(list)) {
    const size_t before = result.size();
    for (int id = 0; id < executor::kProtocols; ++id) {
      const auto protocol = static_cast<executor::Protocol>(id);
      if (grammar::letters_of(name) == grammar::letters_of(executor::name_of(protocol)))
        result.push_back(protocol);
    }
    if (result.size() == before)
      return grammar::unknown_name("--protocols", name, {"LL", "LL128", "Simple"});
  }
  return result;
}

Result<std::vector<size_t>> parse_sizes(const Options& options, gpu::Kind machine) {
  perf::Options sizes;
  if (!options.sizes.empty()) {
    sizes.sizes = TRY(grammar::parse_sizes("--sizes", options.sizes));
    std::sort(sizes.sizes.begin(), sizes.sizes.end());
    return sizes.sizes;
  }
  const std::string most = !options.max_bytes.empty()          ? options.max_bytes
                           : machine == gpu::Kind::Cuda        ? kMostOnCuda
                           : options.path == DataPath::Network ? kMostOnVirtualBySockets
                                                               : kMostOnVirtual;
  sizes.min_bytes = TRY(grammar::parse_size("--minbytes", options.min_bytes));
  sizes.max_bytes = TRY(grammar::parse_size("--maxbytes", most));
  sizes.step_factor = options.step_factor;
  if (!(options.step_factor > 1))
    return Status::invalid_argument("--stepfactor: {} does not grow", options.step_factor);
  if (sizes.min_bytes > sizes.max_bytes)
    return Status::invalid_argument("--minbytes {} is more than --maxbytes {}", sizes.min_bytes,
                                    sizes.max_bytes);
  return sizes_of(sizes);
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

/// From the flags and this machine.
Result<std::vector<Job>> jobs_of(const Options& options, Measurements& measurements) {
  gpu::Machine* const machine = TRY(gpu::machine());
  Request request;
  const int gpus = machine->device_count();
  const bool is_virtual = machine->kind() == gpu::Kind::Virtual;
  const int all = options.path == DataPath::Network && is_virtual
                      ? std::min(gpus, kRanksOnVirtualBySockets)
                      : gpus;
  const std::string ranks = options.ranks.empty() ? std::to_string(all) : options.ranks;
  request.ranks = TRY(grammar::parse_numbers("--ranks", ranks, 1, gpus));
  request.collectives = TRY(grammar::parse_collectives("--collectives", options.collectives));
  request.path = options.path;
  request.sizes = TRY(parse_sizes(options, machine->kind()));
  if (!options.channels.empty())
    request.channels = TRY(grammar::parse_numbers("--channels", options.channels, 1, 64));
  if (!options.protocols.empty()) request.protocols = TRY(parse_protocols(options.protocols));
  if (std::count(request.ranks.begin(), request.ranks.end(), 1) > 0)
    return Status::invalid_argument("--ranks: 1 rank has no choice of variants");
  measurements.machine = machine->kind();
  measurements.path = options.path;
  measurements.date = utc_now();
  std::vector<Job> jobs = TRY(make_jobs(machine->kind(), request));
  if (jobs.empty()) return Status::invalid_argument("no variant is for any of these sizes");
  return jobs;
}

/// Returns the reason why constants fitted to these measurements are poor. Empty if they are good.
std::string complaint_about(const Measurements& measurements,
                            std::span<const CheckedPoint> points) {
  const Summary summary = summarise(points);
  const Coverage coverage = coverage_of(measurements);
  if (coverage.fitted > 0 && !summary.is_poor()) return {};
  const std::string error =
      summary.points == 0
          ? "nothing shows how good they are"
          : fmt::format("predictions are off by {:.1f} % in the median of {} points (good: {:.0f})",
                        100 * summary.median_error, summary.points, 100 * kMostMedianError);
  return fmt::format(
      "the constants are poor and left out: {}; {} of {} measured variants have the {} points that "
      "a fit takes. Measure more sizes (the default is a good choice) on a quiet machine",
      error, coverage.fitted, coverage.measured, kFewestPoints);
}

void print_checks(const Options& options, const Measurements& measurements,
                  std::span<const CheckedPoint> points, const Candidate& is_candidate) {
  if (options.wants_json)
    fmt::print("{}\n", json_of(points).dump(1));
  else
    fmt::print("{}{}", describe(check_own(measurements, is_candidate)), describe(points));
  std::fflush(stdout);
  for (const std::string& failure : measurements.failures)
    fmt::print(stderr, "not measured: {}\n", failure);
}

int check_known(const Options& options, const Measurements& measurements,
                const planner::Tuning& tuning) {
  const Candidate is_candidate = within_slots(measurements, tuning);
  const Predictor predict = options.is_derived ? by_properties(measurements, tuning.properties)
                                               : by_lines(measurements.machine, tuning.costs());
  const std::vector<CheckedPoint> points = check(measurements, predict, is_candidate);
  print_checks(options, measurements, points, is_candidate);
  const Summary summary = summarise(points);
  return summary.right < summary.points ? kExitWrong : kExitFine;
}

/// Fits constants, and writes them if they are good.
int make_constants(const Options& options, const Measurements& measurements) {
  const planner::Tuning& known = tuning_in_force(measurements);
  const Candidate is_candidate = within_slots(measurements, known);
  const std::vector<CostLine> lines = calibrate(measurements, known, is_candidate);
  const std::vector<CheckedPoint> points =
      check(measurements, by_lines(measurements.machine, lines), is_candidate);
  const std::string complaint = complaint_about(measurements, points);
  print_checks(options, measurements, points, is_candidate);
  planner::Tuning tuning = tuning_from(measurements, known, lines);
  tuning.properties = fit_properties(measurements, known.properties, is_candidate);
  const Summary derived =
      summarise(check(measurements, by_properties(measurements, tuning.properties), is_candidate));
  if (!options.wants_json)
    fmt::print("derived prices: median error {:.1f} %; within 5 %: {} of {} points\n",
               100 * derived.median_error, derived.right, derived.points);
  if (!complaint.empty()) {
    fmt::print(stderr, "niccolite tune: {}\n", complaint);
    return kExitWrong;
  }
  if (options.tuning_path.empty()) return kExitFine;
  const Status status = grammar::write_text(options.tuning_path, text_of(tuning));
  return status.is_ok() ? kExitFine : fail(status, kExitFailed);
}

/// Prints the purpose of a file that the library takes.
int describe(const planner::Tuning& tuning, bool wants_json) {
  size_t missing = 0;
  for (const Form& form : planner::forms())
    for (int p = 0; p < executor::kProtocols; ++p)
      missing += tuning.find(form, static_cast<executor::Protocol>(p)) == nullptr ? 1 : 0;
  if (wants_json) {
    const nlohmann::json document{
        {"file", tuning.origin}, {"class", name_of(tuning.machine)},  {"gpu", tuning.gpu},
        {"about", tuning.about}, {"measured", tuning.costs().size()}, {"derived", missing}};
    fmt::print("{}\n", document.dump(1));
    return kExitFine;
  }
  fmt::print("{}: class {}, {}, {} variants measured, {} derived from their schedules\n{}\n",
             tuning.origin, name_of(tuning.machine),
             tuning.gpu.empty() ? "any GPU" : "GPUs " + tuning.gpu + "*", tuning.costs().size(),
             missing, tuning.about);
  return kExitFine;
}

}  // namespace

void add_options(CLI::App& app, Options& options) {
  using namespace grammar;
  app.footer(kFooter);
  app.add_option("-r,--ranks", options.ranks,
                 "Numbers of ranks, a GPU each (default: every GPU; two virtual ones with "
                 "--sockets)")
      ->type_name(kNumberList);
  app.add_option("-c,--collectives", options.collectives, "What to measure, or all")
      ->type_name(kCollectiveList)
      ->capture_default_str();
  add(app, kMinBytes, options.min_bytes, "-b")->capture_default_str();
  add(app, kMaxBytes, options.max_bytes, "-e",
      " (default 1G; on virtual 4M, or 64M with --sockets)");
  add(app, kStepFactor, options.step_factor, "-f")->capture_default_str();
  add(app, kSizes, options.sizes);
  app.add_option("--channels", options.channels,
                 "Numbers of channels (default: the most that the library takes, half, a sixth)")
      ->type_name(kNumberList);
  app.add_option("--protocols", options.protocols, "Protocols (default: all that the machine has)")
      ->type_name("LL,LL128,Simple");
  const auto add_path = [&](const char* flag, DataPath path, const char* about) {
    return app.add_flag_callback(
        flag, [&options, path] { options.path = path; }, about);
  };
  add_path("--slots", DataPath::Slots,
           "Measure ranks of several processes: no data from user's buffer to user's buffer");
  add_path("--sockets", DataPath::Network,
           "Measure the network between machines: all data go through it, within this one")
      ->excludes("--slots");
  add_path("--host-memory", DataPath::HostMemory,
           "Measure host memory between GPUs that have no peer access")
      ->excludes("--slots")
      ->excludes("--sockets");
  app.add_option("--limit", options.limit_seconds, "Begin no further run after this time")
      ->type_name(kSeconds);
  add(app, kLibrary, options.library);
  app.add_option("--from", options.from,
                 "Measure nothing: read a file that --output has written; may be repeated")
      ->type_name(kFile);
  // A function: of a flag without a file CLI11 neither sets a variable nor calls each().
  app.add_option_function<std::string>(
         "--check",
         [&options](const std::string& path) {
           options.only_checks = true;
           options.checked_path = path;
         },
         "Check the constants in force, or those of this file, instead of new ones; a file alone, "
         "without --from, is only read")
      ->expected(0, 1)
      ->type_name(kFile);
  app.add_flag("--derived", options.is_derived,
               "With --check: prices derived from schedules, as if no algorithm had been measured");
  add(app, kOutputFile, options.json_path, "-J,--output_file", ": the measurements");
  app.add_option("--tuning", options.tuning_path,
                 "Write the constants into this file, for NICCOLITE_TUNING")
      ->type_name(kFile);
  add_flag(app, kJsonFlag, options.wants_json, ": the checked points, instead of text");
}

int run(const Options& options) {
  Measurements measurements;
  if (options.limit_seconds < 0)
    return fail(Status::invalid_argument("--limit: {} is negative", options.limit_seconds),
                kExitUsage);
  for (const std::string& path : {options.json_path, options.tuning_path})
    if (!path.empty())
      if (const Status status = grammar::check_writable(path); !status.is_ok())
        return fail(status, kExitFailed);
  std::optional<planner::Tuning> file;
  if (!options.checked_path.empty()) {
    Result<planner::Tuning> read_file = read_tuning(options.checked_path);
    if (!read_file.is_ok()) return fail(read_file.status(), kExitUsage);
    file = std::move(read_file).take();
    if (options.from.empty()) return describe(*file, options.wants_json);
  }
  if (options.from.empty()) {
    Result<std::vector<Job>> jobs = jobs_of(options, measurements);
    if (!jobs.is_ok()) return fail(jobs.status(), kExitUsage);
    const Run how{.library = options.library,
                  .limit_seconds = options.limit_seconds,
                  .json_path = options.json_path};
    if (const Status status = measure(std::move(*jobs), how, measurements); !status.is_ok())
      return fail(status, kExitFailed);
  }
  for (const std::string& path : options.from)
    if (const Status status = read(path, measurements); !status.is_ok())
      return fail(status, kExitUsage);
  if (measurements.is_empty())
    return fail(Status::invalid_usage("there are no measurements in these files"), kExitUsage);

  if (!options.json_path.empty())
    if (const Status status = grammar::write_json(options.json_path, to_json(measurements));
        !status.is_ok())
      return fail(status, kExitFailed);
  if (!options.only_checks) return make_constants(options, measurements);
  if (!file) return check_known(options, measurements, tuning_in_force(measurements));
  if (file->machine != measurements.machine_class())
    return fail(Status::invalid_usage("{} is for class {}, the measurements are of {}",
                                      options.checked_path, name_of(file->machine),
                                      name_of(measurements.machine_class())),
                kExitUsage);
  return check_known(options, measurements, *file);
}

}  // namespace niccolite::tune
