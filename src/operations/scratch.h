// Scratch: the device memory that algorithms keep blocks in beside the users' buffers
// (Schedule::scratch_blocks). One memory for all operations of a communicator, as large as the
// largest of them needs, since they run one after the other; nothing while none needs any. Memory
// that has become too small stays until the communicator ends: graphs may name it.
// Thread safety: one thread at a time.
#pragma once

#include <vector>

#include "executor/launch.h"
#include "transport/pool.h"

namespace niccolite::operations {

class Scratch {
 public:
  /// `machine` outlives it, and so do the operations and graphs that were given memory.
  Scratch(gpu::Machine& machine, int device);

  /// Executor::Buffers::scratch of each work of the launch, null for works without such blocks;
  /// empty when none has any. Not while suspended. Errors: CudaError for want of memory.
  Result<std::vector<void*>> reserve(const executor::Launch& launch);

  /// Device memory; stays known while it is given back.
  size_t bytes() const { return share_.bytes(); }
  /// No operation may be under way or begin. The contents of the blocks are lost, their places are
  /// not.
  Status suspend() { return share_.suspend(); }
  Status resume() { return share_.resume(); }

 private:
  transport::Share share_;
  std::byte* memory_ = nullptr;  // the newest, and largest
  size_t capacity_ = 0;
};

}  // namespace niccolite::operations
