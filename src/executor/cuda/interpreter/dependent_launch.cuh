// Lets two launches run side by side. The messages of one group that go by different protocols use
// different connections, so their launches need not wait for each other. The later one is launched
// with programmatic stream serialization (PreparedLaunch::launch()). It begins when all CTAs of the
// earlier one have begun, and ends after it, so that later work on the stream waits for both.
//
// Only for kernels that read nothing that the kernel before them writes. Kernels of architectures
// before 9.0 run one after the other.
#pragma once

#include "executor/cuda/ptx/ptx.cuh"

namespace niccolite::executor::cuda {

/// At the start of a kernel: one that is to run beside it may begin.
__device__ __forceinline__ void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
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
