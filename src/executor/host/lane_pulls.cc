// Pulls (protocol/request.h): what a lane reduces comes to its slots, unit by unit, as it asks for
// it.
#include <algorithm>
#include <cstring>

#include "executor/host/lane.h"
#include "executor/protocol/request.h"

namespace niccolite::executor::host {

// Both ends decide alike on all channels that have data: those of the lane's block share its units.
bool Lane::may_pull() const {
  const Launch& launch = plan_->launch();
  const CompactInstruction& present = instruction();
  if (launch.request_bytes == 0 || !(present.flags & kReduce) || present.receive_count == 0 ||
      request::most_of(launch.shape, launch.request_bytes) == 0) {
    return false;
  }
  for (uint32_t i = 0; i < present.receive_count; ++i)
    if (!receive_port(i).serves()) return false;
  return true;
}

uint64_t Lane::block_bytes() const {
  return work_->partition.count_from(instruction().chunk_block, 0) * plan_->element_bytes();
}

void Lane::begin_pulls() {
  most_requests_ = request::most_of(plan_->launch().shape, plan_->launch().request_bytes);
  request_units();
  start_unit();
}

// The first unit is the channel's own, if there are so many.
void Lane::request_units() {
  const uint64_t units = divide_up(block_bytes(), plan_->launch().request_bytes);
  while (requested_ - pulled_ < most_requests_) {
    const uint64_t unit = requested_ == 0 ? channel_ : (*next_tile_)++;
    if (unit >= units) return;
    for (uint32_t i = 0; i < instruction().receive_count; ++i)
      receive_port(i).request(requested_, most_requests_, static_cast<uint32_t>(unit));
    units_[requested_++ % most_requests_] = static_cast<uint32_t>(unit);
  }
}

// The unit before is reduced: its place is free.
void Lane::take_unit() {
  ++pulled_;
  request_units();
  start_unit();
}

void Lane::start_unit() {
  if (pulled_ == requested_) {
    for (uint32_t i = 0; i < instruction().receive_count; ++i) receive_port(i).end_requests();
    return end_sharing();
  }
  const uint64_t unit_bytes = plan_->launch().request_bytes;
  const uint64_t at = units_[pulled_ % most_requests_] * unit_bytes;
  start_tile_at(at / plan_->element_bytes(), std::min(block_bytes() - at, unit_bytes));
  has_begun_ = false;
}

bool Lane::has_unit_arrived() {
  for (uint32_t i = 0; i < instruction().receive_count; ++i) {
    if (receive_port(i).has_delivered(pulled_)) continue;
    blocked_ = instruction().receive + i;
    return false;
  }
  return true;
}

bool Lane::may_serve_pulls() const {
  return count_ == 1 && plan_->launch().request_bytes != 0 && instruction().receive_count == 0 &&
         instruction().send_count == 1 && instruction().target == Place::None &&
         send_port(0).makes_offer();
}

// All that is asked for by now. True: something was.
bool Lane::serve_pulls() {
  PortState& to = send_port(0);
  const Launch& launch = plan_->launch();
  const uint32_t most = request::most_of(launch.shape, launch.request_bytes);
  if (!to.has_offered() || most == 0) return false;
  const uint64_t block_at = instruction().source_block * work_->partition.block_stride;
  const std::byte* block =
      static_cast<const std::byte*>(work_->buffers.input) + block_at * plan_->element_bytes();
  bool has_served = false;
  while (const std::optional<uint32_t> unit = to.take_request(most)) {
    const uint64_t at = uint64_t{*unit} * launch.request_bytes;
    std::memcpy(to.place_of(to.deliveries(), most, launch.request_bytes), block + at,
                std::min<uint64_t>(block_bytes() - at, launch.request_bytes));
    to.deliver();
    has_served = true;
  }
  return has_served;
}

}  // namespace niccolite::executor::host
