#include "executor/cuda/stages.h"

#include <algorithm>

#include "executor/cuda/device_types.h"
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

/// The stages of bulk lanes in shared memory. They are short beside a shared fold: these lanes then
/// have something to do only when an offer is refused, or to serve requests.
void add_bulk_stages(const Launch& launch, uint32_t bulk_lanes, bool has_shared_fold,
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
void add_fold_groups(const SharedFoldLane& fold, LaunchHeader& header) {
  if (fold.warps == 0) return;
  header.fold_states_at = static_cast<uint32_t>(round_up(header.shared_bytes, alignof(BulkStage)));
  header.requested_at = header.fold_states_at +
                        fold.warps * kMostFoldGroups * static_cast<uint32_t>(sizeof(BulkStage));
  header.fold_stages_at = static_cast<uint32_t>(
      round_up(header.requested_at + sizeof(RequestedUnits), kStageAlignment));
  if (header.fold_stages_at >= kMaxSharedBytesWithStages) return;
  // Of one warp and one operand.
  const uint32_t room =
      (kMaxSharedBytesWithStages - header.fold_stages_at) / (fold.warps * fold.operands);
  for (uint32_t groups = kFoldGroups; groups >= 2; --groups) {
    const uint32_t piece = std::min(room / groups / kFoldRow * kFoldRow, kMostFoldPiece);
    if (piece == 0 || (piece < kLeastFoldPiece && groups > 2)) continue;
    header.fold_piece_bytes = piece;
    header.fold_groups = std::min(room / piece, kMostFoldGroups);
    header.shared_bytes =
        header.fold_stages_at + fold.warps * header.fold_groups * fold.operands * piece;
    return;
  }
}

}  // namespace

void add_stages(const Launch& launch, uint32_t bulk_lanes, const SharedFoldLane& fold,
                LaunchHeader& header) {
  // Fewer would make every unit wait for the one before it.
  constexpr uint32_t kFewestRequests = 2;
  // A fold of one warp cannot both request and fold; its rank then serves nobody, either, since
  // those of all ranks are alike.
  if (launch.request_bytes != 0 && fold.warps != 1) {
    header.most_requests = request::most_of(launch.shape, launch.request_bytes);
    if (header.most_requests >= kFewestRequests) header.request_bytes = launch.request_bytes;
  }
  if (header.shared_bytes > kMaxSharedBytes) return;
  add_bulk_stages(launch, bulk_lanes, fold.warps != 0, header);
  add_fold_groups(fold, header);
}

}  // namespace niccolite::executor::cuda
