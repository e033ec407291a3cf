#include "observe/clock.h"

#include <chrono>
#include <thread>

namespace niccolite::observe {

Clock::Moment Clock::Moment::now() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return {.ticks = observe::ticks(),
          .nanoseconds = static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u +
                         static_cast<uint64_t>(now.tv_nsec)};
}

const Clock::Moment& Clock::first() {
  static const Moment moment = Moment::now();
  return moment;
}

void Clock::begin() { first(); }

namespace {

// Over less the error of reading two clocks one after the other would count.
constexpr uint64_t kShortest = 10'000'000;  // ns

}  // namespace

Clock::Clock()
    : now_([] {
        while (Moment::now().nanoseconds - first().nanoseconds < kShortest)
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return Moment::now();
      }()),
      nanoseconds_per_tick_(static_cast<double>(now_.nanoseconds - first().nanoseconds) /
                            static_cast<double>(now_.ticks - first().ticks)) {}

uint64_t Clock::nanoseconds(uint64_t ticks) const {
  const auto since = static_cast<double>(static_cast<int64_t>(ticks - now_.ticks));
  return now_.nanoseconds +
         static_cast<uint64_t>(static_cast<int64_t>(since * nanoseconds_per_tick_));
}

}  // namespace niccolite::observe
