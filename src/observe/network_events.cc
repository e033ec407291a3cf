#include "observe/network_events.h"

#include <bit>
#include <utility>
#include <vector>

namespace niccolite::observe {

NetworkEvents& NetworkEvents::of_process() {
  static auto* const events = new NetworkEvents;  // plug-ins may call while the process ends
  return *events;
}

void* NetworkEvents::add(Named named) {
  if (named_.size() >= kMost) return nullptr;
  named_.emplace(++last_, std::move(named));
  return std::bit_cast<void*>(last_);
}

NetworkEvents::Named NetworkEvents::find(void* name, bool takes) {
  std::lock_guard lock(mutex_);
  const auto found = named_.find(std::bit_cast<uint64_t>(name));
  if (found == named_.end()) return {};
  Named named = found->second;
  if (takes) named_.erase(found);
  return named;
}

void* NetworkEvents::name(const std::shared_ptr<Profiler>& profiler, ProfilerHandle step) {
  if (profiler == nullptr || step == nullptr) return nullptr;
  std::lock_guard lock(mutex_);
  return add({.profiler = profiler, .handle = step});
}

void NetworkEvents::forget(void* name) { static_cast<void>(find(name, /*takes=*/true)); }

void NetworkEvents::forget_all(const Profiler& profiler) {
  std::vector<Named> last;  // one of them may end the plug-in, which is not to wait for the lock
  std::lock_guard lock(mutex_);
  for (auto named = named_.begin(); named != named_.end();) {
    if (named->second.profiler.get() != &profiler) {
      ++named;
      continue;
    }
    last.push_back(std::move(named->second));
    named = named_.erase(named);
  }
}

int NetworkEvents::hear(void** event, int type, void* of, int64_t layout, void* data) {
  enum : int { kStart, kStop, kUpdate, kUpdateAndStop };
  NetworkEvents& events = of_process();
  if (event == nullptr) return 0;
  if (type == kStart) {
    *event = nullptr;
    const Named step = events.find(of, /*takes=*/false);
    if (step.profiler == nullptr) return 0;
    const ProfilerHandle made = step.profiler->start_network(step.handle, layout, data);
    if (made == nullptr) return 0;
    std::lock_guard lock(events.mutex_);
    *event = events.add({.profiler = step.profiler, .handle = made});
    return 0;
  }
  const bool stops = type == kStop || type == kUpdateAndStop;
  const Named named = events.find(*event, stops);
  if (named.profiler == nullptr) return 0;
  if (type == kUpdate || type == kUpdateAndStop) named.profiler->update_network(named.handle, data);
  if (stops) named.profiler->stop(named.handle);
  return 0;
}

}  // namespace niccolite::observe
