#include "comm/enqueue.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <optional>

#include "algorithms/registry.h"
#include "base/log.h"

namespace niccolite::comm {
namespace {

using executor::Buffers;
using planner::Plan;
using planner::Planner;

// A program that uses more shapes than this in turn plans some of them anew; planning costs
// microseconds.
constexpr size_t kMostPrepared = 1024;
constexpr size_t kMostRememberedCalls = 1 << 14;  // of all groups that are remembered
constexpr std::chrono::seconds kExportTime{10};  // peers' processes map memory on their own threads

std::string upper(const char* text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return result;
}

/// The buffers that the call's program has: users may pass anything for those that it has not.
Buffers buffers_of(const Task& task, int rank) {
  Buffers buffers{.input = task.input, .output = task.output};
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

/// Of the input and of the output, of a rank that has both.
std::pair<size_t, size_t> bytes_of(const Call& call, int nranks) {
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

template <typename Value>
void add_to(std::string& name, const Value& value) {
  name.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// All of a call that a plan depends on.
void add_call(std::string& name, const Call& call) {
  const planner::Request& request = call.request;
  add_to(name, request.collective);
  if (call.is_message()) {
    add_to(name, request.bytes());
    add_to(name, call.peer);
    add_to(name, call.is_send);
    return;
  }
  add_to(name, request.count);
  add_to(name, request.type);
  add_to(name, request.root);
  add_to(name, request.op.operation);
  add_to(name, request.op.scale);
  add_to(name, request.op.factor);
  add_to(name, request.op.device_scale);
}

/// All that a batch's plan depends on; not empty.
std::string name_of(const Batch& batch) {
  std::string name;
  add_to(name, batch.protocol);
  add_to(name, batch.is_list);
  add_to(name, batch.goes_direct);
  add_to(name, batch.most_channels);
  for (const Task* task : batch.tasks) add_call(name, task->call);
  return name;
}

uint64_t mixed(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 32;
}

uint64_t hash_of(const planner::Request& request) {
  const uint64_t kinds = static_cast<uint64_t>(request.collective) << 16 |
                         static_cast<uint64_t>(request.type) << 8 |
                         static_cast<uint64_t>(request.op.operation);
  return mixed(mixed(request.count, kinds), static_cast<uint64_t>(request.root));
}

uint64_t hash_of(uint64_t before, const Call& call) {
  const auto peer = static_cast<uint64_t>(call.peer);
  return mixed(mixed(before, hash_of(call.request)), peer << 1 | (call.is_send ? 1 : 0));
}

uint64_t hash_of(std::span<const Call> calls) {
  uint64_t hash = 0;
  for (const Call& call : calls) hash = hash_of(hash, call);
  return hash;
}

uint64_t hash_of(std::span<const Task> tasks) {
  uint64_t hash = 0;
  for (const Task& task : tasks) hash = hash_of(hash, task.call);
  return hash;
}

/// Do launches of these calls depend on nothing but the calls, the buffers and the stream?
bool may_be_known(std::span<const Task> tasks) {
  return tasks.size() <= kMostRememberedCalls &&
         std::all_of(tasks.begin(), tasks.end(),
                     [&](const Task& task) { return task.stream == tasks[0].stream; });
}

}  // namespace

size_t OperationQueue::Hash::operator()(const planner::Request& request) const {
  return hash_of(request);
}

OperationQueue::KnownGroup* OperationQueue::Plans::find(std::span<const Task> tasks) {
  if (groups.empty()) return nullptr;
  const auto [first, last] = groups.equal_range(hash_of(tasks));
  const auto found = std::find_if(first, last, [&](const auto& known) {
    return std::equal(tasks.begin(), tasks.end(), known.second.calls.begin(),
                      known.second.calls.end(),
                      [](const Task& task, const Call& call) { return task.call == call; });
  });
  return found == last ? nullptr : &found->second;
}

OperationQueue::OperationQueue(gpu::Machine& machine, int device, int rank,
                               const planner::Settings& settings, transport::Endpoint* endpoint,
                               executor::ControlWords* control, CallLog* log, bool graphs_mix)
    : machine_(machine),
      device_(device),
      rank_alone_(settings.nranks == 1),
      endpoint_(endpoint),
      control_(control),
      log_(log),
      scratch_(machine, device),
      order_(machine, device, graphs_mix),
      plain_{.planner = planner::Planner(settings, rank)} {
  if (settings.reaches_users)
    captured_.emplace(Plans{.planner = plain_.planner, .is_captured = true});
}

void OperationQueue::open_windows(const registry::Windows& windows, bool plans_for_it) {
  const bool are_plans_new =
      plans_for_it && plain_.planner.plan_for_reach(Planner::Of::CollectivesAndMessages);
  if (windows_ != nullptr && !are_plans_new) return;
  windows_ = &windows;
  forget(plain_);
  if (agreed_) forget(*agreed_);
  if (captured_) forget(*captured_);
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

void OperationQueue::tune(Tuning& tuning) {
  const auto decide = [&tuning](const planner::Settings& settings, Collective collective,
                                size_t bytes, int most_channels) {
    return tuning.choose(settings, collective, bytes, most_channels);
  };
  plain_.planner.decide_by(decide);
  if (agreed_) agreed_->planner.decide_by(decide);
  if (captured_) captured_->planner.decide_by(decide);
}

void OperationQueue::open_buffers(registry::BufferExports& exports) { exports_ = &exports; }

void OperationQueue::plan_for_reach(PlanAgreement& agreement) {
  agreement_ = &agreement;
  agreed_.emplace(Plans{.planner = plain_.planner});
  agreed_->planner.plan_for_reach(Planner::Of::Collectives);
  captured_.emplace(Plans{.planner = plain_.planner, .is_captured = true});
  captured_->planner.plan_for_reach(Planner::Of::CollectivesAndMessages);
}

Status OperationQueue::choose_plans(std::span<const Task> tasks) {
  used_.clear();  // of a call that failed
  capture_.reset();
  // Where buffers are reached anyway, the two differ in groups alone.
  if (!captured_ || (agreement_ == nullptr && tasks.size() == 1)) {
    plans_ = &plain_;
    return {};
  }
  capture_ = TRY(machine_.capture_of(device_, tasks[0].stream));
  if (capture_->state != gpu::CaptureState::None) {
    plans_ = &*captured_;
    return {};
  }
  plans_ = &plain_;
  if (agreement_ == nullptr) return {};
  const auto collectives = static_cast<size_t>(
      std::ranges::count_if(tasks, [](const Task& task) { return !task.call.is_message(); }));
  if (TRY(agreement_->begin(collectives))) plans_ = &*agreed_;
  return {};
}

const uint64_t* OperationQueue::shifts_of(const void* pointer, size_t bytes) {
  if (pointer == nullptr) return nullptr;
  if (windows_ != nullptr)
    if (const uint64_t* shifts = windows_->shifts_of(pointer, bytes)) return shifts;
  if (exports_ == nullptr) return nullptr;
  // In the same call it need not be looked for again. A list's buffers lie in few allocations.
  constexpr std::ptrdiff_t kMostLooks = 8;
  const auto end = used_.rbegin() + std::min(kMostLooks, std::ssize(used_));
  const auto known = std::find_if(used_.rbegin(), end, [&](const auto& used) {
    return used->is_allocation_of(pointer, bytes);
  });
  if (known != end) return (*known)->shifts();
  using Use = registry::BufferExports::Use;
  auto found = exports_->find(pointer, bytes, order_.is_captured() ? Use::Captured : Use::Plain,
                              Deadline::after(kExportTime));
  if (found == nullptr) return nullptr;
  const uint64_t* const shifts = found->shifts();
  used_.push_back(std::move(found));
  return shifts;
}

// Each launch anew: windows end, and memory is freed and comes back as other memory.
Buffers OperationQueue::with_shifts(Buffers buffers, const Call& call) {
  const auto [input_bytes, output_bytes] = bytes_of(call, plans_->planner.settings().nranks);
  buffers.input_shifts = shifts_of(buffers.input, input_bytes);
  buffers.output_shifts = shifts_of(buffers.output, output_bytes);
  return buffers;
}

// Of a launch that makes offers.
Buffers OperationQueue::advertise(Buffers buffers, const Call& call) {
  buffers = with_shifts(buffers, call);
  if (buffers.input_shifts != nullptr || buffers.output_shifts != nullptr)
    LOG(Trace, Reg, "{}: peers are offered {}", describe(call),
        buffers.output_shifts == nullptr  ? "the input"
        : buffers.input_shifts == nullptr ? "the output"
                                          : "input and output");
  if (agreement_ != nullptr && !call.is_message() && !order_.is_captured()) note_use(buffers);
  return buffers;
}

void OperationQueue::note_use(const Buffers& buffers) {
  const auto is_reached = [](const void* buffer, const uint64_t* shifts) {
    return buffer == nullptr || shifts != nullptr;
  };
  agreement_->note_use(is_reached(buffers.input, buffers.input_shifts) &&
                       is_reached(buffers.output, buffers.output_shifts));
}

// A root to which peers offer their buffers has none that must be reached. Where the plan for slots
// makes no offers at all, that for direct buffers may: it counts what would be offered.
void OperationQueue::note_without_advertisements(const Launcher& launcher,
                                                 std::span<const Call> calls,
                                                 std::span<const Buffers> buffers) {
  if (launcher.advertisements() == Launcher::Advertisements::None) return;
  for (size_t i = 0; i < calls.size() && i < buffers.size(); ++i) {
    if (calls[i].is_message()) continue;
    if (launcher.advertisements() == Launcher::Advertisements::Taken) {
      agreement_->note_use(true);
    } else {
      note_use(with_shifts(buffers[i], calls[i]));
    }
  }
}

Status OperationQueue::run(Launcher& launcher, std::span<const Call> calls,
                           std::span<const Buffers> buffers, gpu::StreamHandle stream,
                           uint64_t number) {
  if (launch_order_ != nullptr && !order_.is_captured())
    TRY(launch_order_->before(launcher, stream));
  const bool has_shared = windows_ != nullptr || exports_ != nullptr;
  if (!has_shared || !launcher.advertises()) {
    if (agreement_ != nullptr && !order_.is_captured() && !launcher.advertises())
      note_without_advertisements(launcher, calls, buffers);
    return launcher.run(buffers, stream, number);
  }
  if (buffers.size() == 1) {
    const Buffers seen = advertise(buffers[0], calls[0]);
    return launcher.run({&seen, 1}, stream, number);
  }
  seen_.clear();
  for (size_t work = 0; work < buffers.size(); ++work)
    seen_.push_back(advertise(buffers[work], calls[work]));
  return launcher.run(seen_, stream, number);
}

// Of the stream that choose_plans() has asked about, if it has.
Status OperationQueue::before(gpu::StreamHandle stream) {
  return capture_ ? order_.before(stream, *capture_) : order_.before(stream);
}

// Exports stay while operations may use them. Of those that this launch uses a graph takes care, or
// from now on BufferExports::Options::mark.
Status OperationQueue::after(gpu::StreamHandle stream) {
  if (agreement_ != nullptr && !order_.is_captured()) agreement_->launched();
  TRY(order_.after(stream));
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

Status OperationQueue::run(const Task& task, std::chrono::milliseconds connect_time) {
  TRY(choose_plans({&task, 1}));
  const Buffers buffers = buffers_of(task, plans_->planner.rank());
  if (is_copy(task.call)) {
    TRY(before(task.stream));
    TRY(copy(buffers, task.call.request.bytes(), task.stream));
    return after(task.stream);
  }
  std::shared_ptr<Launcher> launcher = find(task.call.request);
  if (launcher == nullptr) {
    Planned planned = TRY(plan_one(task.call));
    launcher = TRY(bind(std::move(planned), Deadline::after(connect_time)));
  }
  TRY(before(task.stream));
  TRY(launch_logged(*launcher, {&task.call, 1}, {&buffers, 1}, task.stream));
  return after(task.stream);
}

Result<bool> OperationQueue::run_known(std::span<const Task> tasks) {
  const gpu::StreamHandle stream = tasks[0].stream;
  TRY(choose_plans(tasks));
  KnownGroup* const group = may_be_known(tasks) ? plans_->find(tasks) : nullptr;
  if (group == nullptr) return false;
  // All launches are on one stream: for the order of streams they are one operation.
  TRY(before(stream));
  Status launched = launch_known(*group, tasks);
  TRY(after(stream));
  TRY(std::move(launched));
  return true;
}

void OperationQueue::collect_buffers(const KnownLaunch& known, std::span<const Task> tasks,
                                     std::vector<Buffers>& buffers) const {
  buffers.clear();
  for (size_t work = 0; work < known.tasks.size(); ++work) {
    const uint32_t task = known.tasks[work], output = known.outputs[work];
    buffers.push_back(buffers_of(tasks[task], plans_->planner.rank()));
    if (output != task) buffers.back().output = tasks[output].output;
  }
}

Status OperationQueue::launch_known(KnownGroup& group, std::span<const Task> tasks) {
  for (KnownLaunch& known : group.launches) {
    collect_buffers(known, tasks, buffers_);
    TRY(launch_logged(*known.launcher, known.calls, buffers_, tasks[0].stream,
                      known.was_logged ? CallLog::Joined::Before : CallLog::Joined::Perhaps));
    known.was_logged = true;
  }
  return {};
}

Result<std::vector<Ready>> OperationQueue::prepare(std::span<const Task> tasks) {
  TRY(choose_plans(tasks));
  const bool is_plain = may_be_known(tasks);
  if (const KnownGroup* known = is_plain ? plans_->find(tasks) : nullptr)
    return recall(*known, tasks);
  TRY(check_captures(tasks));
  const std::vector<Batch> batches = TRY(make_batches(tasks, plans_->planner, plans_->is_captured));
  std::vector<Ready> launches;
  for (const Batch& batch : batches) {
    Ready ready;
    ready.streams = batch.streams;
    for (size_t work = 0; work < batch.tasks.size(); ++work) {
      const Task& task = *batch.tasks[work];
      ready.tasks.push_back(static_cast<uint32_t>(&task - tasks.data()));
      ready.calls.push_back(task.call);
      ready.buffers.push_back(buffers_of(task, plans_->planner.rank()));
      ready.bytes.push_back(task.call.request.bytes());
      if (const Task* output = batch.outputs[work]; output != &task)
        ready.buffers[work].output = output->output;
      ready.outputs.push_back(static_cast<uint32_t>(batch.outputs[work] - tasks.data()));
    }
    const Call& first = batch.tasks[0]->call;
    if (!is_copy(first)) {
      const bool is_single = batch.tasks.size() == 1 && !batch.holds_messages();
      std::string name = is_single ? std::string() : name_of(batch);
      ready.launcher = is_single ? find(first.request) : find(name);
      if (ready.launcher == nullptr) {
        Result<Planned> planned = is_single ? plan_one(first) : plan_batch(batch, std::move(name));
        ready.planned = TRY(std::move(planned));
        const Plan& plan = ready.planned->plan;
        if (endpoint_ != nullptr) TRY(endpoint_->reserve(*plan.program, plan.protocol));
      }
    }
    launches.push_back(std::move(ready));
  }
  if (!launches.empty() && is_plain)
    for (const Task& task : tasks) launches.front().group.push_back(task.call);
  return launches;
}

Status OperationQueue::connect(std::span<Ready> launches, const Deadline& deadline) {
  for (Ready& ready : launches) {
    if (!ready.planned) continue;
    ready.launcher = TRY(bind(std::move(*ready.planned), deadline));
    ready.planned.reset();
  }
  remember_group(launches);
  return {};
}

std::vector<Ready> OperationQueue::recall(const KnownGroup& group,
                                          std::span<const Task> tasks) const {
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
                              .calls = ready.calls});
  }
  if (plans_->group_calls + group.calls.size() > kMostRememberedCalls) forget_groups(*plans_);
  plans_->group_calls += group.calls.size();
  const uint64_t hash = hash_of(std::span<const Call>(group.calls));
  plans_->groups.emplace(hash, std::move(group));
}

// Streams of one group are joined, which cannot be done across the border of a capture.
Status OperationQueue::check_captures(std::span<const Task> tasks) {
  std::optional<gpu::Capture> first;
  gpu::StreamHandle last = tasks[0].stream;
  for (const Task& task : tasks) {
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
    TRY(launch_logged(*ready.launcher, ready.calls, ready.buffers, stream));
  } else {
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
Status OperationQueue::launch_logged(Launcher& launcher, std::span<const Call> calls,
                                     std::span<const Buffers> buffers, gpu::StreamHandle stream,
                                     CallLog::Joined joined) {
  if (profiling_ != nullptr) [[unlikely]]
    return launch_profiled(launcher, calls, buffers, stream);
  if (log_ == nullptr) return run(launcher, calls, buffers, stream, 0);
  const uint64_t number = log_->before_launch_on(order_.stream());
  TRY(run(launcher, calls, buffers, stream, number));
  log_->add(calls, order_.is_captured(), joined);
  return {};
}

// The same, with a profiler.
Status OperationQueue::launch_profiled(Launcher& launcher, std::span<const Call> calls,
                                       std::span<const Buffers> buffers, gpu::StreamHandle stream) {
  const uint64_t number = log_ == nullptr ? 0 : log_->before_launch_on(order_.stream());
  const Profiling::Launch launch{.number = number,
                                 .form = &launcher.form(),
                                 .calls = calls,
                                 .buffers = buffers,
                                 .stream = stream,
                                 .is_captured = order_.is_captured()};
  TRY(profiling_->launch(launch, [&] { return run(launcher, calls, buffers, stream, number); }));
  if (log_ != nullptr) log_->add(calls, order_.is_captured());
  return {};
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

// What proxies carry of one work, by the connections' channels. All works of a list go over the
// ports of its one program.
std::vector<ProxyShare> OperationQueue::proxies_of(const executor::Launch& launch, size_t work) {
  std::vector<ProxyShare> shares;
  const executor::Program& program = *launch.program;
  const executor::Work& of = launch.works[work];
  const auto bytes = static_cast<uint32_t>(of.partition.chunk * executor::size_of(launch.type));
  for (size_t p = 0; p < launch.ports.size(); ++p) {
    const executor::Port& port = program.ports[p];
    const bool is_of_work = launch.is_list() || static_cast<size_t>(port.work) == work;
    if (launch.ports[p].bell == nullptr || !is_of_work) continue;
    ProxyShare share{.peer = port.peer,
                     .tag = port.tag,
                     .protocol = launch.protocol,
                     .is_send = port.is_send,
                     .channel = 0,
                     .steps = static_cast<uint32_t>(port.steps) * of.partition.rounds,
                     .chunk_bytes = std::min(bytes, launch.shape.slot_bytes)};
    if (launch.is_list()) {
      share.channel = static_cast<uint32_t>(work) % launch.list_channels;
      shares.push_back(share);
      continue;
    }
    const executor::WorkShape& shape = program.works[work];
    const auto patterns = static_cast<uint32_t>(shape.nchannels);
    auto channel = static_cast<uint32_t>(port.channel - shape.first_channel);
    for (; channel < of.partition.channels; channel += patterns) {
      share.channel = of.first_channel + channel;
      shares.push_back(share);
    }
  }
  return shares;
}

LaunchForm OperationQueue::form_of(const Planned& planned) const {
  const executor::Launch& launch = planned.launch;
  LaunchForm form{.protocol = constant_name(upper(executor::name_of(launch.protocol))),
                  .warps = static_cast<uint8_t>(launch.threads / 32),
                  .works = {}};
  const std::vector<executor::WorkShape>& shapes = launch.program->works;
  const uint32_t replicas = launch.is_list() ? 1 : replicas_of(launch);
  for (size_t work = 0; work < launch.works.size(); ++work) {
    const planner::Choice& choice =
        work < planned.choices.size() ? planned.choices[work] : planned.plan.choice;
    const auto place = static_cast<uint32_t>(work);
    form.works.push_back(
        {.algorithm = choice.algorithm == nullptr
                          ? ""  // of messages
                          : constant_name(planner::log_name_of(*choice.algorithm)),
         .first_channel =
             launch.is_list() ? place % launch.list_channels : launch.works[work].first_channel,
         .channels = launch.is_list() ? 1 : launch.works[work].partition.channels});
    LaunchForm::Work& form_of_work = form.works.back();
    form_of_work.replicas = replicas;
    form_of_work.first_cta =
        launch.is_list() ? form_of_work.first_channel : replicas * shapes[work].first_channel;
    form_of_work.proxies = proxies_of(launch, work);
    if (!launch.is_list()) form_of_work.patterns = static_cast<uint32_t>(shapes[work].nchannels);
  }
  return form;
}

Result<double> OperationQueue::predict(std::span<const Task> tasks) {
  double microseconds = 0;
  const std::vector<Batch> batches = TRY(make_batches(tasks, plans_->planner));
  for (const Batch& batch : batches) {
    const Planned planned = TRY(plan_batch(batch, {}));
    microseconds += planned.plan.microseconds;
  }
  return microseconds;
}

std::shared_ptr<Launcher> OperationQueue::find(const planner::Request& request) const {
  const auto found = plans_->collectives.find(request);
  return found == plans_->collectives.end() ? nullptr : found->second;
}

std::shared_ptr<Launcher> OperationQueue::find(const std::string& name) const {
  const auto found = plans_->batches.find(name);
  return found == plans_->batches.end() ? nullptr : found->second;
}

Result<Planned> OperationQueue::plan_one(const Call& call) {
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
                         .bytes = (*next)->call.request.bytes()});
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
  for (const Task* task : batch.tasks)
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
  for (const Task* task : batch.tasks) {
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
    planned.plan.microseconds = microseconds;
    return {};
  }
  launch.list_channels = std::min(channels, works);
  const uint32_t rounds = (works + launch.list_channels - 1) / launch.list_channels;
  planned.plan.microseconds = longest * rounds;
  return {};
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
    const CallLog::ConnectScope connecting(log_, function_of(planned.first));
    launch.ports = TRY(endpoint_->connect(*plan.program, plan.protocol, deadline));
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
  LaunchForm form = profiling_ == nullptr ? LaunchForm{} : form_of(planned);
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
        planner::log_name_of(*plan.choice.algorithm), upper(executor::name_of(plan.protocol)),
        plan.partitions[0].channels - 1);
  remember(plans_->collectives, request, launcher);
  return launcher;
}

Status OperationQueue::copy(const Buffers& buffers, size_t bytes, gpu::StreamHandle stream) {
  if (buffers.input == buffers.output || bytes == 0) return {};
  return machine_.copy_async(buffers.output, buffers.input, bytes, device_, stream);
}

}  // namespace niccolite::comm
