#include "observe/gpu_clock.h"

#include <algorithm>
#include <cmath>

namespace niccolite::observe {
namespace {

constexpr double kDrift = 50e-6;         // of two quartz clocks, at most
constexpr double kLaunchTime = 4'000.0;  // ns from the host's launch to a kernel on an idle GPU

double difference(uint64_t a, uint64_t b) {
  return static_cast<double>(static_cast<int64_t>(a - b));
}

}  // namespace

// Relative to the bound's own ticks, so that a double is exact enough.
double GpuClock::place(const Bound& bound, uint64_t gpu, const Clock& clock) {
  return difference(gpu, bound.gpu) * clock.ticks_per_nanosecond();
}

double GpuClock::slack(const Bound& bound, uint64_t gpu, const Clock& clock) {
  return std::abs(difference(gpu, bound.gpu)) * kDrift * clock.ticks_per_nanosecond();
}

void GpuClock::came_after(uint64_t ticks, uint64_t gpu, const Clock& clock) {
  if (after_) {
    const double known = place(*after_, gpu, clock) - slack(*after_, gpu, clock);
    if (difference(ticks, after_->ticks) < known) return;
  }
  after_ = {.ticks = ticks, .gpu = gpu};
}

void GpuClock::came_before(uint64_t ticks, uint64_t gpu, const Clock& clock) {
  if (before_) {
    const double known = place(*before_, gpu, clock) + slack(*before_, gpu, clock);
    if (difference(ticks, before_->ticks) > known) return;
  }
  before_ = {.ticks = ticks, .gpu = gpu};
}

// Nearly every program launches to an idle GPU now and then: then the lower bound is a launch's
// time off, which is alike on all ranks. The upper one tells when no launch did.
std::optional<uint64_t> GpuClock::ticks_of(uint64_t gpu, const Clock& clock) const {
  if (!after_) return std::nullopt;
  double offset = place(*after_, gpu, clock) + kLaunchTime * clock.ticks_per_nanosecond();
  if (before_)
    offset =
        std::min(offset, difference(before_->ticks, after_->ticks) + place(*before_, gpu, clock));
  return after_->ticks + static_cast<uint64_t>(static_cast<int64_t>(offset));
}

uint64_t GpuClock::uncertainty(const Clock& clock) const {
  if (!after_ || !before_) return ~uint64_t{0} / 4;
  const double gap = difference(before_->ticks, after_->ticks) -
                     place(*after_, before_->gpu, clock) + slack(*after_, before_->gpu, clock);
  return static_cast<uint64_t>(std::max(gap, 0.0) / clock.ticks_per_nanosecond());
}

}  // namespace niccolite::observe
