// What serves each worker of a program in a CTA: a pipeline of stages (pipeline.cuh), or the
// threads of as many warps as there are. lowering::plan_workers() decides; here stands what it is
// told of a launch, and what kernels are told of its plan. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "executor/cuda/launch_args.h"
#include "executor/launch.h"

namespace niccolite::executor::cuda {

/// Bytes that the blocks of an aligned buffer are aligned to, at most 16; the same for all ranks,
/// also for those whose buffers have one block and no stride.
uint8_t stride_width(const Launch& launch, size_t work);

/// By worker.
struct WorkerMovers {
  std::vector<uint8_t> forms;  // WorkerForm: several
  std::vector<bool> is_small;  // it needs no more than one warp
};

/// `flags`: the header's. `reduces`: the kernel does (KernelId).
WorkerMovers choose_worker_movers(const Launch& launch, uint32_t flags, bool reduces,
                                  Staging staging);

}  // namespace niccolite::executor::cuda
