#include "profiling/proxy_profile.h"

#include <algorithm>
#include <utility>

#include "observe/network_events.h"
#include "observe/profiler_abi.h"

namespace niccolite::profiling {

namespace abi = observe::abi;
using observe::NetworkEvents;
using transport::ProxyState;
using transport::ProxyStep;
using transport::ProxyStepState;

ProxyProfile::Operation* ProxyProfile::next_of(Line& line) {
  const auto found = std::ranges::find_if(line.operations, [](const Operation& operation) {
    return operation.begun < operation.steps;
  });
  return found == line.operations.end() ? nullptr : &*found;
}

void ProxyProfile::wait_for_next(Operation& operation, bool is_send) {
  if (operation.begun == operation.steps) return;
  operation.next = profiler_->start_proxy_step(operation.event, static_cast<int>(operation.begun));
  profiler_->record_step(operation.next,
                         is_send ? abi::kProxyStepSendGpuWait : abi::kProxyStepReceiveWait, 0);
}

// The step that was waited for is there.
void ProxyProfile::move_on(Operation& operation, bool is_send, uint64_t number, uint32_t bytes) {
  const Handle event = std::exchange(operation.next, nullptr);
  if (operation.begun == 0) profiler_->record(operation.event, abi::kProxyOperationInProgress);
  profiler_->record_step(event, is_send ? abi::kProxyStepSendWait : abi::kProxyStepReceiveGpuWait,
                         bytes);
  operation.open.push_back({.number = number, .event = event});
  ++operation.begun;
  wait_for_next(operation, is_send);
}

void ProxyProfile::finish_step(Operation& operation) {
  const Step step = operation.open.front();
  operation.open.pop_front();
  ++operation.done;
  profiler_->stop(step.event);
  if (step.name != nullptr) NetworkEvents::of_process().forget(step.name);
}

void ProxyProfile::finish(Operation& operation) {
  while (!operation.open.empty()) finish_step(operation);
  profiler_->stop(std::exchange(operation.next, nullptr));
  profiler_->stop(operation.event);
}

void ProxyProfile::begin(Handle of, const ProxyShare& share) {
  std::lock_guard lock(mutex_);
  if (profiler_ == nullptr || share.steps == 0) return;
  Line& line = lines_[{share.peer, share.tag, share.protocol, share.is_send, share.channel}];
  Operation& operation = line.operations.emplace_back();
  operation.steps = share.steps;
  if (of != nullptr)
    operation.event =
        profiler_->start_proxy_operation(of, {.channel = static_cast<int>(share.channel),
                                              .peer = share.peer,
                                              .steps = static_cast<int>(share.steps),
                                              .chunk_bytes = static_cast<int>(share.chunk_bytes),
                                              .is_send = share.is_send});
  wait_for_next(operation, share.is_send);
  while (!line.early.empty() && operation.begun < operation.steps) {
    move_on(operation, share.is_send, line.early.front(), share.chunk_bytes);
    line.early.pop_front();
  }
}

void ProxyProfile::end_receives() {
  std::lock_guard lock(mutex_);
  for (auto& [name, line] : lines_) {
    if (std::get<bool>(name)) continue;
    for (Operation& operation : line.operations) finish(operation);
    line.operations.clear();
  }
}

void ProxyProfile::finish_sent(Line& line) {
  if (line.strays > 0) {
    --line.strays;
    return;
  }
  if (line.operations.empty() || line.operations.front().open.empty()) return;
  Operation& first = line.operations.front();
  finish_step(first);
  if (first.done < first.steps) return;
  finish(first);
  line.operations.pop_front();
}

void ProxyProfile::finish_read(Line& line, uint64_t last) {
  while (!line.operations.empty()) {
    Operation& first = line.operations.front();
    while (!first.open.empty() && first.open.front().number <= last) finish_step(first);
    if (first.done < first.steps) return;
    finish(first);
    line.operations.pop_front();
  }
}

bool ProxyProfile::lacks_operation(const ProxyStep& step) {
  std::lock_guard lock(mutex_);
  return profiler_ != nullptr && next_of(lines_[name_of_line(step)]) == nullptr;
}

void ProxyProfile::step(const ProxyStep& step, ProxyStepState state) {
  if (state == ProxyStepState::Taken && refresh_ != nullptr && lacks_operation(step)) refresh_();
  std::lock_guard lock(mutex_);
  if (profiler_ == nullptr) return;
  Line& line = lines_[name_of_line(step)];
  switch (state) {
    case ProxyStepState::Taken:
      if (Operation* const operation = next_of(line))
        move_on(*operation, /*is_send=*/true, step.step, step.bytes);
      else
        ++line.strays;
      return;
    case ProxyStepState::Sent:
      return finish_sent(line);
    case ProxyStepState::Arrived:
      if (Operation* const operation = next_of(line))
        move_on(*operation, /*is_send=*/false, step.step, step.bytes);
      else
        line.early.push_back(step.step);
      return;
    case ProxyStepState::Read:
      return finish_read(line, step.step);
  }
}

std::shared_ptr<observe::Profiler> ProxyProfile::profiler() const {
  std::lock_guard lock(mutex_);
  return profiler_;
}

bool ProxyProfile::wants_state() const {
  const std::shared_ptr<observe::Profiler> to = profiler();
  return to != nullptr && to->wants(abi::kProxyControl);
}

void ProxyProfile::tell(ProxyState state) {
  const std::shared_ptr<observe::Profiler> to = profiler();
  if (to == nullptr) return;
  switch (state) {
    case ProxyState::Idle:
      return to->tell_proxy_state(abi::kProxyControlIdle, 0);
    case ProxyState::Active:
      return to->tell_proxy_state(abi::kProxyControlActive, 0);
    case ProxyState::Sleep:
      return to->tell_proxy_state(abi::kProxyControlSleep, 0);
    case ProxyState::Wakeup:
      return to->tell_proxy_state(abi::kProxyControlWakeup, 0);
    case ProxyState::Append:
      return to->tell_proxy_state(abi::kProxyControlAppend, 0);
    case ProxyState::AppendEnd:
      return to->tell_proxy_state(abi::kProxyControlAppendEnd, 1);
  }
}

void* ProxyProfile::name_of(const ProxyStep& step) {
  std::lock_guard lock(mutex_);
  if (profiler_ == nullptr || !profiler_->wants(abi::kNetPlugin)) return nullptr;
  for (Operation& operation : lines_[name_of_line(step)].operations)
    for (Step& open : operation.open) {
      if (open.number != step.step) continue;
      if (open.name == nullptr) open.name = NetworkEvents::of_process().name(profiler_, open.event);
      return open.name;
    }
  return nullptr;
}

void ProxyProfile::close() {
  std::shared_ptr<observe::Profiler> last;  // may end below, which calls the plug-in
  std::lock_guard lock(mutex_);
  if (profiler_ == nullptr) return;
  NetworkEvents::of_process().forget_all(*profiler_);
  for (auto& [name, line] : lines_)
    for (Operation& operation : line.operations) finish(operation);
  lines_.clear();
  last.swap(profiler_);
}

}  // namespace niccolite::profiling
