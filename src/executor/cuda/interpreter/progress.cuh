// A kernel's marks for the threads that look after the communicator: the launch that its CTAs have
// begun and ended, and when (observe/kernel_marks.h). Nobody waits for these stores; without marks
// in the header, they cost one look at a parameter.
#pragma once

#include "executor/cuda/launch/launch_args.h"
#include "executor/cuda/ptx/ptx.cuh"

namespace niccolite::executor::cuda {

/// Stores a mark by one thread.
__device__ __forceinline__ void store_mark(const LaunchHeader& header, bool has_ended) {
  const uint32_t cta = ptx::cta_anew();
  if (cta >= observe::kMarkedCtas) return;
  const uint64_t time = ptx::global_time();
  // Relaxed: the host reads the stamps only. The stamps of one CTA are in the order of the kernel's
  // stores to one address, and launches in the order of their stream.
  ptx::store_words(reinterpret_cast<std::byte*>(header.newest + cta),
                   {header.launch << 1 | (has_ended ? 1 : 0), time});
  if (cta >= header.marked_ctas) return;
  observe::KernelSpan& span = header.spans[cta];
  ptx::store_words(reinterpret_cast<std::byte*>(has_ended ? &span.end : &span.begin),
                   {header.launch, time});
}

/// Called by all threads, first. The last thread of a small operation has the least to do.
__device__ __forceinline__ void mark_begin(const LaunchHeader& header) {
  if (header.newest == nullptr) return;
  if (ptx::is_last_thread_anew()) store_mark(header, /*has_ended=*/false);
}

/// Called by all threads when they are done.
__device__ __forceinline__ void mark_end(const LaunchHeader& header) {
  if (header.newest == nullptr) return;
  ptx::barrier_warp();
  ptx::barrier_cta();
  if (!ptx::is_last_thread_anew()) return;
  // The address is opaque to the compiler: it does not keep values that it has read at the begin
  // until the end, for which the largest kernels have no register.
  const uint64_t address = ptx::opaque(reinterpret_cast<uint64_t>(&header));
  store_mark(*reinterpret_cast<const LaunchHeader*>(address), /*has_ended=*/true);
}

}  // namespace niccolite::executor::cuda
