// A wait for another rank: what it does beside looking at its word. Every few thousand looks it
// sees whether the operation was aborted, and whether the host has to be told (executor/report.h).
#pragma once

#include "executor/cuda/launch_args.h"
#include "executor/cuda/ptx.cuh"
#include "executor/report.h"

namespace niccolite::executor::cuda {

/// What a wait is for. Put together only when somebody wants to know.
struct Awaited {
  static constexpr uint32_t kNoTag = ~uint32_t{0};
  uint32_t peer;
  uint32_t other_tag = kNoTag;  // of the call that the data which is there belongs to
};

class Wait {
 public:
  __device__ __forceinline__ Wait(const LaunchHeader& header, const WorkTask& work)
      : header_(header), work_(work) {}

  /// False when the operation was aborted. `awaited` is called to know what is waited for.
  template <typename Function>
  __device__ __forceinline__ bool keep_going(Function&& awaited) {
    if (++spins_ % kSpinsPerLook != 0) return true;
    // Host memory, a microsecond away. Relaxed: nothing is read on account of it; the kernel just
    // ends.
    if (ptx::load_relaxed_system(header_.abort) != 0) return false;
    tell(awaited());
    return true;
  }

 private:
  static constexpr uint32_t kSpinsPerLook = 4096;
  static constexpr uint32_t kLate = 62;  // about a second, in units of 2^24 ns

  // A load and a store instead of a compare-and-swap, which PCIe need not have. Each word is whole;
  // should a Waiting replace a Mismatch between the two, then the wait that saw the mismatch stores
  // it again when it looks next. Relaxed: the word is all that the host reads.
  __device__ __forceinline__ void tell(const Awaited& awaited) {
    const bool is_mismatch = awaited.other_tag != Awaited::kNoTag;
    if (!is_mismatch && !is_late()) return;
    const ReportKind told = decode_report(ptx::load_relaxed_system(header_.report)).kind;
    if (told == ReportKind::Mismatch || (told == ReportKind::Waiting && !is_mismatch)) return;
    const Report report{is_mismatch ? ReportKind::Mismatch : ReportKind::Waiting, awaited.peer,
                        work_.tag, static_cast<uint16_t>(awaited.other_tag),
                        static_cast<uint16_t>((late_ >> 16) - 1)};
    ptx::store_relaxed_system(header_.report, encode(report));
  }

  /// True about every second from the wait's first look on.
  __device__ __forceinline__ bool is_late() {
    const uint32_t now = static_cast<uint16_t>(ptx::global_timer() >> 24) | 1;
    if (late_ == 0) late_ = now;
    if (static_cast<uint16_t>(now - late_) < kLate) return false;
    late_ = ((late_ >> 16) + 1) << 16 | now;
    return true;
  }

  const LaunchHeader& header_;
  const WorkTask& work_;
  uint32_t spins_ = 0;
  // How often it was late << 16 | the time from which on it is late again; 0: not looked so far. In
  // one register.
  uint32_t late_ = 0;
};

}  // namespace niccolite::executor::cuda
