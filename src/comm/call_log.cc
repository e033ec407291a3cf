#include "comm/call_log.h"

#include <algorithm>

namespace niccolite::comm {

CallLog::CallLog(int nranks) : messages_(static_cast<size_t>(nranks)) {}

void CallLog::add(std::span<const Call> calls, bool is_captured, Joined joined) {
  std::lock_guard lock(mutex_);
  if (calls.size() > 1 && joined != Joined::Before) {
    if (joined_ == nullptr) joined_ = std::make_unique<std::bitset<65536>>();
    for (const Call& call : calls) joined_->set(tag_of(call));
  }
  uint64_t ticket = recorder_->reserve(calls.size());
  for (const Call& call : calls) add_call(ticket++, call, is_captured);
}

void CallLog::add_call(uint64_t ticket, const Call& call, bool is_captured) {
  Numbers& numbers = call.is_message()
                         ? messages_[static_cast<size_t>(call.peer)][call.is_send ? 1 : 0]
                         : collectives_;
  ++counts_[static_cast<size_t>(call.request.collective)];
  if (is_captured) {
    LoggedCall entry{.call = call, .number = 0, .order = ++order_, .launch = launch_};
    record(ticket, entry);
    numbers.provable = std::min(numbers.provable, numbers.count);
    return add_captured(std::move(entry));
  }
  if (live_.size() < kKept) live_.emplace_back();
  LoggedCall& entry = live_[next_live_];
  next_live_ = (next_live_ + 1) % kKept;
  entry.call = call;
  entry.number = ++numbers.count;
  entry.order = ++order_;
  entry.launch = launch_;
  record(ticket, entry);
}

void CallLog::record(uint64_t ticket, const LoggedCall& entry) const {
  const planner::Request& request = entry.call.request;
  observe::Event event;
  event.time = launched_at_;
  event.launch = entry.launch;
  event.number = entry.number;
  event.value = request.count;
  event.stream = launched_on_.value_or(0);
  event.peer = entry.call.is_message() ? entry.call.peer : request.root;
  event.collective = static_cast<uint8_t>(request.collective);
  event.type = static_cast<uint8_t>(request.type);
  event.operation = static_cast<uint8_t>(request.op.operation);
  event.is_send = entry.call.is_send ? 1 : 0;
  event.kind = observe::EventKind::Called;
  recorder_->write(ticket, event);
}

uint64_t CallLog::before_launch_on(std::optional<uint64_t> stream) {
  launched_at_ = observe::ticks();
  launched_on_ = stream;
  note_stream(stream);
  return ++launch_;
}

void CallLog::note_stream(std::optional<uint64_t> stream) {
  const uint64_t next = stream.value_or(kSeveralStreams);
  const uint64_t known = stream_.load(std::memory_order_relaxed);  // relaxed: the only writer's
  if (known == next || known == kSeveralStreams) return;
  // [release] to only_stream(): whoever sees the launch wait sees this, too.
  stream_.store(known == kNoStream ? next : kSeveralStreams, std::memory_order_release);
}

std::optional<uint64_t> CallLog::only_stream() const {
  // acquire: pairs with before_launch_on().
  const uint64_t stream = stream_.load(std::memory_order_acquire);
  if (stream == kNoStream || stream == kSeveralStreams) return std::nullopt;
  return stream;
}

// A program may capture one call thousands of times, in graphs of every size; which calls it
// captured is what matters.
void CallLog::add_captured(LoggedCall entry) {
  const auto is_equal = [&](const LoggedCall& other) {
    return other.call.request == entry.call.request && other.call.peer == entry.call.peer &&
           other.call.is_send == entry.call.is_send;
  };
  auto place = std::find_if(captured_.begin(), captured_.end(), is_equal);
  if (place == captured_.end() && captured_.size() == kKept) place = captured_.begin();
  if (place != captured_.end()) captured_.erase(place);
  captured_.push_back(std::move(entry));
}

CallLog::Content CallLog::content(int peer) const {
  std::lock_guard lock(mutex_);
  Content content;
  content.collectives = collectives_;
  const auto& messages = messages_[static_cast<size_t>(peer)];
  content.receives = messages[0];
  content.sends = messages[1];
  content.calls.reserve(live_.size() + captured_.size());
  auto captured = captured_.begin();
  for (size_t i = 0; i < live_.size(); ++i) {
    const LoggedCall& next = live_[(next_live_ + i) % live_.size()];
    for (; captured != captured_.end() && captured->order < next.order; ++captured)
      content.calls.push_back(*captured);
    content.calls.push_back(next);
  }
  content.calls.insert(content.calls.end(), captured, captured_.end());
  return content;
}

uint64_t CallLog::collectives() const {
  std::lock_guard lock(mutex_);
  return collectives_.count;
}

uint64_t CallLog::count(Collective collective) const {
  std::lock_guard lock(mutex_);
  return counts_[static_cast<size_t>(collective)];
}

const char* CallLog::last_function() const {
  std::lock_guard lock(mutex_);
  const LoggedCall* last = captured_.empty() ? nullptr : &captured_.back();
  if (!live_.empty()) {
    const LoggedCall& newest = live_[(next_live_ + live_.size() - 1) % live_.size()];
    if (last == nullptr || newest.order > last->order) last = &newest;
  }
  return last == nullptr ? nullptr : function_of(last->call);
}

CallLog::HostCallScope::HostCallScope(CallLog* log, const char* function, std::vector<int> excluded,
                                      Deadline::Clock::time_point since)
    : log_(log) {
  if (log_ == nullptr) return;
  std::lock_guard lock(log_->mutex_);
  log_->host_call_ = {.function = function,
                      .number = ++log_->host_calls_,
                      .excluded = std::move(excluded),
                      .since = since};
}

CallLog::HostCallScope::~HostCallScope() {
  if (log_ == nullptr) return;
  std::lock_guard lock(log_->mutex_);
  log_->host_call_.reset();
}

std::optional<CallLog::HostCall> CallLog::host_call() const {
  std::lock_guard lock(mutex_);
  return host_call_;
}

uint64_t CallLog::host_calls() const {
  std::lock_guard lock(mutex_);
  return host_calls_;
}

bool CallLog::was_joined(uint16_t tag) const {
  std::lock_guard lock(mutex_);
  return joined_ != nullptr && joined_->test(tag);
}

}  // namespace niccolite::comm
