// Where kernels stand on their stream. They are launched with programmatic stream serialization
// (PreparedLaunch::launch()), which leaves to the kernel what of the kernel before it on the stream
// it waits for. Three things are made of it:
//
//   every kernel      is set up while the last CTAs of the one before it end, and waits, before it
//                     reads or writes anything, until all of that has ended and its stores are
//                     there (begin_on_stream()). As if launched behind it, 0.3 to 0.5 us earlier.
//   kLetsNextBegin    lets the launch behind it begin once that wait is over.
//   kBesideLast       begins then, and ends behind the one before it (await_last()): launches that
//                     carry out the messages of one group by different protocols use different
//                     connections, and need not wait for each other. What follows on the stream
//                     waits for both.
//
// A kernel lets no other begin but one that is to run beside it: what waits on a multiprocessor
// keeps it from others, whose peers may be waiting for them.
//
// kBesideLast is only for kernels that read nothing of what the one before them writes. Those of
// architectures before 9.0 follow each other as ever.
#pragma once

#include "executor/cuda/launch_args.h"
#include "executor/cuda/ptx.cuh"

namespace niccolite::executor::cuda {

/// By all threads, before anything else.
__device__ __forceinline__ void await_stream() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// The same in kernels that may run beside others.
__device__ __forceinline__ void begin_on_stream(const LaunchHeader& header) {
#if __CUDA_ARCH__ >= 900
  const uint32_t flags = header.flags;
  if ((flags & kBesideLast) == 0) await_stream();
  if ((flags & kLetsNextBegin) != 0) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// At the end of such a kernel, by all threads of the CTA: waits for the kernel that this one runs
/// beside, if it does. `kByLastWarp`: only those of the last warp wait, behind all that the warp
/// has to do. The instruction stops a warp as a whole, and where bulk copies move data (Simple)
/// there are warps of which one thread does while the others are done (kernel.cuh: run_copy()).
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
