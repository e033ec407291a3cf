// The subcommand `niccolite which`: tells the libnccl that a program would load.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace niccolite::which {

/// The values of the flags; must live as long as the app parses.
struct Options {
  double wait_seconds = 60;
  bool wants_json = false;
};

/// Gives `app` (the subcommand) its flags. The program and its arguments follow them.
void add_options(CLI::App& app, Options& options);

/// Runs `program` until it loads a libnccl or ends. Returns the exit status.
int run(const Options& options, std::vector<std::string> program);

}  // namespace niccolite::which
