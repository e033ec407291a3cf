// The subcommand `niccolite ras`: asks a running job for the state of its ranks.
#pragma once

#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace niccolite::ras_command {

/// The values of the flags; must live as long as the app parses.
struct Options {
  std::string host = "localhost";
  int port = 28028;
  std::optional<int> timeout;  // seconds
  bool is_verbose = false;
  bool wants_json = false;
  bool monitors = false;
};

/// Gives `app` (the subcommand) its flags.
void add_options(CLI::App& app, Options& options);

/// Runs the subcommand with its flags. Returns the exit status.
int run(const Options& options);

}  // namespace niccolite::ras_command
