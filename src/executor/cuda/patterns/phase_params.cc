#include "executor/cuda/patterns/phase_params.h"

#include <algorithm>
#include <vector>

#include "executor/cuda/launch/launch_header.h"
#include "executor/cuda/launch/tables.h"
#include "executor/cuda/patterns/direct_task.h"
#include "executor/cuda/patterns/phase_args.h"
#include "executor/protocol/ll128.h"

namespace niccolite::executor::cuda {
namespace {

using lowering::Phases;

constexpr lowering::Pace kPace = lowering::Pace::staggered();  // of phase_kernel.cuh

// Bytes of a channel. Where the result stays with who reduces, the phase kernel takes up to a tenth
// less for so much, and an eighth to a fifth more than the interpreter for more.
constexpr uint64_t kMostOfKeptResult = 15'360;

PhaseBlock block_of(const Launch& launch, int block) {
  const Partition& partition = launch.works[0].partition;
  const auto number = static_cast<uint32_t>(block);
  return {number * partition.block_stride * size_of(launch.type),
          length_of(partition, number) * size_of(launch.type)};
}

uint32_t reciprocal_of(uint32_t peers) { return (1u << 16) / std::max(peers, 1u) + 1; }

/// Threads of a CTA that have a line to move at once: a warp for each four lines and peer.
uint32_t threads_of(const Launch& launch, const PhaseParams& params) {
  constexpr uint32_t kWarpLines = 4;
  const uint64_t chunk = uint64_t{launch.works[0].partition.chunk} * size_of(launch.type);
  const uint64_t warps = divide_up(ll128::lines_of(chunk), kWarpLines) * params.peers;
  return static_cast<uint32_t>(std::clamp<uint64_t>(warps * kWarp, kWarp, kMaxThreads));
}

}  // namespace

bool goes_through_phases(const Launch& launch, bool /*reduces*/) {
  // Factors of the input are rare, and would be applied in many places.
  if ((flags_of(launch) & kScalesInput) != 0) return false;
  const Phases* const phases = launch.program->phases_of(0);
  if (phases == nullptr || !phases->reduce || !phases->reduce->finishes || phases->copy)
    return false;
  for (const size_t peers : {phases->sends.size(), phases->reduce->receives.size(),
                             phases->reduce->sends.size(), phases->stores.size()}) {
    if (peers > kMostPhasePeers) return false;
  }
  const Partition& partition = launch.works[0].partition;
  if (phases->reduce->sends.empty() &&
      partition.channel_stride * size_of(launch.type) > kMostOfKeptResult) {
    return false;
  }
  return partition.rounds <= 1 ||
         launch.shape.depth >= static_cast<uint32_t>(kPace.least_depth(/*reduces=*/true));
}

PatternParams phase_params(const Launch& launch, uint32_t threads) {
  const Phases* const phases = launch.program->phases_of(0);
  const Phases::Reduce& reduce = *phases->reduce;
  PhaseParams params{};
  params.sends = static_cast<uint32_t>(phases->sends.size());
  params.operands = static_cast<uint32_t>(reduce.receives.size());
  params.results = static_cast<uint32_t>(reduce.sends.size());
  params.stores = static_cast<uint32_t>(phases->stores.size());
  params.peers = std::max({params.sends, params.operands, params.results, params.stores});
  params.source_position = static_cast<uint32_t>(reduce.source_position);
  params.send_reciprocal = reciprocal_of(params.sends);
  params.store_reciprocal = reciprocal_of(params.stores);
  params.source = block_of(launch, reduce.source);
  if (reduce.target) {
    params.stores_result = 1;
    params.target = block_of(launch, *reduce.target);
  }
  const auto set = [&](PhaseEnd end, size_t i, int port) {
    params.ports[static_cast<uint32_t>(end) * params.peers + i] =
        task_of(launch, static_cast<uint16_t>(port));
  };
  for (size_t i = 0; i < phases->sends.size(); ++i) {
    params.sent[i] = block_of(launch, phases->sends[i].block);
    set(PhaseEnd::Send, i, phases->sends[i].connection);
  }
  for (size_t i = 0; i < reduce.receives.size(); ++i) set(PhaseEnd::Operand, i, reduce.receives[i]);
  for (size_t i = 0; i < reduce.sends.size(); ++i) set(PhaseEnd::Result, i, reduce.sends[i]);
  for (size_t i = 0; i < phases->stores.size(); ++i) {
    params.stored[i] = block_of(launch, phases->stores[i].block);
    set(PhaseEnd::Store, i, phases->stores[i].connection);
  }
  return {.variant = KernelVariant::Phases,
          .most_peers = params.peers <= kFewPhasePeers ? kFewPhasePeers : kMostPhasePeers,
          .counters = Counters::InGpu,
          .threads = launch.threads > 0 ? threads : threads_of(launch, params),
          .shared_bytes = sizeof(PhasePorts),
          .bytes = bytes_of(params)};
}

}  // namespace niccolite::executor::cuda
