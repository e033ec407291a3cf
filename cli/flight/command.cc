#include "cli/flight/command.h"

#include <fmt/core.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <nlohmann/json.hpp>

#include "cli/flight/inspect.h"
#include "cli/flight/timeline.h"
#include "cli/grammar/exit_code.h"
#include "cli/grammar/file.h"
#include "cli/grammar/options.h"

namespace niccolite::flight {
namespace {

using grammar::kExitFine;
using grammar::kExitUsage;

constexpr const char* kInspectFooter =
    R"(A process that is started with NICCOLITE_DUMP=FOLDER/ writes what its communicators did last when one fails, when an operation
stands still for a second, and on the signal NICCOLITE_DUMP_SIGNAL. Give this command the folder with the files of all processes: it
tells which rank the others wait for, also when that process left no file. The culprit has a star.

Examples:
  NICCOLITE_DUMP=dumps/ torchrun --nproc-per-node 8 train.py
  niccolite inspect dumps/
  niccolite inspect dumps/ --svg last_seconds.svg --seconds 5

Exit status: 0 nothing stands still; 1 something does; 2 wrong usage, or no dump can be read.)";
constexpr const char* kTraceFooter =
    R"(Writes what all ranks did last in the Trace Event Format, for ui.perfetto.dev or chrome://tracing. Times are those of each host's
clock. Only virtual GPUs tell what their streams did.

Example:
  niccolite trace dumps/ -o trace.json

Exit status: 0 fine; 2 wrong usage, or no dump can be read, or the file cannot be written.)";
constexpr int kExitStandsStill = 1;

int fail(const char* command, const std::string& text) {
  fmt::print(stderr, "niccolite {}: {}\n", command, text);
  return kExitUsage;
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
  using namespace grammar;
  app.add_option("dumps", options.path, "Folder with the dumps, or one dump")
      ->type_name(kFile)
      ->required();
  add(app, kSvgFile, options.svg, "", ": the last seconds of the first communicator");
  app.add_option("--seconds", options.seconds,
                 "Longest time that the drawing shows; it begins with the first event")
      ->check(CLI::PositiveNumber)
      ->type_name(kSeconds)
      ->capture_default_str();
  add_flag(app, kJsonFlag, options.wants_json, " instead of text");
  app.footer(kInspectFooter);
}

void add_options(CLI::App& app, TraceOptions& options) {
  using namespace grammar;
  app.add_option("dumps", options.path, "Folder with the dumps, or one dump")
      ->type_name(kFile)
      ->required();
  add(app, kOutputFile, options.output, "-o")->capture_default_str();
  add_flag(app, kJsonFlag, options.wants_json, ": the trace on standard output, in no file");
  app.footer(kTraceFooter);
}

int run(const InspectOptions& options) {
  const Result<Flight> flight = read_flight(options.path);
  if (!flight.is_ok()) return fail("inspect", flight.status().message());
  for (const std::string& problem : flight.value().problems)
    fmt::print(stderr, "niccolite inspect: {}\n", problem);
  const std::vector<Finding> findings = inspect(flight.value());
  const bool draws_to_output = options.svg == grammar::kStandardOutput;
  if (options.wants_json) {
    fmt::print("{}", to_json(findings));
  } else if (!draws_to_output) {
    for (const Finding& finding : findings) fmt::print("{}\n", to_text(finding));
  }
  if (findings.empty()) return kExitFine;
  const Finding& first = findings.front();
  if (!options.svg.empty()) {
    const std::string svg =
        draw(flight.value().communicators.at(first.communicator), first, options.seconds);
    if (const Status status = grammar::write_text(options.svg, svg); !status.is_ok())
      return fail("inspect", status.message());
    if (!options.wants_json && !draws_to_output)
      fmt::print("{} shows the last seconds of communicator {}\n", options.svg, first.communicator);
  }
  return first.verdict.empty() ? kExitFine : kExitStandsStill;
}

int run(const TraceOptions& options) {
  const Result<Flight> flight = read_flight(options.path);
  if (!flight.is_ok()) return fail("trace", flight.status().message());
  for (const std::string& problem : flight.value().problems)
    fmt::print(stderr, "niccolite trace: {}\n", problem);
  const std::string path = options.wants_json ? grammar::kStandardOutput : options.output;
  if (const Status status = grammar::write_text(path, to_trace(flight.value())); !status.is_ok())
    return fail("trace", status.message());
  if (path != grammar::kStandardOutput)
    fmt::print("{}: open it with ui.perfetto.dev or chrome://tracing\n", options.output);
  return kExitFine;
}

}  // namespace niccolite::flight
