// Thread: owner of one of the library's threads; destruction joins. The threads live inside other
// people's processes: they block every signal, and carry a name when NCCL_SET_THREAD_NAME is 1. The
// body runs under the guard against exceptions, which logs an exception. Thread safety: one thread
// at a time.
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/status.h"

namespace niccolite {

class Thread {
 public:
  Thread() = default;
  /// `name`: at most 15 characters are kept.
  static Result<Thread> start(std::string name, std::function<void()> body);
  Thread(Thread&& other) noexcept
      : thread_(other.thread_), process_(std::exchange(other.process_, 0)) {}
  Thread& operator=(Thread&& other) noexcept;
  ~Thread() { join(); }

  bool running() const { return process_ != 0; }
  bool is_current() const { return running() && pthread_equal(thread_, pthread_self()) != 0; }
  /// Waits for the body's end. In a child made by fork(), where the thread does not exist, it
  /// forgets the thread.
  void join();
  /// Nobody will wait for the body's end.
  void detach();

 private:
  pthread_t thread_{};
  pid_t process_ = 0;  // of start(); 0: no thread
};

/// Runs `call`, which may hang in somebody else's code, on a thread of its own, and waits for
/// `patience`. Nothing: it has not returned by then. The thread then keeps `call`, and all that
/// `call` owns, until it returns, perhaps for ever.
std::optional<Status> run_within(std::string name, std::chrono::milliseconds patience,
                                 std::function<Status()> call);

/// Locks `mutex` for the last work of `process`, which created the objects that the mutex guards. A
/// child made by fork() may have inherited the mutex locked by a thread that it does not have. So
/// the child only tries the lock; none of the parent's work is left to do there.
std::unique_lock<std::mutex> lock_at_exit(std::mutex& mutex, pid_t process);

}  // namespace niccolite
