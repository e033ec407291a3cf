// Launches side by side: launches that carry out the messages of one group by different protocols
// use different connections, and need not wait for each other. The later one is launched with
// programmatic stream serialization (PreparedLaunch::launch()): it begins when all CTAs of the
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

/// At the end, by all threads of the CTA: waits for the kernel that this one runs beside, if there
/// is one. `kByLastWarp`: only threads of the last warp wait, after all other work of the warp. The
/// instruction stops a warp as a whole, and where bulk copies move data (Simple), one thread of a
/// warp works while the others are done (kernel.cuh: run_copy()).
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
