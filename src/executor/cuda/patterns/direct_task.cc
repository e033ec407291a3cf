#include "executor/cuda/patterns/direct_task.h"

#include <algorithm>

#include "executor/cuda/launch/tables.h"

namespace niccolite::executor::cuda {

using lowering::Phases;
using lowering::Transfer;

uint64_t length_of(const Partition& partition, uint32_t block) {
  const uint64_t start = block * partition.block_stride;
  return start >= partition.count ? 0 : std::min(partition.count - start, partition.block_stride);
}

uint32_t threads_for(uint64_t bytes) {
  constexpr uint32_t kVec8Bytes = 8;
  const uint64_t threads = round_up(divide_up(bytes, kVec8Bytes), kWarp);
  return static_cast<uint32_t>(std::clamp<uint64_t>(threads, kWarp, kMaxThreads));
}

namespace {

bool have_one_length(const Partition& partition, const Phases& phases) {
  const auto has_it = [&](int block) {
    return length_of(partition, static_cast<uint32_t>(block)) == length_of(partition, 0);
  };
  const auto have_it = [&](const Transfer& transfer) { return has_it(transfer.block); };
  return std::ranges::all_of(phases.sends, have_it) &&
         std::ranges::all_of(phases.stores, have_it) &&
         (!phases.copy || has_it(phases.copy->from)) &&
         (!phases.reduce || has_it(phases.reduce->source));
}

/// Does the kernel do the work of the phases?
bool suits(const Phases& phases, bool reduces) {
  if (!reduces) return !phases.reduce;
  if (phases.copy || !phases.stores.empty()) return false;
  const std::optional<Phases::Reduce>& reduce = phases.reduce;
  return !reduce || (reduce->sends.empty() && reduce->target && reduce->finishes);
}

}  // namespace

std::optional<OneStep> one_step_of(const Launch& launch, size_t work, bool reduces) {
  const Phases* const phases = launch.program->phases_of(work);
  if (phases == nullptr || !suits(*phases, reduces) ||
      !have_one_length(launch.works[work].partition, *phases)) {
    return std::nullopt;
  }
  const size_t receives = phases->reduce ? phases->reduce->receives.size() : phases->stores.size();
  const size_t peers = std::max(phases->sends.size(), receives);
  if (peers > kMostDirectPeers) return std::nullopt;
  return OneStep{phases, static_cast<uint32_t>(peers)};
}

bool goes_in_one_step(const Launch& launch, bool reduces) {
  return launch.program->works.size() == 1 && one_step_of(launch, 0, reduces).has_value();
}

bool reduces_in_one_step(const Launch& launch, bool /*reduces*/) {
  return goes_in_one_step(launch, /*reduces=*/true);
}

template <uint32_t kMostPeers>
DirectTask<kMostPeers> make_task(const Launch& launch, size_t work, const OneStep& step) {
  const Phases& phases = *step.phases;
  const uint64_t block_bytes =
      launch.is_list() ? 1 : launch.works[work].partition.block_stride * size_of(launch.type);
  const auto at = [&](int block) { return static_cast<uint64_t>(block) * block_bytes; };
  const auto end_of = [&](int port, int block) {
    return DirectEnd{task_of(launch, static_cast<uint16_t>(port)), at(block)};
  };
  DirectTask<kMostPeers> task{};
  for (const Transfer& send : phases.sends)
    task.send[task.sends++] = end_of(send.connection, send.block);
  for (const Transfer& store : phases.stores)
    task.receive[task.receives++] = end_of(store.connection, store.block);
  if (phases.copy) {
    task.reads_own = task.copies_own = 1;
    task.own_from = at(phases.copy->from);
    task.own_to = at(phases.copy->to);
  } else if (const std::optional<Phases::Reduce>& reduce = phases.reduce) {
    task.reads_own = 1;
    task.own_from = at(reduce->source);
    task.own_to = at(*reduce->target);
    task.source_position = static_cast<uint32_t>(reduce->source_position);
    for (const int port : reduce->receives) task.receive[task.receives++] = end_of(port, 0);
  } else if (!phases.sends.empty() && sends_one_block(phases)) {
    task.reads_own = 1;
    task.own_from = at(phases.sends.back().block);
  }
  return task;
}

BlockCut cut_of(const Launch& launch) {
  const Partition& partition = launch.works[0].partition;
  const uint64_t bytes = size_of(launch.type);
  return {length_of(partition, 0) * bytes, partition.channel_stride * bytes,
          static_cast<uint32_t>(partition.chunk * bytes)};
}

template DirectTask<1> make_task<1>(const Launch&, size_t, const OneStep&);
template DirectTask<kFewDirectPeers> make_task<kFewDirectPeers>(const Launch&, size_t,
                                                                const OneStep&);
template DirectTask<kMostDirectPeers> make_task<kMostDirectPeers>(const Launch&, size_t,
                                                                  const OneStep&);

}  // namespace niccolite::executor::cuda
