// Group: what a thread's calls between ncclGroupStart and ncclGroupEnd have recorded, and how it is
// carried out.
//
//   jobs   things that wait for other ranks (init, windows, finalize, suspend): one thread a
//          communicator, all at once, joined
//   tasks  operations: the operations of all communicators are prepared before the first is
//          launched, so that an error launches nothing
//
//   one-sided operations
//          puts before the tasks, waits after them: whatever the order of the calls of a group, a
//          rank never waits for an operation that it holds up itself
//   ends   communicators that the group destroys, after all else
//
// Order of launches. Communicators that share a stream must be launched in the same order by every
// rank, whose first calls may be to different ones: they go by their ids. The ranks of one
// communicator that this thread drives take turns, so that what waits for each other is queued
// close together.
//
// A call outside of a group is a group of its own. With nonblocking communicators the group is
// carried out by a background thread, its communicators being in progress until it is done. One
// group may not mix the two kinds. Thread safety: a group belongs to one thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "comm/communicator.h"
#include "comm/group_profile.h"

namespace niccolite::comm {

/// Whether the caller must wait: Done, or Pending when a background thread works.
enum class Completion : uint8_t { Done, Pending };

class Group {
 public:
  /// The calling thread's group.
  static Group& current();

  void start() { ++depth_; }
  bool is_open() const { return depth_ > 0; }
  int depth() const { return depth_; }

  /// Closes one level; the outermost carries everything out. The group is empty afterwards,
  /// whatever happened. Errors: InvalidUsage when no group is open; the last error of a call
  /// inside the group; the first failure.
  Result<Completion> end();

  /// Ends the group like end(), but does not carry out the tasks: stores the microseconds that they
  /// would take, the longest of the communicators', or -1 when there are none. Not in a nested
  /// group.
  Result<Completion> end_simulated(double& microseconds);

  /// The tasks of one communicator that this group has recorded.
  struct Tasks {
    std::shared_ptr<Communicator> communicator;
    std::vector<calls::Task> tasks;
  };
  /// Returns the tasks of the live communicator with this handle, so that the caller may add more.
  /// Null: add_task() has to be called, because the group has no tasks of it, because
  /// LiveCommunicators has to be searched, or because a profiler hears of each call. Valid until
  /// the group's next call.
  Tasks* find_tasks(const void* handle);

  /// Records, or carries out at once when no group is open.
  Result<Completion> add_task(std::shared_ptr<Communicator> communicator, calls::Task& task);
  /// Records a one-sided operation, or carries it out at once when no group is open.
  Result<Completion> add_one_sided(std::shared_ptr<Communicator> communicator,
                                   operations::OneSidedCall call);
  /// `job` runs on another thread if there are several; `on_failure` undoes what the call did, on
  /// the calling thread or, for nonblocking communicators, not at all.
  Result<Completion> add_job(std::shared_ptr<Communicator> communicator, bool blocking,
                             std::function<Status()> job, std::function<void()> on_failure = {});
  /// `end` ends the communicator when all else of the group has been carried out, whether that
  /// failed or not; not where the group fails with the error of a call. The group's end waits for
  /// it, whatever the kind of its communicators. Only in a group that is open.
  void add_end(std::shared_ptr<Communicator> communicator, std::function<Status()> end);
  /// A call inside the group failed that would have been recorded: the group will fail with this
  /// error, if it is the last.
  void poison(const Status& status);

 private:
  struct Job {
    std::shared_ptr<Communicator> communicator;
    std::function<Status()> run;
    std::function<void()> on_failure;
  };
  struct OneSidedTask {
    std::shared_ptr<Communicator> communicator;
    operations::OneSidedCall call;
  };
  struct Work {
    std::vector<Job> jobs;
    std::vector<Tasks> tasks;  // by communicator, in the order of their first calls
    std::vector<OneSidedTask> one_sided;
    std::vector<Job> ends;
    GroupProfile profile;  // nearly always of nothing
    bool is_empty() const {
      return jobs.empty() && tasks.empty() && one_sided.empty() && ends.empty();
    }
  };
  using Communicators = std::set<std::shared_ptr<Communicator>>;

  Status agree_on_blocking(bool blocking);
  static Status run_work(Work& work);
  static Status run_jobs(std::vector<Job>& jobs);
  static Status run_tasks(std::vector<Tasks>& tasks);
  static Status run_one_sided(const std::vector<OneSidedTask>& calls, bool waits);
  Result<Completion> carry_out(Work work, bool blocking);
  void keep_memory(Work work);
  Result<Completion> close(double* simulated);
  /// Where the user asks for it: do buffers of messages overlap?
  static Status check_messages(const std::vector<Tasks>& tasks);
  /// Takes the operations out of the work.
  static Status simulate(Work& work, double& microseconds);
  static bool is_for_this_thread(const Work& work);
  static Communicators communicators_of(const Work& work);
  static Status run_and_settle(Work& work, const Communicators& in_progress);
  static Status run_in_background(Work work);

  int depth_ = 0;
  std::optional<bool> blocking_;
  Status error_;
  Work work_;
  std::vector<calls::Task> spare_;  // empty: memory for the next group's calls
  uint64_t ends_ = 0;               // LiveCommunicators::ends() before the first task came
};

}  // namespace niccolite::comm
