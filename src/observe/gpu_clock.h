// GpuClock: when, by the host's ticks, the timer of a GPU showed some time. Nobody asks the GPU: a
// kernel began after it was launched, and before the host saw its mark (kernel_marks.h), so that
// each operation bounds the difference of the clocks from one side. Thread safety: one thread at a
// time.
#pragma once

#include <cstdint>
#include <optional>

#include "observe/clock.h"

namespace niccolite::observe {

class GpuClock {
 public:
  /// The GPU's timer, in nanoseconds, showed `gpu` after the host had `ticks`.
  void came_after(uint64_t ticks, uint64_t gpu, const Clock& clock);
  /// The GPU's timer showed `gpu` before the host had `ticks`.
  void came_before(uint64_t ticks, uint64_t gpu, const Clock& clock);

  /// Converts a time of the GPU; nothing while it is not bounded from below.
  std::optional<uint64_t> ticks_of(uint64_t gpu, const Clock& clock) const;
  /// Returns the possible error of ticks_of(), in nanoseconds.
  uint64_t uncertainty(const Clock& clock) const;

 private:
  // The best bound so far. A bound grows loose with its age, since clocks drift.
  struct Bound {
    uint64_t ticks = 0;
    uint64_t gpu = 0;
  };
  /// The ticks at which the GPU's timer showed `gpu`, if the bound were exact.
  static double place(const Bound& bound, uint64_t gpu, const Clock& clock);
  static double slack(const Bound& bound, uint64_t gpu, const Clock& clock);

  std::optional<Bound> after_, before_;
};

}  // namespace niccolite::observe
