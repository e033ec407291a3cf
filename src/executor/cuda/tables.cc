#include "executor/cuda/tables.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <span>

#include "executor/cuda/device_types.h"
#include "executor/protocol/offer.h"
#include "executor/protocol/request.h"

namespace niccolite::executor::cuda {
namespace {

constexpr uint32_t kStageAlignment = 128;
constexpr uint32_t kLeastStageBytes = 2048;  // smaller pieces cost more than they hide
constexpr uint32_t kMostStageBytes = 16384;  // larger ones move no more
constexpr uint32_t kPiecesOfChunk = 4;       // fewer hide less
constexpr uint32_t kPartBesideFold = 4;      // of shared memory that is for them
constexpr uint32_t kPartForRequests = 2;     // the same, if they serve what folds request
constexpr uint32_t kFoldRow = kWarp * 16;    // a pack for each thread of a warp
constexpr uint32_t kMostFoldPiece = 2048;    // of a shared fold; longer ones move no more
constexpr uint32_t kLeastFoldPiece = 1024;   // shorter ones cost more than a third group hides
constexpr uint32_t kFoldGroups = 3;          // of pieces that are shorter than the longest
constexpr uint32_t kMostFoldGroups = 6;

/// Warps for each lane by weight, at least one each. There are at least as many warps as lanes.
std::vector<uint32_t> share_warps(std::span<const uint8_t> weights, uint32_t warps) {
  std::vector<uint32_t> shares(weights.size(), 1);
  for (uint32_t given = static_cast<uint32_t>(weights.size()); given < warps; ++given) {
    size_t neediest = 0;  // the lane with the most weight per warp
    for (size_t i = 1; i < weights.size(); ++i) {
      if (uint64_t{weights[i]} * shares[neediest] > uint64_t{weights[neediest]} * shares[i]) {
        neediest = i;
      }
    }
    ++shares[neediest];
  }
  return shares;
}

/// Lays out the image section by section.
class Layout {
 public:
  explicit Layout(std::vector<std::byte>& image) : image_(image) {}
  /// Appends, and returns the offset. Every section starts at a multiple of 16 bytes.
  template <typename T>
  uint32_t add(const std::vector<T>& section) {
    const size_t at = image_.size();
    const size_t bytes = section.size() * sizeof(T);
    image_.resize(at + (bytes + 15) / 16 * 16);
    if (bytes != 0) std::memcpy(image_.data() + at, section.data(), bytes);
    return static_cast<uint32_t>(at);
  }

