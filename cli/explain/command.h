// The subcommand `niccolite explain`: the algorithm and protocol of an operation, the alternatives,
// and why they are not taken.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace niccolite::explain_command {

/// The values of the flags; must live as long as the app parses.
struct Options {
  std::string collective;
  std::string bytes = "1M";
  std::string type = "float";
  std::string machine;   // empty: this one
  std::string machines;  // how many ranks each has: "2x4", "3,1"; empty: not told
  std::string topology;  // a topology file with ranks, machines and rings; empty: none
  std::string gpu;       // empty: this machine's, or any
  int ranks = 0;         // 0: as many as this machine has GPUs
  bool wants_json = false;
};

/// The kinds of machines that --machine takes.
std::vector<std::string> names_of_machines();

/// Gives `app` (the subcommand) its flags.
void add_options(CLI::App& app, Options& options);

/// Runs the subcommand with its flags. Returns the exit status.
int run(const Options& options);

}  // namespace niccolite::explain_command
