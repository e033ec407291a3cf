// The command `niccolite`. Each subcommand has a folder or file of its own and adds itself here.
#include <fmt/core.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "cli/doctor/command.h"
#include "cli/explain/command.h"
#include "cli/flight/command.h"
#include "cli/grammar/completion.h"
#include "cli/grammar/exit_code.h"
#include "cli/grammar/names.h"
#include "cli/grammar/options.h"
#include "cli/perf/perf.h"
#include "cli/ras/command.h"
#include "cli/schedule/command.h"
#include "cli/topology/command.h"
#include "cli/tune/command.h"
#include "cli/version.h"
#include "cli/which/command.h"
#include "planner/form.h"

namespace niccolite {
namespace {

constexpr const char* kFooter =
    R"(Every subcommand has --help with examples, and --json. Names of collectives are the same everywhere, in any spelling: all_reduce,
all-reduce, AllReduce, ncclAllReduce. Sizes are bytes, or have K, M or G (powers of 1024). A file named - is standard output.

Exit status: 0 done; 1 done, and the answer is bad (wrong results, a standstill, poor constants); 2 wrong usage; 3 it could not be done.)";

/// Names the subcommand that was meant by a word that is none.
int refuse(const std::string& word, const CLI::App& app) {
  std::vector<std::string> names;
  std::string all;
  for (const CLI::App* each : app.get_subcommands({})) {
    names.push_back(each->get_name());
    all += (all.empty() ? "" : ", ") + each->get_name();
  }
  const std::string meant = grammar::nearest(word, names);
  fmt::print(stderr, "niccolite: \"{}\" is no subcommand{}; there are {}\n", word,
             meant.empty() ? "" : fmt::format(", did you mean {}?", meant), all);
  return grammar::kExitUsage;
}

bool is_subcommand(const std::string& word, const CLI::App& app) {
  return std::ranges::any_of(app.get_subcommands({}),
                             [&](const CLI::App* each) { return each->get_name() == word; });
}

grammar::Words words_of_values() {
  grammar::Words words;
  std::vector<std::string>& collectives = words[grammar::kCollective];
  for (const perf::Collective& each : perf::collectives()) collectives.emplace_back(each.name);
  words[grammar::kCollectiveList] = collectives;
  words[grammar::kCollectiveList].emplace_back("all");
  std::vector<std::string>& types = words[grammar::kType];
  for (const perf::ElementType& each : perf::element_types()) types.emplace_back(each.name);
  words[grammar::kTypeList] = types;
  for (const perf::Operation& each : perf::operations())
    words["OPERATION,..."].emplace_back(each.name);
  for (const planner::Form& each : planner::forms()) {
    std::vector<std::string>& names = words["ALGORITHM"];
    if (std::ranges::count(names, each.name) == 0) names.emplace_back(each.name);
  }
  words["LL,LL128,Simple"] = {"LL", "LL128", "Simple"};
  words["SHELL"] = {"bash", "zsh", "fish"};
  words["ALLOCATOR"] = perf::names_of_allocators();
  words["KIND"] = explain_command::names_of_machines();
  return words;
}

int print_completion(const std::string& shell, const CLI::App& app) {
  const Result<std::string> script = grammar::completion_for(shell, app, words_of_values());
  if (!script.is_ok()) {
    fmt::print(stderr, "niccolite: {}\n", script.status().message());
    return grammar::kExitUsage;
  }
  fmt::print("{}", script.value());
  return grammar::kExitFine;
}

int run(const std::vector<std::string>& command) {
  CLI::App app("Niccolite: collective communication for GPUs", "niccolite");
  app.require_subcommand(1);
  app.set_version_flag("--version", version_of_command());
  app.get_formatter()->column_width(36);
  app.footer(kFooter);
  std::string shell;
  app.add_option("--completion", shell, "Print a script for this shell that completes commands")
      ->type_name("SHELL");
  // As in nccl-tests: a script's options come first, and its caller's overrule them.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);

  perf::RawOptions perf_options;
  CLI::App* perf = app.add_subcommand("perf", "Measure and verify a collective operation");
  perf::add_options(*perf, perf_options);

  schedule_command::Options schedule_options;
  CLI::App* schedule =
      app.add_subcommand("schedule", "Print, draw and prove what an algorithm makes ranks do");
  schedule_command::add_options(*schedule, schedule_options);

  explain_command::Options explain_options;
  CLI::App* explain = app.add_subcommand(
      "explain", "Tell what carries out an operation, and why nothing else does");
  explain_command::add_options(*explain, explain_options);

  tune::Options tune_options;
  CLI::App* tune =
      app.add_subcommand("tune", "Measure a machine and fit the constants of the cost model to it");
  tune::add_options(*tune, tune_options);

  flight::InspectOptions inspect_options;
  CLI::App* inspect = app.add_subcommand(
      "inspect", "Tell from the flight recorder's dumps which rank the others wait for");
  flight::add_options(*inspect, inspect_options);

  flight::TraceOptions trace_options;
  CLI::App* trace =
      app.add_subcommand("trace", "Make a trace for Perfetto of the flight recorder's dumps");
  flight::add_options(*trace, trace_options);

  ras_command::Options ras_options;
  CLI::App* ras = app.add_subcommand("ras", "Ask a running job what its ranks are doing");
  ras_command::add_options(*ras, ras_options);

  topology_command::Options topology_options;
  CLI::App* topology = app.add_subcommand(
      "topology", "Print or draw the parts of a machine and the distances between them");
  topology_command::add_options(*topology, topology_options);

  doctor::Options doctor_options;
  CLI::App* examine =
      app.add_subcommand("doctor", "Look at a machine before its first job, and name remedies");
  doctor::add_options(*examine, doctor_options);

  which::Options which_options;
  CLI::App* which = app.add_subcommand("which", "Tell which libnccl a program would load");
  which::add_options(*which, which_options);

  VersionOptions version_options;
  CLI::App* version =
      app.add_subcommand("version", "Print the versions of the command and of its library");
  add_options(*version, version_options);

  if (command.size() == 1) {
    fmt::print(stderr, "{}", app.help());
    return grammar::kExitUsage;
  }
  if (command[1][0] != '-' && !is_subcommand(command[1], app)) return refuse(command[1], app);
  const bool is_which = command[1] == which->get_name();
  // Words behind "--" are the program of `which`, even words that look like our flags.
  const auto dashes = std::find(command.begin(), command.end(), "--");
  const bool is_cut = is_which && dashes != command.end();
  std::vector<std::string> words(command.begin() + 1, is_cut ? dashes : command.end());
  // Without "--" the flags of the program cannot be told from ours.
  if (is_cut || !is_which) words = grammar::spell_options(app, std::move(words));
  std::ranges::reverse(words);  // CLI11 takes them from the end
  try {
    app.parse(std::move(words));
  } catch (const CLI::Success& request) {  // --help and --version
    return app.exit(request);
  } catch (const CLI::ParseError& error) {
    if (!shell.empty() && app.get_subcommands().empty()) return print_completion(shell, app);
    fmt::print(stderr, "{}\n", grammar::describe(app, error));
    return grammar::kExitUsage;
  }
  if (perf->parsed()) return perf::run(perf_options, command);
  if (schedule->parsed()) return schedule_command::run(schedule_options);
  if (explain->parsed()) return explain_command::run(explain_options);
  if (tune->parsed()) return tune::run(tune_options);
  if (inspect->parsed()) return flight::run(inspect_options);
  if (ras->parsed()) return ras_command::run(ras_options);
  if (topology->parsed()) return topology_command::run(topology_options);
  if (trace->parsed()) return flight::run(trace_options);
  if (examine->parsed()) return doctor::run(doctor_options);
  if (which->parsed()) {
    std::vector<std::string> program = which->remaining();  // or options that there are not
    if (is_cut && (program.empty() || !program[0].starts_with("-")))
      program.assign(dashes + 1, command.end());
    return which::run(which_options, std::move(program));
  }
  if (version->parsed()) return print_version(version_options);
  return grammar::kExitUsage;
}

}  // namespace
}  // namespace niccolite

int main(int argc, char** argv) { return niccolite::run({argv, argv + argc}); }
