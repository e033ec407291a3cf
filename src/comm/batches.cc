#include "comm/batches.h"

#include <algorithm>
#include <deque>
#include <map>
#include <tuple>

#include "algorithms/lanes.h"

namespace niccolite::comm {
namespace {

using executor::Protocol;
using planner::Plan;
using planner::Planner;

// Above this, an operation fills the links by itself and gains nothing from company.
constexpr size_t kMostJoinedBytes = 512 << 10;
// No operation that may be joined has more lanes on any rank. (How many one has may differ from
// rank to rank, so that it must not decide.)
constexpr int kMostLanes = 2 * algorithms::kMaxLanesRanks;
constexpr size_t kMostJoined = executor::kMaxLanes / kMostLanes;
static_assert(kMostJoined <= executor::kMaxWorks);
// Distances in one batch: with sends and receives, and a message to the own rank, at most
// kMaxWorks works.
constexpr int kDistancesInBatch = 16;
static_assert(2 * kDistancesInBatch <= executor::kMaxWorks);

/// What operations must have in common to share a launch; equal on all ranks, as batches must be.
using Kernel =
    std::tuple<Protocol, bool, executor::DataType, executor::Fold, double, double, int64_t>;
Kernel kernel_of(const Plan& plan) {
  const executor::Reduction& r = plan.reduction;
  return {plan.protocol, plan.reduces,   plan.type,       r.fold,
          r.input_scale, r.finish_scale, r.finish_divisor};
}

/// A scalar is its rank's own, and a launch has one: such operations stay alone.
bool may_share(const Task& task, const planner::Settings& settings) {
  return task.call.request.bytes() <= kMostJoinedBytes && settings.nranks > 1 &&
         !task.call.request.op.scales();
}

/// Each call's stream once, the first call's first.
void collect_streams(Batch& batch) {
  std::vector<gpu::StreamHandle> streams;
  const auto add = [&](gpu::StreamHandle stream) {
    if (std::find(streams.begin(), streams.end(), stream) == streams.end())
      streams.push_back(stream);
  };
  for (const Task* task : batch.tasks) add(task->stream);
  for (const gpu::StreamHandle stream : batch.streams) add(stream);
  batch.streams = std::move(streams);
}

// Only operations that may share are planned here, and only where there are several of them.
Status add_collectives(std::span<const Task> tasks, Planner& planner, std::vector<Batch>& batches) {
  const planner::Settings& settings = planner.settings();
  const auto is_candidate = [&](const Task& task) {
    return !task.call.is_message() && may_share(task, settings);
  };
  const bool any_shares = std::count_if(tasks.begin(), tasks.end(), is_candidate) > 1;
  struct Bin {
    std::vector<const Task*> tasks;
    uint32_t channels = 0;  // of the protocol's connections; 0: of an operation that stays alone
  };
  std::map<Kernel, size_t> bin_of;
  std::vector<Bin> bins;  // in the order of their first calls
  for (const Task& task : tasks) {
    if (task.call.is_message()) continue;
    if (!any_shares || !is_candidate(task)) {
      bins.push_back({.tasks = {&task}});
      continue;
    }
    const Plan plan = TRY(planner.collective(task.call.request));
    const auto [place, is_new] = bin_of.try_emplace(kernel_of(plan), bins.size());
    if (is_new)
      bins.push_back(
          {.tasks = {}, .channels = settings.shapes[static_cast<size_t>(plan.protocol)].channels});
    bins[place->second].tasks.push_back(&task);
  }
  for (const Bin& bin : bins) {
    const size_t most = bin.channels == 0 ? 1 : std::min<size_t>(bin.channels, kMostJoined);
    for (size_t first = 0; first < bin.tasks.size(); first += most) {
      const size_t count = std::min(most, bin.tasks.size() - first);
      const auto begin = bin.tasks.begin() + static_cast<std::ptrdiff_t>(first);
      Batch batch;
      batch.tasks.assign(begin, begin + static_cast<std::ptrdiff_t>(count));
      batch.self_outputs.assign(count, nullptr);
      batch.most_channels = static_cast<int>(bin.channels / count);
      batches.push_back(std::move(batch));
    }
  }
  return {};
}

Status add_messages(std::span<const Task> tasks, Planner& planner, std::vector<Batch>& batches) {
  const int rank = planner.rank();
  const int nranks = planner.settings().nranks;
  struct Ends {
    std::vector<const Task*> sends;
    std::vector<void*> self_outputs;  // of the sends
    std::vector<const Task*> receives;
    std::vector<gpu::StreamHandle> streams;  // of receives from the own rank
  };
  std::map<std::tuple<int, Protocol, int>, Ends> by_key;
  std::map<std::pair<int, bool>, int> met;  // messages so far with (peer, is_send)
  std::deque<const Task*> self_sends, self_receives;

  const auto ends_of = [&](const Task& task) -> Result<Ends*> {
    const Call& call = task.call;
    const Protocol protocol = TRY(planner.protocol_of_message(call.request.bytes()));
    const int distance = ((call.is_send ? call.peer - rank : rank - call.peer) + nranks) % nranks;
    const int k = met[{call.peer, call.is_send}]++;
    return &by_key[{k, protocol, distance / kDistancesInBatch}];
  };
  for (const Task& task : tasks) {
    if (!task.call.is_message()) continue;
    if (task.call.peer == rank) {
      (task.call.is_send ? self_sends : self_receives).push_back(&task);
      continue;
    }
    Ends* const ends = TRY(ends_of(task));
    if (task.call.is_send) {
      ends->sends.push_back(&task);
      ends->self_outputs.push_back(nullptr);
    } else {
      ends->receives.push_back(&task);
    }
  }
  if (self_sends.size() != self_receives.size())
    return Status::invalid_usage(
        "rank {} sends {} messages to itself and receives {}: both ends of a message to the own "
        "rank belong into one group",
        rank, self_sends.size(), self_receives.size());
  for (size_t i = 0; i < self_sends.size(); ++i) {
    const Task &send = *self_sends[i], &receive = *self_receives[i];
    if (send.call.request.bytes() != receive.call.request.bytes())
      return Status::invalid_usage("rank {} sends {} bytes to itself by {} and receives {} by {}",
                                   rank, send.call.request.bytes(), describe(send.call),
                                   receive.call.request.bytes(), describe(receive.call));
    Ends* const ends = TRY(ends_of(send));
    ends->sends.push_back(&send);
    ends->self_outputs.push_back(receive.output);
    ends->streams.push_back(receive.stream);
  }

  for (auto& [key, ends] : by_key) {
    Batch batch{.protocol = std::get<Protocol>(key),
                .tasks = std::move(ends.sends),
                .self_outputs = std::move(ends.self_outputs),
                .streams = std::move(ends.streams),
                .most_channels = 0};
    batch.tasks.insert(batch.tasks.end(), ends.receives.begin(), ends.receives.end());
    batch.self_outputs.resize(batch.tasks.size(), nullptr);
    batches.push_back(std::move(batch));
  }
  return {};
}

}  // namespace

Result<std::vector<Batch>> make_batches(std::span<const Task> tasks, Planner& planner) {
  std::vector<Batch> batches;
  TRY(add_collectives(tasks, planner, batches));
  TRY(add_messages(tasks, planner, batches));
  for (Batch& batch : batches) collect_streams(batch);
  return batches;
}

}  // namespace niccolite::comm
