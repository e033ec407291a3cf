// Runs a program to its end and keeps what it printed.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace niccolite::testing {

struct Outcome {
  int status = -1;  // exit status; 128 + signal when killed
  std::string output;
  std::string errors;
};

/// `arguments[0]` is the program, looked for over PATH unless it has a slash. `environment` is
/// added to this process's. Kills the program after `seconds`.
Outcome run_command(const std::vector<std::string>& arguments,
                    const std::map<std::string, std::string>& environment, int seconds = 60);

}  // namespace niccolite::testing
