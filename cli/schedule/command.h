// The subcommand `niccolite schedule`: prints, draws and proves the instructions that an algorithm
// gives every rank.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace niccolite::schedule_command {

/// The values of the flags; must live as long as the app parses.
struct Options {
  std::string collective;
  std::string algorithm;  // empty: the registry's first of the collective
  int ranks = 4;
  std::string machines;  // "2x4", "3,1"; empty: all ranks are on one
  int root = 0;
  int depth = 2;         // slots of a FIFO
  std::string messages;  // of point_to_point; empty: everyone to everyone
  std::string svg_path;
  std::string page_path;    // of the page that plays the schedule
  std::string output_path;  // of the schedule as a file
  std::string import_path;  // a file to read instead of building a schedule
  bool wants_proof = false;
  bool wants_lowered = false;
  bool has_team = false;     // the ranks of each machine have a multicast team
  bool has_windows = false;  // which reaches the buffers
  bool is_of_words = false;  // by LL
  bool wants_list = false;
  bool wants_json = false;
};

/// Gives `app` (the subcommand) its flags.
void add_options(CLI::App& app, Options& options);

/// Does what the flags ask for. Returns the exit status.
int run(const Options& options);

}  // namespace niccolite::schedule_command
