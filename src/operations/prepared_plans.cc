// What an operation queue plans, binds to connections, and remembers for calls to come; and how it
// forgets.
#include <algorithm>

#include "algorithms/registry.h"
#include "base/log.h"
#include "executor/list_tiles.h"
#include "gpu/machine.h"
#include "operations/batches.h"
#include "operations/call_key.h"
#include "operations/launch_form.h"
#include "operations/launcher.h"
#include "operations/operation_queue.h"
#include "operations/planned.h"
#include "operations/plans.h"
#include "planner/choice/list_choice.h"
#include "profiling/profiling.h"
#include "transport/endpoint.h"

namespace niccolite::operations {
namespace {

using planner::Plan;
using planner::Planner;

// A program that uses more shapes than this in turn plans some of them anew; planning costs
// microseconds.
constexpr size_t kMostPrepared = 1024;

/// Channels of each operation of a list: as many as there are for it, and as the longest is worth.
/// The same on all ranks.
uint32_t parts_of_list(const executor::Launch& launch, uint32_t channels) {
  constexpr uint64_t kLeastBytesOfPart = 4 << 10;
  uint64_t longest = 0;
  for (const executor::Work& work : launch.works)
    longest = std::max(longest, std::min(work.partition.count, work.partition.block_stride));
  const uint64_t worth = executor::divide_up(longest * size_of(launch.type), kLeastBytesOfPart);
  const uint64_t most = channels / launch.works.size();
  return static_cast<uint32_t>(std::clamp<uint64_t>(worth, 1, std::max<uint64_t>(1, most)));
}

}  // namespace

size_t HashOfRequest::operator()(const planner::Request& request) const { return hash_of(request); }

KnownGroup* Plans::find(std::span<const calls::Task> tasks) {
  if (groups.empty()) return nullptr;
  const auto [first, last] = groups.equal_range(hash_of(tasks));
  const auto found = std::find_if(first, last, [&](const auto& known) {
    return std::equal(
        tasks.begin(), tasks.end(), known.second.calls.begin(), known.second.calls.end(),
        [](const calls::Task& task, const calls::Call& call) { return task.call == call; });
  });
  return found == last ? nullptr : &found->second;
}

std::shared_ptr<Launcher> OperationQueue::find(const planner::Request& request) const {
  const auto found = plans_->collectives.find(request);
  return found == plans_->collectives.end() ? nullptr : found->second;
}

std::shared_ptr<Launcher> OperationQueue::find(const std::string& name) const {
  const auto found = plans_->batches.find(name);
  return found == plans_->batches.end() ? nullptr : found->second;
}

template <typename Map, typename Key>
void OperationQueue::remember(Map& map, Key&& key, const std::shared_ptr<Launcher>& launcher) {
  if (map.size() >= kMostPrepared) {
    retire(std::move(map.begin()->second));
    map.erase(map.begin());
  }
  map.emplace(std::forward<Key>(key), launcher);
}

void OperationQueue::forget(Plans& plans) {
  forget_groups(plans);
  for (auto& [request, launcher] : plans.collectives) retire(std::move(launcher));
  for (auto& [name, launcher] : plans.batches) retire(std::move(launcher));
  plans.collectives.clear();
  plans.batches.clear();
}

void OperationQueue::forget_groups(Plans& plans) {
  for (auto& [hash, group] : plans.groups)
    for (KnownLaunch& known : group.launches) retire(std::move(known.launcher));
  plans.groups.clear();
  plans.group_calls = 0;
}

// What has no memory may end while its kernels run. What others hold (a group that is remembered, a
// launch to come) may be launched again: its event is recorded when they have let go.
void OperationQueue::retire(std::shared_ptr<Launcher> launcher) {
  if (!launcher->has_memory()) return;
  const auto is_it = [&](const Retired& retired) { return retired.launcher == launcher; };
  if (std::none_of(retired_.begin(), retired_.end(), is_it))
    retired_.push_back({.launcher = std::move(launcher), .last_use = nullptr});
  else
    launcher.reset();
  std::erase_if(retired_, [&](Retired& retired) { return is_over(retired); });
}

bool OperationQueue::is_over(Retired& retired) {
  if (retired.launcher.use_count() > 1) return false;
  if (!order_.has_begun()) return true;
  if (retired.last_use == nullptr) {
    Result<std::shared_ptr<gpu::Event>> mark = order_.mark();
    if (mark.is_ok()) retired.last_use = std::move(mark).take();
    return false;
  }
  const Result<bool> is_done =
      machine_.await_event(*retired.last_use, Deadline::after(std::chrono::milliseconds(0)));
  return is_done.is_ok() && is_done.value();
}

std::vector<Ready> OperationQueue::recall(const KnownGroup& group,
                                          std::span<const calls::Task> tasks) const {
  std::vector<Ready> launches;
  for (const KnownLaunch& known : group.launches) {
    Ready& ready = launches.emplace_back();
    ready.launcher = known.launcher;
    ready.streams = {tasks[0].stream};
    ready.calls = known.calls;
    collect_buffers(known, tasks, ready.buffers);
  }
  return launches;
}

void OperationQueue::remember_group(std::span<Ready> launches) {
  if (launches.empty() || launches.front().group.empty()) return;
  KnownGroup group{.calls = std::move(launches.front().group), .launches = {}};
  for (const Ready& ready : launches) {
    if (ready.launcher == nullptr) return;  // a copy
    group.launches.push_back({.launcher = ready.launcher,
                              .tasks = ready.tasks,
                              .outputs = ready.outputs,
                              .calls = ready.calls,
                              .is_beside = ready.is_beside});
  }
  if (plans_->group_calls + group.calls.size() > kMostRememberedCalls) forget_groups(*plans_);
  plans_->group_calls += group.calls.size();
  const uint64_t hash = hash_of(std::span<const calls::Call>(group.calls));
  plans_->groups.emplace(hash, std::move(group));
}

Result<Planned> OperationQueue::plan_one(const calls::Call& call) {
  Plan plan = TRY(plans_->planner.collective(call.request));
  Planned planned{.plan = std::move(plan), .launch = {}, .first = call, .name = {}};
  planned.launch.works.push_back(
      {.partition = planned.plan.partitions[0], .tag = tag_of(call), .buffers = {}});
  return planned;
}

Result<Planned> OperationQueue::plan_batch(const Batch& batch, std::string name) {
  Planned planned{.plan = {}, .launch = {}, .first = batch.tasks[0]->call, .name = std::move(name)};
  executor::Launch& launch = planned.launch;
  if (batch.holds_messages()) {
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
    planned.plan = TRY(plans_->planner.messages(layers, batch.protocol));
    for (size_t work = 0; work < batch.tasks.size(); ++work)
      launch.works.push_back({.partition = planned.plan.partitions[work],
                              .tag = tag_of(batch.tasks[work]->call),
                              .buffers = {},
                              .turn = planned.plan.turns[work]});
    return planned;
  }
  if (batch.is_list) {
    TRY(plan_list(batch, planned));
    return planned;
  }
  std::vector<Plan> plans;
  std::vector<const executor::Program*> programs;
  for (const calls::Task* task : batch.tasks)
    plans.push_back(TRY(plans_->planner.collective(task->call.request, batch.most_channels)));
  uint32_t first_channel = 0;
  double microseconds = 0;
  for (size_t work = 0; work < plans.size(); ++work) {
    programs.push_back(plans[work].program.get());
    planned.choices.push_back(plans[work].choice);
    const executor::Partition& partition = plans[work].partitions[0];
    launch.works.push_back({.partition = partition,
                            .first_channel = first_channel,
                            .tag = tag_of(batch.tasks[work]->call),
                            .buffers = {}});
    first_channel += partition.channels;
    // They run side by side: the links are shared, the latency is not added up.
    microseconds = std::max(microseconds, plans[work].microseconds);
  }
  planned.plan = plans[0];
  planned.plan.microseconds = microseconds;
  if (plans.size() > 1)
    planned.plan.program = std::make_shared<const executor::Program>(TRY(executor::join(programs)));
  return planned;
}

Status OperationQueue::plan_list(const Batch& batch, Planned& planned) {
  executor::Launch& launch = planned.launch;
  Planner& planner = plans_->planner;
  double microseconds = 0, longest = 0;
  for (const calls::Task* task : batch.tasks) {
    const planner::Request& request = task->call.request;
    std::optional<Plan> plan =
        TRY(batch.goes_direct ? planner.listed_directly(request) : planner.listed(request));
    if (!plan) return Status::internal("{} is in a list", describe(task->call));
    launch.works.push_back(
        {.partition = plan->partitions[0], .tag = tag_of(task->call), .buffers = {}});
    microseconds += plan->microseconds;
    longest = std::max(longest, plan->microseconds);
    if (planned.plan.program == nullptr) planned.plan = *std::move(plan);
  }
  launch.type = planned.plan.type;
  launch.list_access = planned.plan.list_access;
  const auto works = static_cast<uint32_t>(batch.tasks.size());
  const uint32_t channels = planned.plan.shape.channels;
  if (batch.goes_direct) {
    launch.list_channels = std::min(channels, executor::count_list_tiles(launch));
    planned.plan.microseconds = planner::predict_direct_list(planner.settings()) + microseconds;
    return {};
  }
  launch.list_parts = parts_of_list(launch, channels);
  launch.list_channels = std::min(channels / launch.list_parts, works) * launch.list_parts;
  const uint64_t rounds = executor::divide_up(works, launch.list_channels / launch.list_parts);
  planned.plan.microseconds = longest * static_cast<double>(rounds);
  return {};
}

Result<double> OperationQueue::predict(std::span<const calls::Task> tasks) {
  double microseconds = 0;
  const std::vector<Batch> batches = TRY(make_batches(tasks, plans_->planner));
  for (const Batch& batch : batches) {
    const Planned planned = TRY(plan_batch(batch, {}));
    microseconds += planned.plan.microseconds;
  }
  return microseconds;
}

// Connects the plan's program, hands it to the executor, and remembers what comes of it.
Result<std::shared_ptr<Launcher>> OperationQueue::bind(Planned planned, const Deadline& deadline) {
  const log::ScopedDevice speaks_for(device_);
  const bool is_single = planned.name.empty();
  const planner::Request& request = planned.first.request;
  // A group may hold the same call twice: then this is the second.
  std::shared_ptr<Launcher> launcher = is_single ? find(request) : find(planned.name);
  if (launcher != nullptr) return launcher;
  const Plan& plan = planned.plan;
  executor::Launch& launch = planned.launch;
  launch.program = plan.program;
  launch.protocol = plan.protocol;
  launch.shape = plan.shape;
  if (endpoint_ != nullptr) {
    const calls::CallLog::ConnectScope connecting(log_, function_of(planned.first));
    auto ports = TRY(endpoint_->connect(*plan.program, plan.protocol, deadline));
    set_ports(launch, std::move(ports));
  }
  launch.type = plan.type;
  launch.reduction = plan.reduction;
  launch.control = control_;
  launch.control_device = control_;
  if (log_ != nullptr) {
    launch.recorder = log_->recorder();
    launch.marks = launch.recorder->marks();
  }
  launch.threads = plans_->planner.settings().threads;
  launch.pull_bytes = plan.pull_bytes;
  if (log_ != nullptr) note_plan(planned);
  profiling::LaunchForm form = profiling_ == nullptr ? profiling::LaunchForm{} : form_of(planned);
  std::vector<void*> scratch = TRY(scratch_.reserve(launch));
  launcher = TRY(Launcher::create(machine_, device_, std::move(launch), std::move(scratch)));
  launcher->set_form(std::move(form));
  if (!is_single) {
    remember(plans_->batches, std::move(planned.name), launcher);
    return launcher;
  }
  if (plans_->planner.rank() == 0)
    LOG(Info, Tuning, "{}: {} Bytes -> Algo {} proto {} channel{{Lo..Hi}}={{0..{}}}",
        planner::function_name(request.collective), request.bytes(),
        planner::log_name_of(*plan.choice.algorithm), planner::log_name_of(plan.protocol),
        plan.partitions[0].channels - 1);
  remember(plans_->collectives, request, launcher);
  return launcher;
}

// What was chosen, once for all launches to come.
void OperationQueue::note_plan(const Planned& planned) const {
  const std::span<const algorithms::Algorithm> all = algorithms::all();
  observe::Event event = event_of(planned.first);
  event.time = observe::ticks();
  event.kind = observe::EventKind::Planned;
  event.number =
      planned.launch.is_list() ? planned.launch.list_channels : planned.plan.partitions[0].channels;
  event.protocol = static_cast<uint8_t>(planned.plan.protocol);
  const algorithms::Algorithm* const algorithm = planned.plan.choice.algorithm;
  event.algorithm = algorithm == nullptr || planned.first.is_message()
                        ? observe::Event::kNoAlgorithm
                        : static_cast<uint8_t>(algorithm - all.data());
  log_->recorder()->add(event);
}

}  // namespace niccolite::operations
