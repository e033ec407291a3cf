#include "diagnosis/watchdog.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "base/log.h"
#include "observe/dumps.h"

namespace niccolite::diagnosis {
namespace {

constexpr std::chrono::milliseconds kInterval{50};
constexpr std::chrono::milliseconds kHeldUp{300};  // later than it meant to go on

std::atomic<Deadline::Clock::rep> woken_late{0};  // when a watchdog last was; a time, no more

}  // namespace

Result<std::shared_ptr<Watchdog>> Watchdog::instance() {
  static std::mutex mutex;
  static auto& current = *new std::weak_ptr<Watchdog>;  // never destroyed: used in destructors, too
  std::lock_guard lock(mutex);
  if (auto watchdog = current.lock()) return watchdog;
  std::shared_ptr<Watchdog> watchdog(new Watchdog);
  watchdog->thread_ = TRY(Thread::start("nccl-watch", [self = watchdog.get()] { self->run(); }));
  current = watchdog;
  return watchdog;
}

Watchdog::Watchdog() : process_(getpid()) {}

Watchdog::~Watchdog() {
  if (process_ != getpid()) return;  // a child made by fork() has neither thread nor sound mutex
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watchdog::add(Watch& watch) {
  std::lock_guard lock(mutex_);
  watches_.push_back(&watch);
}

void Watchdog::remove(Watch& watch) {
  if (process_ != getpid()) return;  // as in the destructor
  std::unique_lock lock(mutex_);
  std::erase(watches_, &watch);
  changed_.wait(lock, [&] { return current_ != &watch; });
}

Watch::Time Watchdog::awake_since() {
  return Watch::Time(Watch::Time::duration(woken_late.load(std::memory_order_relaxed)));
}

// Under the lock, so that the watches stay: looking at one takes microseconds.
std::optional<Hold> Watchdog::find_holder(const Watch& held, int device, uint64_t stream) {
  std::lock_guard lock(mutex_);
  std::optional<Hold> newest;
  for (const Watch* const watch : watches_) {
    if (watch == &held) continue;
    std::optional<Hold> hold = watch->holding(device, stream);
    if (hold && (!newest || hold->wait.most_age < newest->wait.most_age)) newest = std::move(hold);
  }
  return newest;
}

void Watchdog::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    // By index, because watches come and go while one of them is looked at. A watch that moves down
    // past the index is looked at the next time.
    for (size_t i = 0; i < watches_.size() && !stopping_; ++i) {
      Watch* const watch = watches_[i];
      current_ = watch;
      lock.unlock();
      const Status status = guarded([&]() -> Status {
        watch->look();
        return {};
      });
      if (!status.is_ok()) log::error(status, "watchdog");
      lock.lock();
      current_ = nullptr;
      changed_.notify_all();
    }
    lock.unlock();
    observe::Dumps::of_process().write_requested();
    lock.lock();
    const Deadline next = Deadline::after(kInterval);
    changed_.wait_until(lock, next.at(), [&] { return stopping_; });
    const Deadline::Clock::time_point now = Deadline::Clock::now();
    if (now > next.at() + kHeldUp)
      woken_late.store(now.time_since_epoch().count(), std::memory_order_relaxed);
  }
}

}  // namespace niccolite::diagnosis
