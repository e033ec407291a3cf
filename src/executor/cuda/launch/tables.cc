#include "executor/cuda/launch/tables.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <span>

#include "executor/cuda/interpreter/device_types.h"
#include "executor/cuda/launch/places.h"
#include "executor/cuda/launch/stages.h"
#include "executor/cuda/launch/worker_movers.h"

namespace niccolite::executor::cuda {
namespace {

/// Lays out the parameters section by section.
class Layout {
 public:
  explicit Layout(std::vector<std::byte>& params) : params_(params) {}
  /// Appends, and returns the offset. Every section starts at a multiple of 16 bytes.
  template <typename T>
  uint32_t add(const std::vector<T>& section) {
    const size_t at = params_.size();
    const size_t bytes = section.size() * sizeof(T);
    params_.resize(at + (bytes + 15) / 16 * 16);
    if (bytes != 0) std::memcpy(params_.data() + at, section.data(), bytes);
    return static_cast<uint32_t>(at);
  }

 private:
  std::vector<std::byte>& params_;
};

struct Tables {
  std::vector<PortTask> ports;
  std::vector<AdvertisedBlock> advertised;
  std::vector<CompactInstruction> instructions;
  std::vector<WorkerTask> workers;
  std::vector<PortUse> uses;
  std::vector<uint8_t> warps;
  std::vector<uint64_t*> notes;
  Places places;
  uint32_t pointers = 0;    // shared slot addresses of all workers
  uint32_t copy_rings = 0;  // most of a CTA
  StagedReduction reduction;
};

/// Shared slot addresses that an instruction of the worker needs, with what stands behind them.
uint32_t most_pointers(const Program& program, const CompactWorker& worker) {
  uint32_t most = 0;
  for (uint32_t i = worker.first; i < uint32_t{worker.first} + worker.count; ++i) {
    const CompactInstruction& instruction = program.instructions[i];
    most = std::max(most, kPlanPointers + kHandoverPointers + uint32_t{instruction.receive_count} +
                              instruction.send_count);
  }
  return most;
}

/// Groups of workers of one pattern channel, by their numbers, that share warps, and the warps of
/// its CTAs that each group gets.
struct ChannelWarps {
  std::vector<std::vector<uint32_t>> workers;
  std::vector<uint32_t> warps;
};

/// Returns the weight of a worker in sharing its channel's warps. By Simple, a copy within a GPU
/// gets half as many as one over a link.
uint32_t weight_of(const Launch& launch, const CompactWorker& worker) {
  const auto instructions =
      std::span(launch.program->instructions).subspan(worker.first, worker.count);
  const bool crosses_links = std::ranges::any_of(instructions, [](const CompactInstruction& each) {
    return each.receive_count + each.send_count != 0;
  });
  const bool counts_double = launch.protocol == Protocol::Simple && crosses_links;
  return std::max<uint32_t>(worker.weight, 1) * (counts_double ? 2 : 1);
}

/// Shares the warps out among workers, or groups of them, by weight: each gets at least one (there
/// are never more of them than warps), and no more than it can use. Where threads reduce, workers
/// that bulk copies serve have one.
ChannelWarps share_channel(const Launch& launch, int channel, const WorkerMovers& movers,
                           bool reduces, uint32_t warps) {
  const Program& program = *launch.program;
  ChannelWarps result;
  std::vector<uint32_t> weights, most;
  std::optional<size_t> groups[kSharings + 1];
  for (uint32_t l = 0; l < program.workers.size(); ++l) {
    if (program.workers[l].channel != channel) continue;
    const uint32_t weight = weight_of(launch, program.workers[l]);
    std::optional<size_t>& group = groups[static_cast<size_t>(movers.sharing[l])];
    if (movers.sharing[l] != Sharing::None && group) {
      result.workers[*group].push_back(l);
      weights[*group] += weight;
      most[*group] = std::max(most[*group], movers.most_warps[l]);
      continue;
    }
    group = result.workers.size();
    result.workers.push_back({l});
    result.warps.push_back(1);
    weights.push_back(weight);
    most.push_back(movers.most_warps[l]);
  }
  if (reduces && std::ranges::count(most, kMaxWarps) != 0) {
    for (uint32_t& each : most) each = each == kMaxWarps ? kMaxWarps : 1;
  }
  for (size_t given = result.workers.size(); given < warps; ++given) {
    std::optional<size_t> neediest;  // the worker with the most weight per warp
    for (size_t i = 0; i < most.size(); ++i) {
      if (result.warps[i] >= most[i]) continue;
      if (!neediest || weights[i] * result.warps[*neediest] > weights[*neediest] * result.warps[i])
        neediest = i;
    }
    if (!neediest) break;
    ++result.warps[*neediest];
  }
  return result;
}

/// Returns the threads that a CTA needs, of `threads` that it may have.
uint32_t add_workers(const Launch& launch, uint32_t threads, const WorkerMovers& movers,
                     bool reduces, Tables& tables) {
  const Program& program = *launch.program;
  const uint32_t service = service_warps(launch.protocol);
  tables.workers.resize(program.workers.size());
  tables.warps.assign(static_cast<size_t>(program.nchannels) * kMaxWarps, kNoWorker);
  uint32_t most_warps = 1;
  for (int channel = 0; channel < program.nchannels; ++channel) {
    const auto [workers, shares] =
        share_channel(launch, channel, movers, reduces, threads / kWarp - service);
    if (workers.empty()) continue;  // messages may leave a channel to other ranks
    uint8_t* const roles = &tables.warps[static_cast<size_t>(channel) * kMaxWarps];
    uint32_t warp = 0;
    auto barrier = static_cast<uint32_t>(Barrier::FirstWorker);
    uint32_t pointers = 0;
    uint8_t copy_rings = 0;
    for (size_t i = 0; i < workers.size(); ++i) {
      const uint32_t warps = shares[i];
      const auto own_barrier = static_cast<uint16_t>(warps > 1 ? barrier++ : 0);
      for (size_t member = 0; member < workers[i].size(); ++member) {
        const uint32_t number = workers[i][member];
        const CompactWorker& worker = program.workers[number];
        uint8_t forms = movers.forms[number];
        if ((forms & kReducesStaged) != 0) {
          const CompactInstruction& reduction = program.instructions[worker.first];
          tables.reduction = {
              warps, uint32_t{reduction.receive_count} + (reduction.source != OperandBuffer::None)};
        }
        uint8_t ring = (forms & kCopiesStaged) != 0 ? copy_rings++ : uint8_t{0};
        if (movers.sharing[number] != Sharing::None) {
          forms |= kSharesWarps;
          const bool is_last = member + 1 == workers[i].size();
          ring = is_last ? kNoWorker : static_cast<uint8_t>(workers[i][member + 1]);
        }
        tables.workers[number] = {worker.first,
                                  worker.count,
                                  static_cast<uint16_t>(warp * kWarp),
                                  static_cast<uint16_t>(warps * kWarp),
                                  own_barrier,
                                  static_cast<uint16_t>(pointers),
                                  worker.work,
                                  forms,
                                  ring};
        if (launch.protocol == Protocol::Simple) pointers += most_pointers(program, worker);
      }
      for (uint32_t w = 0; w < warps; ++w) roles[warp++] = static_cast<uint8_t>(workers[i].front());
    }
    if (service != 0) roles[warp++] = kServiceWorker;
    most_warps = std::max(most_warps, warp);
    tables.pointers = std::max(tables.pointers, pointers);
    tables.copy_rings = std::max<uint32_t>(tables.copy_rings, copy_rings);
  }
  return most_warps * kWarp;
}

/// Instructions may share a list of ports, but not how often they have been named before: each gets
/// its own list. Ports by which it stores to a team, or loads from one, come first there
/// (team_kernel.cuh).
Status add_uses(const Launch& launch, Tables& tables) {
  const Program& program = *launch.program;
  for (const CompactWorker& worker : program.workers) {
    std::vector<uint16_t> used(program.ports.size(), 0);
    const auto add = [&](uint32_t first, uint32_t count) {
      const size_t at = tables.uses.size();
      for (const bool is_first : {true, false}) {
        for (uint32_t i = first; i < first + count; ++i) {
          const uint16_t port = program.indices[i];
          if (is_end_of_team(launch, port) == is_first) tables.uses.push_back({port, used[port]++});
        }
      }
      return static_cast<uint16_t>(at);
    };
    for (uint32_t i = worker.first; i < uint32_t{worker.first} + worker.count; ++i) {
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
      const bool is_relayed = launch.ports[program.indices[instruction.receive + r]].is_relayed();
      const bool gives_all = launch.protocol == Protocol::LL && is_relayed;
      if (steps > launch.shape.depth || gives_all) instruction.flags |= kGivesCredit;
    }
  }
}

void add_ports(const Launch& launch, Tables& tables) {
  for (size_t p = 0; p < launch.ports.size(); ++p) {
    tables.ports.push_back(task_of(launch, static_cast<uint16_t>(p)));
  }
  if (launch.protocol == Protocol::LL) return;  // whose notes lie beside the counters
  const bool have_notes =
      std::any_of(launch.ports.begin(), launch.ports.end(),
                  [](const PortAddress& port) { return port.notes != nullptr; });
  if (!have_notes) return;
  for (size_t p = 0; p < launch.ports.size(); ++p) {
    const Work& work = launch.works[static_cast<size_t>(launch.program->ports[p].work)];
    uint64_t* notes = launch.ports[p].notes;
    tables.notes.push_back(
        notes == nullptr ? nullptr : notes + size_t{work.first_channel} * launch.shape.depth);
  }
}

/// Every worker that advertises has one instruction (lowering: a connection whose memory is
/// advertised has one step in each round).
void add_advertised(const Launch& launch, std::span<const lowering::WorkerPlan> plans,
                    Tables& tables) {
  const Program& program = *launch.program;
  tables.advertised.resize(program.ports.size());
  bool advertises = false;
  for (size_t l = 0; l < program.workers.size(); ++l) {
    const CompactWorker& worker = program.workers[l];
    if (worker.count != 1) continue;
    const CompactInstruction& instruction = program.instructions[worker.first];
    for (uint32_t r = 0; r < instruction.receive_count; ++r) {
      const uint16_t port = program.indices[instruction.receive + r];
      if (!is_put(launch.ports[port].way)) continue;
      advertises = true;
      tables.advertised[port] = {instruction.target_block, instruction.chunk_block,
                                 plans[l].takes_puts ? instruction.target : OperandBuffer::None, 0};
    }
    for (uint32_t s = 0; s < instruction.send_count; ++s) {
      const uint16_t port = program.indices[instruction.send + s];
      if (!is_get(launch.ports[port].way)) continue;
      advertises = true;
      tables.advertised[port] = {instruction.source_block, instruction.chunk_block,
                                 instruction.source, plans[l].serves_pulls};
    }
  }
  if (!advertises) tables.advertised.clear();
}

void add_places(const Places& places, Tables& tables) {
  tables.places = places;
  for (size_t p = 0; p < places.ports.size(); ++p)
    if (places.ports[p].places != nullptr) tables.ports[p].end |= PortTask::kPlaces;
}

/// The parameters, and in the header where everything lies in it and in shared memory.
std::vector<std::byte> lay_out(const Tables& tables, LaunchHeader& header) {
  std::vector<std::byte> params;
  Layout layout(params);
  layout.add(tables.ports);
  const uint32_t advertised_at = layout.add(tables.advertised);
  header.advertised_at = tables.advertised.empty() ? 0 : advertised_at;
  header.staged_at = static_cast<uint32_t>(params.size());
  header.instructions_at = layout.add(tables.instructions) - header.staged_at;
  header.workers_at = layout.add(tables.workers) - header.staged_at;
  header.uses_at = layout.add(tables.uses) - header.staged_at;
  header.warps_at = layout.add(tables.warps) - header.staged_at;
  const uint32_t notes_at = layout.add(tables.notes) - header.staged_at;
  header.notes_at = tables.notes.empty() ? 0 : notes_at;
  header.places = {.ports_at = layout.add(tables.places.ports) - header.staged_at,
                   .instructions_at = layout.add(tables.places.instructions) - header.staged_at,
                   .receives_at = layout.add(tables.places.receives) - header.staged_at,
                   .workers_at = layout.add(tables.places.workers) - header.staged_at,
                   .lists_at = layout.add(tables.places.lists) - header.staged_at};
  header.params_bytes = static_cast<uint32_t>(params.size());
  header.ports_at = header.params_bytes - header.staged_at;
  header.scale_at =
      header.ports_at + static_cast<uint32_t>(tables.ports.size() * sizeof(PortState));
  header.pointers_at = header.scale_at + static_cast<uint32_t>(sizeof(uint64_t));
  header.shared_bytes =
      header.pointers_at + tables.pointers * static_cast<uint32_t>(sizeof(std::byte*));
  return params;
}

}  // namespace

PortTask task_of(const Launch& launch, uint16_t port) {
  const PortAddress& address = launch.ports[port];
  const Port& end = launch.program->ports[port];
  const Work& work = launch.works[static_cast<size_t>(end.work)];
  const uint32_t channel = work.first_channel;
  const lowering::Way way = launch.ports[port].way;
  return {
      address.slots + shape_of(launch, port).slot_offset(channel, 0),
      address.control + channel,
      address.remote_control + channel,
      static_cast<uint16_t>(end.steps),
      static_cast<uint8_t>(end.channel),
      static_cast<uint8_t>(end.work),
      static_cast<uint32_t>(end.peer) | (end.is_send ? PortTask::kSendEnd : 0) |
          (is_put(way) ? PortTask::kDirectPut : 0) | (end.route.is_final ? PortTask::kStays : 0) |
          (is_get(way) ? PortTask::kDirectGet : 0) |
          (address.opens_buffers ? PortTask::kOpens : 0) |
          (work.turn.is_followed ? PortTask::kFollowed : 0) |
          (address.is_relayed() ? PortTask::kRelay : 0) | (uses_team(way) ? PortTask::kTeam : 0) |
          (is_end_of_team(launch, port) ? PortTask::kTeamEnd : 0)};
}

Result<Params> make_params(const Launch& launch, std::span<const lowering::WorkerPlan> plans,
                           const Places* places, uint32_t threads, bool reduces,
                           uint32_t most_shared, LaunchHeader& header) {
  Tables tables;
  const WorkerMovers movers = movers_of(launch, plans);
  add_ports(launch, tables);
  if (places != nullptr) add_places(*places, tables);
  add_advertised(launch, plans, tables);
  add_instructions(launch, tables);
  Params params;
  params.threads = add_workers(launch, threads, movers, reduces, tables);
  TRY(add_uses(launch, tables));
  params.bytes = lay_out(tables, header);
  if (!tables.ports.empty()) header.copy_counter = tables.ports[0].control->tile_counters + 1;
  params.has_staged_copies = tables.copy_rings != 0;
  params.has_advertisements =
      std::any_of(tables.ports.begin(), tables.ports.end(), [](const PortTask& port) {
        return (port.end & (PortTask::kDirectPut | PortTask::kDirectGet)) != 0;
      });
  add_stages(launch, tables.copy_rings, tables.reduction, most_shared, header);
  return params;
}

}  // namespace niccolite::executor::cuda
