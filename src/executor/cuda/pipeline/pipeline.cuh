// The staged engine: it moves all data that is larger than the registers of a few threads.
// A worker of Simple that the lowered plan gives stages to (worker_movers.h) is a pipeline:
//
//   sources               stages in shared memory (stage_ring.cuh)         sinks
//   own buffer      -.                                                 .-> slot of a peer
//   slot             +-- fill --> | s0 | s1 | s2 | ... | sn | -- drain +-> own buffer
//   peer's buffer   -'                     a ring             (reduce) '-> peer's buffer
//     (direct get)                                                           (direct put)
//
// A *tile iterator* says which part of the data comes next. A worker adds nothing but the iterator
// and the use of a full stage:
//
//   worker                         tiles                                      drain
//   copy_worker.cuh: Rounds        of its channel, round by round             stores
//   copy_worker.cuh: Dynamic       of all channels, whoever is free           stores
//   pull_server.cuh                pulled by the peer                         stores
//   reduce_worker.cuh: GotTiles    of all channels, any warp that is free     reduces
//   pulled_tiles.cuh: PulledTiles  pulled by a warp beside it                 reduces
//
// The Crew drives the pipeline. It is one thread if bulk copies (TMA) both fill and store the
// stages, and a warp if threads store or reduce their contents. Architectures from 9.0 on fill
// stages by bulk copies. Older ones use cp.async, to which every thread of the warp adds its part,
// so there warps drive everything.
//
// The waits and their orders:
//
//   the tile is there      [cached], [delivered] or [tile] acquire -> fence_bulk -> fill
//   a stage is full        fill -> its barrier in shared memory -> drain
//   a stage is free        thread: bulk stores have read it (await_bulk_reads) -> fill
//                          warp: all its threads have read it -> warp barrier -> fill
//   a tile is stored       thread: await_bulk_stores -> fence_bulk -> [completed] release
//                          warp: stores -> warp barrier -> [completed] release
//   all else is announced  before any wait for a peer, who may be waiting for it
//
// [completed] and its like go to the service warp (service_warp.cuh), which fences, and tells the
// peer.
//
// Aborts: only wait_for_next() and drain_first() wait for others, and return false once the
// operation is aborted. Loads that are under way then have still to arrive (StageRing::abandon()),
// since shared memory must not be written after the CTA's end; then the worker says that it uses
// no buffer of a peer any more (leave_advertisements() of advertisements.cuh).
#pragma once

#include "executor/cuda/pipeline/stage_ring.cuh"

namespace niccolite::executor::cuda {

/// The outcome of the search for the next tile.
enum class Next : uint8_t {
  Found,  // it is known by now which it is, or a part of it is on its way to a stage
  Later,  // not available yet
  End,    // there is none
};

/// Runs a pipeline until its tiles end, or the operation is aborted: then false. By all of the
/// ring's crew. A Flow has
///   Next fill_next()      takes the next tile, starts to load a part of it into the ring, or both;
///                         never waits. (Without a loop: nested more deeply, the compiler saves the
///                         warp's convergence barriers for each stage, a tenth of a copy's time.)
///   bool wait_for_next()  after Later, with no stage pending: until that may have changed
///   bool drain_first()    the first pending stage, which it releases
///   void announce()       waits until all that was drained is stored, and says so
template <typename Ring, typename Flow>
__device__ __forceinline__ bool run_pipeline(const Ring& ring, Flow&& flow) {
  for (;;) {
    Next next = Next::Found;
    while (next == Next::Found && ring.has_room()) next = flow.fill_next();
    if (!ring.is_empty()) {
      if (!flow.drain_first()) return false;
      continue;
    }
    if (next == Next::End) return true;
    flow.announce();
    if (!flow.wait_for_next()) return false;
  }
}

}  // namespace niccolite::executor::cuda
