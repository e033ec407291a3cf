// What a worker that exposes its input does while the peer reduces: it sends the tiles that the
// peer pulls (protocol/pull.h), by bulk copies. If the peer reads what is exposed, or is done,
// there are none.
//
//   user's buffer --load--> stage --store--> place of the pull in the peer's slots
//
// One thread, as of all bulk workers (bulk_worker.cuh): the next tile is loaded while the last one
// is on the way, and a tile is announced a few pieces after its own last one.
//
// Order: [pull] -> stores; stores -> wait for their group -> fence -> [delivered], which the
// service warp announces.
#pragma once

#include "executor/cuda/bulk_stages.cuh"
#include "executor/cuda/simple_step.cuh"
#include "executor/protocol/pull.h"

namespace niccolite::executor::cuda {

/// Can the worker serve pulls for what it exposes? Known from the start.
__device__ __forceinline__ bool serves_pulls(const Cta& cta, const WorkerTask& task) {
  if (cta.header.pull_bytes == 0 || !task.is_bulk() || cta.work->width < kVec16) return false;
  const CompactInstruction& instruction = cta.instructions[task.first];
  return instruction.receive_count == 0 && instruction.send_count == 1;
}

template <typename Operation>
class PullServer {
 public:
  /// By one thread of a worker that only sends, to one peer, who has its advertisement.
  __device__ __forceinline__ PullServer(const Cta& cta, const WorkerTask& task)
      : cta_(cta),
        port_(cta.ports[cta.uses[cta.instructions[task.first].send].port]),
        stages_(cta.header, task.bulk) {
    const CompactInstruction& instruction = cta.instructions[task.first];
    block_ = address_of<Operation>(cta, instruction.source, instruction.source_block, Chunk{});
    block_bytes_ = cta.work->partition.count_from(instruction.chunk_block, 0) *
                   Operation::element_bytes(cta.header) / kVec16 * kVec16;
  }

  /// Until the peer is done, or the operation aborted.
  __device__ __forceinline__ void run() {
    stages_.start();
    const uint64_t credit = port_.end - 1 + cta_.header.shape.depth;  // for all steps
    for (SimpleWait wait(cta_.header, *cta_.work);;) {
      while (stages_.pending() < BulkStages::kAhead && (left_ != 0 || take_pull())) load_piece();
      if (stages_.pending() != 0) {
        store_piece();
        continue;
      }
      stages_.complete();
      announce(stored_);
      // Who has done with the block pulls nothing more.
      if (is_open(cta_, port_, credit)) return;
      if (!wait.keep_going([&] { return Awaited{port_.peer}; })) return;
    }
  }

 private:
  static constexpr uint32_t kEndsTile = 1;  // of BulkStage::bytes, a multiple of kVec16

  __device__ __forceinline__ bool take_pull() {
    const uint32_t place = taken_ & (cta_.header.most_pulls - 1);
    uint32_t& word = port_.control->pulls[place];
    // [pull] pairs with that of the reduction. Relaxed: nothing is read on account of it, and
    // stores cannot pass a load whose value has been used.
    const uint32_t pull = ptx::load_relaxed_system(&word);
    if (pull == pull::kNone) return false;
    // Before the tile is announced, and so before the next pull comes here.
    ptx::store_relaxed_system(&word, pull::kNone);
    const uint64_t start = uint64_t{pull::tile_in(pull)} * cta_.header.pull_bytes;
    from_ = block_ + start;
    left_ = block_bytes_ - start < cta_.header.pull_bytes
                ? static_cast<uint32_t>(block_bytes_ - start)
                : cta_.header.pull_bytes;
    to_ = place * cta_.header.pull_bytes;
    ++taken_;
    return true;
  }

  __device__ __forceinline__ void load_piece() {
    const uint32_t bytes = left_ < stages_.bytes() ? left_ : stages_.bytes();
    stages_.next().at = to_;
    stages_.next().bytes = bytes | (bytes == left_ ? kEndsTile : 0);
    stages_.load(from_, bytes);
    from_ += bytes;
    to_ += bytes;
    left_ -= bytes;
  }

  __device__ __forceinline__ void store_piece() {
    const std::byte* piece = stages_.await();
    const BulkStage& stage = stages_.first();
    const bool ends_tile = (stage.bytes & kEndsTile) != 0;
    ptx::bulk_store(port_.slots + stage.at, piece, stage.bytes & ~kEndsTile);
    stored_ += static_cast<uint32_t>(ends_tile);
    if (stages_.commit(ends_tile)) announce(port_.delivered + 1);
  }

  /// The stores of so many tiles are complete.
  __device__ __forceinline__ void announce(uint32_t tiles) {
    if (tiles == port_.delivered) return;
    ptx::fence_bulk();
    // [delivered] pairs with the service warp's.
    ptx::store_release_shared(&port_.delivered, tiles);
  }

  const Cta& cta_;
  PortState& port_;
  BulkStages stages_;
  const std::byte* block_;
  uint64_t block_bytes_;             // whole vec16s: the reduction reads the rest
  const std::byte* from_ = nullptr;  // the next piece of the tile that is being loaded
  uint32_t to_ = 0;                  // where it belongs, from the start of the slots
  uint32_t left_ = 0;                // of the tile
  uint32_t taken_ = 0;               // pulls
  uint32_t stored_ = 0;              // tiles, of which the stores are under way
};

}  // namespace niccolite::executor::cuda
