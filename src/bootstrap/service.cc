#include "bootstrap/service.h"

#include "base/log.h"

namespace niccolite::bootstrap {

void Service::post(std::function<void()> task) {
  std::lock_guard lock(mutex_);
  if (stopping_) return;
  tasks_.push_back(std::move(task));  // also where no thread can be started now: with the next
  if (!thread_.running()) {
    Result<Thread> thread = Thread::start("nccl-service", [this] { run(); });
    if (!thread.is_ok()) return log::error(thread.status(), "bootstrap");
    thread_ = std::move(thread.value());
  }
  changed_.notify_one();
}

void Service::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (stopping_) return;
    const auto task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    const Status status = guarded([&]() -> Status {
      task();
      return {};
    });
    if (!status.is_ok()) log::error(status, "bootstrap service");
    lock.lock();
  }
}

void Service::stop() {
  Thread thread;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    tasks_.clear();
    thread = std::move(thread_);
    changed_.notify_one();
  }
  thread.join();
}

bool Service::is_current() {
  std::lock_guard lock(mutex_);
  return thread_.is_current();
}

}  // namespace niccolite::bootstrap
