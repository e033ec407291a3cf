// The command `niccolite`. Each subcommand has a folder or file of its own and adds itself here.
#include <fmt/core.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "cli/explain/command.h"
#include "cli/flight/command.h"
#include "cli/nearest.h"
#include "cli/perf/exit_code.h"
#include "cli/perf/perf.h"
#include "cli/ras/command.h"
#include "cli/schedule/command.h"
#include "cli/topology/command.h"
#include "cli/tune/command.h"
#include "cli/version.h"
#include "cli/which/command.h"

namespace {

std::vector<std::string> subcommands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* each : app.get_subcommands({})) names.push_back(each->get_name());
  return names;
}

/// Names the subcommand that was meant, where `word` is none.
int refuse(const std::string& word, const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  const std::string meant = niccolite::nearest(word, names);
  fmt::print(stderr, "niccolite: \"{}\" is no subcommand{}; there are {}\n", word,
             meant.empty() ? "" : fmt::format(", did you mean {}?", meant), all);
  return niccolite::perf::kExitUsage;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> command(argv, argv + argc);
  CLI::App app("Niccolite: collective communication for GPUs", "niccolite");
  app.require_subcommand(1);
  app.set_version_flag("--version", niccolite::version_of_command());
  app.get_formatter()->column_width(36);
  // As in nccl-tests: a script's options come first, and its caller's overrule them.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);

  niccolite::perf::RawOptions perf_options;
  CLI::App* perf = app.add_subcommand("perf", "Measure and verify a collective operation");
  niccolite::perf::add_options(*perf, perf_options);

  niccolite::schedule_command::Options schedule_options;
  CLI::App* schedule =
      app.add_subcommand("schedule", "Print, draw and prove what an algorithm makes ranks do");
  niccolite::schedule_command::add_options(*schedule, schedule_options);

  niccolite::explain_command::Options explain_options;
  CLI::App* explain = app.add_subcommand(
      "explain", "Tell what carries out an operation, and why nothing else does");
  niccolite::explain_command::add_options(*explain, explain_options);

  niccolite::tune::Options tune_options;
  CLI::App* tune =
      app.add_subcommand("tune", "Measure a machine and fit the constants of the cost model to it");
  niccolite::tune::add_options(*tune, tune_options);

  niccolite::flight::InspectOptions inspect_options;
  CLI::App* inspect = app.add_subcommand(
      "inspect", "Tell from the flight recorder's dumps who it is that ranks wait for");
  niccolite::flight::add_options(*inspect, inspect_options);

  niccolite::flight::TraceOptions trace_options;
  CLI::App* trace =
      app.add_subcommand("trace", "Make a trace for Perfetto of the flight recorder's dumps");
  niccolite::flight::add_options(*trace, trace_options);

  niccolite::ras_command::Options ras_options;
  CLI::App* ras = app.add_subcommand("ras", "Ask a running job what its ranks are doing");
  niccolite::ras_command::add_options(*ras, ras_options);

  niccolite::topology_command::Options topology_options;
  CLI::App* topology = app.add_subcommand(
      "topology", "Print or draw what a machine is made of, and how far its parts are apart");
  niccolite::topology_command::add_options(*topology, topology_options);

  niccolite::which::Options which_options;
  CLI::App* which = app.add_subcommand("which", "Tell which libnccl a program would load");
  niccolite::which::add_options(*which, which_options);

  niccolite::VersionOptions version_options;
  CLI::App* version =
      app.add_subcommand("version", "Print the versions of the command and of its library");
  version->add_option("--lib", version_options.library,
                      "Library to ask (default: ../lib/libnccl.so.2)");

  const std::vector<std::string> names = subcommands_of(app);
  if (argc > 1 && command[1][0] != '-' && std::ranges::count(names, command[1]) == 0)
    return refuse(command[1], names);
  // What follows "--" is for the program of `which`, even what looks like our flags.
  const auto dashes = std::find(command.begin(), command.end(), "--");
  const bool is_cut = argc > 1 && command[1] == which->get_name() && dashes != command.end();
  try {
    app.parse(is_cut ? static_cast<int>(dashes - command.begin()) : argc, argv);
  } catch (const CLI::ParseError& error) {
    // 0 for --help and --version; all wrong usage is one exit status.
    using namespace niccolite::perf;
    return app.exit(error) == 0 ? kExitFine : kExitUsage;
  }
  if (perf->parsed()) return niccolite::perf::run(perf_options, command);
  if (schedule->parsed()) return niccolite::schedule_command::run(schedule_options);
  if (explain->parsed()) return niccolite::explain_command::run(explain_options);
  if (tune->parsed()) return niccolite::tune::run(tune_options);
  if (inspect->parsed()) return niccolite::flight::run(inspect_options);
  if (ras->parsed()) return niccolite::ras_command::run(ras_options);
  if (topology->parsed()) return niccolite::topology_command::run(topology_options);
  if (trace->parsed()) return niccolite::flight::run(trace_options);
  if (which->parsed())
    return niccolite::which::run(
        which_options, is_cut ? std::vector(dashes + 1, command.end()) : which->remaining());
  if (version->parsed()) return niccolite::print_version(version_options);
  return niccolite::perf::kExitUsage;
}
