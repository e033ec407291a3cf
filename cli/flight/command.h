// The subcommands `niccolite inspect` and `niccolite trace`, which explain the flight recorder's
// dumps.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace niccolite::flight {

/// The values of the flags; must live as long as the app parses.
struct InspectOptions {
  std::string path;
  std::string svg;  // empty: no picture
  double seconds = 10;
  bool wants_json = false;
};
struct TraceOptions {
  std::string path;
  std::string output = "trace.json";
  bool wants_json = false;
};

/// Gives `app` (the subcommand) its flags.
void add_options(CLI::App& app, InspectOptions& options);
void add_options(CLI::App& app, TraceOptions& options);

/// Runs the subcommand with its flags. Returns the exit status.
int run(const InspectOptions& options);
int run(const TraceOptions& options);

}  // namespace niccolite::flight
