// KernelMarks: page-locked memory of the host in which the kernels of a communicator on a real GPU
// record their begins and ends (executor/cuda/interpreter/progress.cuh). Kernels only store there,
// and the host reads at any time. Host and device include the layout.
//
//   newest   [kMarkedCtas] KernelStamp    the last begin or end of each CTA number
//   spans    [kMarkedLaunches][columns] KernelSpan    by launch modulo kMarkedLaunches and by CTA
//
// `newest` tells whether anything runs; the spans are the history. One column, of CTA 0, is enough
// to know when launches began; profilers want all.
#pragma once

#include <cstddef>
#include <cstdint>

namespace niccolite::observe {

inline constexpr uint32_t kMarkedCtas = 64;       // further CTAs of a launch say nothing
inline constexpr uint32_t kMarkedLaunches = 256;  // a power of two

/// A moment of one CTA, stored as one access of 16 bytes.
struct alignas(16) KernelStamp {
  uint64_t launch;  // its number on the communicator; in `newest` twice that, plus one at its end
  uint64_t time;    // nanoseconds of the GPU's timer
};
struct KernelSpan {
  KernelStamp begin;
  KernelStamp end;
};
static_assert(sizeof(KernelSpan) == 32);

/// The memory of one communicator, which outlives its kernels. Thread safety: as for any value; the
/// memory is written by kernels alone, reads are of single words.
class KernelMarks {
 public:
  KernelMarks() = default;
  /// `memory`: bytes_for(columns) bytes of zeros, aligned to 16.
  KernelMarks(void* memory, uint32_t columns)
      : newest_(static_cast<KernelStamp*>(memory)), columns_(columns) {}

  static constexpr size_t bytes_for(uint32_t columns) {
    return kMarkedCtas * sizeof(KernelStamp) +
           size_t{kMarkedLaunches} * columns * sizeof(KernelSpan);
  }

  /// False: kernels say nothing.
  explicit operator bool() const { return newest_ != nullptr; }
  uint32_t columns() const { return columns_; }
  KernelStamp* newest() const { return newest_; }
  KernelSpan* spans_of(uint64_t launch) const {
    return reinterpret_cast<KernelSpan*>(newest_ + kMarkedCtas) +
           launch % kMarkedLaunches * columns_;
  }

  /// Host: the stamp as it is, whole.
  static KernelStamp read(const KernelStamp& stamp);
  /// The last thing that any CTA has begun or ended; nothing yet: zeros.
  KernelStamp last() const;
  /// The launch that runs, or ran last: the newest one that has begun, and whether a CTA has not
  /// ended.
  struct Progress {
    uint64_t begun = 0;  // 0: none
    bool is_running = false;
  };
  Progress progress() const;
  /// True if all `ctas` CTAs of the newest launch have begun. False also when an older launch, of a
  /// graph, was launched again after it, and where not all CTAs have marks.
  bool have_all_begun(uint64_t launch, uint32_t ctas) const;

 private:
  KernelStamp* newest_ = nullptr;
  uint32_t columns_ = 0;
};

}  // namespace niccolite::observe
