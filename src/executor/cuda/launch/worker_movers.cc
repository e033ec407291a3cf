#include "executor/cuda/launch/worker_movers.h"

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "executor/cuda/launch/launch_check.h"
#include "executor/cuda/launch/launch_header.h"
#include "executor/protocol/advertisement.h"

namespace niccolite::executor::cuda {

uint8_t stride_width(const Launch& launch, size_t work) {
  const size_t shape = launch.is_list() ? 0 : work;
  if (!launch.program->works[shape].has_strides) return advertisement::kAlignment;
  const uint64_t bytes = launch.works[work].partition.block_stride * size_of(launch.type);
  return static_cast<uint8_t>(1u << std::countr_zero(bytes | advertisement::kAlignment));
}

namespace {

/// Returns the warps of a worker that bulk copies serve and that copies within the GPU. Where
/// blocks are not aligned because of their length, workers that send need the warps, unless the
/// copy's own source and target are not aligned alike.
uint32_t warps_of_copy_within(const Launch& launch, const CompactWorker& worker) {
  const uint32_t width = stride_width(launch, worker.work);
  if (width == advertisement::kAlignment) return kWarpsOfCopyWithin;
  const CompactInstruction& copy = launch.program->instructions[worker.first];
  const auto apart =
      static_cast<uint32_t>(std::abs(int{copy.source_block} - int{copy.target_block}));
  return apart * width % advertisement::kAlignment == 0 ? 1 : kWarpsOfShiftedCopyWithin;
}

}  // namespace

lowering::Facilities facilities_of(const Launch& launch, Staging staging) {
  const uint32_t flags = flags_of(launch);
  if (launch.team_ranks > 0) staging = Staging::None;  // team_kernel.cuh
  return {.publishes_chunks = launch.protocol == Protocol::Simple,
          .has_bulk_copies = staging == Staging::All,
          .has_stages = staging != Staging::None,
          .reduces = reduces(launch, flags),
          .scales_input = (flags & kScalesInput) != 0,
          .scales_result = (flags & kScalesResult) != 0,
          // From slots, which have whole vec16s.
          .threads_pass_on_puts = false,
          // The counter is in a control block, and needs atomic operations.
          .has_counter = !launch.ports.empty() && !launch.ports.front().in_host};
}

std::vector<lowering::WorkerPlan> plan_workers(const Launch& launch, Staging staging,
                                               Expected expected) {
  const std::vector<lowering::Route> routes =
      expected == Expected::Slots ? std::vector<lowering::Route>(launch.ports.size())
                                  : routes_in(launch);
  return lowering::plan_workers(launch.program->worker_shapes, routes,
                                facilities_of(launch, staging));
}

Sharing possible_sharing(const Launch& launch, size_t worker) {
  const lowering::WorkerShape& shape = launch.program->worker_shapes[worker];
  const bool may_share = launch.team_ranks > 0 && launch.protocol == Protocol::Simple &&
                         shape.instructions == 1 && shape.receives.size() + shape.sends.size() == 1;
  return !may_share            ? Sharing::None
         : shape.sends.empty() ? Sharing::WithReceivers
                               : Sharing::WithSenders;
}

size_t least_warps(const Launch& launch, int channel) {
  size_t warps = 0;
  bool has_group[kSharings + 1] = {};
  for (size_t l = 0; l < launch.program->workers.size(); ++l) {
    if (launch.program->workers[l].channel != channel) continue;
    bool& is_counted = has_group[static_cast<size_t>(possible_sharing(launch, l))];
    warps += is_counted ? 0 : 1;
    is_counted = possible_sharing(launch, l) != Sharing::None;
  }
  return warps;
}

WorkerMovers movers_of(const Launch& launch, std::span<const lowering::WorkerPlan> plans) {
  const Program& program = *launch.program;
  const uint32_t warps = kMaxWarps - service_warps(launch.protocol);
  WorkerMovers movers;
  for (size_t l = 0; l < plans.size(); ++l) {
    const lowering::WorkerShape& shape = program.worker_shapes[l];
    const bool are_too_many = workers_of_channel(program, program.workers[l].channel) > warps;
    movers.sharing.push_back(plans[l].only_advertises || are_too_many ? possible_sharing(launch, l)
                                                                      : Sharing::None);
    const bool copies = plans[l].mover == lowering::Mover::BulkCopies;
    const bool is_dynamic = plans[l].tiles == lowering::Tiles::Dynamic;
    movers.forms.push_back(static_cast<uint8_t>(
        (copies ? kCopiesStaged : 0) | (plans[l].serves_pulls ? kServesPulls : 0) |
        (is_dynamic ? kDynamicTiles : 0) | (is_dynamic && !copies ? kReducesStaged : 0)));
    // Blocks that are not aligned because of their length are advertised all the same
    // (protocol/advertisement.h), and threads move them: all that there are, but for workers that
    // only wait. Where bulk copies move data, those need no more than one warp either: with two of
    // them for each of three peers an all-to-all of 128 MiB took 13 % longer.
    const bool only_waits =
        plans[l].only_advertises &&
        (copies || movers.sharing.back() != Sharing::None ||
         stride_width(launch, program.workers[l].work) < advertisement::kAlignment);
    movers.most_warps.push_back(only_waits                ? 1
                                : !copies                 ? kMaxWarps
                                : !shape.receives.empty() ? kWarpsOfPassingOn
                                : shape.copies_only()
                                    ? warps_of_copy_within(launch, program.workers[l])
                                    : kWarpsOfSend);
  }
  return movers;
}

}  // namespace niccolite::executor::cuda
