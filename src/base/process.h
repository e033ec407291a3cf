// Processes of this machine: which one a peer is, and whether it runs.
#pragma once

#include <cstdint>

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

}  // namespace niccolite
