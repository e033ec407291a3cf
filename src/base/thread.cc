#include "base/thread.h"

#include <unistd.h>
#include <condition_variable>
#include <csignal>
#include <memory>

#include "base/log.h"
#include "base/parameters.h"

namespace niccolite {
namespace {

struct Start {
  std::string name;
  std::function<void()> body;
};

void* run(void* argument) {
  const std::unique_ptr<Start> start(static_cast<Start*>(argument));
  if (parameters::set_thread_name() == 1)
    pthread_setname_np(pthread_self(), start->name.substr(0, 15).c_str());
  const Status status = guarded([&]() -> Status {
    start->body();
    return {};
  });
  if (!status.is_ok()) log::error(status, start->name.c_str());
  return nullptr;
}

}  // namespace

Result<Thread> Thread::start(std::string name, std::function<void()> body) {
  auto start = std::make_unique<Start>(Start{std::move(name), std::move(body)});
  // The new thread inherits the mask, so it never runs with a signal open, not even before its
  // first line.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Thread thread;
  const int error = pthread_create(&thread.thread_, nullptr, run, start.get());
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0)
    return Status::from_errno(
        error, fmt::format("cannot start thread '{}' (limit: ulimit -u)", start->name));
  thread.process_ = getpid();
  static_cast<void>(start.release());  // now run()'s
  return thread;
}

Thread& Thread::operator=(Thread&& other) noexcept {
  if (this != &other) {
    join();
    thread_ = other.thread_;
    process_ = std::exchange(other.process_, 0);
  }
  return *this;
}

void Thread::detach() {
  if (std::exchange(process_, 0) == getpid()) pthread_detach(thread_);
}

void Thread::join() {
  if (process_ == getpid()) pthread_join(thread_, nullptr);
  process_ = 0;
}

std::optional<Status> run_within(std::string name, std::chrono::milliseconds patience,
                                 std::function<Status()> call) {
  struct Shared {
    std::function<Status()> call;
    std::mutex mutex;
    std::condition_variable has_ended;
    std::optional<Status> status;
  };
  const auto shared = std::make_shared<Shared>();
  shared->call = std::move(call);
  Result<Thread> thread = Thread::start(std::move(name), [shared] {
    Status status = guarded(shared->call);
    const std::lock_guard lock(shared->mutex);
    shared->status = std::move(status);
    shared->has_ended.notify_all();
  });
  if (!thread.is_ok()) return std::move(thread).status();
  std::unique_lock lock(shared->mutex);
  if (!shared->has_ended.wait_for(lock, patience, [&] { return shared->status.has_value(); })) {
    thread->detach();
    return std::nullopt;
  }
  Status status = std::move(*shared->status);
  lock.unlock();
  thread->join();
  return status;
}

std::unique_lock<std::mutex> lock_at_exit(std::mutex& mutex, pid_t process) {
  if (process == getpid()) return std::unique_lock(mutex);
  return {mutex, std::try_to_lock};
}

}  // namespace niccolite
