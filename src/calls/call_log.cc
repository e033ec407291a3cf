#include "calls/call_log.h"

#include <algorithm>

namespace niccolite::calls {

CallLog::CallLog(int nranks) : messages_(static_cast<size_t>(nranks)) {}

Call call_of(const observe::Event& event) {
  Call call;
  call.request.collective = static_cast<Collective>(event.collective);
  call.request.type = static_cast<executor::DataType>(event.type);
  call.request.op.operation = static_cast<planner::Operation>(event.operation);
  call.request.count = event.value;
  call.is_send = event.is_send != 0;
  (call.is_message() ? call.peer : call.request.root) = event.peer;
  call.settings_tag = event.settings;
  return call;
}

observe::Event event_of(const Call& call) {
  const planner::Request& request = call.request;
  observe::Event event;
  event.value = request.count;
  event.peer = call.is_message() ? call.peer : request.root;
  event.collective = static_cast<uint8_t>(request.collective);
  event.type = static_cast<uint8_t>(request.type);
  event.operation = static_cast<uint8_t>(request.op.operation);
  event.is_send = call.is_send ? 1 : 0;
  event.settings = call.settings_tag;
  event.kind = observe::EventKind::Called;
  return event;
}

void CallLog::add(std::span<const Call> calls, bool is_captured, Joined joined) {
  std::lock_guard lock(mutex_);
  if (calls.size() > 1 && joined != Joined::Before) {
    if (joined_ == nullptr) joined_ = std::make_unique<std::bitset<65536>>();
    for (const Call& call : calls) joined_->set(tag_of(call));
  }
  for (const Call& call : calls) add_call(call, is_captured);
  if (!calls.empty()) last_function_ = function_of(calls.back());
}

void CallLog::add_call(const Call& call, bool is_captured) {
  Numbers& numbers = call.is_message()
                         ? messages_[static_cast<size_t>(call.peer)][call.is_send ? 1 : 0]
                         : collectives_;
  ++counts_[static_cast<size_t>(call.request.collective)];
  observe::Event event = event_of(call);
  event.time = launched_at_;
  event.launch = launch_;
  event.number = is_captured ? 0 : ++numbers.count;
  event.stream = launched_on_.value_or(0);
  if (is_captured) {
    numbers.provable = std::min(numbers.provable, numbers.count);
    recorder_->add_captured_call(order_++, event);
  } else {
    recorder_->add_call(order_++, live_++, event);
  }
}

uint64_t CallLog::before_launch_on(std::optional<uint64_t> stream) {
  recorder_->before_launch(observe::ticks());
  launched_at_ = observe::ticks();
  launched_on_ = stream;
  note_stream(stream);
  return ++launch_;
}

void CallLog::note_stream(std::optional<uint64_t> stream) {
  const uint64_t next = stream.value_or(kSeveralStreams);
  const uint64_t known = stream_.load(std::memory_order_relaxed);  // relaxed: the only writer's
  if (known == next || known == kSeveralStreams) return;
  // [release] to only_stream(): a thread that sees the launch wait sees this store, too.
  stream_.store(known == kNoStream ? next : kSeveralStreams, std::memory_order_release);
}

std::optional<uint64_t> CallLog::only_stream() const {
  // acquire: pairs with before_launch_on().
  const uint64_t stream = stream_.load(std::memory_order_acquire);
  if (stream == kNoStream || stream == kSeveralStreams) return std::nullopt;
  return stream;
}

CallLog::Content CallLog::content(int peer) const {
  std::lock_guard lock(mutex_);  // nobody writes calls meanwhile
  Content content;
  content.collectives = collectives_;
  const auto& messages = messages_[static_cast<size_t>(peer)];
  content.receives = messages[0];
  content.sends = messages[1];
  using Entry = observe::EventRing::Entry;
  std::vector<Entry> calls = recorder_->calls();
  if (calls.size() > kKept) calls.erase(calls.begin(), calls.end() - kKept);
  const std::vector<Entry> captured = recorder_->captured_calls();
  calls.insert(calls.end(), captured.begin(), captured.end());
  std::ranges::sort(calls, {}, &Entry::ticket);
  content.calls.reserve(calls.size());
  for (const Entry& entry : calls)
    content.calls.push_back({.call = call_of(entry.event),
                             .number = entry.event.number,
                             .order = entry.ticket + 1,
                             .launch = entry.event.launch});
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

void CallLog::note_function(const char* function) {
  std::lock_guard lock(mutex_);
  last_function_ = function;
}

const char* CallLog::last_function() const {
  std::lock_guard lock(mutex_);
  return last_function_;
}

CallLog::HostCallScope::HostCallScope(CallLog* log, const char* function, std::vector<int> excluded,
                                      Deadline::Clock::time_point since)
    : HostCallScope(log, HostCall{.function = function,
                                  .number = 0,
                                  .connects = false,
                                  .excluded = std::move(excluded),
                                  .since = since}) {}

CallLog::HostCallScope::HostCallScope(CallLog* log, HostCall call) : log_(log) {
  if (log_ == nullptr) return;
  std::lock_guard lock(log_->mutex_);
  call.number = ++(call.connects ? log_->connects_ : log_->host_calls_);
  log_->host_call_ = std::move(call);
}

CallLog::ConnectScope::ConnectScope(CallLog* log, const char* function,
                                    Deadline::Clock::time_point since)
    : HostCallScope(log, HostCall{.function = fmt::format("{}, which connects ranks,", function),
                                  .number = 0,
                                  .connects = true,
                                  .excluded = {},
                                  .since = since}) {}

CallLog::HostCallScope::~HostCallScope() {
  if (log_ == nullptr) return;
  std::lock_guard lock(log_->mutex_);
  log_->host_call_.reset();
}

std::optional<CallLog::HostCall> CallLog::host_call() const {
  std::lock_guard lock(mutex_);
  return host_call_;
}

CallLog::BlockedScope::BlockedScope(CallLog* log, const char* function,
                                    Deadline::Clock::time_point since)
    : log_(log) {
  if (log_ == nullptr) return;
  std::lock_guard lock(log_->mutex_);
  place_ = log_->blocked_calls_.insert(log_->blocked_calls_.end(), {function, since});
}

CallLog::BlockedScope::~BlockedScope() {
  if (log_ == nullptr) return;
  std::lock_guard lock(log_->mutex_);
  log_->blocked_calls_.erase(place_);
}

std::optional<CallLog::BlockedCall> CallLog::blocked_call() const {
  std::lock_guard lock(mutex_);
  return blocked_calls_.empty() ? std::nullopt : std::optional(blocked_calls_.front());
}

uint64_t CallLog::host_calls() const {
  std::lock_guard lock(mutex_);
  return host_calls_;
}

bool CallLog::was_joined(uint16_t tag) const {
  std::lock_guard lock(mutex_);
  return joined_ != nullptr && joined_->test(tag);
}

}  // namespace niccolite::calls
