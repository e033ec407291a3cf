#include "executor/cuda/patterns/list_launch.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <numeric>

#include "executor/cuda/launch/launch_header.h"
#include "executor/cuda/launch/worker_movers.h"
#include "executor/cuda/patterns/direct_task.h"
#include "executor/list_tiles.h"
#include "executor/protocol/ll.h"

namespace niccolite::executor::cuda {
namespace {

/// ListParams, or DirectListParams, and how they are launched.
struct ListParameters {
  uint32_t most_peers;
  uint32_t threads;
  uint32_t shared_bytes;
  uint32_t works_at;  // bytes from the start of the parameters to its works
  std::vector<std::byte> bytes;
};

/// Elements that fill a slot, or, where works are shared out to channels, less: as many as make all
/// parts of the longest one equal.
uint32_t chunk_of_list(const Launch& launch) {
  constexpr uint32_t kWhole = 256;  // bytes: no part begins where its work is aligned to less
  const auto element_bytes = static_cast<uint32_t>(size_of(launch.type));
  const auto slot = static_cast<uint32_t>(data_bytes(launch.protocol, launch.shape.slot_bytes));
  uint64_t longest = 0;
  for (const Work& work : launch.works)
    longest = std::max(longest, length_of(work.partition, 0) * element_bytes);
  const uint64_t part = round_up(divide_up(longest, launch.list_parts), kWhole);
  return (launch.list_parts == 1 ? slot : static_cast<uint32_t>(std::min<uint64_t>(part, slot))) /
         element_bytes;
}

/// Rounds that a CTA does side by side, a team of threads each: up to all of them where they are
/// short. A thread may have two vec8s of each.
uint32_t teams_of_list(const Launch& launch, uint32_t rounds, uint32_t threads, uint32_t most) {
  uint32_t teams = 1;
  while (teams < rounds && 2 * teams <= launch.shape.depth && 2 * teams * kWarp <= most &&
         teams * threads <= most)
    teams *= 2;
  return teams;
}

template <uint32_t kMostPeers>
ListParameters list_parameters(const Launch& launch, const OneStep& step) {
  using Params = ListParams<kMostPeers>;
  constexpr size_t kWorksAt = offsetof(Params, work);
  const size_t works = launch.works.size();
  std::vector<std::byte> bytes(kWorksAt + works * sizeof(ListWork));
  Params params{};
  params.columns = static_cast<uint16_t>(launch.list_channels / launch.list_parts);
  params.parts = static_cast<uint16_t>(launch.list_parts);
  params.task = make_task<kMostPeers>(launch, 0, step);
  const auto element_bytes = static_cast<uint32_t>(size_of(launch.type));
  params.chunk = chunk_of_list(launch);
  uint32_t threads = kWarp;
  for (size_t w = 0; w < works; ++w) {
    const Work& work = launch.works[w];
    const auto count = static_cast<uint32_t>(length_of(work.partition, 0));
    const auto chunks = static_cast<uint32_t>(divide_up(count, params.chunk));
    for (uint32_t part = 0; part < std::min(launch.list_parts, chunks); ++part)
      params.rounds[first_list_channel(launch, w) + part] +=
          static_cast<uint16_t>(divide_up(chunks - part, launch.list_parts));
    threads =
        std::max(threads, threads_for(uint64_t{std::min(count, params.chunk)} * element_bytes));
    const ListWork listed{.input = nullptr,
                          .output = nullptr,
                          .count = count,
                          .tag = work.tag,
                          .width = 0,
                          .stride_width = stride_width(launch, w)};
    std::memcpy(bytes.data() + kWorksAt + w * sizeof listed, &listed, sizeof listed);
  }
  uint32_t most_threads = launch.threads > 0 ? static_cast<uint32_t>(launch.threads) : kMaxThreads;
  // Every warp looks at the connections' counters, which of the host's memory takes turns.
  if (is_in_host(launch)) most_threads = std::min(most_threads, 2 * kWarp);
  const uint16_t most_rounds = *std::ranges::max_element(params.rounds);
  params.teams = teams_of_list(launch, most_rounds, threads, most_threads);
  threads = params.teams * std::min(threads, most_threads / params.teams / kWarp * kWarp);
  std::memcpy(bytes.data(), &params, kWorksAt);
  return {kMostPeers, threads, /*shared_bytes=*/0, kWorksAt, std::move(bytes)};
}

/// Where a CTA has fewer tiles than warps, several warps share each of them: a warp waits once for
/// each part of a tile that it loads.
uint16_t tile_parts_bits(const Launch& launch, uint32_t nranks, uint32_t warps) {
  const uint64_t of_channel = divide_up(count_list_tiles(launch), launch.list_channels);
  const uint64_t tiles = divide_up(of_channel, tile_stride(*launch.list_access, nranks));
  uint16_t bits = 0;
  while (bits < kMostTilePartsBits && tiles << (bits + 1) <= warps) ++bits;
  return bits;
}

template <uint32_t kMostPeers>
ListParameters direct_list_parameters(const Launch& launch, const OneStep& step) {
  using DirectParams = DirectListParams<kMostPeers>;
  constexpr size_t kWorksAt = offsetof(DirectParams, work);
  const auto element_bytes = static_cast<uint32_t>(size_of(launch.type));
  DirectParams params{};
  params.rank = static_cast<uint16_t>(launch.program->rank);
  params.nranks = static_cast<uint16_t>(step.peers + 1);
  params.access = *launch.list_access;
  params.chunk =
      static_cast<uint32_t>(data_bytes(launch.protocol, launch.shape.slot_bytes)) / element_bytes;
  params.task = make_task<kMostPeers>(launch, 0, step);

  std::vector<std::byte> bytes(kWorksAt + launch.works.size() * sizeof(DirectListWork));
  for (size_t w = 0; w < launch.works.size(); ++w) {
    const Work& work = launch.works[w];
    DirectListWork listed{};
    listed.count = static_cast<uint32_t>(work.partition.count);
    listed.tag = work.tag;
    std::memcpy(bytes.data() + kWorksAt + w * sizeof listed, &listed, sizeof listed);
  }
  const uint32_t threads = launch.threads > 0 ? static_cast<uint32_t>(launch.threads) : kMaxThreads;
  params.tile_parts_bits = tile_parts_bits(launch, params.nranks, threads / kWarp);
  const std::vector<ListPosition> starts = share_list_tiles(launch);
  std::copy(starts.begin(), starts.end(), params.starts);
  for (uint32_t channel = 0; channel < launch.list_channels; ++channel)
    params.most_works =
        std::max(params.most_works,
                 static_cast<uint16_t>(works_between(starts[channel], starts[channel + 1])));
  std::memcpy(bytes.data(), &params, kWorksAt);
  // An address of each buffer.
  const size_t shared_bytes = 2 * params.nranks * params.most_works * sizeof(uint64_t);
  return {kMostPeers, threads, static_cast<uint32_t>(shared_bytes), kWorksAt, std::move(bytes)};
}

void launch_list(const Launch& launch, KernelVariant variant, const ListParameters& list,
                 KernelLaunch& result) {
  set_operation(launch, result.header());
  result.header().nworks = 0;  // WorkTasks
  result.header().shared_bytes = list.shared_bytes;
  result.kernel.variant = variant;
  result.kernel.most_peers = list.most_peers;
  result.grid_x = launch.list_channels;
  result.grid_y = 1;
  result.threads = list.threads;
  result.list_works_at = list.works_at;
  result.list_works = static_cast<uint32_t>(launch.works.size());
  result.end_tables(0, list.bytes.data(), list.bytes.size());
  set_buffers(result, buffers_of(launch));
}

}  // namespace

KernelLaunch prepare_list(const Launch& launch, KernelLaunch result) {
  const OneStep step = *one_step_of(launch, 0, result.kernel.reduces);
  const ListParameters list = step.peers <= kFewDirectPeers
                                  ? list_parameters<kFewDirectPeers>(launch, step)
                                  : list_parameters<kMostDirectPeers>(launch, step);
  const KernelVariant variant =
      sends_one_block(*step.phases) ? KernelVariant::List : KernelVariant::ListEach;
  launch_list(launch, variant, list, result);
  return result;
}

KernelLaunch prepare_direct_list(const Launch& launch, KernelLaunch result) {
  const OneStep step = *one_step_of(launch, 0, /*reduces=*/true);
  const ListParameters list = step.peers <= kFewDirectPeers
                                  ? direct_list_parameters<kFewDirectPeers>(launch, step)
                                  : direct_list_parameters<kMostDirectPeers>(launch, step);
  launch_list(launch, KernelVariant::DirectList, list, result);
  result.has_advertisements = true;
  result.advertises_input = result.advertises_output =
      std::any_of(launch.ports.begin(), launch.ports.end(),
                  [](const PortAddress& port) { return port.opens_buffers; });
  return result;
}

void set_list_buffers(KernelLaunch& launch, std::span<const Buffers> buffers) {
  auto* works = reinterpret_cast<ListWork*>(launch.tables() + launch.list_works_at);
  for (size_t w = 0; w < buffers.size() && w < launch.list_works; ++w) {
    works[w].input = static_cast<const std::byte*>(buffers[w].input);
    works[w].output = static_cast<std::byte*>(buffers[w].output);
    works[w].width = width_of(buffers[w], works[w].stride_width);
  }
}

void set_direct_list_buffers(KernelLaunch& launch, std::span<const Buffers> buffers) {
  auto* works = reinterpret_cast<DirectListWork*>(launch.tables() + launch.list_works_at);
  for (size_t w = 0; w < buffers.size() && w < launch.list_works; ++w) {
    works[w].input = static_cast<const std::byte*>(buffers[w].input);
    works[w].output = static_cast<std::byte*>(buffers[w].output);
    works[w].input_shifts = buffers[w].input_shifts;
    works[w].output_shifts = buffers[w].output_shifts;
  }
}

}  // namespace niccolite::executor::cuda
