// Group: what a thread's calls between ncclGroupStart and ncclGroupEnd have recorded, and how it is
// carried out.
//
//   jobs   things that wait for other ranks (init, finalize, destroy): one thread each, all at
//   once, joined tasks  operations: all are prepared first, then all are launched, so that an error
//   launches nothing
//
// A call outside of a group is a group of its own. With nonblocking communicators the group is
// carried out by a background thread, its communicators being in progress until it is done. One
// group may not mix the two kinds. Thread safety: a group belongs to one thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "comm/communicator.h"

namespace niccolite::comm {

/// Whether the caller must wait: Done, or Pending when a background thread works.
enum class Completion : uint8_t { Done, Pending };

class Group {
 public:
  /// The calling thread's group.
  static Group& current();

  void start() { ++depth_; }
  bool is_open() const { return depth_ > 0; }

  /// Closes one level; the outermost carries everything out. The group is empty afterwards,
  /// whatever happened. Errors: InvalidUsage when no group is open; the first error of a call
  /// inside the group; the first failure.
  Result<Completion> end();

  /// Records, or carries out at once when no group is open.
  Result<Completion> add_task(std::shared_ptr<Communicator> communicator,
                              const AllReduceTask& task);
  /// `job` runs on another thread if there are several; `on_failure` undoes what the call did, on
  /// the calling thread or, for nonblocking communicators, not at all.
  Result<Completion> add_job(std::shared_ptr<Communicator> communicator, bool blocking,
                             std::function<Status()> job, std::function<void()> on_failure = {});
  /// A call inside the group failed: the group will fail with this error.
  void poison(const Status& status);

 private:
  struct Job {
    std::shared_ptr<Communicator> communicator;
    std::function<Status()> run;
    std::function<void()> on_failure;
  };
  struct Task {
    std::shared_ptr<Communicator> communicator;
    AllReduceTask task;
  };
  struct Work {
    std::vector<Job> jobs;
    std::vector<Task> tasks;
  };

  Status agree_on_blocking(bool blocking);
  static Status run(Work& work);
  static Status run_jobs(std::vector<Job>& jobs);
  static Status run_tasks(const std::vector<Task>& tasks);
  static Status run_in_background(Work work);

  int depth_ = 0;
  std::optional<bool> blocking_;
  Status error_;
  Work work_;
};

}  // namespace niccolite::comm
