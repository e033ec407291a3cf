#include "operations/operation_queue.h"

#include <algorithm>

#include "gpu/machine.h"
#include "operations/batches.h"
#include "operations/call_key.h"
#include "operations/launch_order.h"
#include "operations/launcher.h"
#include "operations/message_agreement.h"
#include "operations/plan_agreement.h"
#include "operations/planned.h"
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

/// Of the input and of the output, of a rank that has both.
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

/// The buffers that the call's program has: users may pass anything for those that it has not.
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

}  // namespace

OperationQueue::OperationQueue(gpu::Machine& machine, int device, int rank,
                               const planner::Settings& settings, transport::Endpoint* endpoint,
                               executor::ControlWords* control, calls::CallLog* log,
                               bool graphs_mix, std::shared_ptr<GraphUses> graphs)
    : machine_(machine),
      device_(device),
      rank_alone_(settings.nranks == 1),
      endpoint_(endpoint),
      control_(control),
      log_(log),
      scratch_(machine, device),
      order_(machine, device, graphs_mix, std::move(graphs)),
      plain_(new Plans{.planner = Planner(settings, rank)}),
      plans_(plain_.get()) {
  if (settings.reaches_users)
    captured_.reset(new Plans{.planner = plain_->planner, .is_captured = true});
}

OperationQueue::~OperationQueue() = default;

void OperationQueue::order_launches(std::shared_ptr<const observe::Recorder> recorder) {
  // Without it operations are launched as they come.
  Result<std::shared_ptr<gpu::Event>> last_work = order_.last_work();
  if (!last_work.is_ok()) return;
  Result<std::unique_ptr<LaunchOrder>> order =
      LaunchOrder::join({.machine = machine_,
                         .device = device_,
                         .recorder = std::move(recorder),
                         .last_work = std::move(last_work).take(),
                         .most_ctas = planner::most_channels(plain_->planner.settings()),
                         .usual_ctas = planner::usual_channels(plain_->planner.settings())});
  if (order.is_ok()) launch_order_ = std::move(order).take();
}

void OperationQueue::tune(Tuning& tuning) {
  const auto decide = [&tuning](const planner::Settings& settings, Collective collective,
                                size_t bytes, int most_channels) {
    return tuning.choose(settings, collective, bytes, most_channels);
  };
  plain_->planner.decide_by(decide);
  if (agreed_) agreed_->planner.decide_by(decide);
  if (captured_) captured_->planner.decide_by(decide);
}

void OperationQueue::open_buffers(registry::BufferExports& exports) { exports_ = &exports; }

void OperationQueue::plan_by(PlanAgreement& agreement) {
  agreement_ = &agreement;
  agreed_.reset(new Plans{.planner = plain_->planner});
  agreed_->planner.plan_for_reach(Planner::Of::Collectives);
  captured_.reset(new Plans{.planner = plain_->planner, .is_captured = true});
  captured_->planner.plan_for_reach(Planner::Of::CollectivesAndMessages);
  plain_->planner.plan_for_slots();
}

void OperationQueue::open_windows(const registry::Windows& windows, bool plans_for_it) {
  const bool are_plans_new =
      plans_for_it && plain_->planner.plan_for_reach(Planner::Of::CollectivesAndMessages);
  if (windows_ != nullptr && !are_plans_new) return;
  windows_ = &windows;
  forget(*plain_);
  if (agreed_) forget(*agreed_);
  if (captured_) forget(*captured_);
}

Status OperationQueue::choose_plans(std::span<const calls::Task> tasks) {
  used_.clear();  // of a call that failed
  capture_.reset();
  // Where buffers are reached anyway, the two differ in groups alone.
  if (!captured_ || (agreement_ == nullptr && tasks.size() == 1)) {
    plans_ = plain_.get();
    return {};
  }
  capture_ = TRY(machine_.capture_of(device_, tasks[0].stream));
  if (capture_->state != gpu::CaptureState::None) {
    plans_ = captured_.get();
    return {};
  }
  plans_ = plain_.get();
  if (agreement_ == nullptr) return {};
  size_t collectives = 0;
  uint16_t tags = 0;  // of the collectives, which all ranks have in one order
  for (const calls::Task& task : tasks) {
    if (task.call.is_message()) continue;
    ++collectives;
    tags = static_cast<uint16_t>(tags * 31 + tag_of(task.call));
  }
  kind_ = PlanAgreement::kind_of(tags);
  const PlanAgreement::Kinds for_reach = TRY(agreement_->begin(collectives));
  if (collectives > 0 && (kind_ & for_reach) != 0) plans_ = agreed_.get();
  return {};
}

