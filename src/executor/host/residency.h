// Residency: how many CTAs (channels of operations) may be under way on a virtual GPU at a time, as
// on a real one, which has so many multiprocessors (NICCOLITE_VIRTUAL_SMS). An operation is under
// way as a whole, or waits; the first that asks when there is room gets it. Without a limit, which
// is the default, nobody asks. Thread safety: any thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace niccolite::executor::host {

class Residency {
 public:
  /// Returns the residency of a virtual GPU of this process; null: no limit.
  static Residency* of(int device);

  explicit Residency(int64_t most) : free_(most), most_(most) {}
  /// False: there is no room for so many now. More than there are at all count as all.
  bool enter(int64_t ctas);
  void leave(int64_t ctas);

 private:
  int64_t bounded(int64_t ctas) const { return ctas < most_ ? ctas : most_; }
  std::atomic<int64_t> free_;
  const int64_t most_;
};

}  // namespace niccolite::executor::host
