#include "profiling/profiling.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "observe/profiler_abi.h"

namespace niccolite::profiling {
namespace {

using observe::Profiler;
using observe::ProfilerHandle;
namespace abi = observe::abi;

const char* name_of_type(executor::DataType type) {
  // In the order of ncclDataType_t; NCCL has no name for the second.
  constexpr const char* kNames[] = {"ncclInt8",     "Unknown",        "ncclInt32",
                                    "ncclUint32",   "ncclInt64",      "ncclUint64",
                                    "ncclFloat16",  "ncclFloat32",    "ncclFloat64",
                                    "ncclBfloat16", "ncclFloat8e4m3", "ncclFloat8e5m2"};
  static_assert(std::size(kNames) == executor::kDataTypes);
  return kNames[static_cast<size_t>(type)];
}

const char* name_of_function(const calls::Call& call) {
  return function_of(call) + sizeof "nccl" - 1;
}

Profiler::Call profiled(const calls::Call& call, void* stream, bool is_captured) {
  return {.function = name_of_function(call),
          .type = name_of_type(call.request.type),
          .count = call.request.count,
          .root = call.request.root,
          .stream = stream,
          .is_captured = is_captured};
}

uint64_t now() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::nanoseconds(since).count());
}

}  // namespace

const char* constant_name(const std::string& name) {
  static auto* const mutex = new std::mutex;
  static auto* const names = new std::set<std::string>;  // never destroyed, as their readers expect
  std::lock_guard lock(*mutex);
  return names->insert(name).first->c_str();
}

Profiling::Profiling(const std::shared_ptr<Profiler>& profiler, int rank)
    : rank_(rank), profiler_(profiler), proxies_(std::make_shared<ProxyProfile>(profiler)) {}

std::shared_ptr<Profiler> Profiling::profiler() const {
  std::lock_guard lock(mutex_);
  return profiler_;
}

Status Profiling::read_marks(const observe::KernelMarks& marks) {
  marks_ = marks;
  proxies_->refresh_by([this] { static_cast<void>(look_at_marks()); });
  reader_ = TRY(Thread::start("nccl-profile", [this] { read_marks_until_closed(); }));
  return {};
}

void Profiling::close() {
  {
    std::lock_guard lock(mutex_);
    is_closing_ = true;
  }
  news_.notify_all();
  reader_.join();
  proxies_->close();
  std::shared_ptr<Profiler> last;  // may end below, which calls the plug-in
  std::lock_guard lock(mutex_);
  flights_.clear();
  pending_.clear();
  last.swap(profiler_);
}

void Profiling::add(const calls::Task& task, bool is_captured, ProfilerHandle group_call) {
  const std::shared_ptr<Profiler> to = profiler();
  if (to == nullptr) return;
  const Profiler::Call call = profiled(task.call, task.stream, is_captured);
  const ProfilerHandle event = task.call.is_message() ? to->start_message_call(group_call, call)
                                                      : to->start_collective_call(group_call, call);
  {
    std::lock_guard lock(mutex_);
    pending_.push_back({.call = task.call, .event = event, .group_call = group_call});
  }
  to->stop(event);
}

void Profiling::forget(ProfilerHandle group_call) {
  std::lock_guard lock(mutex_);
  std::erase_if(pending_, [&](const Pending& pending) { return pending.group_call == group_call; });
}

// Launches take the calls of a group in another order than the program made them.
template <typename Predicate>
Profiling::Pending Profiling::take(Predicate is_it) {
  std::lock_guard lock(mutex_);
  const auto found = std::find_if(pending_.begin(), pending_.end(),
                                  [&](const Pending& pending) { return is_it(pending.call); });
  if (found == pending_.end()) return {};
  Pending pending = *found;
  pending_.erase(found);
  return pending;
}

// A message to the own rank is one work, the send's; its receive has an event and a kernel as well.
void Profiling::add_receive_from_self(Flight& flight) {
  const Pending receive = take([&](const calls::Call& other) {
    return other.is_message() && !other.is_send && other.peer == rank_;
  });
  Operation operation = flight.operations.back();
  operation.call.is_send = false;
  if (receive.event != nullptr) operation.call = receive.call;
  operation.call_event = receive.event;
  flight.operations.push_back(std::move(operation));
}

