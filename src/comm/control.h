// Control: the words through which a communicator and its kernels talk (executor::ControlWords),
// and the words in which kernels of real GPUs mark the operations that they have begun and ended
// (observe::KernelMarks).
//
// The memory is pinned, and comes from pages that the process keeps: the driver frees such memory
// only when no kernel runs on any GPU, and another communicator's may be waiting for a peer that
// has died (H100, driver 580: cuMemFreeHost waits for every kernel). Thread safety: any thread.
#pragma once

#include <mutex>

#include "base/status.h"
#include "base/thread_annotations.h"
#include "executor/launch.h"
#include "gpu/memory.h"

namespace niccolite::comm {

class Control {
 public:
  Control() = default;
  Control(const Control&) = delete;
  /// No kernel looks at the words any more.
  ~Control() { release(); }

  Status allocate(gpu::Allocations& allocations);
  /// Called once, after allocate(): with a span for so many CTAs. The memory stays until release().
  Result<observe::KernelMarks> allocate_marks(uint32_t columns);
  void release();
  /// Null until allocate(), and after release(). Host and device have the same address.
  executor::ControlWords* words() const;
  /// Tells all kernels; nothing is told after End, and nobody when there are no words.
  void tell(executor::Command command);

 private:
  mutable std::mutex mutex_;
  gpu::Allocations* allocations_ GUARDED_BY(mutex_) = nullptr;
  executor::ControlWords* words_ GUARDED_BY(mutex_) = nullptr;
  observe::KernelMarks marks_ GUARDED_BY(mutex_);
};

}  // namespace niccolite::comm
