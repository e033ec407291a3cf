// Processes of this machine: which one a peer is, and whether it runs.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace niccolite {

/// Tells processes of one machine apart, containers included: a number means a process only within
/// its PID namespace.
struct ProcessId {
  uint64_t number = 0;
  uint64_t pid_namespace = 0;  // inode of /proc/self/ns/pid; 0: not known
  friend bool operator==(const ProcessId&, const ProcessId&) = default;
};

ProcessId this_process();

enum class RunState : uint8_t { Unknown, Runs, Stopped };

/// What /proc says. Unknown: of another PID namespace, or ended.
RunState run_state(const ProcessId& process);

/// What /proc says of a thread of this process.
struct ThreadTime {
  char state = 'S';  // as ps has it: R runs or waits for a core, S sleeps, T is stopped
  std::chrono::milliseconds used{0};  // of a core, to 10 ms
};
/// `number`: gettid(). None: it has ended.
std::optional<ThreadTime> thread_time(int64_t number);

}  // namespace niccolite
