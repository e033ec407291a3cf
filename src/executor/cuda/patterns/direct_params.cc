#include "executor/cuda/patterns/direct_params.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "executor/cuda/interpreter/device_types.h"
#include "executor/cuda/launch/launch_header.h"
#include "executor/cuda/patterns/direct_task.h"
#include "executor/protocol/ll128.h"

namespace niccolite::executor::cuda {
namespace {

uint32_t threads_of(const Launch& launch, size_t work) {
  return threads_for(launch.works[work].partition.chunk * size_of(launch.type));
}

template <uint32_t kMostPeers>
OneStepParams<kMostPeers> one_step_params(const Launch& launch, const OneStep& step) {
  return {cut_of(launch), make_task<kMostPeers>(launch, 0, step)};
}

/// Warps for each message: as many as have data, of `most` together; at least one.
std::vector<uint32_t> warps_of_messages(const Launch& launch, uint32_t most) {
  std::vector<uint32_t> warps;
  for (const CompactWorker& worker : launch.program->workers) {
    warps.push_back(threads_of(launch, worker.work) / kWarp);
  }
  while (std::accumulate(warps.begin(), warps.end(), 0u) > most) {
    --*std::max_element(warps.begin(), warps.end());
  }
  return warps;
}

}  // namespace

bool has_direct_kernel(const Launch& launch, bool reduces) {
  const std::optional<OneStep> step = one_step_of(launch, 0, reduces);
  return step && (step->peers <= kFewDirectPeers || counters_of(launch) == Counters::InGpu);
}

PatternParams direct_params(const Launch& launch, bool reduces) {
  const OneStep step = *one_step_of(launch, 0, reduces);
  const Counters counters = counters_of(launch);
  const bool is_few = step.peers <= kFewDirectPeers;
  return {
      .variant = sends_one_block(*step.phases) ? KernelVariant::Direct : KernelVariant::DirectEach,
      .most_peers = is_few ? kFewDirectPeers : kMostDirectPeers,
      .counters = counters,
      .threads = launch.threads > 0 ? static_cast<uint32_t>(launch.threads) : threads_of(launch, 0),
      .shared_bytes = counters == Counters::InGpu ? 0 : kHostCountersBytes<kFewDirectPeers>,
      .bytes = is_few ? bytes_of(one_step_params<kFewDirectPeers>(launch, step))
                      : bytes_of(one_step_params<kMostDirectPeers>(launch, step))};
}

bool has_lines_kernel(const Launch& launch, bool reduces) {
  // Factors of the input are rare, and several rounds are faster by the interpreter. (So may be
  // copies: nobody has measured them.)
  if (!reduces || (flags_of(launch) & kScalesInput) != 0 || launch.works[0].partition.rounds != 1)
    return false;
  const std::optional<OneStep> step = one_step_of(launch, 0, reduces);
  return step && step->peers <= kFewDirectPeers && counters_of(launch) == Counters::InGpu;
}

PatternParams lines_params(const Launch& launch, bool reduces) {
  const OneStep step = *one_step_of(launch, 0, reduces);
  const uint64_t chunk = uint64_t{launch.works[0].partition.chunk} * size_of(launch.type);
  constexpr uint64_t kThreadsOfLine = 8;
  const uint64_t threads = round_up(ll128::lines_of(chunk) * kThreadsOfLine, kWarp);
  return {.variant = KernelVariant::DirectLines,
          .most_peers = kFewDirectPeers,
          .counters = Counters::InGpu,
          .threads = launch.threads > 0
                         ? static_cast<uint32_t>(launch.threads)
                         : static_cast<uint32_t>(std::clamp<uint64_t>(threads, kWarp, kMaxThreads)),
          .shared_bytes = 0,
          .bytes = bytes_of(one_step_params<kFewDirectPeers>(launch, step))};
}

bool are_messages_of_one_step(const Launch& launch, bool reduces) {
  const std::vector<CompactWorker>& workers = launch.program->workers;
  return !reduces && workers.size() <= kMaxWarps &&
         std::ranges::all_of(workers, [&](const CompactWorker& worker) {
           const std::optional<OneStep> step = one_step_of(launch, worker.work, /*reduces=*/false);
           return step && worker.count == 1 &&
                  step->phases->sends.size() + step->phases->stores.size() <= 1;
         });
}

PatternParams messages_params(const Launch& launch) {
  const Program& program = *launch.program;
  const uint32_t most =
      launch.threads > 0 ? static_cast<uint32_t>(launch.threads) / kWarp : kMaxWarps;
  const std::vector<uint32_t> warps =
      warps_of_messages(launch, std::max(most, static_cast<uint32_t>(program.workers.size())));
  MessagesParams params{};
  uint32_t warp = 0;
  auto barrier = static_cast<uint16_t>(Barrier::FirstWorker);
  for (size_t l = 0; l < program.workers.size(); ++l) {
    const CompactWorker& worker = program.workers[l];
    MessageTask& message = params.messages[l];
    message.first_thread = static_cast<uint16_t>(warp * kWarp);
    message.threads = static_cast<uint16_t>(warps[l] * kWarp);
    if (warps[l] > 1) message.barrier = barrier++;
    message.work = worker.work;
    message.task =
        make_task<1>(launch, worker.work, *one_step_of(launch, worker.work, /*reduces=*/false));
    for (uint32_t w = 0; w < warps[l]; ++w, ++warp) {
      params.messages_of_warps |= uint64_t{l} << (MessagesParams::kBits * warp);
    }
  }
  const size_t used =
      offsetof(MessagesParams, messages) + program.workers.size() * sizeof(MessageTask);
  const Counters counters = counters_of(launch);
  const bool in_host = counters != Counters::InGpu;
  return {.variant = KernelVariant::Messages,
          .most_peers = 1,
          .counters = counters,
          .threads = warp * kWarp,
          .shared_bytes = in_host ? kMaxWarps * kHostCountersBytes<1> : 0,
          .bytes = bytes_of(params, used)};
}

}  // namespace niccolite::executor::cuda
