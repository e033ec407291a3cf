#include "operations/stream_order.h"

#include <algorithm>
#include <utility>

#include "operations/shared_events.h"

namespace niccolite::operations {
namespace {

// The most captures in which one communicator's operations may take turns. Nobody tells when a
// capture ends, so the capture that was not used for longest is forgotten.
constexpr size_t kMostCaptures = 64;

// The nodes of `point` that are not in `before`.
gpu::CapturePoint new_in(gpu::CapturePoint point, const gpu::CapturePoint& before) {
  std::erase_if(point.nodes, [&before](gpu::GraphNode node) {
    return std::find(before.nodes.begin(), before.nodes.end(), node) != before.nodes.end();
  });
  return point;
}

}  // namespace

Result<std::shared_ptr<gpu::Event>> StreamOrder::last_work() {
  if (last_work_ == nullptr) last_work_ = TRY(take_shared_event(machine_, device_));
  return last_work_;
}

Status StreamOrder::before(gpu::StreamHandle stream) {
  return before(stream, TRY(machine_.capture_of(device_, stream)));
}

Status StreamOrder::before(gpu::StreamHandle stream, const gpu::Capture& capture) {
  if (capture.state == gpu::CaptureState::Invalidated)
    return Status::cuda_error("the capture of the stream was invalidated by an earlier call");
  TRY(last_work());
  is_captured_ = capture.state == gpu::CaptureState::Active;
  follows_last_ = false;
  if (is_captured_) return before_captured(stream, capture.id);
  stream_ = TRY(machine_.stream_id(device_, stream));
  // Graphs may have been launched since, which nobody has told us of.
  const bool graphs_may_run = has_captured_ && graphs_mix_;
  const bool is_ordered = !has_live_ || live_stream_ == stream_;
  if (is_ordered && !graphs_may_run) return {};
  return machine_.wait_event(device_, stream, *last_work_);
}

Status StreamOrder::after(gpu::StreamHandle stream) {
  if (is_captured_) return after_captured(stream);
  // At once, also where one stream is all there is: later the stream may be gone, or capturing.
  TRY(machine_.record_event(*last_work_, device_, stream));
  has_live_ = true;
  live_stream_ = stream_;
  return {};
}

Status StreamOrder::before_captured(gpu::StreamHandle stream, uint64_t capture) {
  const auto found =
      std::find_if(captures_.begin(), captures_.end(),
                   [capture](const Captured& known) { return known.capture == capture; });
  if (found == captures_.end()) {
    TRY(begin_capture(stream, capture));
  } else {
    std::rotate(found, found + 1, captures_.end());
    if (captures_.back().stream != StreamKey::of(stream))
      TRY(machine_.capture_after(device_, stream, captures_.back().last));
  }
  start_ = TRY(machine_.capture_point(device_, stream));
  follows_last_ = captures_.back().has_work && start_.nodes == captures_.back().last.nodes;
  return {};
}

Status StreamOrder::begin_capture(gpu::StreamHandle stream, uint64_t capture) {
  TRY(graphs_->add(machine_, device_, stream));
  if (graphs_mix_) {
    TRY(keep_in_graph(machine_, device_, stream, last_work_));
    TRY(machine_.wait_event_at_launch(device_, stream, *last_work_));
  }
  gpu::CapturePoint point = TRY(machine_.capture_point(device_, stream));
  if (captures_.size() == kMostCaptures) captures_.erase(captures_.begin());
  captures_.push_back(
      {.capture = capture, .stream = StreamKey::of(stream), .last = std::move(point)});
  has_captured_ = true;
  return {};
}

Status StreamOrder::after_captured(gpu::StreamHandle stream) {
  gpu::CapturePoint end = TRY(machine_.capture_point(device_, stream));
  const gpu::CapturePoint work = new_in(std::move(end), start_);
  if (work.nodes.empty()) return {};  // an operation without work, in place on one rank
  Captured& mine = captures_.back();
  if (!graphs_mix_) {
    // Nothing to record: nobody outside of the graph waits for it.
  } else if (mine.record == nullptr) {
    mine.record = TRY(machine_.record_event_at_launch(device_, work, *last_work_));
  } else {
    TRY(machine_.move_record(device_, mine.record, mine.last, work));
  }
  mine.stream = StreamKey::of(stream);
  mine.last = work;
  mine.has_work = true;
  return {};
}

Result<bool> StreamOrder::drain(Deadline deadline) {
  if (has_captured_ && !graphs_mix_) return machine_.drain(device_, deadline);
  if (last_work_ == nullptr) return true;
  return machine_.await_event(*last_work_, deadline);
}

// E itself moves on with each operation.
Result<std::shared_ptr<gpu::Event>> StreamOrder::mark() {
  std::lock_guard lock(marks_mutex_);
  if (!marks_.valid()) marks_ = TRY(machine_.create_stream(device_));
  std::shared_ptr<gpu::Event> mark = TRY(take_shared_event(machine_, device_));
  TRY(machine_.wait_event(device_, marks_.handle(), *last_work_));
  TRY(machine_.record_event(*mark, device_, marks_.handle()));
  return mark;
}

}  // namespace niccolite::operations
