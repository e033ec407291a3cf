#include "base/process.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include <fmt/core.h>

namespace niccolite {
namespace {

uint64_t own_namespace() {
  struct stat state {};
  return stat("/proc/self/ns/pid", &state) == 0 ? state.st_ino : 0;
}

// "4711 (name) S 1 ...", from the state on: the name may have parentheses and blanks of its own.
std::string stat_of(const std::string& path) {
  std::ifstream file(path);
  const std::string line{std::istreambuf_iterator<char>(file), {}};
  const size_t name_end = line.rfind(')');
  return name_end == std::string::npos || name_end + 2 >= line.size() ? ""
                                                                      : line.substr(name_end + 2);
}

}  // namespace

ProcessId this_process() {
  return {.number = static_cast<uint64_t>(getpid()), .pid_namespace = own_namespace()};
}

RunState run_state(const ProcessId& process) {
  if (process.pid_namespace == 0 || process.pid_namespace != own_namespace())
    return RunState::Unknown;
  const std::string stat = stat_of(fmt::format("/proc/{}/stat", process.number));
  if (stat.empty()) return RunState::Unknown;
  switch (stat[0]) {
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

std::optional<ThreadTime> thread_time(int64_t number) {
  std::istringstream stat(stat_of(fmt::format("/proc/self/task/{}/stat", number)));
  constexpr int kFieldsBefore = 10;  // of utime and stime, behind the state
  ThreadTime time;
  std::string skipped;
  stat >> time.state;
  for (int i = 0; i < kFieldsBefore; ++i) stat >> skipped;
  int64_t user = 0, system = 0;
  if (!(stat >> user >> system)) return std::nullopt;
  time.used = std::chrono::milliseconds((user + system) * 1000 / sysconf(_SC_CLK_TCK));
  return time;
}

}  // namespace niccolite
