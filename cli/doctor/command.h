// The subcommand `niccolite doctor`: looks at a machine before its first job.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace niccolite::doctor {

/// The values of the flags; must live as long as the app parses.
struct Options {
  std::string root = "/";
  bool wants_json = false;
};

/// Gives `app` (the subcommand) its flags.
void add_options(CLI::App& app, Options& options);

/// Prints the findings. Returns the exit status.
int run(const Options& options);

}  // namespace niccolite::doctor
