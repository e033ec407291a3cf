#include "observe/kernel_marks.h"

#include <algorithm>
#include <atomic>

namespace niccolite::observe {

// relaxed: the words publish nothing but themselves. A stamp crosses the bus as one write, which
// the memory model does not promise: a reader that meets two launches' halves finds other words
// when it looks again.
KernelStamp KernelMarks::read(const KernelStamp& stamp) {
  auto& shared = const_cast<KernelStamp&>(stamp);
  const std::atomic_ref launch(shared.launch);
  const std::atomic_ref time(shared.time);
  constexpr int kMostLooks = 8;
  KernelStamp seen{.launch = launch.load(std::memory_order_relaxed),
                   .time = time.load(std::memory_order_relaxed)};
  for (int look = 0; look < kMostLooks; ++look) {
    const KernelStamp again{.launch = launch.load(std::memory_order_relaxed),
                            .time = time.load(std::memory_order_relaxed)};
    if (again.launch == seen.launch && again.time == seen.time) break;
    seen = again;
  }
  return seen;
}

KernelStamp KernelMarks::last() const {
  KernelStamp last{};
  for (uint32_t cta = 0; cta < kMarkedCtas; ++cta)
    if (const KernelStamp stamp = read(newest_[cta]); stamp.time > last.time) last = stamp;
  return last;
}

KernelMarks::Progress KernelMarks::progress() const {
  Progress progress;
  uint64_t newest = 0;
  for (uint32_t cta = 0; cta < kMarkedCtas; ++cta) {
    const KernelStamp stamp = read(newest_[cta]);
    const bool runs = stamp.launch != 0 && stamp.launch % 2 == 0;
    progress.is_running = progress.is_running || runs;
    if (stamp.time < newest) continue;
    newest = stamp.time;
    progress.begun = stamp.launch / 2;
  }
  return progress;
}

bool KernelMarks::have_all_begun(uint64_t launch, uint32_t ctas) const {
  return ctas <= kMarkedCtas && std::all_of(newest_, newest_ + ctas, [&](const KernelStamp& stamp) {
           return read(stamp).launch >= 2 * launch;
         });
}

}  // namespace niccolite::observe
