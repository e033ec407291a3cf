#include "transport/net/pulse.h"

namespace niccolite::transport::net {
namespace {

using std::chrono::milliseconds;

std::optional<milliseconds> age_of(Pulse::Clock::rep ticks) {
  if (ticks == 0) return std::nullopt;
  const Pulse::Clock::time_point time{Pulse::Clock::duration(ticks)};
  return std::max(std::chrono::floor<milliseconds>(Pulse::Clock::now() - time), milliseconds(0));
}

}  // namespace

void Pulse::carries(uint64_t parts, uint64_t bytes, std::optional<Clock::time_point> since,
                    bool has_another_way) {
  parts_.store(parts, std::memory_order_relaxed);
  bytes_.store(bytes, std::memory_order_relaxed);
  has_another_way_.store(has_another_way, std::memory_order_relaxed);
  since_.store(since ? since->time_since_epoch().count() : 0, std::memory_order_relaxed);
}

void Pulse::waits_on(std::string from, std::string to) {
  std::lock_guard lock(mutex_);
  from_ = std::move(from);
  to_ = std::move(to);
}

Traffic Pulse::traffic(int peer) const {
  Traffic traffic{.peer = peer,
                  .from = {},
                  .to = {},
                  .unacknowledged = age_of(since_.load(std::memory_order_relaxed)),
                  .parts = parts_.load(std::memory_order_relaxed),
                  .bytes = bytes_.load(std::memory_order_relaxed),
                  .has_another_way = has_another_way_.load(std::memory_order_relaxed),
                  .is_under_way = false,
                  .acknowledged = age_of(acknowledged_.load(std::memory_order_relaxed)),
                  .heard = age_of(heard_.load(std::memory_order_relaxed))};
  std::lock_guard lock(mutex_);
  traffic.from = from_;
  traffic.to = to_;
  return traffic;
}

}  // namespace niccolite::transport::net