 private:
  std::vector<std::byte>& image_;
};

struct Tables {
  std::vector<PortTask> ports;
  std::vector<CompactInstruction> instructions;
  std::vector<LaneTask> lanes;
  std::vector<PortUse> uses;
  std::vector<uint8_t> warps;
  uint32_t pointers = 0;    // shared slot addresses of all lanes
  uint32_t bulk_lanes = 0;  // most of a CTA
  uint32_t fold_warps = 0;  // of the lane whose fold the CTAs share
  uint32_t fold_operands = 0;
};

/// Shared slot addresses that an instruction of the lane needs.
uint32_t most_pointers(const Program& program, const CompactLane& lane) {
  uint32_t most = 0;
  for (uint32_t i = lane.first; i < uint32_t{lane.first} + lane.count; ++i) {
    const CompactInstruction& instruction = program.instructions[i];
    most = std::max(
        most, kPlanPointers + 1 + uint32_t{instruction.receive_count} + instruction.send_count);
  }
  return most;
}

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

/// The first lane that may; none without bulk copies, or where others do not reduce.
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
                     program.works.front().nchannels == 1;
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

/// Lanes of one pattern channel, by their numbers, and the warps of its CTAs that each gets.
struct ChannelWarps {
  std::vector<uint32_t> lanes;
  std::vector<uint32_t> warps;
};

/// A small lane needs one warp; the others share what there is by their weights.
ChannelWarps share_channel(const Program& program, int channel, const std::vector<bool>& is_small,
                           uint32_t warps) {
  ChannelWarps result;
  std::vector<uint8_t> weights;
  for (uint32_t l = 0; l < program.lanes.size(); ++l) {
    if (program.lanes[l].channel != channel) continue;
    result.lanes.push_back(l);
    result.warps.push_back(1);
    if (is_small[l]) {
      --warps;
    } else {
      weights.push_back(std::max<uint8_t>(program.lanes[l].weight, 1));
    }
  }
  if (weights.empty()) return result;
  size_t next = 0;
  const std::vector<uint32_t> shares = share_warps(weights, warps);
  for (size_t i = 0; i < result.lanes.size(); ++i) {
    if (!is_small[result.lanes[i]]) result.warps[i] = shares[next++];
  }
  return result;
}

/// Returns the threads that a CTA needs, of `threads` that it may have.
uint32_t add_lanes(const Launch& launch, uint32_t threads, const std::vector<bool>& is_bulk,
                   std::optional<uint32_t> shared_fold, uint32_t flags, Tables& tables) {
  const Program& program = *launch.program;
  const uint32_t service = service_warps(launch.protocol);
  const std::vector<bool> is_small = choose_small_lanes(launch, is_bulk, flags);
  tables.lanes.resize(program.lanes.size());
  tables.warps.assign(static_cast<size_t>(program.nchannels) * kMaxWarps, kNoLane);
  uint32_t most_warps = 1;
  for (int channel = 0; channel < program.nchannels; ++channel) {
    const auto [lanes, shares] =
        share_channel(program, channel, is_small, threads / kWarp - service);
    if (lanes.empty()) continue;  // messages may leave a channel to other ranks
    uint8_t* const roles = &tables.warps[static_cast<size_t>(channel) * kMaxWarps];
    uint32_t warp = 0;
    auto barrier = static_cast<uint32_t>(Barrier::FirstLane);
    uint32_t pointers = 0;
    uint16_t bulk_lanes = 0;
    for (size_t i = 0; i < lanes.size(); ++i) {
      const CompactLane& lane = program.lanes[lanes[i]];
      const uint32_t warps = shares[i];
      const bool shares_fold = shared_fold == lanes[i];
      if (shares_fold) {
        const CompactInstruction& fold = program.instructions[lane.first];
        tables.fold_warps = warps;
        tables.fold_operands = uint32_t{fold.receive_count} + (fold.source != Place::None);
      }
      tables.lanes[lanes[i]] = {lane.first,
                                lane.count,
                                static_cast<uint16_t>(warp * kWarp),
                                static_cast<uint16_t>(warps * kWarp),
                                static_cast<uint16_t>(warps > 1 ? barrier++ : 0),
                                static_cast<uint16_t>(pointers),
                                lane.work,
                                is_bulk[lanes[i]] ? bulk_lanes++
                                : shares_fold     ? LaneTask::kSharesFold
                                                  : LaneTask::kNotBulk};
      for (uint32_t w = 0; w < warps; ++w) roles[warp++] = static_cast<uint8_t>(lanes[i]);
      if (launch.protocol == Protocol::Simple) pointers += most_pointers(program, lane);
    }
    if (service != 0) roles[warp++] = kServiceLane;
    most_warps = std::max(most_warps, warp);
    tables.pointers = std::max(tables.pointers, pointers);
    tables.bulk_lanes = std::max<uint32_t>(tables.bulk_lanes, bulk_lanes);
  }
  return most_warps * kWarp;
}

/// Instructions may share a list of ports, but not how often they have been named before: each gets
/// its own list.
Status add_uses(const Launch& launch, Tables& tables) {
  const Program& program = *launch.program;
  for (const CompactLane& lane : program.lanes) {
    std::vector<uint16_t> used(program.ports.size(), 0);
    const auto add = [&](uint32_t first, uint32_t count) {
      const size_t at = tables.uses.size();
      for (uint32_t i = first; i < first + count; ++i) {
        const uint16_t port = program.indices[i];
        tables.uses.push_back({port, used[port]++});
      }
      return static_cast<uint16_t>(at);
    };
    for (uint32_t i = lane.first; i < uint32_t{lane.first} + lane.count; ++i) {
      CompactInstruction& instruction = tables.instructions[i];
      instruction.receive = add(instruction.receive, instruction.receive_count);
      instruction.send = add(instruction.send, instruction.send_count);
    }
  }
  constexpr size_t kMost = std::numeric_limits<uint16_t>::max();
  if (tables.uses.size() > kMost) {
    return Status::invalid_usage("rank {}'s program names ports {} times, at most {} are possible",
                                 program.rank, tables.uses.size(), kMost);
  }
  return {};
}

void add_instructions(const Launch& launch, Tables& tables) {
  const Program& program = *launch.program;
  tables.instructions = program.instructions;
  for (CompactInstruction& instruction : tables.instructions) {
    for (uint32_t r = 0; r < instruction.receive_count; ++r) {
      const Port& port = program.ports[program.indices[instruction.receive + r]];
      const Partition& partition = launch.works[static_cast<size_t>(port.work)].partition;
      const uint64_t steps = uint64_t{partition.rounds} * static_cast<uint64_t>(port.steps);
      if (steps > launch.shape.depth) instruction.flags |= kGivesCredit;
    }
  }
}

void add_ports(const Launch& launch, Tables& tables) {
  for (size_t p = 0; p < launch.ports.size(); ++p) {
    tables.ports.push_back(task_of(launch, static_cast<uint16_t>(p)));
  }
}

/// The image, and in the header where everything lies in it and in shared memory.
std::vector<std::byte> lay_out(const Tables& tables, LaunchHeader& header) {
  std::vector<std::byte> image;
  Layout layout(image);
  layout.add(tables.ports);
  header.staged_at = static_cast<uint32_t>(image.size());
  header.instructions_at = layout.add(tables.instructions) - header.staged_at;
  header.lanes_at = layout.add(tables.lanes) - header.staged_at;
  header.uses_at = layout.add(tables.uses) - header.staged_at;
  header.warps_at = layout.add(tables.warps) - header.staged_at;
  header.image_bytes = static_cast<uint32_t>(image.size());
  header.ports_at = header.image_bytes - header.staged_at;
  header.scale_at =
      header.ports_at + static_cast<uint32_t>(tables.ports.size() * sizeof(PortState));
  header.pointers_at = header.scale_at + static_cast<uint32_t>(sizeof(uint64_t));
  header.shared_bytes =
      header.pointers_at + tables.pointers * static_cast<uint32_t>(sizeof(std::byte*));
  return image;
}

/// The stages of bulk lanes in shared memory. They are short beside a shared fold: these lanes then
/// have something to do only when an offer is refused, or to serve requests.
void add_stages(const Launch& launch, uint32_t bulk_lanes, bool has_shared_fold,
                LaunchHeader& header) {
  if (bulk_lanes == 0) return;
  const uint32_t stages = bulk_lanes * kBulkStages;
  header.bulk_states_at = static_cast<uint32_t>(round_up(header.shared_bytes, alignof(BulkStage)));
  header.bulk_stages_at = static_cast<uint32_t>(
      round_up(header.bulk_states_at + stages * sizeof(BulkStage), kStageAlignment));
  const uint64_t room = (kMaxSharedBytesWithStages - header.bulk_stages_at) / stages;
  uint64_t chunk = 0;  // bytes, of the largest
  for (const Work& work : launch.works)
    chunk = std::max<uint64_t>(chunk, work.partition.chunk * size_of(launch.type));
  // As many pieces as it takes, of the same size.
  uint64_t most = std::min<uint64_t>(room / kStageAlignment * kStageAlignment, kMostStageBytes);
  if (has_shared_fold) {
    const uint32_t parts = header.request_bytes == 0 ? kPartBesideFold : kPartForRequests;
    const uint64_t part = kMaxSharedBytesWithStages / parts / stages;
    most = std::min(most, part / kStageAlignment * kStageAlignment);
  }
  const uint64_t pieces = std::max<uint64_t>(divide_up(chunk, most), kPiecesOfChunk);
  header.bulk_stage_bytes = static_cast<uint32_t>(std::min(
      most,
      round_up(std::max<uint64_t>(divide_up(chunk, pieces), kLeastStageBytes), kStageAlignment)));
  header.shared_bytes = header.bulk_stages_at + stages * header.bulk_stage_bytes;
}

/// The groups of a shared fold in what is left of shared memory: at least two to a warp, or none.
void add_fold_groups(const Tables& tables, LaunchHeader& header) {
  if (tables.fold_warps == 0) return;
  header.fold_states_at = static_cast<uint32_t>(round_up(header.shared_bytes, alignof(BulkStage)));
  header.requested_at = header.fold_states_at + tables.fold_warps * kMostFoldGroups *
                                                    static_cast<uint32_t>(sizeof(BulkStage));
  header.fold_stages_at = static_cast<uint32_t>(
      round_up(header.requested_at + sizeof(RequestedUnits), kStageAlignment));
  if (header.fold_stages_at >= kMaxSharedBytesWithStages) return;
  // Of one warp and one operand.
  const uint32_t room = (kMaxSharedBytesWithStages - header.fold_stages_at) /
                        (tables.fold_warps * tables.fold_operands);
  for (uint32_t groups = kFoldGroups; groups >= 2; --groups) {
    const uint32_t piece = std::min(room / groups / kFoldRow * kFoldRow, kMostFoldPiece);
    if (piece == 0 || (piece < kLeastFoldPiece && groups > 2)) continue;
    header.fold_piece_bytes = piece;
    header.fold_groups = std::min(room / piece, kMostFoldGroups);
    header.shared_bytes = header.fold_stages_at +
                          tables.fold_warps * header.fold_groups * tables.fold_operands * piece;
    return;
  }
}

}  // namespace

uint8_t stride_width(const Launch& launch, size_t work) {
  if (!launch.program->works[work].has_strides) return offer::kAlignment;
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

PortTask task_of(const Launch& launch, uint16_t port) {
  const PortAddress& address = launch.ports[port];
  const Port& end = launch.program->ports[port];
  const uint32_t channel = launch.works[static_cast<size_t>(end.work)].first_channel;
  return {address.slots + launch.shape.slot_offset(channel, 0),
          address.control + channel,
          address.remote_control + channel,
          static_cast<uint16_t>(end.steps),
          static_cast<uint8_t>(end.channel),
          static_cast<uint8_t>(end.work),
          static_cast<uint32_t>(end.peer) | (end.is_send ? PortTask::kSendEnd : 0) |
              (may_land(launch, port) ? PortTask::kLands : 0) | (end.stays ? PortTask::kStays : 0) |
              (may_be_lent(launch, port) ? PortTask::kLends : 0)};
}

Result<Image> make_image(const Launch& launch, uint32_t threads, bool reduces,
                         BulkCopies bulk_copies, LaunchHeader& header) {
  Tables tables;
  const std::vector<bool> is_bulk = bulk_copies == BulkCopies::All
                                        ? choose_bulk_lanes(launch, header.flags, reduces)
                                        : std::vector<bool>(launch.program->lanes.size(), false);
  const std::optional<uint32_t> shared_fold =
      bulk_copies != BulkCopies::None ? choose_shared_fold(launch, header.flags) : std::nullopt;
  add_ports(launch, tables);
  add_instructions(launch, tables);
  Image image;
  image.threads = add_lanes(launch, threads, is_bulk, shared_fold, header.flags, tables);
  TRY(add_uses(launch, tables));
  image.bytes = lay_out(tables, header);
  image.needs_alignment = tables.bulk_lanes != 0;
  // Fewer would make every unit wait for the one before it.
  constexpr uint32_t kFewestRequests = 2;
  // A fold of one warp cannot both request and fold; its rank then serves nobody, either, since
  // those of all ranks are alike.
  if (launch.request_bytes != 0 && tables.fold_warps != 1) {
    header.most_requests = request::most_of(launch.shape, launch.request_bytes);
    if (header.most_requests >= kFewestRequests) header.request_bytes = launch.request_bytes;
  }
  if (header.shared_bytes <= kMaxSharedBytes) {
    add_stages(launch, tables.bulk_lanes, shared_fold.has_value(), header);
    add_fold_groups(tables, header);
  }
  return image;
}

}  // namespace niccolite::executor::cuda
