#include "registry/housekeeper.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/log.h"
#include "base/thread.h"
#include "base/wait.h"

namespace niccolite::registry {

Housekeeper& Housekeeper::instance() {
  static auto* const housekeeper = new Housekeeper("nccl-housekeep");
  return *housekeeper;
}

Housekeeper& Housekeeper::mapper() {
  static auto* const mapper = new Housekeeper("nccl-map");
  return *mapper;
}

bool Housekeeper::start() {
  if (process_ != 0 && process_ != getpid()) return false;
  if (process_ != 0 && !has_ended_) return true;
  process_ = 0;
  has_ended_ = false;
  Result<Thread> thread = Thread::start(name_, [this] { serve(); });
  if (!thread.is_ok()) {
    LOG(Warn, All, "{}", thread.status().message());
    return false;
  }
  thread.value().detach();
  process_ = getpid();
  return true;
}

void Housekeeper::release(std::shared_ptr<void> object) {
  std::lock_guard lock(mutex_);
  if (!start()) {  // better lost than waited for
    static_cast<void>(new std::shared_ptr<void>(std::move(object)));
    return;
  }
  errands_.emplace_back([object = std::move(object)]() mutable { object.reset(); });
  changed_.notify_all();
}

void Housekeeper::run(std::function<void()> errand) {
  {
    std::lock_guard lock(mutex_);
    if (start()) {
      errands_.push_back(std::move(errand));
      changed_.notify_all();
      return;
    }
  }
  errand();
}

void Housekeeper::tend(const std::shared_ptr<Tended>& tended) {
  std::lock_guard lock(mutex_);
  if (!start()) return;
  const bool is_known = std::ranges::any_of(
      tended_, [&](const std::weak_ptr<Tended>& known) { return known.lock() == tended; });
  if (!is_known) tended_.push_back(tended);
  changed_.notify_all();
}

void Housekeeper::serve() {
  std::unique_lock lock(mutex_);
  Deadline next = Deadline::after(Tended::kUsualInterval);
  for (;;) {
    while (!errands_.empty()) {
      std::vector<std::function<void()>> errands = std::exchange(errands_, {});
      lock.unlock();
      for (std::function<void()>& errand : errands) std::exchange(errand, nullptr)();
      lock.lock();
    }
    if (tended_.empty()) {
      has_ended_ = true;
      return;
    }
    changed_.wait_until(lock, next.at(), [&] { return !errands_.empty(); });
    if (next.passed()) next = Deadline::after(sweep_all(lock));
  }
}

// Takes all objects out of the list and sweeps them. An object's next tend() enters it again,
// perhaps during the sweep: then it is in the list already.
std::chrono::milliseconds Housekeeper::sweep_all(std::unique_lock<std::mutex>& lock) {
  round_.fetch_add(1, std::memory_order_relaxed);  // see round()
  std::chrono::milliseconds next = Tended::kUsualInterval;
  std::vector<std::weak_ptr<Tended>> all = std::exchange(tended_, {});
  lock.unlock();
  std::erase_if(all, [&](const std::weak_ptr<Tended>& known) {
    const std::shared_ptr<Tended> tended = known.lock();
    if (tended == nullptr) return true;
    const std::optional<std::chrono::milliseconds> interval = tended->sweep();
    if (interval) next = std::min(next, *interval);
    return !interval;
  });
  lock.lock();
  for (std::weak_ptr<Tended>& known : all) {
    const bool is_there = std::ranges::any_of(tended_, [&](const std::weak_ptr<Tended>& other) {
      return !known.owner_before(other) && !other.owner_before(known);
    });
    if (!is_there) tended_.push_back(std::move(known));
  }
  return next;
}

}  // namespace niccolite::registry
