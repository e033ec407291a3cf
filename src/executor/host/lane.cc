#include "executor/host/lane.h"

#include <algorithm>
#include <cstring>

#include "executor/host/ll_words.h"

namespace niccolite::executor::host {
namespace {

using gpu::virtual_::Progress;

constexpr uint32_t kMostOperands = 256;       // 255 receives and a local one
constexpr uint64_t kStripBytes = 8 << 10;     // a few operands fit the first-level cache
constexpr uint64_t kStagingBytes = 64 << 10;  // unpacked and scaled operands of a strip
constexpr uint64_t kLongestCopy = 1 << 20;    // a strip that nobody reads again
static_assert(kStagingBytes / (kMostOperands + 1) >= 128,
              "strips are multiples of 128 bytes, the grain of slots");

}  // namespace

Lane::Lane(const Plan& plan, const CompactLane& lane, uint32_t channel, PortState* ports)
    : plan_(&plan),
      ports_(ports),
      instructions_(plan.program().instructions.data() + lane.first),
      count_(lane.count),
      channel_(channel) {
  if (count_ > 0) start();
}

PortState& Lane::port(uint32_t index) const {
  return ports_[plan_->port_in_channel(plan_->program().indices[index])];
}

std::byte* Lane::local(Place place, uint32_t block) const {
  const Launch& launch = plan_->launch();
  const Partition& partition = launch.partition;
  const uint64_t element = block * partition.block_stride + channel_ * partition.channel_stride +
                           uint64_t{round_} * partition.chunk;
  void* buffer = place == Place::Scratch ? launch.scratch : launch.output;
  if (place == Place::Input)
    buffer = const_cast<void*>(launch.input);  // check_instruction: never a target
  return static_cast<std::byte*>(buffer) + element * plan_->element_bytes() + offset_;
}

Progress Lane::run(Budget& budget) {
  bool advanced = false;
  while (round_ < plan_->launch().partition.rounds && count_ > 0) {
    if (budget.is_spent()) return Progress::Advanced;
    if (!has_begun_ && !may_begin()) return advanced ? Progress::Advanced : Progress::WouldBlock;
    has_begun_ = true;
    while (offset_ < bytes_) {
      if (budget.is_spent()) return Progress::Advanced;
      const uint64_t bytes = std::min(strip_bytes(), bytes_ - offset_);
      if (!move_strip(bytes)) return advanced ? Progress::Advanced : Progress::WouldBlock;
      advanced = true;
      arrived_ = 0;
      offset_ += bytes;
      budget.bytes -= static_cast<int64_t>(bytes) *
                      (1 + instruction().receive_count + instruction().send_count);
    }
    finish();
    advanced = true;
    --budget.instructions;
  }
  return Progress::Done;
}

// Goes to the first strip of the present instruction.
void Lane::start() {
  const Partition& partition = plan_->launch().partition;
  bytes_ =
      partition.range(instruction().chunk_block, channel_, round_).count * plan_->element_bytes();
  offset_ = 0;
  arrived_ = 0;
  has_begun_ = false;
}

bool Lane::may_begin() {
  for (uint32_t i = 0; i < instruction().send_count; ++i) {
    if (!send_port(i).has_credit()) return false;
  }
  if (plan_->launch().protocol == Protocol::LL) return true;
  for (uint32_t i = 0; i < instruction().receive_count; ++i) {
    if (!receive_port(i).has_arrived()) return false;
  }
  return true;
}

// LL: looks at the last word of the strip of each receive, which usually arrives last; a lane that
// waits looks at one word.
bool Lane::words_arrived(uint64_t bytes) {
  for (; arrived_ < instruction().receive_count; ++arrived_) {
    const PortState& from = receive_port(arrived_);
    if (!ll_arrived(from.slot(), offset_ + bytes - 1, ll::flag_of(from.step()))) return false;
  }
  return true;
}

uint64_t Lane::strip_bytes() const {
  const CompactInstruction& present = instruction();
  const uint32_t destinations = present.send_count + (present.target != Place::None ? 1u : 0u);
  if (plan_->launch().protocol == Protocol::LL) {
    // Each receive is unpacked, and there may be a scaled operand or a result to stage.
    return std::min(kStripBytes, kStagingBytes / (present.receive_count + 2u) / 128 * 128);
  }
  const bool is_one_copy = destinations == 1 && !(present.flags & (kReduce | kFinish));
  const bool is_scaled = present.source == Place::Input && plan_->folder().scales_input();
  return is_one_copy && !is_scaled ? kLongestCopy : kStripBytes;
}

// Moves `bytes` bytes at offset_ of the chunk. False when words of an LL slot are missing.
bool Lane::move_strip(uint64_t bytes) {
  const bool is_ll = plan_->launch().protocol == Protocol::LL;
  if (is_ll && !words_arrived(bytes)) return false;

  alignas(64) std::byte staging[kStagingBytes];  // [operand][bytes], then the result
  const std::byte* operands[kMostOperands];
  if (!gather(bytes, staging, operands)) return false;

  const CompactInstruction& present = instruction();
  const uint32_t operand_count = present.receive_count + (present.source != Place::None ? 1u : 0u);
  const bool scales_result = (present.flags & kFinish) != 0 && plan_->folder().scales_result();
  const std::byte* result = operands[0];
  if (operand_count > 1 || scales_result) {
    // To the first destination that is plain memory; deliver() copies it to the others while it is
    // in the cache.
    std::byte* folded = staging + operand_count * bytes;
    if (present.target != Place::None) {
      folded = local(present.target, present.target_block);
    } else if (!is_ll) {
      folded = send_port(0).slot() + offset_;
    }
    plan_->folder().fold({operands, operand_count}, scales_result, folded,
                         bytes / plan_->element_bytes());
    result = folded;
  }
  deliver(result, bytes);
  return true;
}

// Finds this strip of every operand, in fold order. An LL slot is read once; were its words to be
// read again, they might not be the same.
bool Lane::gather(uint64_t bytes, std::byte* staging, const std::byte** operands) {
  const CompactInstruction& present = instruction();
  const bool is_ll = plan_->launch().protocol == Protocol::LL;
  uint32_t operand = 0;
  for (uint32_t i = 0; i <= present.receive_count; ++i) {
    if (present.source != Place::None && i == present.source_position) {
      operands[operand] = local(present.source, present.source_block);
      if (present.source == Place::Input && plan_->folder().scales_input()) {
        std::byte* scaled = staging + operand * bytes;
        plan_->folder().scale_input(operands[operand], scaled, bytes / plan_->element_bytes());
        operands[operand] = scaled;
      }
      ++operand;
    }
    if (i == present.receive_count) break;
    const PortState& from = receive_port(i);
    if (is_ll) {
      std::byte* unpacked = staging + operand * bytes;
      if (!ll_unpack(from.slot(), offset_, bytes, ll::flag_of(from.step()), unpacked)) return false;
      operands[operand] = unpacked;
    } else {
      operands[operand] = from.slot() + offset_;
    }
    ++operand;
  }
  return true;
}

// Stores the strip to all destinations that do not have it yet.
void Lane::deliver(const std::byte* result, uint64_t bytes) {
  const CompactInstruction& present = instruction();
  if (present.target != Place::None) {
    std::byte* target = local(present.target, present.target_block);
    if (target != result) std::memcpy(target, result, bytes);
  }
  for (uint32_t i = 0; i < present.send_count; ++i) {
    const PortState& to = send_port(i);
    if (plan_->launch().protocol == Protocol::LL) {
      ll_pack(to.slot(), offset_, bytes, ll::flag_of(to.step()), result);
    } else if (to.slot() + offset_ != result) {
      std::memcpy(to.slot() + offset_, result, bytes);
    }
  }
}

// The chunk is moved: gives back what was received, publishes what was sent, goes on to the next
// instruction.
void Lane::finish() {
  const Launch& launch = plan_->launch();
  for (uint32_t i = 0; i < instruction().receive_count; ++i) receive_port(i).received();
  for (uint32_t i = 0; i < instruction().send_count; ++i) {
    PortState& to = send_port(i);
    if (launch.protocol == Protocol::LL && ll::cleans(to.step(), launch.shape.depth)) {
      ll_clean(to.slot(), bytes_, launch.shape.slot_bytes, ll::flag_of(to.step()));
    }
    to.sent(launch.protocol);
  }
  if (++next_ == count_) {
    next_ = 0;
    ++round_;
  }
  start();
}

}  // namespace niccolite::executor::host
