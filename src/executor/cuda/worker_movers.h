// What serves each worker of a program in a CTA: one thread that drives bulk copies, a reduction
// that all CTAs share, or the threads of as many warps as there are. lowering::plan_workers()
// decides; here stands what it is told of a launch. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "executor/cuda/launch_args.h"
#include "executor/launch.h"

namespace niccolite::executor::cuda {

/// Bytes that the blocks of an aligned buffer are aligned to, at most 16; the same for all ranks,
/// also for those whose buffers have one block and no stride.
uint8_t stride_width(const Launch& launch, size_t work);

struct WorkerMovers {
  std::vector<bool> is_bulk;                 // by worker: bulk copies serve it
  std::vector<bool> is_small;                // by worker: it needs no more than one warp
  std::optional<uint32_t> shared_reduction;  // the worker whose reduction the CTAs share
};

/// `flags`: the header's. `reduces`: the kernel does (KernelId).
WorkerMovers choose_worker_movers(const Launch& launch, uint32_t flags, bool reduces,
                                  BulkCopies bulk_copies);

}  // namespace niccolite::executor::cuda
