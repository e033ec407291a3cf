// Lets a launch begin before the one before it on its stream has ended. Two uses:
//
// *Short collectives* (begins_early() of kernel_launch.h) that follow each other in a graph. The
// later one's CTAs are set up while the earlier one runs, and wait at their begin until all that it
// has stored can be seen: await_previous().
//
// *Messages* run side by side. The messages of one group that go by different protocols use
// different connections, so their launches need not wait for each other. The later one is launched
// with programmatic stream serialization (PreparedLaunch::launch()). It begins when all CTAs of the
// earlier one have begun, and ends after it, so that later work on the stream waits for both.
//
// This is only for kernels that read nothing that the kernel before them writes.
//
// Kernels of architectures before 9.0 run one after the other.
#pragma once

#include "executor/cuda/launch/launch_args.h"
#include "executor/cuda/ptx/ptx.cuh"

namespace niccolite::executor::cuda {

/// At the start of a kernel: one that is to run beside it may begin.
__device__ __forceinline__ void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// At the start of a kernel, before its first access of memory: waits for the kernel before it,
/// which then has ended. Free where that has ended before this one began.
__device__ __forceinline__ void await_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// At the start of a kernel of a short collective. The next one may begin only once this one has
/// gone on: otherwise the CTAs of all that follow would hold multiprocessors.
__device__ __forceinline__ void begin_short() {
  await_previous();
  let_next_begin();
}

/// At the start of a kernel that may also run beside the one before it.
__device__ __forceinline__ void begin_beside(const LaunchHeader& header) {
  if ((header.flags & kBeginsEarly) != 0) await_previous();
  let_next_begin();
}

/// Waits, at the end of a kernel, for the earlier kernel that runs beside it, if there is one.
/// Called by all threads of the CTA. `kByLastWarp`: only the last warp waits, after all its other
/// work. The instruction stops a whole warp, and with bulk copies (Simple) a single thread of a
/// warp may still work while the others are done (kernel.cuh: run_copy()).
template <bool kByLastWarp>
__device__ __forceinline__ void await_last() {
#if __CUDA_ARCH__ >= 900
  if constexpr (kByLastWarp) {
    if (ptx::thread() / kWarp != (ptx::threads() - 1) / kWarp) return;
    ptx::barrier_warp();
  }
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace niccolite::executor::cuda
