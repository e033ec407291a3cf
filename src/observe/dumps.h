// Dumps: the flight recorder's files. With NICCOLITE_DUMP set a process writes the records of its
// communicators (recorder.h) when one of them fails, when a verdict says that an operation stands
// still, and on the signal NICCOLITE_DUMP_SIGNAL. Each dump replaces the one before it, whole or
// not at all. `niccolite inspect` and `niccolite trace` read them; docs/fault-tolerance.md.
//
// Nothing here fails a program: a failure to write is logged once. Thread safety: any thread.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/thread_annotations.h"
#include "observe/dump_writer.h"
#include "observe/json.h"

namespace niccolite::observe {

class Dumps {
 public:
  /// The functions of a communicator that a dump calls.
  struct Source {
    /// Adds its fields to an object. On the thread that writes.
    std::function<void(Json&)> describe;
    /// Hands a dump to rank 0, when that is on another machine.
    std::function<void(std::string_view name, std::string_view text)> forward;
  };

  /// The process's; where NICCOLITE_DUMP is not set nothing is ever written.
  static Dumps& of_process();
  /// `pattern`: the value of NICCOLITE_DUMP: %h stands for the host, %p for the process. The name
  /// of a folder stands for %h-%p.json in it. Empty: nothing is ever written.
  explicit Dumps(const std::string& pattern);

  bool are_on() const { return !path_.empty(); }
  const std::string& path() const { return path_; }

  /// Adds a source until remove(). remove() waits while the source is being called, and for files
  /// that are being written, at most as long as DumpWriter has patience.
  uint64_t add(Source source) EXCLUDES(mutex_);
  void remove(uint64_t id) EXCLUDES(mutex_);

  /// Asks for a dump; the first reason counts. Writes nothing itself.
  void request(std::string_view reason) EXCLUDES(request_mutex_);
  /// Has each `signal` from now on ask for a dump, unless the program has a handler of its own.
  /// Stays for good; one dumps of a process at most.
  void listen_to(int signal);
  /// Requests a dump; may be called from a signal handler.
  void request_by_signal() { is_signalled_.store(true, std::memory_order_relaxed); }
  /// Writes the requested dump, or waits while another thread does. Waits for the file system as
  /// long as DumpWriter has patience.
  void write_requested() EXCLUDES(writing_) EXCLUDES(mutex_);

  /// Keeps the dump that a process of another machine has sent, beside this process's own.
  void keep(std::string_view name, std::string_view text);

 private:
  std::string take_reason() EXCLUDES(request_mutex_);
  std::string describe_process(std::string_view reason) REQUIRES(mutex_);

  const pid_t process_ = getpid();  // in a child made by fork() nothing is written
  std::string path_;
  std::atomic<bool> is_signalled_{false}, is_requested_{false};
  std::mutex request_mutex_;
  std::string reason_ GUARDED_BY(request_mutex_);
  std::mutex writing_;  // held until a requested dump is written
  std::mutex mutex_;    // held while sources are asked
  uint64_t last_id_ GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Source> sources_ GUARDED_BY(mutex_);
  DumpWriter writer_;
};

}  // namespace niccolite::observe
