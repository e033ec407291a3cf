// Processes of this machine: which one a peer is, and whether it runs.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "base/fd.h"
#include "base/wire.h"

namespace niccolite {

/// The boot id of this machine's kernel: equal in all of its containers; empty: not known.
const std::string& boot_id();

/// One process, anywhere and ever: a number means a process only on its machine, within its PID
/// namespace, and until the process has ended, when another one may get it.
struct ProcessId {
  uint64_t number = 0;         // as it sees itself: getpid()
  uint64_t kernel = 0;         // of the boot id; 0, here and below: not known
  uint64_t pid_namespace = 0;  // inode of /proc/self/ns/pid
  uint64_t started = 0;        // clock ticks after the boot, as /proc/self/stat has it
  friend bool operator==(const ProcessId&, const ProcessId&) = default;

  void encode(Writer& writer) const;
  static ProcessId decode(Reader& reader);
};

ProcessId this_process();

enum class RunState : uint8_t { Unknown, Runs, Stopped };

/// Can it be looked up here? Not if it is of another machine or PID namespace, or had no /proc to
/// learn who it is from.
bool is_visible(const ProcessId& process);
/// Compares with `from`, the result of this_process(), and makes no system call.
bool is_visible(const ProcessId& process, const ProcessId& from);
/// Returns the state that /proc tells. Unknown: the process is not visible, has ended, or /proc
/// hides it. If /proc was mounted in another PID namespace than this process's, its numbers are
/// strangers'; the strangers started at other times.
RunState run_state(const ProcessId& process);

/// ProcessId::started of process `number`, as this one sees it; 0: not known.
uint64_t start_of(uint64_t number);

/// The end of another process.
struct ProcessEnd {
  bool has_come = false;
  /// Readable once it comes. Invalid: it has come, or cannot be watched: the process is this one or
  /// not visible, /proc hides it, or the kernel (before Linux 5.3) or a sandbox has no pidfd_open.
  Fd to_come;
};
ProcessEnd end_of(const ProcessId& process);

/// /proc's entry of a thread of this process.
struct ThreadTime {
  char state = 'S';  // as ps has it: R runs or waits for a core, S sleeps, T is stopped
  std::chrono::milliseconds used{0};  // of a core, to 10 ms
};
/// `number`: gettid(). None: it has ended.
std::optional<ThreadTime> thread_time(int64_t number);

}  // namespace niccolite
