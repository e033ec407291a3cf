#include "operations/planned.h"

#include <algorithm>

#include "executor/list_tiles.h"
#include "planner/choice/list_choice.h"

namespace niccolite::operations {
namespace {

using planner::Plan;
using planner::Planner;

/// Channels of each operation of a list: as many as there are for it, and as the longest is worth.
/// All ranks come to the same number.
uint32_t parts_of_list(const executor::Launch& launch, uint32_t channels) {
  constexpr uint64_t kLeastBytesOfPart = 4 << 10;
  uint64_t longest = 0;
  for (const executor::Work& work : launch.works)
    longest = std::max(longest, std::min(work.partition.count, work.partition.block_stride));
  const uint64_t worth = executor::divide_up(longest * size_of(launch.type), kLeastBytesOfPart);
  const uint64_t most = channels / launch.works.size();
  return static_cast<uint32_t>(std::clamp<uint64_t>(worth, 1, std::max<uint64_t>(1, most)));
}

Status plan_messages(const Batch& batch, Planner& planner, Planned& planned) {
  std::vector<std::vector<planner::Message>> layers;
  auto next = batch.tasks.begin();
  for (const size_t works : batch.layers) {
    std::vector<planner::Message>& layer = layers.emplace_back();
    for (const auto end = next + static_cast<std::ptrdiff_t>(works); next != end; ++next)
      layer.push_back({.peer = (*next)->call.peer,
                       .is_send = (*next)->call.is_send,
                       .bytes = (*next)->call.request.bytes(),
                       .goes_direct = (*next)->call.goes_direct});
  }
  planned.plan = TRY(planner.messages(layers, batch.protocol));
  for (size_t work = 0; work < batch.tasks.size(); ++work)
    planned.launch.works.push_back({.partition = planned.plan.partitions[work],
                                    .tag = tag_of(batch.tasks[work]->call),
                                    .buffers = {},
                                    .turn = planned.plan.turns[work]});
  return {};
}

void plan_list(Batch batch, const planner::Settings& settings, Planned& planned) {
  executor::Launch& launch = planned.launch;
  double microseconds = 0, longest = 0;
  for (size_t work = 0; work < batch.tasks.size(); ++work) {
    const Plan& plan = batch.plans[work];
    launch.works.push_back(
        {.partition = plan.partitions[0], .tag = tag_of(batch.tasks[work]->call), .buffers = {}});
    microseconds += plan.microseconds;
    longest = std::max(longest, plan.microseconds);
  }
  planned.plan = std::move(batch.plans[0]);
  launch.type = planned.plan.type;
  launch.list_access = planned.plan.list_access;
  launch.list_operation = planned.plan.list_operation;
  const auto works = static_cast<uint32_t>(batch.tasks.size());
  const uint32_t channels = planned.plan.shape.channels;
  if (batch.goes_direct) {
    launch.list_channels = std::min(channels, executor::count_list_tiles(launch));
    planned.plan.microseconds = planner::predict_direct_list(settings) + microseconds;
    return;
  }
  launch.list_parts = parts_of_list(launch, channels);
  launch.list_channels = std::min(channels / launch.list_parts, works) * launch.list_parts;
  const uint64_t rounds = executor::divide_up(works, launch.list_channels / launch.list_parts);
  planned.plan.microseconds = longest * static_cast<double>(rounds);
}

/// Collectives side by side, or one by itself.
Status plan_joined(Batch batch, Planner& planner, Planned& planned) {
  std::vector<Plan>& plans = batch.plans;
  if (plans.empty())
    for (const calls::Task* task : batch.tasks)
      plans.push_back(TRY(planner.collective(task->call.request, batch.most_channels)));
  std::vector<const executor::Program*> programs;
  uint32_t first_channel = 0;
  double microseconds = 0;
  for (size_t work = 0; work < plans.size(); ++work) {
    programs.push_back(plans[work].program.get());
    planned.choices.push_back(plans[work].choice);
    const executor::Partition& partition = plans[work].partitions[0];
    planned.launch.works.push_back({.partition = partition,
                                    .first_channel = first_channel,
                                    .tag = tag_of(batch.tasks[work]->call),
                                    .buffers = {}});
    first_channel += partition.channels;
    // They run side by side: the links are shared, the latency is not added up.
    microseconds = std::max(microseconds, plans[work].microseconds);
  }
  std::shared_ptr<const executor::Program> program = plans[0].program;
  if (plans.size() > 1)
    program = std::make_shared<const executor::Program>(TRY(executor::join(programs)));
  planned.plan = std::move(plans[0]);
  planned.plan.program = std::move(program);
  planned.plan.microseconds = microseconds;
  return {};
}

}  // namespace

Result<Planned> plan_batch(Batch batch, Planner& planner, std::string name) {
  Planned planned{.plan = {}, .launch = {}, .first = batch.tasks[0]->call, .name = std::move(name)};
  if (batch.holds_messages()) {
    TRY(plan_messages(batch, planner, planned));
  } else if (batch.is_list) {
    plan_list(std::move(batch), planner.settings(), planned);
  } else {
    TRY(plan_joined(std::move(batch), planner, planned));
  }
  return planned;
}

}  // namespace niccolite::operations
