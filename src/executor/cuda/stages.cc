#include "executor/cuda/stages.h"

#include <algorithm>

#include "executor/cuda/device_types.h"
#include "executor/protocol/pull.h"

namespace niccolite::executor::cuda {
namespace {

constexpr uint32_t kStageAlignment = 128;
constexpr uint32_t kLeastStageBytes = 2048;      // smaller pieces cost more than they hide
constexpr uint32_t kMostStageBytes = 16384;      // larger ones move no more
constexpr uint32_t kPiecesOfChunk = 4;           // fewer hide less
constexpr uint32_t kPartBesideReduction = 4;     // of shared memory that is for them
constexpr uint32_t kPartForPulls = 2;            // the same, if they serve what reductions pull
constexpr uint32_t kReductionRow = kWarp * 16;   // a vec16 for each thread of a warp
constexpr uint32_t kMostReductionPiece = 2048;   // of a shared reduction; longer ones move no more
constexpr uint32_t kLeastReductionPiece = 1024;  // shorter ones cost more than a third group hides
constexpr uint32_t kReductionGroups = 3;         // of pieces that are shorter than the longest
constexpr uint32_t kMostReductionGroups = 6;

/// The stages of bulk workers in shared memory. They are short beside a shared reduction: these
/// workers then have something to do only when an advertisement is refused, or to serve pulls.
void add_bulk_stages(const Launch& launch, uint32_t bulk_workers, bool has_shared_reduction,
                     LaunchHeader& header) {
  if (bulk_workers == 0) return;
  const uint32_t stages = bulk_workers * kBulkStages;
  header.bulk_states_at = static_cast<uint32_t>(round_up(header.shared_bytes, alignof(BulkStage)));
  header.bulk_stages_at = static_cast<uint32_t>(
      round_up(header.bulk_states_at + stages * sizeof(BulkStage), kStageAlignment));
  const uint64_t room = (kMaxSharedBytesWithStages - header.bulk_stages_at) / stages;
  uint64_t chunk = 0;  // bytes, of the largest
  for (const Work& work : launch.works)
    chunk = std::max<uint64_t>(chunk, work.partition.chunk * size_of(launch.type));
  // As many pieces as it takes, of the same size.
  uint64_t most = std::min<uint64_t>(room / kStageAlignment * kStageAlignment, kMostStageBytes);
  if (has_shared_reduction) {
    const uint32_t parts = header.pull_bytes == 0 ? kPartBesideReduction : kPartForPulls;
    const uint64_t part = kMaxSharedBytesWithStages / parts / stages;
    most = std::min(most, part / kStageAlignment * kStageAlignment);
  }
  const uint64_t pieces = std::max<uint64_t>(divide_up(chunk, most), kPiecesOfChunk);
  header.bulk_stage_bytes = static_cast<uint32_t>(std::min(
      most,
      round_up(std::max<uint64_t>(divide_up(chunk, pieces), kLeastStageBytes), kStageAlignment)));
  header.shared_bytes = header.bulk_stages_at + stages * header.bulk_stage_bytes;
}

/// The groups of a shared reduction in what is left of shared memory: at least two to a warp, or
/// none.
void add_reduction_groups(const SharedReductionWorker& reduction, LaunchHeader& header) {
  if (reduction.warps == 0) return;
  header.reduction_states_at =
      static_cast<uint32_t>(round_up(header.shared_bytes, alignof(BulkStage)));
  header.pulled_at = header.reduction_states_at + reduction.warps * kMostReductionGroups *
                                                      static_cast<uint32_t>(sizeof(BulkStage));
  header.reduction_stages_at =
      static_cast<uint32_t>(round_up(header.pulled_at + sizeof(PulledTiles), kStageAlignment));
  if (header.reduction_stages_at >= kMaxSharedBytesWithStages) return;
  // Of one warp and one operand.
  const uint32_t room = (kMaxSharedBytesWithStages - header.reduction_stages_at) /
                        (reduction.warps * reduction.operands);
  for (uint32_t groups = kReductionGroups; groups >= 2; --groups) {
    const uint32_t piece =
        std::min(room / groups / kReductionRow * kReductionRow, kMostReductionPiece);
    if (piece == 0 || (piece < kLeastReductionPiece && groups > 2)) continue;
    header.reduction_piece_bytes = piece;
    header.reduction_groups = std::min(room / piece, kMostReductionGroups);
    header.shared_bytes = header.reduction_stages_at +
                          reduction.warps * header.reduction_groups * reduction.operands * piece;
    return;
  }
}

}  // namespace

void add_stages(const Launch& launch, uint32_t bulk_workers, const SharedReductionWorker& reduction,
                LaunchHeader& header) {
  // Fewer would make every unit wait for the one before it.
  constexpr uint32_t kFewestPulls = 2;
  // A reduction of one warp cannot both pull and reduce; its rank then serves nobody, either, since
  // those of all ranks are alike.
  if (launch.pull_bytes != 0 && reduction.warps != 1) {
    header.most_pulls = pull::most_of(launch.shape, launch.pull_bytes);
    if (header.most_pulls >= kFewestPulls) header.pull_bytes = launch.pull_bytes;
  }
  if (header.shared_bytes > kMaxSharedBytes) return;
  add_bulk_stages(launch, bulk_workers, reduction.warps != 0, header);
  add_reduction_groups(reduction, header);
}

}  // namespace niccolite::executor::cuda
