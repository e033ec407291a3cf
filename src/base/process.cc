#include "base/process.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>

#include <fmt/core.h>

namespace niccolite {
namespace {

uint64_t own_namespace() {
  struct stat state {};
  return stat("/proc/self/ns/pid", &state) == 0 ? state.st_ino : 0;
}

}  // namespace

ProcessId this_process() {
  return {.number = static_cast<uint64_t>(getpid()), .pid_namespace = own_namespace()};
}

RunState run_state(const ProcessId& process) {
  if (process.pid_namespace == 0 || process.pid_namespace != own_namespace())
    return RunState::Unknown;
  std::ifstream file(fmt::format("/proc/{}/stat", process.number));
  const std::string line{std::istreambuf_iterator<char>(file), {}};
  // "4711 (name) S 1 …": the name may have parentheses and blanks of its own.
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= line.size()) return RunState::Unknown;
  switch (line[name_end + 2]) {
    case 'T':  // by a signal
    case 't':  // by a debugger
      return RunState::Stopped;
    case 'Z':
    case 'X':
      return RunState::Unknown;
    default:
      return RunState::Runs;
  }
}

}  // namespace niccolite