Profiling::Started Profiling::start(const Launch& launch) {
  Started started;
  const std::shared_ptr<Profiler> to = profiler();
  if (to == nullptr) return started;
  auto flight = std::make_shared<Flight>();
  flight->protocol = launch.form->protocol;
  flight->warps = launch.form->warps;
  flight->stream = launch.stream;
  flight->is_captured = launch.is_captured;
  ProfilerHandle group_call = nullptr;
  for (size_t i = 0; i < launch.calls.size(); ++i) {
    const calls::Call& call = launch.calls[i];
    const Pending pending = take([&](const calls::Call& other) { return other == call; });
    if (group_call == nullptr) group_call = pending.group_call;
    const size_t kind = call.is_message() && call.is_send
                            ? schedule::kCollectives
                            : static_cast<size_t>(call.request.collective);
    flight->operations.push_back(
        {.call = call,
         .buffers = launch.buffers[i],
         .sequence = launch.is_captured ? sequences_[kind] : sequences_[kind]++,
         .call_event = pending.event,
         .work = i < launch.form->works.size() ? launch.form->works[i] : LaunchForm::Work{}});
    if (call.is_message() && call.peer == rank_) add_receive_from_self(*flight);
  }
  for (size_t i = 0; i < flight->operations.size(); ++i) {
    const LaunchForm::Work& work = flight->operations[i].work;
    for (uint32_t channel = 0; channel < work.channels; ++channel)
      flight->channels.push_back(
          {.operation = i, .number = work.first_channel + channel, .cta = work.cta_of(channel)});
  }
  if (!launch.is_captured) {
    started.group = to->start_group();
    start_operations(*to, *flight, started.group);
  }
  // Before the launch: it may have begun when that returns.
  if (launch.number != 0) {
    std::lock_guard lock(mutex_);
    if (profiler_ != nullptr) flights_[launch.number] = flight;
  }
  news_.notify_one();
  started.flight = std::move(flight);
  started.launch = to->start_launch(group_call, launch.stream);
  return started;
}

void Profiling::finish(const Launch& launch, const Started& started, bool is_queued) {
  if (!is_queued) {
    std::lock_guard lock(mutex_);
    flights_.erase(launch.number);
  }
  const std::shared_ptr<Profiler> to = profiler();
  if (to == nullptr || started.flight == nullptr) return;
  to->stop(started.launch);
  if (launch.is_captured) return;
  for (const ProfilerHandle operation : started.flight->handles) to->stop(operation);
  to->stop(started.group);
}

void Profiling::start_operations(Profiler& profiler, Flight& flight, ProfilerHandle group) {
  flight.handles.clear();
  for (const Operation& operation : flight.operations) {
    const calls::Call& call = operation.call;
    const Profiler::Call named = profiled(call, flight.stream, flight.is_captured);
    const auto channels = static_cast<uint8_t>(std::min(255u, operation.work.channels));
    const int type = static_cast<int>(call.request.type);
    if (call.is_message()) {
      const Profiler::Message message{
          .call = named,
          .buffer =
              call.is_send ? const_cast<void*>(operation.buffers.input) : operation.buffers.output,
          .peer = call.peer,
          .channels = channels,
          .function_number = planner::function_number(call.request.collective, call.is_send),
          .type_number = type};
      flight.handles.push_back(profiler.start(operation.call_event, group, message));
    } else {
      const Profiler::Collective collective{
          .call = named,
          .input = operation.buffers.input,
          .output = operation.buffers.output,
          .sequence = operation.sequence,
          .algorithm = operation.work.algorithm,
          .protocol = flight.protocol,
          .channels = channels,
          .warps = flight.warps,
          .function_number = planner::function_number(call.request.collective, call.is_send),
          .type_number = type};
      flight.handles.push_back(profiler.start(operation.call_event, group, collective));
    }
  }
}

std::shared_ptr<Profiling::Flight> Profiling::flight_of(uint64_t launch) {
  std::lock_guard lock(mutex_);
  const auto found = flights_.find(launch);
  return found == flights_.end() ? nullptr : found->second;
}

// Starts the operations of a launch. Operations of a graph start anew each time that the graph
// runs.
void Profiling::begin_operations(Profiler& profiler, Flight& flight) const {
  if (flight.is_captured) {
    const ProfilerHandle group = profiler.start_group();
    start_operations(profiler, flight, group);
    for (const ProfilerHandle operation : flight.handles) profiler.stop(operation);
    profiler.stop(group);
  }
  for (size_t i = 0; i < flight.operations.size(); ++i)
    for (const ProxyShare& share : flight.operations[i].work.proxies)
      proxies_->begin(flight.handles[i], share);
}

void Profiling::start_channel(Profiler& profiler, Flight& flight, Channel& channel, uint64_t time) {
  channel.begun = time;
  channel.has_ended = false;
  const ProfilerHandle operation = flight.handles[channel.operation];
  channel.handle = operation == nullptr
                       ? nullptr
                       : profiler.start_channel(operation, static_cast<int>(channel.number), time);
}

void Profiling::stop_channel(Profiler& profiler, Channel& channel, uint64_t time) {
  channel.has_ended = true;
  profiler.stop_channel(std::exchange(channel.handle, nullptr), time);
}