// Those that are captured have plans for the receiver's buffer anyway.
Status OperationQueue::choose_plans_of_messages(std::span<calls::Task> tasks) {
  if (message_agreement_ == nullptr || plans_->is_captured) return {};
  return message_agreement_->begin(tasks);
}

Status OperationQueue::queue(Launcher& launcher, std::span<const calls::Call> calls,
                             std::span<const Buffers> buffers, LaunchOptions options) {
  if (launch_order_ != nullptr && !order_.is_captured())
    TRY(launch_order_->before(launcher.ctas(), options));
  if (options.launched != nullptr) TRY(record_launch(options));
  if (agreement_ != nullptr && exports_ == nullptr && !order_.is_captured())
    note_openness(launcher, calls, buffers);
  const bool has_shared = windows_ != nullptr || exports_ != nullptr;
  if (!has_shared || !launcher.advertises()) {
    if (exports_ != nullptr && agreement_ != nullptr && !order_.is_captured() &&
        !launcher.advertises())
      note_without_advertisements(launcher, calls, buffers);
    return launcher.launch(buffers, std::move(options));
  }
  if (buffers.size() == 1) {
    const Buffers seen = advertise(buffers[0], calls[0]);
    return launcher.launch({&seen, 1}, std::move(options));
  }
  seen_.clear();
  for (size_t work = 0; work < buffers.size(); ++work)
    seen_.push_back(advertise(buffers[work], calls[work]));
  return launcher.launch(seen_, std::move(options));
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

Status OperationQueue::run(const calls::Task& task, std::chrono::milliseconds connect_time) {
  TRY(choose_plans({&task, 1}));
  const Buffers buffers = buffers_of(task, plans_->planner);
  if (is_copy(task.call)) {
    TRY(before(task.stream));
    TRY(record(task.launched, task.stream));
    TRY(copy(buffers, task.call.request.bytes(), task.stream));
    return after(task.stream);
  }
  std::shared_ptr<Launcher> launcher = find(task.call.request);
  if (launcher == nullptr) {
    Planned planned = TRY(plan_one(task.call));
    launcher = TRY(bind(std::move(planned), Deadline::after(connect_time)));
  }
  TRY(before(task.stream));
  TRY(launch_logged(*launcher, {&task.call, 1}, {&buffers, 1},
                    {.stream = task.stream, .launched = task.launched}));
  return after(task.stream);
}

// Of the stream that choose_plans() has asked about, if it has.
Status OperationQueue::before(gpu::StreamHandle stream) {
  return capture_ ? order_.before(stream, *capture_) : order_.before(stream);
}

// Exports stay while operations may use them. Of those that this launch uses a graph takes care, or
// from now on BufferExports::Options::mark.
Status OperationQueue::after(gpu::StreamHandle stream) {
  if (!order_.is_captured()) {
    if (agreement_ != nullptr) agreement_->launched();
    if (message_agreement_ != nullptr) message_agreement_->launched();
  }
  TRY(order_.after(stream));
  if (launch_order_ != nullptr && !order_.is_captured()) launch_order_->after();
  if (used_.empty()) return {};
  if (!order_.is_captured()) {
    used_.clear();  // which keeps its memory
    return {};
  }
  auto kept = std::make_unique<Uses>(std::exchange(used_, {}));
  TRY(machine_.keep_in_graph(device_, stream, kept.get(),
                             [](void* held) { delete static_cast<Uses*>(held); }));
  static_cast<void>(kept.release());  // the graph owns them now
  return {};
}

bool OperationQueue::may_be_known(std::span<const calls::Task> tasks) {
  return tasks.size() <= kMostRememberedCalls &&
         std::ranges::all_of(tasks, [&](const calls::Task& task) {
           return task.stream == tasks[0].stream && task.launched == nullptr;
         });
}

Result<bool> OperationQueue::run_known(std::span<calls::Task> tasks) {
  const gpu::StreamHandle stream = tasks[0].stream;
  TRY(choose_plans(tasks));
  TRY(choose_plans_of_messages(tasks));
  KnownGroup* const group = may_be_known(tasks) ? plans_->find(tasks) : nullptr;
  if (group == nullptr) return false;
  // All launches are on one stream: for the order of streams they are one operation.
  TRY(before(stream));
  Status launched = launch_known(*group, tasks);
  TRY(after(stream));
  TRY(std::move(launched));
  return true;
}

Status OperationQueue::launch_known(KnownGroup& group, std::span<const calls::Task> tasks) {
  for (KnownLaunch& known : group.launches) {
    collect_buffers(known, tasks, buffers_);
    TRY(launch_logged(
        *known.launcher, known.calls, buffers_,
        {.stream = tasks[0].stream, .is_beside_last = known.is_beside},
        known.was_logged ? calls::CallLog::Joined::Before : calls::CallLog::Joined::Perhaps));
    known.was_logged = true;
  }
  return {};
}

void OperationQueue::collect_buffers(const KnownLaunch& known, std::span<const calls::Task> tasks,
                                     std::vector<Buffers>& buffers) const {
  buffers.clear();
  for (size_t work = 0; work < known.tasks.size(); ++work) {
    const uint32_t task = known.tasks[work], output = known.outputs[work];
    buffers.push_back(buffers_of(tasks[task], plans_->planner));
    if (output != task) buffers.back().output = tasks[output].output;
  }
}

Result<std::vector<Ready>> OperationQueue::prepare(std::span<calls::Task> tasks) {
  TRY(choose_plans(tasks));
  TRY(choose_plans_of_messages(tasks));
  const bool is_plain = may_be_known(tasks);
  if (const KnownGroup* known = is_plain ? plans_->find(tasks) : nullptr)
    return recall(*known, tasks);
  TRY(check_captures(tasks));
  TRY(check_events(tasks));
  const std::vector<Batch> batches = TRY(make_batches(tasks, plans_->planner, plans_->is_captured));
  std::vector<Ready> launches;
  for (const Batch& batch : batches) {
    Ready ready;
    ready.streams = batch.streams;
    ready.is_beside = batch.is_beside;
    for (size_t work = 0; work < batch.tasks.size(); ++work) {
      const calls::Task& task = *batch.tasks[work];
      ready.tasks.push_back(static_cast<uint32_t>(&task - tasks.data()));
      ready.calls.push_back(task.call);
      ready.buffers.push_back(buffers_of(task, plans_->planner));
      ready.bytes.push_back(task.call.request.bytes());
      if (task.launched != nullptr) ready.launched = task.launched;
      if (const calls::Task* output = batch.outputs[work]; output != &task)
        ready.buffers[work].output = output->output;
      ready.outputs.push_back(static_cast<uint32_t>(batch.outputs[work] - tasks.data()));
    }
    const calls::Call& first = batch.tasks[0]->call;
    if (!is_copy(first)) {
      const bool is_single = batch.tasks.size() == 1 && !batch.holds_messages();
      std::string name = is_single ? std::string() : name_of(batch);
      ready.launcher = is_single ? find(first.request) : find(name);
      if (ready.launcher == nullptr) {
        Result<Planned> planned = is_single ? plan_one(first) : plan_batch(batch, std::move(name));
        ready.planned = std::make_shared<Planned>(TRY(std::move(planned)));
        const planner::Plan& plan = ready.planned->plan;
        if (endpoint_ != nullptr) TRY(endpoint_->reserve(*plan.program, plan.protocol));
      }
    }
    launches.push_back(std::move(ready));
  }
  if (!launches.empty() && is_plain)
    for (const calls::Task& task : tasks) launches.front().group.push_back(task.call);
  return launches;
}

Status OperationQueue::connect(std::span<Ready> launches, const Deadline& deadline) {
  for (Ready& ready : launches) {
    if (ready.planned == nullptr) continue;
    ready.launcher = TRY(bind(std::move(*ready.planned), deadline));
    ready.planned.reset();
  }
  remember_group(launches);
  return {};
}

// Streams of one group are joined, which cannot be done across the border of a capture.
Status OperationQueue::check_captures(std::span<const calls::Task> tasks) {
  std::optional<gpu::Capture> first;
  gpu::StreamHandle last = tasks[0].stream;
  for (const calls::Task& task : tasks) {
    if (task.stream == last) continue;
    if (!first) first = TRY(machine_.capture_of(device_, tasks[0].stream));
    last = task.stream;
    const gpu::Capture capture = TRY(machine_.capture_of(device_, task.stream));
    if (capture.state != first->state || capture.id != first->id)
      return Status::invalid_usage(
          "rank {}: the streams of one group must all be captured by one graph, or none of them",
          plans_->planner.rank());
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
      plans_->planner.rank(), events);
}

Status OperationQueue::launch(const Ready& ready) {
  const gpu::StreamHandle stream = ready.streams[0];
  const bool joins = ready.streams.size() > 1;
  if (joins && !join_event_.valid())
    join_event_ = TRY(machine_.create_event(device_, /*timing=*/false));
  for (size_t other = 1; other < ready.streams.size(); ++other) {
    TRY(machine_.record_event(join_event_, device_, ready.streams[other]));
    TRY(machine_.wait_event(device_, stream, join_event_));
  }
  TRY(order_.before(stream));
  if (ready.launcher != nullptr) {
    TRY(launch_logged(*ready.launcher, ready.calls, ready.buffers,
                      {.stream = stream, .launched = ready.launched}));
  } else {
    TRY(record(ready.launched, stream));
    for (size_t i = 0; i < ready.buffers.size(); ++i)
      TRY(copy(ready.buffers[i], ready.bytes[i], stream));
  }
  TRY(after(stream));
  if (joins) TRY(machine_.record_event(join_event_, device_, stream));
  for (size_t other = 1; other < ready.streams.size(); ++other)
    TRY(machine_.wait_event(device_, ready.streams[other], join_event_));
  return {};
}

// Between order_.before() and after().
Status OperationQueue::launch_logged(Launcher& launcher, std::span<const calls::Call> calls,
                                     std::span<const Buffers> buffers, LaunchOptions options,
                                     calls::CallLog::Joined joined) {
  if (profiling_ != nullptr) [[unlikely]]
    return launch_profiled(launcher, calls, buffers, std::move(options));
  if (log_ == nullptr) return queue(launcher, calls, buffers, std::move(options));
  options.number = log_->before_launch_on(order_.stream());
  TRY(queue(launcher, calls, buffers, std::move(options)));
  log_->add(calls, order_.is_captured(), joined);
  return {};
}

// The same, with a profiler.
Status OperationQueue::launch_profiled(Launcher& launcher, std::span<const calls::Call> calls,
                                       std::span<const Buffers> buffers, LaunchOptions options) {
  if (log_ != nullptr) options.number = log_->before_launch_on(order_.stream());
  const profiling::Profiling::Launch launch{.number = options.number,
                                            .form = &launcher.form(),
                                            .calls = calls,
                                            .buffers = buffers,
                                            .stream = options.stream,
                                            .is_captured = order_.is_captured()};
  TRY(profiling_->launch(launch,
                         [&] { return queue(launcher, calls, buffers, std::move(options)); }));
  if (log_ != nullptr) log_->add(calls, order_.is_captured());
  return {};
}

Status OperationQueue::copy(const Buffers& buffers, size_t bytes, gpu::StreamHandle stream) {
  if (buffers.input == buffers.output || bytes == 0) return {};
  return machine_.copy_async(buffers.output, buffers.input, bytes, device_, stream);
}

}  // namespace niccolite::operations
