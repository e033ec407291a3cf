#include "comm/group.h"

#include <algorithm>
#include <utility>

#include "base/per_thread.h"
#include "base/thread.h"
#include "calls/overlaps.h"
#include "comm/live_communicators.h"
#include "operations/stream_key.h"

namespace niccolite::comm {

Group& Group::current() { return PerThread<Group>::get(); }

void Group::poison(const Status& status) {
  if (depth_ > 0) error_ = status.copy();
}

Status Group::agree_on_blocking(bool blocking) {
  if (!blocking_) blocking_ = blocking;
  if (*blocking_ != blocking)
    return Status::invalid_argument(
        "blocking and nonblocking communicators cannot be in the same group: end the group between "
        "them");
  return {};
}

Result<Completion> Group::add_job(std::shared_ptr<Communicator> communicator, bool blocking,
                                  std::function<Status()> job, std::function<void()> on_failure) {
  start();
  if (Status status = agree_on_blocking(blocking); !status.is_ok()) {
    poison(status);
    end().ignore("the mixture is the error to report");
    if (on_failure) on_failure();
    return status;
  }
  work_.jobs.push_back({std::move(communicator), std::move(job), std::move(on_failure)});
  return end();
}

void Group::add_end(std::shared_ptr<Communicator> communicator, std::function<Status()> end) {
  work_.ends.push_back(
      {.communicator = std::move(communicator), .run = std::move(end), .on_failure = {}});
}

// The group keeps its communicators alive.
Group::Tasks* Group::find_tasks(const void* handle) {
  const uint64_t ends = LiveCommunicators::instance().ends();
  if (work_.tasks.empty()) ends_ = ends;
  if (ends != ends_) return nullptr;
  const auto found =
      std::find_if(work_.tasks.begin(), work_.tasks.end(),
                   [handle](const Tasks& tasks) { return tasks.communicator.get() == handle; });
  if (found == work_.tasks.end() || found->communicator->profiling() != nullptr) return nullptr;
  return &*found;
}

Result<Completion> Group::add_task(std::shared_ptr<Communicator> communicator, calls::Task& task) {
  const bool blocking = communicator->configuration().blocking;
  // The common case: nothing to record.
  const bool is_profiled = communicator->profiling() != nullptr;
  if (depth_ == 0 && blocking && !task.call.is_message() && !is_profiled) {
    TRY(communicator->perform({&task, 1}));
    return Completion::Done;
  }
  start();
  if (Status status = agree_on_blocking(blocking); !status.is_ok()) {
    poison(status);
    end().ignore("the mixture is the error to report");
    return status;
  }
  if (is_profiled) [[unlikely]]
    work_.profile.add(communicator, task, depth_);
  const auto of_communicator =
      std::find_if(work_.tasks.begin(), work_.tasks.end(),
                   [&](const Tasks& tasks) { return tasks.communicator == communicator; });
  if (of_communicator != work_.tasks.end()) {
    of_communicator->tasks.push_back(task);
  } else {
    Tasks& tasks =
        work_.tasks.emplace_back(Tasks{std::move(communicator), std::exchange(spare_, {})});
    tasks.tasks.push_back(task);
  }
  return end();
}

Result<Completion> Group::add_one_sided(std::shared_ptr<Communicator> communicator,
                                        operations::OneSidedCall call) {
  const bool blocking = communicator->configuration().blocking;
  if (depth_ == 0 && blocking) {
    TRY(communicator->perform_one_sided(call));
    return Completion::Done;
  }
  start();
  if (Status status = agree_on_blocking(blocking); !status.is_ok()) {
    poison(status);
    end().ignore("the mixture is the error to report");
    return status;
  }
  work_.one_sided.push_back({std::move(communicator), std::move(call)});
  return end();
}

Result<Completion> Group::end() { return close(nullptr); }

Result<Completion> Group::end_simulated(double& microseconds) { return close(&microseconds); }

Result<Completion> Group::close(double* simulated) {
  if (depth_ == 0)
    return Status::invalid_usage("{}: not in a group call.",
                                 simulated != nullptr ? "ncclGroupSimulateEnd" : "ncclGroupEnd");
  if (--depth_ > 0) return Completion::Done;

  Work work = std::exchange(work_, {});
  Status error = std::exchange(error_, {});
  const bool blocking = std::exchange(blocking_, std::nullopt).value_or(true);
  work.profile.close();
  if (error.is_ok() && calls::asked_buffer_checks().value_or(false))
    error = check_messages(work.tasks);
  if (simulated != nullptr && error.is_ok()) error = simulate(work, *simulated);
  if (!error.is_ok()) {
    for (Job& job : work.jobs)
      if (job.on_failure) job.on_failure();
    work.profile.end();
    return error;
  }
  return carry_out(std::move(work), blocking);
}

Status Group::check_messages(const std::vector<Tasks>& tasks) {
  std::vector<calls::GroupMessage> messages;
  for (const Tasks& of : tasks)
    for (const calls::Task& task : of.tasks)
      if (task.call.is_message())
        messages.push_back({.task = &task, .rank = of.communicator->rank()});
  return check_overlaps(messages);
}

Status Group::simulate(Work& work, double& microseconds) {
  double longest = -1;
  for (const Tasks& tasks : work.tasks)
    longest = std::max(longest, TRY(tasks.communicator->predict(tasks.tasks)));
  microseconds = longest;
  work.tasks.clear();
  work.one_sided.clear();
  work.ends.clear();
  return {};
}

// cudaStreamPerThread is another stream to each thread.
bool Group::is_for_this_thread(const Work& work) {
  const auto is_of_thread = [](gpu::StreamHandle stream) {
    return operations::StreamKey::of(stream).thread != 0;
  };
  return std::ranges::any_of(work.tasks,
                             [&](const Tasks& of) {
                               return std::ranges::any_of(of.tasks, [&](const calls::Task& task) {
                                 return is_of_thread(task.stream);
                               });
                             }) ||
         std::ranges::any_of(work.one_sided,
                             [&](const OneSidedTask& of) { return is_of_thread(of.call.stream); });
}

Result<Completion> Group::carry_out(Work work, bool blocking) {
  if (work.is_empty()) {
    work.profile.end();
    return Completion::Done;
  }
  if (!blocking && work.ends.empty() && !is_for_this_thread(work)) {
    TRY(run_in_background(std::move(work)));
    return Completion::Pending;
  }
  Communicators in_progress;
  if (!blocking) in_progress = communicators_of(work);
  for (const auto& communicator : in_progress) communicator->lifetime().begin_background();
  const Status status = run_and_settle(work, in_progress);
  const Status ended = work.ends.empty() ? Status() : run_jobs(work.ends);
  keep_memory(std::move(work));
  TRY(status.copy());
  TRY(ended.copy());
  return Completion::Done;
}

// A program's groups are alike, and many: the next one has room for its calls.
void Group::keep_memory(Work work) {
  constexpr size_t kMostKept = 1024;  // calls
  if (!work.tasks.empty() && work.tasks.front().tasks.capacity() <= kMostKept) {
    spare_ = std::move(work.tasks.front().tasks);
    spare_.clear();
  }
  work.jobs.clear();
  work.tasks.clear();
  work.one_sided.clear();
  work.ends.clear();
  if (work_.is_empty()) work_ = std::move(work);
}

Status Group::run_work(Work& work) {
  // Most groups have the calls of one communicator, often one call.
  if (work.jobs.empty() && work.one_sided.empty() && work.tasks.size() == 1)
    return work.tasks[0].communicator->perform(work.tasks[0].tasks);
  Status jobs = work.jobs.empty() ? Status() : run_jobs(work.jobs);
  if (!jobs.is_ok()) {
    for (Job& job : work.jobs)
      if (job.on_failure) job.on_failure();
    return jobs;
  }
  TRY(run_one_sided(work.one_sided, /*waits=*/false));
  TRY(run_tasks(work.tasks));
  return run_one_sided(work.one_sided, /*waits=*/true);
}

Status Group::run_one_sided(const std::vector<OneSidedTask>& calls, bool waits) {
  for (const OneSidedTask& of : calls)
    if (of.call.is_wait() == waits) TRY(of.communicator->perform_one_sided(of.call));
  return {};
}

// Runs the jobs of one communicator in the order of their calls, and different communicators side
// by side.
Status Group::run_jobs(std::vector<Job>& jobs) {
  std::vector<std::vector<Job*>> lines;  // by communicator, in the order of their first calls
  for (Job& job : jobs) {
    const auto is_its = [&](const std::vector<Job*>& line) {
      return line.front()->communicator == job.communicator;
    };
    const auto line = std::find_if(lines.begin(), lines.end(), is_its);
    (line == lines.end() ? lines.emplace_back() : *line).push_back(&job);
  }
  const auto run_line = [](const std::vector<Job*>& line) -> Status {
    for (Job* job : line) TRY(job->run());
    return {};
  };
  if (lines.size() == 1) return run_line(lines[0]);
  std::vector<Status> results(lines.size());
  std::vector<Thread> threads;
  for (size_t i = 0; i < lines.size(); ++i) {
    auto thread = Thread::start(
        "nccl-job", [&, i] { results[i] = guarded([&] { return run_line(lines[i]); }); });
    if (thread.is_ok()) {
      threads.push_back(std::move(thread).take());
      continue;
    }
    results[i] = std::move(thread).status();
    // The others may be waiting for this one: they must not wait until their time is over.
    for (Job& job : jobs) job.communicator->fail(results[i].copy());
    break;
  }
  threads.clear();  // joins
  for (Status& result : results)
    if (!result.is_ok()) return std::move(result);
  return {};
}

Status Group::run_tasks(std::vector<Tasks>& tasks) {
  std::stable_sort(tasks.begin(), tasks.end(), [](const Tasks& a, const Tasks& b) {
    return a.communicator->id_hash() < b.communicator->id_hash();
  });
  std::vector<std::vector<registry::CapturedBuffer>> captured(tasks.size());
  std::vector<Job> comparisons;  // ranks wait for each other
  for (size_t i = 0; i < tasks.size(); ++i) {
    const Tasks& of = tasks[i];
    if (!TRY(of.communicator->compares_buffers(of.tasks))) continue;
    const auto compare = [&of, &found = captured[i]]() -> Status {
      found = TRY(of.communicator->compare_buffers(of.tasks));
      return {};
    };
    comparisons.push_back({of.communicator, compare, {}});
  }
  if (!comparisons.empty()) TRY(run_jobs(comparisons));
  std::vector<operations::Chosen> chosen;
  for (size_t i = 0; i < tasks.size(); ++i)
    chosen.push_back(
        TRY(tasks[i].communicator->choose_launches(tasks[i].tasks, std::move(captured[i]))));
  for (size_t i = 0; i < tasks.size(); ++i) TRY(tasks[i].communicator->connect_chosen(chosen[i]));
  for (size_t first = 0, end = 0; first < tasks.size(); first = end) {
    size_t most = 0;
    const uint64_t id = tasks[first].communicator->id_hash();
    for (end = first; end < tasks.size() && tasks[end].communicator->id_hash() == id; ++end)
      most = std::max(most, chosen[end].launches());
    for (size_t i = 0; i < most; ++i)
      for (size_t rank = first; rank < end; ++rank)
        if (i < chosen[rank].launches())
          TRY(tasks[rank].communicator->launch_chosen(chosen[rank], i));
  }
  return {};
}

// Returns the communicators that are in progress while the group is carried out.
Group::Communicators Group::communicators_of(const Work& work) {
  Communicators communicators;
  for (const Job& job : work.jobs) communicators.insert(job.communicator);
  for (const Tasks& tasks : work.tasks) communicators.insert(tasks.communicator);
  for (const OneSidedTask& of : work.one_sided) communicators.insert(of.communicator);
  return communicators;
}

Status Group::run_and_settle(Work& work, const Communicators& in_progress) {
  Status status = guarded([&] { return run_work(work); });
  work.profile.end();
  for (const auto& communicator : in_progress) communicator->settle_background(status.copy());
  return status;
}

Status Group::run_in_background(Work work) {
  Communicators communicators = communicators_of(work);
  for (const auto& communicator : communicators) communicator->lifetime().begin_background();
  // The caller's variables may be gone by the time the work fails; it asks for the error instead.
  for (Job& job : work.jobs) job.on_failure = {};
  auto shared_work = std::make_shared<Work>(std::move(work));
  auto body = [shared_work, communicators]() mutable {
    run_and_settle(*shared_work, communicators).ignore("the communicators tell of it");
    // Whoever destroys the last communicator joins this thread, so it must not be one of their
    // owners by then.
    shared_work.reset();
    communicators.clear();
  };
  Result<Thread> thread = Thread::start("nccl-group", std::move(body));
  if (!thread.is_ok()) {
    for (const auto& communicator : communicators)
      communicator->settle_background(thread.status().copy());
    return std::move(thread).status();
  }
  const auto owner = std::make_shared<Thread>(std::move(thread).take());
  for (const auto& communicator : communicators) communicator->lifetime().keep_thread(owner);
  return {};
}

}  // namespace niccolite::comm
