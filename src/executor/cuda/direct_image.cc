#include "executor/cuda/direct_image.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "executor/cuda/device_types.h"
#include "executor/cuda/direct_task.h"

namespace niccolite::executor::cuda {
namespace {

uint32_t threads_of(const Launch& launch, size_t work) {
  return threads_for(launch.works[work].partition.chunk * size_of(launch.type));
}

std::optional<DirectImage> collective_image(const Launch& launch, bool reduces) {
  const std::optional<OneStep> step = one_step_of(launch, 0, reduces);
  if (!step) return std::nullopt;
  const bool is_few = step->peers <= kFewDirectPeers;
  return DirectImage{
      .form = sends_one_block(*step->phases) ? Form::Direct : Form::DirectEach,
      .most_peers = is_few ? kFewDirectPeers : kMostDirectPeers,
      .threads = launch.threads > 0 ? static_cast<uint32_t>(launch.threads) : threads_of(launch, 0),
      .bytes = is_few ? bytes_of(make_task<kFewDirectPeers>(launch, 0, *step))
                      : bytes_of(make_task<kMostDirectPeers>(launch, 0, *step))};
}

/// Warps for each message: as many as have data, of `most` together; at least one.
std::vector<uint32_t> warps_of_messages(const Launch& launch, uint32_t most) {
  std::vector<uint32_t> warps;
  for (const CompactLane& lane : launch.program->lanes) {
    warps.push_back(threads_of(launch, lane.work) / kWarp);
  }
  while (std::accumulate(warps.begin(), warps.end(), 0u) > most) {
    --*std::max_element(warps.begin(), warps.end());
  }
  return warps;
}

std::optional<DirectImage> messages_image(const Launch& launch) {
  const Program& program = *launch.program;
  if (program.lanes.size() > kMaxWarps) return std::nullopt;
  const uint32_t most =
      launch.threads > 0 ? static_cast<uint32_t>(launch.threads) / kWarp : kMaxWarps;
  const std::vector<uint32_t> warps =
      warps_of_messages(launch, std::max(most, static_cast<uint32_t>(program.lanes.size())));
  MessagesImage image{};
  uint32_t warp = 0;
  auto barrier = static_cast<uint16_t>(Barrier::FirstLane);
  for (size_t l = 0; l < program.lanes.size(); ++l) {
    const CompactLane& lane = program.lanes[l];
    const std::optional<OneStep> step = one_step_of(launch, lane.work, /*reduces=*/false);
    if (!step || lane.count != 1 || step->phases->sends.size() + step->phases->stores.size() > 1)
      return std::nullopt;
    MessageTask& message = image.messages[l];
    message.first_thread = static_cast<uint16_t>(warp * kWarp);
    message.threads = static_cast<uint16_t>(warps[l] * kWarp);
    if (warps[l] > 1) message.barrier = barrier++;
    message.work = lane.work;
    message.task = make_task<1>(launch, lane.work, *step);
    for (uint32_t w = 0; w < warps[l]; ++w, ++warp) {
      image.messages_of_warps |= uint64_t{l} << (MessagesImage::kBits * warp);
    }
  }
  const size_t used =
      offsetof(MessagesImage, messages) + program.lanes.size() * sizeof(MessageTask);
  return DirectImage{Form::Messages, /*most_peers=*/1, warp * kWarp, bytes_of(image, used)};
}

}  // namespace

std::optional<DirectImage> direct_image(const Launch& launch, bool reduces) {
  if (!is_by_ll(launch)) return std::nullopt;
  if (launch.program->works.size() == 1) return collective_image(launch, reduces);
  return reduces ? std::nullopt : messages_image(launch);
}

}  // namespace niccolite::executor::cuda
