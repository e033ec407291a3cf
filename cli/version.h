// The subcommand `niccolite version`.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace niccolite {

struct VersionOptions {
  std::string library;  // empty: the one beside the command
  bool wants_json = false;
};

/// Gives `app` (the subcommand) its flags.
void add_options(CLI::App& app, VersionOptions& options);

/// "niccolite 0.4.0 (NCCL 2.30.7)": Niccolite's version, and the version of NCCL's API.
std::string version_of_command();

/// Prints the command's version and the library's. Returns the exit status: 3 when the library
/// cannot be loaded.
int print_version(const VersionOptions& options);

}  // namespace niccolite
