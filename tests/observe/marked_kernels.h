// MarkedKernels: the marks of a communicator's kernels, stored by hand as kernels store them
// (executor/cuda/interpreter/progress.cuh).
#pragma once

#include <vector>

#include "observe/kernel_marks.h"

namespace niccolite::observe {

class MarkedKernels {
 public:
  explicit MarkedKernels(uint32_t columns = 1)
      : memory_(KernelMarks::bytes_for(columns) / sizeof(KernelStamp)),
        marks_(memory_.data(), columns) {}

  MarkedKernels(const MarkedKernels&) = delete;

  const KernelMarks& marks() const { return marks_; }
  void begin(uint64_t launch, uint64_t time, uint32_t cta = 0) { store(launch, time, cta, false); }
  void end(uint64_t launch, uint64_t time, uint32_t cta = 0) { store(launch, time, cta, true); }

 private:
  void store(uint64_t launch, uint64_t time, uint32_t cta, bool has_ended) {
    marks_.newest()[cta] = {.launch = launch << 1 | (has_ended ? 1 : 0), .time = time};
    if (cta >= marks_.columns()) return;
    KernelSpan& span = marks_.spans_of(launch)[cta];
    (has_ended ? span.end : span.begin) = {.launch = launch, .time = time};
  }

  std::vector<KernelStamp> memory_;
  KernelMarks marks_;
};

}  // namespace niccolite::observe