// Called by the executor. Launches of one communicator run one after the other.
void Profiling::begun(uint64_t launch) {
  const std::shared_ptr<Flight> flight = flight_of(launch);
  const std::shared_ptr<Profiler> to = profiler();
  if (flight == nullptr || to == nullptr) return;
  begin_operations(*to, *flight);
  if (!to->wants(abi::kKernelChannel)) return;
  const uint64_t time = now();
  for (Channel& channel : flight->channels) start_channel(*to, *flight, channel, time);
}

void Profiling::ended(uint64_t launch) {
  const std::shared_ptr<Flight> flight = flight_of(launch);
  const std::shared_ptr<Profiler> to = profiler();
  if (flight == nullptr || to == nullptr) return;
  const uint64_t time = now();
  for (Channel& channel : flight->channels)
    if (!channel.has_ended) stop_channel(*to, channel, time);
  proxies_->end_receives();
  if (flight->is_captured) return;
  std::lock_guard lock(mutex_);
  flights_.erase(launch);
}

// Kernels that begin and end between two looks are seen whole, up to kMarkedLaunches of them; of a
// graph that is replayed meanwhile, the last replay.
void Profiling::read_marks_until_closed() {
  constexpr auto kRest = std::chrono::microseconds(200);
  constexpr auto kLongRest = std::chrono::milliseconds(2);
  constexpr int kPatience = 100;  // looks without news
  int looks = 0;
  for (bool is_closing = false; !is_closing;) {
    {
      std::unique_lock lock(mutex_);
      while (flights_.empty() && !is_closing_) news_.wait(lock);
      is_closing = is_closing_;
    }
    looks = look_at_marks() ? 0 : looks + 1;
    if (!is_closing) std::this_thread::sleep_for(looks < kPatience ? kRest : kLongRest);
  }
}

bool Profiling::look_at_marks() {
  std::lock_guard reading(marks_mutex_);
  struct Begun {
    uint64_t time = 0, launch = 0;
    std::shared_ptr<Flight> flight;
  };
  std::vector<Begun> flights;
  std::shared_ptr<Profiler> to;
  {
    std::lock_guard lock(mutex_);
    to = profiler_;
    for (const auto& [launch, flight] : flights_) {
      const observe::KernelStamp begin = observe::KernelMarks::read(marks_.spans_of(launch)->begin);
      if (begin.launch >= launch)
        flights.push_back({.time = begin.time, .launch = launch, .flight = flight});
    }
  }
  if (to == nullptr) return false;
  // Proxies take the steps of operations in the order in which these begin.
  std::ranges::sort(flights, {}, &Begun::time);
  bool is_news = false;
  for (const auto& [time, launch, flight] : flights) {
    bool is_over = false;
    const bool has_news = look_at(*to, launch, *flight, &is_over);
    is_news = is_news || has_news;
    if (is_over && has_news) proxies_->end_receives();
    if (!is_over || flight->is_captured) continue;
    std::lock_guard lock(mutex_);
    flights_.erase(launch);
  }
  return is_news;
}

bool Profiling::look_at(Profiler& profiler, uint64_t launch, Flight& flight, bool* is_over) const {
  const observe::KernelSpan* const spans = marks_.spans_of(launch);
  const auto is_open = [](const Channel& channel) { return !channel.has_ended; };
  bool is_news = false;
  size_t over = 0;
  for (Channel& channel : flight.channels) {
    if (channel.cta >= marks_.columns()) {
      ++over;  // says nothing
      continue;
    }
    const observe::KernelSpan& span = spans[channel.cta];
    // The end first: it is none of a begin that is read later.
    const observe::KernelStamp end = observe::KernelMarks::read(span.end);
    const observe::KernelStamp begin = observe::KernelMarks::read(span.begin);
    const bool is_lost = begin.launch > launch;  // a later launch has the place
    if (is_lost && is_open(channel)) stop_channel(profiler, channel, channel.begun);
    if (is_lost) ++over;
    if (begin.launch != launch) continue;
    if (begin.time != channel.begun) {
      is_news = true;
      if (is_open(channel)) stop_channel(profiler, channel, channel.begun);
      if (std::ranges::none_of(flight.channels, is_open) && begin.time != flight.begun) {
        flight.begun = begin.time;
        begin_operations(profiler, flight);
      }
      start_channel(profiler, flight, channel, begin.time);
    }
    const bool has_ended = end.launch == launch && end.time >= begin.time;
    if (has_ended && is_open(channel)) {
      is_news = true;
      stop_channel(profiler, channel, end.time);
    }
    if (channel.has_ended) ++over;
  }
  *is_over = over == flight.channels.size();
  return is_news;
}

}  // namespace niccolite::profiling
