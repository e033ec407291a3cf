#include "operations/buffer_comparison.h"

#include <algorithm>
#include <utility>

#include "gpu/machine.h"

namespace niccolite::operations {
namespace {

/// Calls function(buffer) for the buffers of collectives, two each, in an order that all ranks have
/// alike.
template <typename Function>
void for_each_buffer(std::span<const calls::Task> tasks, Function&& function) {
  for (const calls::Task& task : tasks) {
    if (task.call.is_message()) continue;
    function(task.input);
    function(task.output);
  }
}

}  // namespace

BufferComparison::BufferComparison(Options options)
    : options_(std::move(options)),
      agreement_(options_.rank, options_.nranks, /*reached=*/false, options_.abort, options_.tell) {
}

Result<bool> BufferComparison::is_due(std::span<const calls::Task> tasks) {
  const auto collectives = static_cast<size_t>(std::ranges::count_if(
      tasks, [](const calls::Task& task) { return !task.call.is_message(); }));
  if (collectives == 0) {
    begun_ = launched_;
    is_captured_ = false;
    TRY(agreement_.begin(0));
    return false;
  }
  const gpu::Capture capture = TRY(options_.machine.capture_of(options_.device, tasks[0].stream));
  is_captured_ = capture.state != gpu::CaptureState::None;
  if (is_captured_) return options_.of_captured;
  begun_ = launched_ + collectives;
  uint64_t key = 2 * launched_;
  for_each_buffer(tasks, [&](const void* buffer) { options_.buffers.note(key++, buffer); });
  due_turn_ = TRY(agreement_.begin(collectives)) & kTurn;
  if (due_turn_ != turn_) return true;
  if (options_.buffers.has_noted() && wished_ == turn_) agreement_.wish(wished_ ^= kTurn);
  return false;
}

Result<std::vector<registry::CapturedBuffer>> BufferComparison::compare(
    std::span<const calls::Task> tasks) {
  if (is_captured_) {
    std::vector<const void*> buffers;
    for_each_buffer(tasks, [&](const void* buffer) { buffers.push_back(buffer); });
    return options_.buffers.compare_captured(buffers, options_.reach);
  }
  TRY(options_.buffers.compare_noted(options_.reach));
  turn_ = due_turn_;
  return std::vector<registry::CapturedBuffer>();
}

void BufferComparison::launched() {
  if (is_captured_) return;
  launched_ = begun_;
  agreement_.launched();
}

}  // namespace niccolite::operations
