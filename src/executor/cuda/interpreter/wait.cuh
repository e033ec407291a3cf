// A wait for another rank, and its duties between looks at its word. Every few thousand looks it
// checks whether the kernel has to end (executor/command.h), and whether it has to report to the
// host (executor/report.h). It ends for no other reason: a wait for data that cannot come, or that
// are another call's, lasts until the program has ended the communicator.
#pragma once

#include "executor/command.h"
#include "executor/cuda/launch/launch_args.h"
#include "executor/cuda/ptx/ptx.cuh"
#include "executor/report.h"

namespace niccolite::executor::cuda {

/// The subject of a wait. Put together only when somebody wants to know.
struct Awaited {
  static constexpr uint32_t kNoTag = ~uint32_t{0};
  uint32_t peer;
  uint32_t other_tag = kNoTag;  // of the call that the data which is there belongs to
  ReportKind kind = ReportKind::Waiting;
};

/// `kLeaves`: in a kernel that may use memory of other ranks' users, and thus has to let go of it
/// when it is told to: the wait ends then, too.
template <bool kLeaves>
class BasicWait {
 public:
  __device__ __forceinline__ BasicWait(const LaunchHeader& header, const WorkTask& work)
      : BasicWait(header, work.tag) {}
  /// `tag` outlives the wait: a parameter of the kernel, which takes no register.
  __device__ __forceinline__ BasicWait(const LaunchHeader& header, const uint16_t& tag)
      : header_(header), tag_(tag) {}

  /// False when the wait is over. Calls `awaited` if it has to report its subject.
  template <typename Function>
  __device__ __forceinline__ bool keep_going(Function&& awaited) {
    if (++spins_ % kSpinsPerLook != 0) return true;
    if (is_over()) return false;
    tell(awaited());
    return true;
  }

  /// Looks after `spins` spins that were not counted one by one: kSpinsPerLook, or a power of two
  /// below it.
  __device__ __forceinline__ bool look(const Awaited& awaited, uint32_t spins = kSpinsPerLook) {
    spins_ += spins;
    if (is_over()) return false;
    tell(awaited);
    return true;
  }
  static constexpr uint32_t kSpinsPerLook = 4096;
  static_assert(ptx::kSpinsPerReport % kSpinsPerLook == 0, "reports are made at looks");

 private:
  // Host memory, a microsecond away. Relaxed: nothing is read on account of it; the kernel just
  // ends.
  __device__ __forceinline__ bool is_over() const {
    const uint32_t command = ptx::load_relaxed_system(header_.abort);
    return kLeaves ? command != static_cast<uint32_t>(Command::GoOn)
                   : command == static_cast<uint32_t>(Command::End);
  }

  // As few instructions as can be, and no state but the spins: this stands in every wait, and code
  // that is fetched in vain makes a small operation slower. Plain stores, since
  // PCIe need not have atomics; each word is whole. Should a Waiting replace a Mismatch, the wait
  // that saw the mismatch stores it again when it looks next, some milliseconds later. Relaxed: the
  // word is all that the host reads.
  __device__ __forceinline__ void tell(const Awaited& awaited) {
    const bool is_mismatch = awaited.other_tag != Awaited::kNoTag;
    if (!is_mismatch && spins_ % ptx::kSpinsPerReport != 0) return;
    const uint32_t repeats = spins_ / ptx::kSpinsPerReport - 1;
    const uint32_t kind = static_cast<uint32_t>(is_mismatch ? ReportKind::Mismatch : awaited.kind);
    const uint32_t low = is_mismatch ? awaited.other_tag : repeats;
    // Encodes like encode() of report.h, in halves.
    ptx::store_relaxed_system(header_.report,
                              static_cast<uint64_t>(kind << 24 | (awaited.peer & 0xffffffu)) << 32 |
                                  (uint32_t{tag_} << 16 | (low & 0xffffu)));
  }

  const LaunchHeader& header_;
  const uint16_t& tag_;
  uint32_t spins_ = 0;
};
using Wait = BasicWait<false>;
using SimpleWait = BasicWait<true>;

/// Keeps the kernel of an operation that goes no further from ending, by all threads of a warp,
/// since one that has not been done must not look done.
__device__ __forceinline__ void wait_for_end(const LaunchHeader& header) {
  constexpr uint32_t kNanosecondsPerLook = 20'000;
  // Relaxed: nothing is read on account of it.
  while (!ptx::any_of_warp(ptx::load_relaxed_system(header.abort) ==
                           static_cast<uint32_t>(Command::End))) {
    ptx::sleep(kNanosecondsPerLook);
  }
}

}  // namespace niccolite::executor::cuda
