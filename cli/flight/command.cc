#include "cli/flight/command.h"

#include <fmt/core.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/flight/inspect.h"
#include "cli/flight/timeline.h"
#include "cli/perf/exit_code.h"

namespace niccolite::flight {
namespace {

using perf::kExitFine;
using perf::kExitUsage;

constexpr const char* kInspectFooter =
    R"(A process that is started with NICCOLITE_DUMP=FOLDER/ writes what its communicators did last when one fails, when an operation
stands still for a second, and on the signal NICCOLITE_DUMP_SIGNAL. Give this command the folder with the files of all processes: it
tells who it is that the others wait for, also when that process left no file. The culprit has a star.

Examples:
  NICCOLITE_DUMP=dumps/ torchrun --nproc-per-node 8 train.py
  niccolite inspect dumps/
  niccolite inspect dumps/ --svg last_seconds.svg --seconds 5

Exit status: 0 nothing stands still; 1 something does; 2 wrong usage, or no dump can be read.)";
constexpr const char* kTraceFooter =
    R"(Writes what all ranks did last in the Trace Event Format, for ui.perfetto.dev or chrome://tracing. Times are those of each host's
clock. What streams did is known of virtual GPUs alone.

Example:
  niccolite trace dumps/ -o trace.json

Exit status: 0 fine; 2 wrong usage, or no dump can be read, or the file cannot be written.)";
constexpr int kExitStandsStill = 1;

int fail(const char* command, const std::string& text) {
  fmt::print(stderr, "niccolite {}: {}\n", command, text);
  return kExitUsage;
}

bool write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  return file.good();
}

std::string to_json(const std::vector<Finding>& findings) {
  nlohmann::json all = nlohmann::json::array();
  for (const Finding& finding : findings) {
    nlohmann::json ranks = nlohmann::json::array();
    for (const RankLine& line : finding.lines)
      ranks.push_back({{"rank", line.rank},
                       {"process", line.process},
                       {"has_dump", line.has_dump},
                       {"collectives", line.collectives},
                       {"does", line.does}});
    all.push_back({{"communicator", finding.communicator},
                   {"nranks", finding.nranks},
                   {"verdict", finding.verdict},
                   {"culprit", finding.culprit},
                   {"ranks", ranks}});
  }
  return all.dump(2) + "\n";
}

}  // namespace

void add_options(CLI::App& app, InspectOptions& options) {
  app.add_option("dumps", options.path, "Folder with the dumps, or one dump")->required();
  app.add_option("--svg", options.svg, "Draw the last seconds of the first communicator here");
  app.add_option("--seconds", options.seconds, "Length of the drawing")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--json", options.wants_json, "Print JSON");
  app.footer(kInspectFooter);
}

void add_options(CLI::App& app, TraceOptions& options) {
  app.add_option("dumps", options.path, "Folder with the dumps, or one dump")->required();
  app.add_option("-o,--output", options.output, "File to write")->capture_default_str();
  app.footer(kTraceFooter);
}

int run(const InspectOptions& options) {
  const Result<Flight> flight = read_flight(options.path);
  if (!flight.is_ok()) return fail("inspect", flight.status().message());
  for (const std::string& problem : flight.value().problems)
    fmt::print(stderr, "niccolite inspect: {}\n", problem);
  const std::vector<Finding> findings = inspect(flight.value());
  if (options.wants_json) {
    fmt::print("{}", to_json(findings));
  } else {
    for (const Finding& finding : findings) fmt::print("{}\n", to_text(finding));
  }
  if (findings.empty()) return kExitFine;
  const Finding& first = findings.front();
  if (!options.svg.empty()) {
    const std::string svg =
        draw(flight.value().communicators.at(first.communicator), first, options.seconds);
    if (!write_file(options.svg, svg)) return fail("inspect", "cannot write " + options.svg);
    fmt::print("{} shows the last {:g} s of communicator {}\n", options.svg, options.seconds,
               first.communicator);
  }
  return first.verdict.empty() ? kExitFine : kExitStandsStill;
}

int run(const TraceOptions& options) {
  const Result<Flight> flight = read_flight(options.path);
  if (!flight.is_ok()) return fail("trace", flight.status().message());
  for (const std::string& problem : flight.value().problems)
    fmt::print(stderr, "niccolite trace: {}\n", problem);
  if (!write_file(options.output, to_trace(flight.value())))
    return fail("trace", "cannot write " + options.output);
  fmt::print("{}: open it with ui.perfetto.dev or chrome://tracing\n", options.output);
  return kExitFine;
}

}  // namespace niccolite::flight
