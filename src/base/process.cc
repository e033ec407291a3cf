#include "base/process.h"

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

#include <fmt/core.h>

namespace niccolite {
namespace {

// "f81d4fae-7dec-..." -> 0xf81d4fae7dec...
uint64_t own_kernel() {
  static const uint64_t kernel = [] {
    std::string digits = boot_id();
    std::erase(digits, '-');
    constexpr size_t kDigits = 2 * sizeof(uint64_t);
    return uint64_t{std::strtoull(digits.substr(0, kDigits).c_str(), nullptr, 16)};
  }();
  return kernel;
}

// Asked each time, because a child made by fork() may be in another namespace.
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

// "" if it has ended and its parent knows, or if /proc hides it.
std::string stat_of(const ProcessId& process) {
  return stat_of(fmt::format("/proc/{}/stat", process.number));
}

// 0: `stat` is cut.
uint64_t start_of(const std::string& stat) {
  constexpr int kFieldsBefore = 19;  // the state is the first
  std::istringstream fields(stat);
  std::string skipped;
  for (int i = 0; i < kFieldsBefore; ++i) fields >> skipped;
  uint64_t started = 0;
  fields >> started;
  return started;
}

}  // namespace

const std::string& boot_id() {
  static const std::string boot = [] {
    std::ifstream file("/proc/sys/kernel/random/boot_id");
    std::string id;
    std::getline(file, id);
    return id;
  }();
  return boot;
}

void ProcessId::encode(Writer& writer) const {
  for (const uint64_t part : {number, kernel, pid_namespace, started}) writer.u64(part);
}

ProcessId ProcessId::decode(Reader& reader) {
  ProcessId process;
  for (uint64_t* part :
       {&process.number, &process.kernel, &process.pid_namespace, &process.started})
    *part = reader.u64();
  return process;
}

ProcessId this_process() {
  return {.number = static_cast<uint64_t>(getpid()),
          .kernel = own_kernel(),
          .pid_namespace = own_namespace(),
          .started = start_of(stat_of("/proc/self/stat"))};
}

bool is_visible(const ProcessId& process) {
  return is_visible(process, {.kernel = own_kernel(), .pid_namespace = own_namespace()});
}

bool is_visible(const ProcessId& process, const ProcessId& from) {
  return process.kernel != 0 && process.pid_namespace != 0 && process.started != 0 &&
         process.kernel == from.kernel && process.pid_namespace == from.pid_namespace;
}

RunState run_state(const ProcessId& process) {
  if (!is_visible(process)) return RunState::Unknown;
  const std::string stat = stat_of(process);
  if (stat.empty() || start_of(stat) != process.started) return RunState::Unknown;
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

uint64_t start_of(uint64_t number) {
  return start_of(stat_of(fmt::format("/proc/{}/stat", number)));
}

ProcessEnd end_of(const ProcessId& process) {
#ifdef SYS_pidfd_open
  const auto number = static_cast<pid_t>(process.number);
  if (!is_visible(process) || number == getpid()) return {};
  Fd end(static_cast<int>(syscall(SYS_pidfd_open, number, 0)));
  if (!end.valid()) return {.has_come = errno == ESRCH, .to_come = {}};
  // Looked up after the number was opened: until then no other process can have got it.
  if (start_of(stat_of(process)) == process.started)
    return {.has_come = false, .to_come = std::move(end)};
#endif
  return {};
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
