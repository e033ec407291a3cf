// Launch: the description of this process in a launcher's environment: mpirun, torchrun, srun. Each
// sets variables of its own; where one says how many processes there are and which this one is,
// they are one run.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace niccolite::perf {

struct Launch {
  int process = 0;
  int processes = 1;
  int local_process = 0;  // among the processes of its machine
  std::string meeting;    // "host:port": where process 0 listens for the others
  const char* launcher = "";
};

/// Reads variables by `variable`, null where there is none. Nothing where no launcher has started
/// this process, or it is its only one.
/// @return InvalidUsage: a variable is no number or contradicts another; nothing says where process
/// 0 is.
Result<std::optional<Launch>> find_launch(const std::function<const char*(const char*)>& variable);

/// All that say that a process is one of several: one that is to run by itself has none of them.
std::vector<std::string> launcher_variables();

/// The first host of a list as Slurm writes it: "a12" of "a[12-14,20],b3".
std::string first_host(const std::string& list);

}  // namespace niccolite::perf
