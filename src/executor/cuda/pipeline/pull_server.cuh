// The server of an exposing worker while the peer reduces: it sends the tiles that the peer pulls
// (protocol/pull.h), through stages (pipeline.cuh). If the peer reads the exposed buffer itself, or
// has finished, there are no pulls.
//
//   user's buffer --> stage --> place of the pull in the peer's slots
//
// The next tile is loaded while the last one is on the way, and a tile is announced once its stores
// are complete, a few stages later.
//
// Order: [pull] -> stores; stores are complete -> [delivered], which the service warp announces.
#pragma once

#include "executor/cuda/interpreter/service_warp.cuh"
#include "executor/cuda/pipeline/copy_stores.cuh"
#include "executor/cuda/pipeline/pipeline.cuh"
#include "executor/protocol/pull.h"

namespace niccolite::executor::cuda {

/// Can the worker serve pulls for the data that it exposes? Known from the start.
__device__ __forceinline__ bool serves_pulls(const Cta& cta, const WorkerTask& task) {
  return task.has(kServesPulls) && can_serve_pulls(cta.header, *cta.work);
}

template <typename Operation, bool kByWarp>
class PullServer {
 public:
  /// Called by the crew of a worker that only sends, to one peer, which has its advertisement.
  __device__ __forceinline__ PullServer(const Cta& cta, const WorkerTask& task)
      : cta_(cta),
        port_(cta.ports[cta.uses[cta.instructions[task.first].send].port]),
        ring_(cta.header.copy_stages, task.ring, /*operands=*/1),
        wait_(cta.header, *cta.work) {
    const CompactInstruction& instruction = cta.instructions[task.first];
    block_ = address_of<Operation>(cta, instruction.source, instruction.source_block, Chunk{});
    block_bytes_ = cta.work->partition.count_from(instruction.chunk_block, 0) *
                   Operation::element_bytes(cta.header) / kVec16 * kVec16;
  }

  /// Serves until the peer is done, or the operation aborted.
  __device__ __forceinline__ void run() {
    if constexpr (kByWarp) ring_.start();  // a thread's has been started (run_simple())
    run_pipeline(ring_, *this);
  }

  // ---- as run_pipeline() wants them

  __device__ __forceinline__ Next fill_next() {
    if (left_ == 0 && !take_pull()) return is_over_ ? Next::End : Next::Later;
    const uint32_t bytes = left_ < ring_.bytes() ? left_ : ring_.bytes();
    ring_.fill(to_ / kVec16, bytes, bytes == left_, [&](uint32_t) -> typename Ring::Part {
      return {from_, bytes};
    });
    from_ += bytes;
    to_ += bytes;
    left_ -= bytes;
    return Next::Found;
  }
  __device__ __forceinline__ bool wait_for_next() {
    // A peer that has finished with the block pulls nothing more.
    const uint64_t credit = port_.end - 1 + cta_.header.shape.depth;  // for all steps
    is_over_ = ring_.agree([&] { return is_open(cta_, port_, credit); });
    return is_over_ ||
           ring_.agree([&] { return wait_.keep_going([&] { return Awaited{port_.peer}; }); });
  }
  __device__ __forceinline__ bool drain_first() {
    const typename Ring::Tile tile = ring_.await();
    std::byte* target = port_.own_slots + uint64_t{tile.at} * kVec16;
    if constexpr (kByWarp) {
      store_vec16s(target, tile.memory, tile.bytes);
    } else {
      ptx::bulk_store(target, tile.memory, tile.bytes);
    }
    stored_ += static_cast<uint32_t>(tile.is_last);
    if (ring_.release(tile.is_last)) announce(port_.delivered + 1);
    return true;
  }
  __device__ __forceinline__ void announce() {
    ring_.complete();
    announce(stored_);
  }

 private:
  using Ring = StageRing<kCopyStages, kByWarp>;

  __device__ __forceinline__ bool take_pull() {
    uint32_t pull = pull::kNone;
    const uint32_t place = taken_ & (cta_.header.most_pulls - 1);
    if (ring_.leads()) {
      uint32_t& word = port_.control->pulls[place];
      // [pull] pairs with [pull] of the reduction. Relaxed: no read depends on it, and stores
      // cannot pass a load whose value has been used.
      pull = ptx::load_relaxed_system(&word);
      // Before the tile is announced, and so before the next pull comes here.
      if (pull != pull::kNone) ptx::store_relaxed_system(&word, pull::kNone);
    }
    if constexpr (kByWarp) pull = ptx::first_of_warp(pull);
    if (pull == pull::kNone) return false;
    const uint64_t start = uint64_t{pull::tile_in(pull)} * cta_.header.pull_bytes;
    from_ = block_ + start;
    left_ = block_bytes_ - start < cta_.header.pull_bytes
                ? static_cast<uint32_t>(block_bytes_ - start)
                : cta_.header.pull_bytes;
    to_ = place * cta_.header.pull_bytes;
    ++taken_;
    return true;
  }

  /// The stores of so many tiles are complete.
  __device__ __forceinline__ void announce(uint32_t tiles) {
    if (!ring_.leads() || tiles == port_.delivered) return;
    ptx::fence_bulk();
    // [delivered] pairs with the service warp's.
    ptx::store_release_shared(&port_.delivered, tiles);
  }

  const Cta& cta_;
  PortState& port_;
  Ring ring_;
  SimpleWait wait_;
  const std::byte* block_;
  uint64_t block_bytes_;             // whole vec16s: the peer reads the rest
  const std::byte* from_ = nullptr;  // the next part of the tile that is being loaded
  uint32_t to_ = 0;                  // where it belongs, from the start of the slots
  uint32_t left_ = 0;                // of the tile
  uint32_t taken_ = 0;               // pulls
  uint32_t stored_ = 0;              // tiles whose stores are under way
  bool is_over_ = false;
};

}  // namespace niccolite::executor::cuda
