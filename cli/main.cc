// The command `niccolite`. Each subcommand has a folder or file of its own and adds itself here.
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "cli/perf/perf.h"
#include "cli/schedule/command.h"
#include "cli/tune/command.h"
#include "cli/version.h"

int main(int argc, char** argv) {
  const std::vector<std::string> command(argv, argv + argc);
  CLI::App app("Niccolite: collective communication for GPUs", "niccolite");
  app.require_subcommand(1);
  app.get_formatter()->column_width(36);

  niccolite::perf::RawOptions perf_options;
  CLI::App* perf = app.add_subcommand("perf", "Measure and verify a collective operation");
  niccolite::perf::add_options(*perf, perf_options);

  niccolite::schedule_command::Options schedule_options;
  CLI::App* schedule =
      app.add_subcommand("schedule", "Print, draw and prove what an algorithm makes ranks do");
  niccolite::schedule_command::add_options(*schedule, schedule_options);

  niccolite::tune::Options tune_options;
  CLI::App* tune =
      app.add_subcommand("tune", "Measure a machine and fit the constants of the cost model to it");
  niccolite::tune::add_options(*tune, tune_options);

  niccolite::VersionOptions version_options;
  CLI::App* version =
      app.add_subcommand("version", "Print the versions of the command and of its library");
  version->add_option("--lib", version_options.library,
                      "Library to ask (default: ../lib/libnccl.so.2)");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // 0 for --help; all wrong usage is one exit status.
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (perf->parsed()) return niccolite::perf::run(perf_options, command);
  if (schedule->parsed()) return niccolite::schedule_command::run(schedule_options);
  if (tune->parsed()) return niccolite::tune::run(tune_options);
  if (version->parsed()) return niccolite::print_version(version_options);
  return 2;
}
