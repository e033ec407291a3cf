// Events: places in the order of streams, for other streams and for the host.
#include <utility>

#include "gpu/virtual/runtime.h"
#include "gpu/virtual/scheduler.h"

namespace niccolite::gpu::virtual_ {

Error Runtime::create_event(bool timing, void** out) {
  *out = events_.insert(std::make_shared<Event>(timing));
  return Error::None;
}

Error Runtime::destroy_event(void* event) {
  return events_.remove(event) ? Error::None : Error::InvalidResourceHandle;
}

Error Runtime::record_event(void* handle, int device, StreamHandle stream_handle, bool as_node) {
  const std::shared_ptr<Event> event = events_.find(handle);
  const std::shared_ptr<Stream> stream = find_stream(device, stream_handle);
  if (event == nullptr || stream == nullptr) return Error::InvalidResourceHandle;
  OperationPtr marker;
  {
    std::lock_guard lock(mutex_);
    TRY_VIRTUAL(check_usable(*stream));
    if (stream->capture) {
      if (as_node) {
        capture_node(*stream, RecordEvent{event, handle});
      } else {
        event->capture = stream->capture;
        event->captured_after = stream->capture_tips;
        event->is_captured = true;
      }
      return Error::None;
    }
    if (as_node) return Error::IllegalState;
    event->is_captured = false;
    // Where one operation stands for all work so far, and nobody asks when it ended, it is the mark
    // itself.
    std::vector<OperationPtr> tails = tails_to_wait_for(*stream);
    if (tails.size() == 1 && !event->timing) {
      event->recorded = std::move(tails.front());
      return Error::None;
    }
    marker = std::make_shared<Operation>(Nothing{});
    for (const OperationPtr& tail : tails) Operation::after(marker, tail);
    stream->tail = event->recorded = marker;
  }
  scheduler().submit(std::move(marker));
  return Error::None;
}

Error Runtime::wait_event(int device, StreamHandle stream_handle, void* handle, bool as_node) {
  const std::shared_ptr<Event> event = events_.find(handle);
  const std::shared_ptr<Stream> stream = find_stream(device, stream_handle);
  if (event == nullptr || stream == nullptr) return Error::InvalidResourceHandle;
  auto marker = std::make_shared<Operation>(Nothing{});
  {
    std::lock_guard lock(mutex_);
    TRY_VIRTUAL(check_usable(*stream));
    if (stream->capture && as_node) {
      capture_node(*stream, WaitEvent{event, handle});
      return Error::None;
    }
    if (as_node) return Error::IllegalState;
    if (stream->capture || event->is_captured) return capture_wait(stream, *event);
    if (event->recorded == nullptr || event->recorded->is_done()) return Error::None;
    append(*stream, marker, marker);
    Operation::after(marker, event->recorded);
  }
  scheduler().submit(std::move(marker));
  return Error::None;
}

Error Runtime::query_event(void* handle) {
  const std::shared_ptr<Event> event = events_.find(handle);
  if (event == nullptr) return Error::InvalidResourceHandle;
  if (!scheduler().can_run()) return Error::InitializationError;
  std::lock_guard lock(mutex_);
  if (event->is_captured) return Error::CapturedEvent;
  return event->recorded && !event->recorded->is_done() ? Error::NotReady : Error::None;
}

Error Runtime::synchronize_event(void* handle) {
  const std::shared_ptr<Event> event = events_.find(handle);
  if (event == nullptr) return Error::InvalidResourceHandle;
  OperationPtr recorded;
  {
    std::lock_guard lock(mutex_);
    if (event->is_captured) {
      if (const std::shared_ptr<Capture> capture = event->capture.lock())
        capture->is_invalidated = true;
      return Error::CapturedEvent;
    }
    recorded = event->recorded;
  }
  if (recorded == nullptr || recorded->is_done()) return Error::None;
  return wait({recorded});
}

Error Runtime::await_event(void* handle, Deadline deadline) {
  const std::shared_ptr<Event> event = events_.find(handle);
  if (event == nullptr) return Error::InvalidResourceHandle;
  OperationPtr recorded;
  {
    std::lock_guard lock(mutex_);
    if (event->is_captured) return Error::CapturedEvent;
    recorded = event->recorded;
  }
  if (recorded == nullptr || recorded->is_done()) return Error::None;
  return wait({recorded}, deadline);
}

Error Runtime::elapsed_milliseconds(void* start_handle, void* stop_handle, float* out) {
  const std::shared_ptr<Event> start = events_.find(start_handle);
  const std::shared_ptr<Event> stop = events_.find(stop_handle);
  if (start == nullptr || stop == nullptr) return Error::InvalidResourceHandle;
  if (!start->timing || !stop->timing) return Error::InvalidResourceHandle;
  std::lock_guard lock(mutex_);
  if (start->is_captured || stop->is_captured) return Error::CapturedEvent;
  if (start->recorded == nullptr || stop->recorded == nullptr) return Error::InvalidResourceHandle;
  if (!start->recorded->is_done() || !stop->recorded->is_done()) return Error::NotReady;
  const auto span = stop->recorded->finished_at() - start->recorded->finished_at();
  *out = std::chrono::duration<float, std::milli>(span).count();
  return Error::None;
}

}  // namespace niccolite::gpu::virtual_
