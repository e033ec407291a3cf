// The subcommand `niccolite tune`: measures a machine, fits the constants of the cost model to it,
// and checks the choices of the model.
#pragma once

#include <string>
#include <vector>

#include "cli/tune/points.h"

namespace CLI {
class App;
}

namespace niccolite::tune {

/// The values of the flags; must live as long as the app parses.
struct Options {
  std::string ranks;  // empty: every GPU
  std::string collectives = "all";
  std::string sizes;  // these, or
  std::string min_bytes = "8", max_bytes;
  double step_factor = 4;
  std::string channels;   // empty: a few up to the default's most
  std::string protocols;  // empty: all
  std::vector<std::string> from;
  bool only_checks = false;
  bool is_derived = false;
  bool wants_json = false;
  std::string checked_path;  // empty: the constants in force
  DataPath path = DataPath::Best;
  double limit_seconds = 0;
  std::string library;
  std::string json_path;
  std::string tuning_path;
};

/// Gives `app` (the subcommand) its flags.
void add_options(CLI::App& app, Options& options);

/// Runs the subcommand with its flags. Returns the exit status.
int run(const Options& options);

}  // namespace niccolite::tune
