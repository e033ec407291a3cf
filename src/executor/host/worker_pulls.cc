// Pulls (protocol/pull.h): the operands of a worker come to its slots, tile by tile, as it asks for
// them.
#include <algorithm>
#include <cstring>

#include "executor/host/worker.h"
#include "executor/protocol/pull.h"

namespace niccolite::executor::host {

// Both ends decide alike on all channels that have data: these channels share the tiles of the
// worker's block.
bool Worker::may_pull() const {
  const Launch& launch = plan_->launch();
  const CompactInstruction& present = instruction();
  if (launch.pull_bytes == 0 || !(present.flags & kReduce) || present.receive_count == 0 ||
      pull::most_of(launch.shape, launch.pull_bytes) == 0) {
    return false;
  }
  for (uint32_t i = 0; i < present.receive_count; ++i)
    if (!receive_port(i).serves()) return false;
  return true;
}

uint64_t Worker::block_bytes() const {
  return work_->partition.count_from(instruction().chunk_block, 0) * plan_->element_bytes();
}

void Worker::begin_pulls() {
  most_pulls_ = pull::most_of(plan_->launch().shape, plan_->launch().pull_bytes);
  pull_tiles();
  start_pulled_tile();
}

// The first tile is the channel's own, if there are so many.
void Worker::pull_tiles() {
  const uint64_t tiles = divide_up(block_bytes(), plan_->launch().pull_bytes);
  while (asked_ - pulled_ < most_pulls_) {
    const uint64_t tile = asked_ == 0 ? channel_ : (*next_tile_)++;
    if (tile >= tiles) return;
    for (uint32_t i = 0; i < instruction().receive_count; ++i)
      receive_port(i).pull(asked_, most_pulls_, static_cast<uint32_t>(tile));
    tiles_[asked_++ % most_pulls_] = static_cast<uint32_t>(tile);
  }
}

// The tile before is reduced: its place is free.
void Worker::take_pulled_tile() {
  ++pulled_;
  pull_tiles();
  start_pulled_tile();
}

void Worker::start_pulled_tile() {
  if (pulled_ == asked_) {
    for (uint32_t i = 0; i < instruction().receive_count; ++i) receive_port(i).end_pulls();
    return end_sharing();
  }
  const uint64_t tile_bytes = plan_->launch().pull_bytes;
  const uint64_t at = tiles_[pulled_ % most_pulls_] * tile_bytes;
  start_tile_at(at / plan_->element_bytes(), std::min(block_bytes() - at, tile_bytes));
  has_begun_ = false;
}

bool Worker::has_pulled_tile_arrived() {
  for (uint32_t i = 0; i < instruction().receive_count; ++i) {
    if (receive_port(i).has_delivered(pulled_)) continue;
    blocked_ = instruction().receive + i;
    return false;
  }
  return true;
}

bool Worker::may_serve_pulls() const {
  return lowered_->serves_pulls && plan_->launch().pull_bytes != 0 &&
         send_port(0).makes_advertisement();
}

// Serves all pulls that have come by now. True: there was one.
bool Worker::serve_pulls() {
  PortState& to = send_port(0);
  const Launch& launch = plan_->launch();
  const uint32_t most = pull::most_of(launch.shape, launch.pull_bytes);
  if (!to.has_advertised() || most == 0) return false;
  const uint64_t block_at = instruction().source_block * work_->partition.block_stride;
  const std::byte* block =
      static_cast<const std::byte*>(work_->buffers.input) + block_at * plan_->element_bytes();
  bool has_served = false;
  while (const std::optional<uint32_t> tile = to.take_pull(most)) {
    const uint64_t at = uint64_t{*tile} * launch.pull_bytes;
    std::memcpy(to.place_of(to.deliveries(), most, launch.pull_bytes), block + at,
                std::min<uint64_t>(block_bytes() - at, launch.pull_bytes));
    to.deliver();
    has_served = true;
  }
  return has_served;
}

}  // namespace niccolite::executor::host
