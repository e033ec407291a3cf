#include "operations/operation_queue.h"

#include <algorithm>

#include "gpu/machine.h"
#include "operations/call_key.h"
#include "operations/launch_order.h"
#include "operations/launcher.h"
#include "operations/message_agreement.h"
#include "operations/plan_agreement.h"
#include "operations/plans.h"
#include "operations/tuning.h"
#include "profiling/profiling.h"
#include "registry/buffer_exports.h"
#include "registry/windows.h"
#include "transport/endpoint.h"

namespace niccolite::operations {
namespace {

using executor::Buffers;
using planner::Collective;
using planner::Planner;

/// Returns the bytes of the input and of the output, for a rank that has both.
std::pair<size_t, size_t> bytes_of(const calls::Call& call, int nranks) {
  const size_t bytes = call.request.bytes();
  const size_t of_all = bytes * static_cast<size_t>(nranks);
  switch (call.request.collective) {
    case Collective::AllGather:
    case Collective::Gather:
      return {bytes, of_all};
    case Collective::ReduceScatter:
    case Collective::Scatter:
      return {of_all, bytes};
    case Collective::AllToAll:
      return {of_all, of_all};
    default:
      return {bytes, bytes};
  }
}

/// Returns the buffers that the call's program has: users may pass anything for buffers that it
/// does not have.
Buffers buffers_of(const calls::Task& task, const Planner& planner) {
  const int rank = planner.rank();
  const auto [input_bytes, output_bytes] = bytes_of(task.call, planner.settings().nranks);
  Buffers buffers{.input = task.input,
                  .output = task.output,
                  .input_bytes = input_bytes,
                  .output_bytes = output_bytes};
  const planner::Request& request = task.call.request;
  if (!schedule::has_root(request.collective) || request.root == rank) return buffers;
  const bool root_reads =
      request.collective == Collective::Broadcast || request.collective == Collective::Scatter;
  if (root_reads) {
    buffers.input = nullptr;
  } else {
    buffers.output = nullptr;
  }
  return buffers;
}

/// Without it operations are launched as they come.
std::unique_ptr<LaunchOrder> join_order(const OperationQueue::Parts& parts,
                                        const planner::Settings& settings, StreamOrder& order) {
  Result<std::shared_ptr<gpu::Event>> last_work = order.last_work();
  if (!last_work.is_ok()) return nullptr;
  Result<std::unique_ptr<LaunchOrder>> joined =
      LaunchOrder::join({.machine = parts.machine,
                         .device = parts.device,
                         .recorder = parts.log->recorder(),
                         .last_work = std::move(last_work).take(),
                         .most_ctas = planner::most_channels(settings),
                         .usual_ctas = planner::usual_channels(settings)});
  return joined.is_ok() ? std::move(joined).take() : nullptr;
}

/// The collectives of a group, which all ranks have in one order: about these they agree.
struct Collectives {
  size_t count = 0;
  PlanAgreement::Kinds kind = 0;  // none where there are none
};
Collectives collectives_of(std::span<const calls::Task> tasks) {
  Collectives collectives;
  uint16_t tags = 0;
  for (const calls::Task& task : tasks) {
    if (task.call.is_message()) continue;
    ++collectives.count;
    tags = static_cast<uint16_t>(tags * 31 + tag_of(task.call));
  }
  if (collectives.count > 0) collectives.kind = PlanAgreement::kind_of(tags);
  return collectives;
}

/// The launch of the batch, but for its plan.
GroupLaunch launch_of(const Batch& batch, std::span<const calls::Task> tasks) {
  GroupLaunch launch{.joined = {batch.streams.begin() + 1, batch.streams.end()},
                     .is_beside = batch.is_beside};
  for (size_t work = 0; work < batch.tasks.size(); ++work) {
    launch.tasks.push_back(static_cast<uint32_t>(batch.tasks[work] - tasks.data()));
    launch.outputs.push_back(static_cast<uint32_t>(batch.outputs[work] - tasks.data()));
    launch.calls.push_back(batch.tasks[work]->call);
  }
  return launch;
}

/// The buffers of one launch, by work.
void collect_buffers(const GroupLaunch& launch, const Chosen& chosen,
                     std::vector<Buffers>& buffers) {
  buffers.clear();
  for (size_t work = 0; work < launch.tasks.size(); ++work) {
    const uint32_t task = launch.tasks[work], output = launch.outputs[work];
    buffers.push_back(buffers_of(chosen.tasks[task], chosen.plans->planner));
    if (output != task) buffers.back().output = chosen.tasks[output].output;
  }
}

gpu::StreamHandle stream_of(const GroupLaunch& launch, const Chosen& chosen) {
  return chosen.tasks[launch.tasks[0]].stream;
}

/// Calls with an event are alone in their launches.
void* event_of(const GroupLaunch& launch, const Chosen& chosen) {
  return chosen.tasks[launch.tasks[0]].launched;
}

}  // namespace

size_t Chosen::launches() const { return group->launches.size(); }

OperationQueue::OperationQueue(Parts parts)
    : machine_(parts.machine),
      device_(parts.device),
      rank_alone_(parts.settings.nranks == 1),
      endpoint_(parts.endpoint),
      control_(parts.control),
      log_(parts.log),
      exports_(parts.exports),
      agreement_(parts.agreement),
      message_agreement_(parts.message_agreement),
      profiling_(parts.profiling),
      scratch_(machine_, device_),
      order_(machine_, device_, parts.graphs_mix, std::move(parts.graphs)),
      plain_(new Plans{.planner = Planner(parts.settings, parts.rank)}) {
  if (Tuning* const tuning = parts.tuning; tuning != nullptr)
    plain_->planner.decide_by([tuning](const planner::Settings& settings, Collective collective,
                                       size_t bytes, int most_channels) {
      return tuning->choose(settings, collective, bytes, most_channels);
    });
  if (parts.settings.reaches_users || agreement_ != nullptr)
    captured_.reset(new Plans{.planner = plain_->planner, .is_captured = true});
  if (agreement_ != nullptr) {
    agreed_.reset(new Plans{.planner = plain_->planner});
    agreed_->planner.plan_for_reach(Planner::Of::Collectives);
    captured_->planner.plan_for_reach(Planner::Of::CollectivesAndMessages);
    plain_->planner.plan_for_slots();
  }
  if (parts.orders_launches) launch_order_ = join_order(parts, plain_->planner.settings(), order_);
}

OperationQueue::~OperationQueue() = default;

void OperationQueue::open_windows(const registry::Windows& windows, bool plans_for_it,
                                  std::byte* team) {
  const bool are_plans_new =
      plans_for_it && plain_->planner.plan_for_reach(Planner::Of::CollectivesAndMessages);
  const bool is_team_new = team != nullptr && team_windows_ == nullptr;
  if (windows_ != nullptr && !are_plans_new && !is_team_new) return;
  windows_ = &windows;
  if (is_team_new) {
    team_windows_ = team;
    for (Plans* const plans : {plain_.get(), agreed_.get(), captured_.get()})
      if (plans != nullptr) plans->planner.plan_for_windows_of_team();
  }
  retire(plain_->forget());
  if (agreed_) retire(agreed_->forget());
  if (captured_) retire(captured_->forget());
}

Status OperationQueue::carry_out(std::span<calls::Task> tasks,
                                 std::chrono::milliseconds connect_time,
                                 std::vector<registry::CapturedBuffer> captured) {
  Chosen chosen{.tasks = tasks, .captured = std::move(captured)};
  TRY(choose_launches(tasks, chosen));
  if (chosen.is_new) TRY(connect(chosen, Deadline::after(connect_time)));
  return launch(chosen, 0, chosen.launches());
}

Result<Chosen> OperationQueue::choose(std::span<calls::Task> tasks,
                                      std::vector<registry::CapturedBuffer> captured) {
  Chosen chosen{.tasks = tasks, .captured = std::move(captured)};
  TRY(choose_launches(tasks, chosen));
  return chosen;
}

Status OperationQueue::choose_launches(std::span<calls::Task> tasks, Chosen& chosen) {
  chosen.tasks = tasks;
  TRY(choose_plans(chosen));
  // Captured messages have plans for the receiver's buffer anyway.
  if (message_agreement_ != nullptr && !chosen.plans->is_captured)
    TRY(message_agreement_->begin(tasks));
  chosen.group = chosen.plans->find(tasks);
  return chosen.group == nullptr ? plan_launches(chosen) : Status();
}

Status OperationQueue::choose_plans(Chosen& chosen) {
  const std::span<const calls::Task> tasks = chosen.tasks;
  chosen.plans = plain_.get();
  // Where buffers are reached anyway, the two differ in groups alone.
  if (!captured_ || (agreement_ == nullptr && tasks.size() == 1)) return {};
  chosen.capture = TRY(machine_.capture_of(device_, tasks[0].stream));
  if (chosen.capture->state != gpu::CaptureState::None) {
    chosen.plans = captured_.get();
    return {};
  }
  if (agreement_ == nullptr) return {};
  const Collectives collectives = collectives_of(tasks);
  chosen.kind = collectives.kind;
  const PlanAgreement::Kinds for_reach = TRY(agreement_->begin(collectives.count));
  if ((chosen.kind & for_reach) != 0) chosen.plans = agreed_.get();
  return {};
}

// Allocates, and plans operations without remembered plans.
Status OperationQueue::plan_launches(Chosen& chosen) {
  TRY(check_captures(chosen));
  TRY(check_events(chosen.tasks));
  Plans& plans = *chosen.plans;
  chosen.is_new = true;
  chosen.group = std::make_shared<GroupLaunches>();
  for (const calls::Task& task : chosen.tasks) chosen.group->calls.push_back(task.call);
  std::vector<Batch> batches = TRY(make_batches(chosen.tasks, plans.planner, plans.is_captured));
  for (Batch& batch : batches) {
    GroupLaunch& launch = chosen.group->launches.emplace_back(launch_of(batch, chosen.tasks));
    const calls::Call& first = launch.calls[0];
    if (is_copy(first)) continue;
    const bool is_single = launch.calls.size() == 1 && !first.is_message();
    std::string name = is_single ? std::string() : name_of(batch);
    launch.launcher = is_single ? plans.find(first.request) : plans.find(name);
    if (launch.launcher != nullptr) continue;
    launch.planned = std::make_unique<Planned>(
        TRY(plan_batch(std::move(batch), plans.planner, std::move(name))));
    const planner::Plan& plan = launch.planned->plan;
    if (endpoint_ != nullptr) TRY(endpoint_->reserve(*plan.program, plan.protocol));
  }
  return {};
}

// Streams of one group are joined, which cannot be done across the border of a capture.
Status OperationQueue::check_captures(const Chosen& chosen) const {
  const std::span<const calls::Task> tasks = chosen.tasks;
  std::optional<gpu::Capture> first = chosen.capture;
  gpu::StreamHandle last = tasks[0].stream;
  for (const calls::Task& task : tasks) {
    if (task.stream == last) continue;
    if (!first) first = TRY(machine_.capture_of(device_, tasks[0].stream));
    last = task.stream;
    const gpu::Capture capture = TRY(machine_.capture_of(device_, task.stream));
    if (capture.state != first->state || capture.id != first->id)
      return Status::invalid_usage(
          "rank {}: the streams of one group must all be captured by one graph, or none of them",
          plain_->planner.rank());
  }
  return {};
}

// More than one could be, since each is recorded by its own launch; programs are held to what NCCL
// takes.
Status OperationQueue::check_events(std::span<const calls::Task> tasks) const {
  const auto events = std::ranges::count_if(
      tasks, [](const calls::Task& task) { return task.launched != nullptr; });
  if (events <= 1) return {};
  return Status::invalid_usage(
      "Only one launch-completion event may be provided in one NCCL group: rank {} has {}",
      plain_->planner.rank(), events);
}

Status OperationQueue::connect(Chosen& chosen, const Deadline& deadline) {
  if (!chosen.is_new) return {};
  for (GroupLaunch& launch : chosen.group->launches) {
    if (launch.planned == nullptr) continue;
    launch.launcher = TRY(bind(*chosen.plans, std::move(*launch.planned), deadline));
    launch.planned.reset();
  }
  chosen.is_new = false;
  // bind() has remembered a collective by itself.
  if (chosen.plans->find(chosen.tasks) == nullptr)
    retire(chosen.plans->remember(chosen.tasks, chosen.group));
  return {};
}

Status OperationQueue::launch(const Chosen& chosen, size_t first, size_t count) {
  const std::span<GroupLaunch> launches = std::span(chosen.group->launches).subspan(first, count);
  for (size_t begin = 0, end = 0; begin < launches.size(); begin = end) {
    const gpu::StreamHandle stream = stream_of(launches[begin], chosen);
    // Launches that follow each other on one stream are one operation for the order of streams.
    end = begin + 1;
    if (launches[begin].joined.empty())
      while (end < launches.size() && launches[end].joined.empty() &&
             stream_of(launches[end], chosen) == stream)
        ++end;
    TRY(launch_on_stream(chosen, stream, launches.subspan(begin, end - begin)));
  }
  return {};
}

Status OperationQueue::launch_on_stream(const Chosen& chosen, gpu::StreamHandle stream,
                                        std::span<GroupLaunch> launches) {
  const std::span<const gpu::StreamHandle> joined = launches[0].joined;
  if (!joined.empty()) TRY(wait_for_joined(stream, joined));
  const bool is_asked = chosen.capture && stream == chosen.tasks[0].stream;
  TRY(is_asked ? order_.before(stream, *chosen.capture) : order_.before(stream));
  Underway underway{.chosen = chosen, .stream = stream, .uses = uses_, .buffers = buffers_};
  Status status;
  bool has_launched = false;
  for (GroupLaunch& launch : launches) {
    LaunchOptions options{.stream = stream,
                          .launched = event_of(launch, chosen),
                          .after_last = after_last(launch, has_launched)};
    status = launch_one(launch, underway, options);
    if (!status.is_ok()) break;
    has_launched = true;
    const bool is_short = launch.launcher != nullptr && launch.launcher->is_short();
    last_short_ctas_ = is_short ? launch.launcher->ctas() : 0;
  }
  if (has_launched) TRY(account(underway));
  TRY(std::move(status));
  return joined.empty() ? Status() : let_joined_go_on(stream, joined);
}

// Early only in graphs, where it is known that nothing stands between two launches: behind a kernel
// of the program, a launch that may begin early takes longer than one that waits. And only while
// both launches together have no more CTAs than one may have: all ranks' CTAs must find
// multiprocessors, also beside kernels of other communicators.
executor::AfterLast OperationQueue::after_last(const GroupLaunch& launch, bool has_launched) const {
  using executor::AfterLast;
  if (launch.is_beside && has_launched) return AfterLast::Beside;
  if (!(has_launched ? order_.is_captured() : order_.follows_last())) return AfterLast::Ended;
  const bool is_early = launch.launcher != nullptr && launch.launcher->is_short() &&
                        last_short_ctas_ > 0 &&
                        last_short_ctas_ + launch.launcher->ctas() <= kMostEarlyCtas;
  return is_early ? AfterLast::Early : AfterLast::Ended;
}

Status OperationQueue::wait_for_joined(gpu::StreamHandle stream,
                                       std::span<const gpu::StreamHandle> joined) {
  if (!join_event_.valid()) join_event_ = TRY(machine_.create_event(device_, /*timing=*/false));
  for (const gpu::StreamHandle other : joined) {
    TRY(machine_.record_event(join_event_, device_, other));
    TRY(machine_.wait_event(device_, stream, join_event_));
  }
  return {};
}

Status OperationQueue::let_joined_go_on(gpu::StreamHandle stream,
                                        std::span<const gpu::StreamHandle> joined) {
  TRY(machine_.record_event(join_event_, device_, stream));
  for (const gpu::StreamHandle other : joined)
    TRY(machine_.wait_event(device_, other, join_event_));
  return {};
}

Status OperationQueue::launch_one(GroupLaunch& launch, Underway& underway, LaunchOptions& options) {
  collect_buffers(launch, underway.chosen, underway.buffers);
  if (launch.launcher != nullptr) return launch_logged(launch, underway, options);
  TRY(record(options.launched, options.stream));
  return copy(launch, underway);
}

Status OperationQueue::copy(const GroupLaunch& launch, const Underway& underway) {
  for (size_t work = 0; work < launch.calls.size(); ++work) {
    const Buffers& buffers = underway.buffers[work];
    const size_t bytes = launch.calls[work].request.bytes();
    if (buffers.input == buffers.output || bytes == 0) continue;
    TRY(machine_.copy_async(buffers.output, buffers.input, bytes, device_, underway.stream));
  }
  return {};
}

Status OperationQueue::launch_logged(GroupLaunch& launch, Underway& underway,
                                     LaunchOptions& options) {
  if (log_ != nullptr) options.number = log_->before_launch_on(order_.stream());
  TRY(profiling_ != nullptr ? launch_profiled(launch, underway, options)
                            : launch_offered(launch, underway, options));
  if (log_ == nullptr) return {};
  using Joined = calls::CallLog::Joined;
  log_->add(launch.calls, order_.is_captured(),
            launch.was_logged ? Joined::Before : Joined::Perhaps);
  launch.was_logged = true;
  return {};
}

Status OperationQueue::launch_profiled(const GroupLaunch& launch, Underway& underway,
                                       LaunchOptions& options) {
  const profiling::Profiling::Launch heard{.number = options.number,
                                           .form = &launch.launcher->form(),
                                           .calls = launch.calls,
                                           .buffers = underway.buffers,
                                           .stream = options.stream,
                                           .is_captured = order_.is_captured()};
  return profiling_->launch(heard, [&] { return launch_offered(launch, underway, options); });
}

Status OperationQueue::launch_offered(const GroupLaunch& launch, Underway& underway,
                                      LaunchOptions& options) {
  if (launch_order_ != nullptr && !order_.is_captured())
    TRY(launch_order_->before(launch.launcher->ctas(), options));
  if (options.launched != nullptr) TRY(record_launch(options));
  offer_buffers(launch, underway);
  return launch.launcher->queue(underway.buffers, std::move(options));
}

// The kernel records it by itself, where the driver lets it and it records nothing else. Otherwise
// the stream does, right before: from then on nothing but free multiprocessors keeps the kernel.
Status OperationQueue::record_launch(LaunchOptions& options) {
  constexpr int kFirstDriverThatRecords = 12030;
  if (machine_.kind() == gpu::Kind::Cuda && launch_order_ == nullptr && !order_.is_captured() &&
      machine_.driver_version() >= kFirstDriverThatRecords) {
    options.begun = options.launched;
    return {};
  }
  return record(options.launched, options.stream);
}

Status OperationQueue::record(void* launched, gpu::StreamHandle stream) {
  if (launched == nullptr) return {};
  gpu::Event event(&machine_, launched);
  Status recorded = machine_.record_event(event, device_, stream);
  event.release();  // it stays the user's
  return recorded;
}

// Exports stay while operations may use them: a graph keeps the exports of captured launches, and
// BufferExports::Options::mark keeps the others from now on.
Status OperationQueue::account(Underway& underway) {
  const bool is_captured = order_.is_captured();
  if (!is_captured) {
    if (agreement_ != nullptr) agreement_->launched();
    if (message_agreement_ != nullptr) message_agreement_->launched();
  }
  TRY(order_.after(underway.stream));
  if (launch_order_ != nullptr && !is_captured) launch_order_->after();
  if (!is_captured) return {};
  std::vector<std::shared_ptr<const void>> kept(underway.uses.begin(), underway.uses.end());
  underway.uses.clear();
  for (const registry::CapturedBuffer& buffer : underway.chosen.captured)
    kept.push_back(buffer.keeper);
  return keep_in_graph(underway.stream, std::move(kept));
}

Status OperationQueue::keep_in_graph(gpu::StreamHandle stream,
                                     std::vector<std::shared_ptr<const void>> objects) {
  if (objects.empty()) return {};
  using Objects = std::vector<std::shared_ptr<const void>>;
  auto kept = std::make_unique<Objects>(std::move(objects));
  TRY(machine_.keep_in_graph(device_, stream, kept.get(),
                             [](void* held) { delete static_cast<Objects*>(held); }));
  static_cast<void>(kept.release());  // the graph owns them now
  return {};
}

Result<double> OperationQueue::predict(std::span<const calls::Task> tasks) {
  const bool is_agreed =
      agreement_ != nullptr && (collectives_of(tasks).kind & agreement_->agreed()) != 0;
  Planner& planner = (is_agreed ? *agreed_ : *plain_).planner;
  std::vector<Batch> batches = TRY(make_batches(tasks, planner));
  double microseconds = 0;
  for (Batch& batch : batches)
    microseconds += TRY(plan_batch(std::move(batch), planner, {})).plan.microseconds;
  return microseconds;
}

}  // namespace niccolite::operations
