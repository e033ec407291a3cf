// Batch: the operations that one worker of the scheduler has in its hands, and for how long none
// has moved. Thread safety: the worker's.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include "gpu/virtual/scheduler.h"

namespace niccolite::gpu::virtual_ {

using std::chrono::microseconds;

inline constexpr int kYieldingPasses = 32;
inline constexpr microseconds kFirstNap{5};
inline constexpr microseconds kUsualNap{100};
inline constexpr microseconds kLongestNap{1000};
inline constexpr int kNapShare = 32;  // beyond kUsualNap a nap lengthens a wait by at most a 32nd

// Operations in a row that a thread stepped while it waited for them, before no worker is woken for
// its next.
inline constexpr int kTrustedHelps = 4;
inline thread_local int helps_in_a_row = 0;

struct Scheduler::Batch {
  std::vector<OperationPtr> operations;  // to be stepped
  std::vector<OperationPtr> unfinished;  // stepped, to go back to the queue
  const Operation* only_for = nullptr;   // only operations that lead to it; null: any operation
  bool advanced = false;                 // the last run() moved something
  bool is_poller = false;
  bool serves = false;          // the sources, as the poller
  bool all_woken = true;        // of the operations that have blocked in this pass
  size_t blocked_in_a_row = 0;  // steps since anything moved
  bool is_woken = false;        // all operations of the last pass were
  size_t pass = 1;              // operations there were at the last refill
  uint64_t progress_seen = 0;
  int idle_passes = 0;
  microseconds nap = kFirstNap;
  microseconds napped{0};  // since anything moved

  void notice_progress() {
    blocked_in_a_row = 0;
    all_woken = true;
    idle_passes = 0;
    nap = kFirstNap;
    napped = microseconds(0);
  }

  void lengthen_nap() {
    napped += nap;
    nap = std::min(2 * nap, std::clamp(napped / kNapShare, kUsualNap, kLongestNap));
  }

  // After a whole pass in which nothing moved: true when it is time to stop burning the processor.
  bool should_rest(uint64_t progress) {
    if (blocked_in_a_row < pass) return false;
    blocked_in_a_row = 0;
    is_woken = std::exchange(all_woken, true);
    if (progress != progress_seen) {
      progress_seen = progress;
      notice_progress();
      return false;
    }
    return ++idle_passes > kYieldingPasses || is_woken;
  }
};

}  // namespace niccolite::gpu::virtual_
