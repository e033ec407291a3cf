#include "operations/work_in_flight.h"

#include <algorithm>

#include "operations/shared_events.h"

namespace niccolite::operations {
namespace {

// From so many on, those are forgotten whose work is done, and which no graph will do again.
constexpr size_t kManyStreams = 64;

}  // namespace

Status WorkInFlight::before(gpu::StreamHandle stream) {
  const gpu::Capture capture = TRY(machine_.capture_of(device_, stream));
  if (capture.state == gpu::CaptureState::Invalidated)
    return Status::cuda_error("the capture of the stream was invalidated by an earlier call");
  capture_ = capture.state == gpu::CaptureState::Active ? capture.id : 0;
  if (capture_ == 0) stream_ = TRY(machine_.stream_id(device_, stream));
  return {};
}

Status WorkInFlight::after(gpu::StreamHandle stream) {
  if (capture_ != 0) return after_captured(stream);
  auto of_stream = std::ranges::find(live_, stream_, &Live::stream);
  if (of_stream == live_.end()) {
    if (live_.size() >= kManyStreams) forget_done();
    live_.push_back({.stream = stream_, .event = TRY(take_shared_event(machine_, device_))});
    of_stream = std::prev(live_.end());
  }
  return machine_.record_event(*of_stream->event, device_, stream);
}

// The work for which the event of a capture stands changes with each launch of its graph.
Status WorkInFlight::after_captured(gpu::StreamHandle stream) {
  gpu::CapturePoint point = TRY(machine_.capture_point(device_, stream));
  const StreamKey key = StreamKey::of(stream);
  const auto known = std::ranges::find_if(captured_, [&](const Captured& each) {
    return each.capture == capture_ && each.stream == key;
  });
  if (known != captured_.end()) {
    if (known->last.nodes == point.nodes) return {};
    TRY(machine_.move_record(device_, known->record, known->last, point));
    known->last = std::move(point);
    return {};
  }
  if (captured_.size() >= kManyStreams) forget_done();
  Captured made{.capture = capture_,
                .stream = key,
                .event = TRY(take_shared_event(machine_, device_)),
                .record = nullptr,
                .last = std::move(point)};
  TRY(graphs_->add(machine_, device_, stream));
  TRY(keep_in_graph(machine_, device_, stream, made.event));
  made.record = TRY(machine_.record_event_at_launch(device_, made.last, *made.event));
  captured_.push_back(std::move(made));
  return {};
}

void WorkInFlight::forget_done() {
  const auto is_done = [&](const std::shared_ptr<gpu::Event>& event) {
    if (event.use_count() > 1) return false;  // a graph holds it
    const Result<bool> done = machine_.await_event(*event, Deadline::after({}));
    return done.is_ok() && done.value();
  };
  std::erase_if(live_, [&](const Live& each) { return is_done(each.event); });
  std::erase_if(captured_, [&](const Captured& each) { return is_done(each.event); });
}

Result<bool> WorkInFlight::drain(Deadline deadline) {
  for (const Live& each : live_)
    if (!TRY(machine_.await_event(*each.event, deadline))) return false;
  for (const Captured& each : captured_)
    if (!TRY(machine_.await_event(*each.event, deadline))) return false;
  return true;
}

}  // namespace niccolite::operations
