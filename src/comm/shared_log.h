// SharedLog: the log of a communicator's calls, as threads see it that do not use the communicator
// themselves: another thread may end it meanwhile. Thread safety: share(), note() and
// last_function() from any thread; the others by the thread inside a call on the communicator.
#pragma once

#include <memory>
#include <mutex>

#include "base/thread_annotations.h"
#include "calls/call_log.h"
#include "observe/recorder.h"

namespace niccolite::comm {

class SharedLog {
 public:
  /// `maker`: the API function that made the communicator.
  explicit SharedLog(const char* maker) : maker_(maker) {}

  void open(int nranks) EXCLUDES(mutex_);
  void close() EXCLUDES(mutex_);
  /// Null before open() and after close(); keeps the log open for its reader.
  std::shared_ptr<calls::CallLog> share() const EXCLUDES(mutex_);
  /// Records an event of the communicator itself, if the log is open.
  void note(observe::EventKind kind) EXCLUDES(mutex_);
  /// The API function that the user has called last; the maker if that is not known.
  const char* last_function() const EXCLUDES(mutex_);

  bool is_open() const { return log_ != nullptr; }
  calls::CallLog* get() const { return log_.get(); }
  calls::CallLog* operator->() const { return log_.get(); }
  calls::CallLog& operator*() const { return *log_; }

 private:
  const char* const maker_;
  mutable std::mutex mutex_;  // share() against open() and close()
  std::shared_ptr<calls::CallLog> log_;
};

}  // namespace niccolite::comm
