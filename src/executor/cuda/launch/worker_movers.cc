#include "executor/cuda/launch/worker_movers.h"

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "executor/protocol/advertisement.h"
#include "executor/worker_shapes.h"
#include "lowering/workers.h"

namespace niccolite::executor::cuda {

uint8_t stride_width(const Launch& launch, size_t work) {
  const size_t shape = launch.is_list() ? 0 : work;
  if (!launch.program->works[shape].has_strides) return advertisement::kAlignment;
  const uint64_t bytes = launch.works[work].partition.block_stride * size_of(launch.type);
  return static_cast<uint8_t>(1u << std::countr_zero(bytes | advertisement::kAlignment));
}

namespace {

/// Of a worker that bulk copies serve, and that copies within the GPU. Where blocks are not aligned
/// because of their length, those who send want the warps, unless the copy's own source and target
/// are not aligned alike.
uint32_t warps_of_copy_within(const Launch& launch, const CompactWorker& worker) {
  const uint32_t width = stride_width(launch, worker.work);
  if (width == advertisement::kAlignment) return kWarpsOfCopyWithin;
  const CompactInstruction& copy = launch.program->instructions[worker.first];
  const int apart = std::abs(int{copy.source_block} - int{copy.target_block});
  return apart * width % advertisement::kAlignment == 0 ? 1 : kWarpsOfShiftedCopyWithin;
}

}  // namespace

WorkerMovers choose_worker_movers(const Launch& launch, uint32_t flags, bool reduces,
                                  Staging staging, Expected expected) {
  std::vector<lowering::WorkerShape> shapes = worker_shapes(launch);
  if (expected == Expected::Slots) {
    for (lowering::WorkerShape& shape : shapes) {
      std::ranges::fill(shape.receives, lowering::Route{});
      std::ranges::fill(shape.sends, lowering::Route{});
    }
  }
  const std::vector<lowering::WorkerPlan> plans = lowering::plan_workers(
      shapes, {.publishes_chunks = launch.protocol == Protocol::Simple,
               .has_bulk_copies = staging == Staging::All,
               .has_stages = staging != Staging::None,
               .reduces = reduces,
               .scales_input = (flags & kScalesInput) != 0,
               .scales_result = (flags & kScalesResult) != 0,
               // The counter is in a control block, and needs atomic operations.
               .has_counter = !launch.ports.empty() && !launch.ports.front().in_host});
  WorkerMovers movers;
  for (size_t l = 0; l < plans.size(); ++l) {
    const bool copies = plans[l].mover == lowering::Mover::BulkCopies;
    const bool is_dynamic = plans[l].tiles == lowering::Tiles::Dynamic;
    const bool only_sends = shapes[l].receives.empty() && shapes[l].sends.size() == 1;
    movers.forms.push_back(static_cast<uint8_t>(
        (copies ? kCopiesStaged : 0) | (copies && only_sends ? kServesPulls : 0) |
        (is_dynamic ? kDynamicTiles : 0) | (is_dynamic && shapes[l].reduces ? kReducesStaged : 0)));
    // Blocks that are not aligned because of their length are advertised all the same
    // (protocol/advertisement.h), and threads move them: all that there are, but for workers that
    // only wait. Where bulk copies move data, those need no more than one warp either: with two of
    // them for each of three peers an all-to-all of 128 MiB took 13 % longer.
    const bool only_waits = plans[l].only_advertises &&
                            (copies || stride_width(launch, launch.program->workers[l].work) <
                                           advertisement::kAlignment);
    movers.most_warps.push_back(only_waits                    ? 1
                                : !copies                     ? kMaxWarps
                                : !shapes[l].receives.empty() ? kWarpsOfPassingOn
                                : shapes[l].copies_only()
                                    ? warps_of_copy_within(launch, launch.program->workers[l])
                                    : kWarpsOfSend);
  }
  return movers;
}

}  // namespace niccolite::executor::cuda
