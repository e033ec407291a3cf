#include "cli/perf/watchdog.h"

#include <chrono>
#include <optional>

namespace niccolite::perf {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kPeriod{100};
// How long a thread of this process may take to notice a failure elsewhere and to come back by
// itself.
constexpr std::chrono::seconds kTimeToReturn{3};

}  // namespace

Watchdog::Watchdog(Team& team, int timeout_seconds, std::function<void(Status)> end_process)
    : team_(team),
      timeout_seconds_(timeout_seconds),
      end_process_(std::move(end_process)),
      thread_([this] { run(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watchdog::watch(std::span<const Rank> ranks) {
  const std::lock_guard lock(mutex_);
  ranks_ = ranks;
}

Status Watchdog::look() {
  for (const Rank& rank : ranks_)
    for (const Communicator& comm : rank.comms)
      TRY(comm.async_error().with_context("rank {}", rank.rank));
  return {};
}

void Watchdog::run() {
  uint64_t progress = team_.progress();
  Clock::time_point moved = Clock::now();
  std::optional<Clock::time_point> aborted;
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kPeriod, [this] { return stopping_; })) {
    const Clock::time_point now = Clock::now();
    if (team_.aborted()) {
      if (!aborted) aborted = now;
      if (now - *aborted > kTimeToReturn) end_process_(Status::remote_error("another rank failed"));
      continue;
    }
    if (Status found = look(); !found.is_ok()) end_process_(std::move(found));
    if (team_.progress() != progress) {
      progress = team_.progress();
      moved = now;
    }
    if (timeout_seconds_ > 0 && now - moved > std::chrono::seconds(timeout_seconds_))
      end_process_(Status::remote_error("no progress for {} s (--timeout)", timeout_seconds_));
  }
}

}  // namespace niccolite::perf
