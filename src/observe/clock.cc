#include "observe/clock.h"

#include <chrono>
#include <thread>

namespace niccolite::observe {

namespace {

uint64_t read(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

// Over a shorter time the error of reading two clocks one after the other would count.
constexpr uint64_t kShortest = 10'000'000;  // ns

}  // namespace

Clock::Moment Clock::Moment::now() {
  return {.ticks = observe::ticks(),
          .monotonic = read(CLOCK_MONOTONIC),
          .nanoseconds = read(CLOCK_REALTIME)};
}

const Clock::Moment& Clock::first() {
  static const Moment moment = Moment::now();
  return moment;
}

void Clock::begin() { first(); }

Clock::Clock()
    : Clock(first(), [] {
        while (read(CLOCK_MONOTONIC) - first().monotonic < kShortest)
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return Moment::now();
      }()) {}

Clock::Clock(const Moment& first, const Moment& now)
    : now_(now),
      nanoseconds_per_tick_(static_cast<double>(now.monotonic - first.monotonic) /
                            static_cast<double>(now.ticks - first.ticks)) {}

uint64_t Clock::nanoseconds(uint64_t ticks) const {
  const auto since = static_cast<double>(static_cast<int64_t>(ticks - now_.ticks));
  return now_.nanoseconds +
         static_cast<uint64_t>(static_cast<int64_t>(since * nanoseconds_per_tick_));
}

}  // namespace niccolite::observe
