#include "comm/stream_order.h"

namespace niccolite::comm {

Status StreamOrder::ensure_events() {
  if (!live_event_.valid()) live_event_ = TRY(machine_.create_event(device_, /*timing=*/false));
  if (!captured_event_.valid())
    captured_event_ = TRY(machine_.create_event(device_, /*timing=*/false));
  return {};
}

Status StreamOrder::order(Last& last, const gpu::Event& event, gpu::StreamHandle stream) {
  if (!last.exists || last.stream == stream) return {};
  if (!last.recorded) TRY(machine_.record_event(event, device_, last.stream));
  last.recorded = true;
  return machine_.wait_event(device_, stream, event);
}

Status StreamOrder::before(gpu::StreamHandle stream) {
  const gpu::Capture capture = TRY(machine_.capture_of(device_, stream));
  if (capture.state == gpu::CaptureState::Invalidated)
    return Status::cuda_error("the capture of the stream was invalidated by an earlier call");
  capturing_ = capture.state == gpu::CaptureState::Active;
  if (capturing_ && capture.id != capture_id_) {
    captured_ = {};
    capture_id_ = capture.id;
  }
  Last& last = capturing_ ? captured_ : live_;
  if (last.exists && last.stream != stream) {
    many_streams_ = true;
    TRY(ensure_events());
  }
  return order(last, capturing_ ? captured_event_ : live_event_, stream);
}

Status StreamOrder::after(gpu::StreamHandle stream) {
  Last& last = capturing_ ? captured_ : live_;
  last = {.exists = true, .stream = stream, .recorded = false};
  if (!many_streams_) return {};
  TRY(machine_.record_event(capturing_ ? captured_event_ : live_event_, device_, stream));
  last.recorded = true;
  return {};
}

}  // namespace niccolite::comm
