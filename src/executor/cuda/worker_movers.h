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

/// The warps that a worker which bulk copies serve has at most: that of the thread that drives
/// them, and those that shift what it moves where source and target are not aligned alike
/// (stage_shift.cuh).
inline constexpr uint32_t kWarpsOfPassingOn = 2;
inline constexpr uint32_t kWarpsOfCopyWithin = 4;
inline constexpr uint32_t kWarpsOfShiftedCopyWithin = 5;
inline constexpr uint32_t kWarpsOfSend = 8;

/// By worker.
struct WorkerMovers {
  std::vector<uint8_t> forms;        // WorkerForm: several
  std::vector<uint32_t> most_warps;  // kMaxWarps: as many as there are
};

/// `flags`: the header's. `reduces`: the kernel does (KernelId).
WorkerMovers choose_worker_movers(const Launch& launch, uint32_t flags, bool reduces,
                                  Staging staging);

}  // namespace niccolite::executor::cuda
