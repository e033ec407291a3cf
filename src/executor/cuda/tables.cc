#include "executor/cuda/tables.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <span>

#include "executor/cuda/device_types.h"

namespace niccolite::executor::cuda {
namespace {

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
  uint32_t pointers = 0;  // shared slot addresses of all lanes
};

void add_lanes(const Launch& launch, uint32_t threads, Tables& tables) {
  const Program& program = *launch.program;
  tables.lanes.resize(program.lanes.size());
  tables.warps.assign(static_cast<size_t>(program.nchannels) * kMaxWarps, kNoLane);
  for (int channel = 0; channel < program.nchannels; ++channel) {
    std::vector<uint8_t> weights;
    for (const CompactLane& lane : program.lanes) {
      if (lane.channel == channel) weights.push_back(std::max<uint8_t>(lane.weight, 1));
    }
    if (weights.empty()) continue;  // messages may leave a channel to other ranks
    const std::vector<uint32_t> shares = share_warps(weights, threads / kWarp);
    uint32_t warp = 0;
    auto barrier = static_cast<uint32_t>(Barrier::FirstLane);
    uint32_t pointers = 0;
    size_t share = 0;
    for (size_t l = 0; l < program.lanes.size(); ++l) {
      const CompactLane& lane = program.lanes[l];
      if (lane.channel != channel) continue;
      const uint32_t warps = shares[share++];
      uint32_t most_pointers = 0;
      for (uint32_t i = lane.first; i < uint32_t{lane.first} + lane.count; ++i) {
        const CompactInstruction& instruction = program.instructions[i];
        most_pointers = std::max(most_pointers,
                                 2 + uint32_t{instruction.receive_count} + instruction.send_count);
      }
      tables.lanes[l] = {lane.first,
                         lane.count,
                         static_cast<uint16_t>(warp * kWarp),
                         static_cast<uint16_t>(warps * kWarp),
                         static_cast<uint16_t>(warps > 1 ? barrier++ : 0),
                         static_cast<uint16_t>(pointers),
                         lane.work};
      for (uint32_t w = 0; w < warps; ++w) {
        tables.warps[static_cast<size_t>(channel) * kMaxWarps + warp++] = static_cast<uint8_t>(l);
      }
      if (launch.protocol == Protocol::Simple) pointers += most_pointers;
    }
    tables.pointers = std::max(tables.pointers, pointers);
  }
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

}  // namespace

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
          static_cast<uint32_t>(end.peer) | (end.is_send ? PortTask::kSendEnd : 0)};
}

Result<std::vector<std::byte>> make_image(const Launch& launch, uint32_t threads,
                                          LaunchHeader& header) {
  Tables tables;
  add_ports(launch, tables);
  add_instructions(launch, tables);
  add_lanes(launch, threads, tables);
  TRY(add_uses(launch, tables));
  return lay_out(tables, header);
}

}  // namespace niccolite::executor::cuda
