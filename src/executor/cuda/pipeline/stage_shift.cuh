// Copies whose source and destinations are not aligned alike, at the speed of bulk copies, which
// only move between addresses that are: what a stage holds is shifted to its front between its load
// and its store, by warps of the worker that do not drive the copy.
//
//   source:       ...|  data  ...      loaded from the vec16 that it begins in
//   stage, full:  |..|  data    |..|   `shift` bytes in
//   shifted:      |  data    |         stored to destinations, which begin at a vec16
//
//   thread (copy_worker.cuh)   bulk load --> stage full            stage shifted --> bulk store
//   a warp                                   stage full --> shift, stage shifted
//
// A warp shifts a stage alone, and others those behind it at the same time: all of them together on
// one stage would wait for each other longer than they load and store.
//
// Threads' own stores over a link move 11 GB/s a CTA, and bulk copies 15 and more.
#pragma once

#include "executor/cuda/pipeline/stage_ring.cuh"

namespace niccolite::executor::cuda {

/// Moves, by all threads of a warp, the `bytes` bytes (a multiple of kVec16) that lie `shift` (less
/// than kVec16) bytes behind `memory` to there. Up to 2 vec16s behind them are loaded, too.
__device__ __forceinline__ void shift_bytes(std::byte* memory, uint32_t bytes, uint32_t shift) {
  constexpr int kRows = 8;  // of a vec8 a thread: loaded at once
  constexpr uint32_t kRow = kWarp * kVec8;
  const std::byte* const source = memory + (shift & ~(kVec8 - 1));
  for (uint32_t first = 0; first < bytes; first += kRows * kRow) {
    const uint32_t at = first + ptx::thread() % kWarp * kVec8;
    uint64_t low[kRows] = {};
    uint64_t high[kRows] = {};
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (at + i * kRow >= bytes) continue;
      low[i] = ptx::load_shared<uint64_t>(source + at + i * kRow);
      high[i] = ptx::load_shared<uint64_t>(source + at + i * kRow + kVec8);
    }
    // All threads have loaded the words to which others of the warp store.
    ptx::barrier_warp();
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (at + i * kRow < bytes)
        ptx::store_shared(memory + at + i * kRow, vec8_in(low[i], high[i], shift % kVec8));
    }
  }
}

/// Returns how many of `warps` (1 or more) shift: each has an equal share of all stages, always the
/// same stages, so that a warp that waits for a stage's next turn has ended the last one.
__device__ __forceinline__ uint32_t shifting_warps(uint32_t warps) {
  uint32_t most = kCopyStages;
  while (most > warps) most /= 2;
  return most;
}

/// Called by all threads of a worker except its first warp, whose thread drives `Ring`, a StageRing
/// that is shifted: shifts all stages by `shift` bytes, until the thread says that there are no
/// more.
template <typename Ring>
__device__ __forceinline__ void shift_stages(const Ring& ring, uint32_t shift,
                                             const WorkerThreads& worker) {
  const uint32_t warps = shifting_warps(worker.size / kWarp);
  const uint32_t warp = worker.rank / kWarp;
  if (warp >= warps) return;
  for (uint32_t s = warp, turn = 0;;) {
    ring.await_loaded(s, turn);
    if (ring.is_end(s)) return;
    if (shift != 0) shift_bytes(ring.memory_of(s), ring.bytes_in(s), shift);
    ring.leave_shifted(s);
    s += warps;
    if (s < ring.stages()) continue;
    s = warp;
    turn ^= 1;
  }
}

}  // namespace niccolite::executor::cuda
