// Clock: time stamps that cost a few nanoseconds: the processor's counter where it runs evenly,
// else CLOCK_MONOTONIC. Thread safety: any thread.
#pragma once

#include <cstdint>
#include <ctime>

namespace niccolite::observe {

/// The time of this process alone, in ticks that only Clock understands.
inline uint64_t ticks() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();  // <x86intrin.h> takes as long to compile as all else here
#elif defined(__aarch64__)
  uint64_t value;
  asm volatile("mrs %0, cntvct_el0" : "=r"(value));
  return value;
#else
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
#endif
}

/// Translates ticks into nanoseconds since 1970, by the host's clock at the time when the Clock is
/// made. The length of a tick is measured by CLOCK_MONOTONIC, which nobody sets: ticks and this
/// clock are compared once early in the process and again when the Clock is made. The longer the
/// time between, the better. Times of one Clock are in the order of their ticks.
class Clock {
 public:
  /// Both clocks, and the host's, at one moment.
  struct Moment {
    uint64_t ticks = 0;
    uint64_t monotonic = 0;    // nanoseconds
    uint64_t nanoseconds = 0;  // since 1970
    static Moment now();
  };
  Clock();
  /// `now` is later than `first`.
  Clock(const Moment& first, const Moment& now);
  uint64_t nanoseconds(uint64_t ticks) const;
  double ticks_per_nanosecond() const { return 1 / nanoseconds_per_tick_; }

  /// Notes the first of both comparisons; the earlier the better.
  static void begin();

 private:
  static const Moment& first();
  const Moment now_;
  double nanoseconds_per_tick_;
};

}  // namespace niccolite::observe
