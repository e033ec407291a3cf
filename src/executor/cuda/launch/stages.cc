#include "executor/cuda/launch/stages.h"

#include <algorithm>

#include "executor/cuda/interpreter/device_types.h"
#include "executor/protocol/pull.h"

namespace niccolite::executor::cuda {
namespace {

constexpr uint32_t kStageAlignment = 128;
constexpr uint32_t kLeastStageBytes = 2048;   // shorter ones cost more than they hide
constexpr uint32_t kMostStageBytes = 16384;   // longer ones move no more
constexpr uint32_t kStagesOfChunk = 4;        // fewer hide less
constexpr uint32_t kPartBesideReduction = 4;  // of shared memory that is for copies
constexpr uint32_t kPartForPulls = 2;         // the same, if they serve pulls of reductions
constexpr uint32_t kRow = kWarp * 16;         // a vec16 for each thread of a warp
constexpr uint32_t kMostOperandBytes = 2048;  // in a stage of a reduction; longer ones move no more
constexpr uint32_t kLeastOperandBytes = 1024;  // shorter ones cost more than a third stage hides
constexpr uint32_t kFewReduceStages = 3;       // of stages that are shorter than the longest
constexpr uint32_t kMostReduceStages = 6;

/// The states of rings, and behind them their stages, which take what `stage_bytes` will say.
void place(uint32_t stages, uint32_t at, StageArea& area) {
  area.states_at = static_cast<uint32_t>(round_up(at, alignof(Stage)));
  area.stages_at =
      static_cast<uint32_t>(round_up(area.states_at + stages * sizeof(Stage), kStageAlignment));
}

/// The stages of workers that copy. They are short beside a reduction with stages: these workers
/// then have something to do only when an advertisement is refused, or to serve pulls.
void add_copy_stages(const Launch& launch, uint32_t rings, bool has_reduction, uint32_t most_shared,
                     LaunchHeader& header) {
  if (rings == 0) return;
  StageArea& area = header.copy_stages;
  area.stages = kCopyStages;
  const uint32_t stages = rings * kCopyStages;
  place(stages, header.shared_bytes, area);
  const uint64_t room = (most_shared - area.stages_at) / stages;
  uint64_t chunk = 0;  // bytes, of the largest
  for (const Work& work : launch.works)
    chunk = std::max<uint64_t>(chunk, work.partition.chunk * size_of(launch.type));
  // Tiles of equal size, as many as needed.
  uint64_t most = std::min<uint64_t>(room / kStageAlignment * kStageAlignment, kMostStageBytes);
  if (has_reduction) {
    const uint32_t parts = header.pull_bytes == 0 ? kPartBesideReduction : kPartForPulls;
    const uint64_t part = most_shared / parts / stages;
    most = std::min(most, part / kStageAlignment * kStageAlignment);
  }
  const uint64_t tiles = std::max<uint64_t>(divide_up(chunk, most), kStagesOfChunk);
  area.stage_bytes = static_cast<uint32_t>(std::min(
      most,
      round_up(std::max<uint64_t>(divide_up(chunk, tiles), kLeastStageBytes), kStageAlignment)));
  header.shared_bytes = area.stages_at + stages * area.stage_bytes;
}

/// Adds the stages of a reduction in the rest of shared memory: at least two to a warp, or none.
void add_reduce_stages(const StagedReduction& reduction, uint32_t most_shared,
                       LaunchHeader& header) {
  if (reduction.warps == 0) return;
  StageArea& area = header.reduce_stages;
  const auto pulled_at = static_cast<uint32_t>(round_up(header.shared_bytes, alignof(PullState)));
  place(reduction.warps * kMostReduceStages, pulled_at + static_cast<uint32_t>(sizeof(PullState)),
        area);
  header.pulled_at = pulled_at;
  if (area.stages_at >= most_shared) return;
  // Room of one warp and one operand.
  const uint32_t room = (most_shared - area.stages_at) / (reduction.warps * reduction.operands);
  for (uint32_t stages = kFewReduceStages; stages >= 2; --stages) {
    const uint32_t bytes = std::min(room / stages / kRow * kRow, kMostOperandBytes);
    if (bytes == 0 || (bytes < kLeastOperandBytes && stages > 2)) continue;
    area.stage_bytes = bytes;
    area.stages = std::min(room / bytes, kMostReduceStages);
    header.shared_bytes =
        area.stages_at + reduction.warps * area.stages * reduction.operands * bytes;
    return;
  }
}

}  // namespace

void add_stages(const Launch& launch, uint32_t copy_rings, const StagedReduction& reduction,
                uint32_t most_shared, LaunchHeader& header) {
  // Fewer would make every tile wait for the one before it.
  constexpr uint32_t kFewestPulls = 2;
  // A reduction of one warp cannot both pull and reduce. Its rank then serves nobody, either, since
  // the reductions of all ranks are alike.
  if (launch.pull_bytes != 0 && reduction.warps != 1) {
    header.most_pulls = pull::most_of(launch.shape, launch.pull_bytes);
    if (header.most_pulls >= kFewestPulls) header.pull_bytes = launch.pull_bytes;
  }
  if (header.shared_bytes > kMaxSharedBytes) return;
  add_copy_stages(launch, copy_rings, reduction.warps != 0, most_shared, header);
  add_reduce_stages(reduction, most_shared, header);
}

}  // namespace niccolite::executor::cuda
