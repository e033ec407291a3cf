#include "executor/cuda/lane_forms.h"

#include <algorithm>
#include <bit>

#include "executor/protocol/offer.h"

namespace niccolite::executor::cuda {
namespace {

/// Can bulk copies serve the lane: one instruction that moves what one operand holds, as it is?
bool can_be_bulk(const Launch& launch, const CompactLane& lane, uint32_t flags) {
  if (launch.protocol != Protocol::Simple || lane.count != 1) return false;
  const CompactInstruction& instruction = launch.program->instructions[lane.first];
  const bool has_source = instruction.source != Place::None;
  const bool scales_input = (flags & kScalesInput) != 0 && instruction.source == Place::Input;
  const bool scales_result = (flags & kScalesResult) != 0 && (instruction.flags & kFinish) != 0;
  return instruction.receive_count + has_source == 1 && !scales_input && !scales_result;
}

bool copies_only(const Launch& launch, const CompactLane& lane) {
  const CompactInstruction& instruction = launch.program->instructions[lane.first];
  return instruction.receive_count + instruction.send_count == 0;
}

/// May the CTAs share the fold of the lane (shared_fold.cuh), in a program of which it is all that
/// its channel has to count?
bool may_share_fold(const Launch& launch, const CompactLane& lane, uint32_t flags) {
  const Program& program = *launch.program;
  if (launch.protocol != Protocol::Simple || lane.count != 1 || program.works.size() != 1 ||
      program.works.front().nchannels != 1 || (flags & kScalesInput) != 0) {
    return false;
  }
  const CompactInstruction& fold = program.instructions[lane.first];
  if ((fold.flags & kReduce) == 0 || fold.receive_count == 0) return false;
  const auto all_of = [&](uint32_t first, uint32_t count, auto&& is_right) {
    const auto* ports = program.indices.data() + first;
    return std::all_of(ports, ports + count, is_right);
  };
  return all_of(fold.receive, fold.receive_count,
                [&](uint16_t port) { return may_be_lent(launch, port); }) &&
         all_of(fold.send, fold.send_count,
                [&](uint16_t port) { return may_land(launch, port) && program.ports[port].stays; });
}

/// The first lane that may.
std::optional<uint32_t> choose_shared_fold(const Launch& launch, uint32_t flags) {
  const std::vector<CompactLane>& lanes = launch.program->lanes;
  for (uint32_t l = 0; l < lanes.size(); ++l) {
    if (may_share_fold(launch, lanes[l], flags)) return l;
  }
  return std::nullopt;
}

/// By lane: those that bulk copies serve. Of lanes that only copy, from the user's buffer to the
/// user's buffer, one that the CTAs can share, for whose claims there is a counter (claims.cuh);
/// else, and in kernels that reduce, many threads are faster.
std::vector<bool> choose_bulk_lanes(const Launch& launch, uint32_t flags, bool reduces) {
  const Program& program = *launch.program;
  bool has_counter = !reduces && program.works.size() == 1 && !program.ports.empty() &&
                     program.works.front().nchannels == 1 && !launch.ports.front().in_host;
  std::vector<bool> is_bulk;
  for (const CompactLane& lane : program.lanes) {
    const bool copies = copies_only(launch, lane);
    is_bulk.push_back(can_be_bulk(launch, lane, flags) && (!copies || has_counter));
    if (copies && is_bulk.back()) has_counter = false;
  }
  return is_bulk;
}

/// Has the lane an offer to make, and otherwise nothing to do but to wait? If the offer is refused,
/// it moves data through slots. (An input that is scaled is not offered.)
bool may_only_offer(const Launch& launch, const CompactLane& lane, uint32_t flags) {
  if (lane.count != 1 || (flags & kScalesInput) != 0) return false;
  const Program& program = *launch.program;
  const CompactInstruction& only = program.instructions[lane.first];
  if (only.receive_count + only.send_count != 1) return false;
  return only.receive_count == 1 ? may_land(launch, program.indices[only.receive])
                                 : may_be_lent(launch, program.indices[only.send]);
}

/// By lane: those that need no more than one warp. `is_bulk`: of them bulk copies serve these.
/// Blocks that are not aligned because of their length are offered all the same (protocol/offer.h),
/// and threads move them: all that there are, but for lanes that only wait.
std::vector<bool> choose_small_lanes(const Launch& launch, const std::vector<bool>& is_bulk,
                                     uint32_t flags) {
  std::vector<bool> is_small = is_bulk;
  for (size_t l = 0; l < is_small.size(); ++l) {
    const CompactLane& lane = launch.program->lanes[l];
    if (stride_width(launch, lane.work) < offer::kAlignment && may_only_offer(launch, lane, flags))
      is_small[l] = true;
  }
  return is_small;
}

}  // namespace

uint8_t stride_width(const Launch& launch, size_t work) {
  const size_t shape = launch.is_list() ? 0 : work;
  if (!launch.program->works[shape].has_strides) return offer::kAlignment;
  const uint64_t bytes = launch.works[work].partition.block_stride * size_of(launch.type);
  return static_cast<uint8_t>(1u << std::countr_zero(bytes | offer::kAlignment));
}

bool may_land(const Launch& launch, uint16_t port) {
  return launch.protocol == Protocol::Simple && launch.program->ports[port].lands &&
         launch.ports[port].can_land;
}

bool may_be_lent(const Launch& launch, uint16_t port) {
  return launch.protocol == Protocol::Simple && launch.program->ports[port].lends &&
         launch.ports[port].can_lend;
}

LaneForms choose_lane_forms(const Launch& launch, uint32_t flags, bool reduces,
                            BulkCopies bulk_copies) {
  LaneForms forms;
  forms.is_bulk.assign(launch.program->lanes.size(), false);
  if (bulk_copies == BulkCopies::All) forms.is_bulk = choose_bulk_lanes(launch, flags, reduces);
  forms.is_small = choose_small_lanes(launch, forms.is_bulk, flags);
  if (bulk_copies != BulkCopies::None) forms.shared_fold = choose_shared_fold(launch, flags);
  return forms;
}

}  // namespace niccolite::executor::cuda
