// The subcommand `niccolite topology`: the parts of a machine and the distances between them.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace niccolite::topology_command {

/// The values of the flags; must live as long as the app parses.
struct Options {
  std::string from;  // a topology file; empty: this machine
  std::string svg;   // files to write; "-": standard output
  std::string xml;
  bool wants_json = false;
};

/// Gives `app` (the subcommand) its flags.
void add_options(CLI::App& app, Options& options);

/// Runs the subcommand with its flags. Returns the exit status.
int run(const Options& options);

}  // namespace niccolite::topology_command
