// Streams and events. Handles go to the driver as they are, the special ones too, with the device's
// context current: the meaning of 0, 1 and 2 depends on it.
#include <bit>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "gpu/cuda/machine.h"

namespace niccolite::gpu::cuda {
namespace {

constexpr std::chrono::microseconds kPause(20);  // between two looks at an event

}  // namespace

Result<Stream> CudaMachine::create_stream(int device) {
  const ScopedContext scoped = TRY(enter(device));
  const ScopedRelaxedCapture relaxed(driver_);
  CuStream stream = nullptr;
  TRY(driver_.check(driver_.cuStreamCreate(&stream, kCuStreamNonBlocking),
                    "cuStreamCreate(device {})", device));
  return Stream(this, stream);
}

Status CudaMachine::release_stream(void* handle) {
  CuStream stream = as_stream(handle);
  const ScopedRelaxedCapture relaxed(driver_);
  CuContext owner = nullptr;
  TRY(driver_.check(driver_.cuStreamGetCtx(stream, &owner), "cuStreamGetCtx"));
  const ScopedContext scoped = TRY(ScopedContext::enter(driver_, owner));
  return driver_.check(driver_.cuStreamDestroy(stream), "cuStreamDestroy");
}

Status CudaMachine::synchronize_stream(int device, StreamHandle stream) {
  const ScopedContext scoped = TRY(enter(device));
  return driver_.check(driver_.cuStreamSynchronize(as_stream(stream)),
                       "cuStreamSynchronize(device {})", device);
}

Result<bool> CudaMachine::query_stream(int device, StreamHandle stream) {
  const ScopedContext scoped = TRY(enter(device));
  const CuResult result = driver_.cuStreamQuery(as_stream(stream));
  if (result == kCuNotReady) return false;
  TRY(driver_.check(result, "cuStreamQuery(device {})", device));
  return true;
}

Result<uint64_t> CudaMachine::stream_id(int device, StreamHandle stream) {
  const ScopedContext scoped = TRY(enter(device));
  const ScopedRelaxedCapture relaxed(driver_);
  unsigned long long id = 0;
  TRY(driver_.check(driver_.cuStreamGetId(as_stream(stream), &id), "cuStreamGetId(device {})",
                    device));
  return uint64_t{id};
}

Result<Capture> CudaMachine::capture_of(int device, StreamHandle stream) {
  const ScopedContext scoped = TRY(enter(device));
  CuCaptureStatus status = CuCaptureStatus::None;
  unsigned long long id = 0;
  TRY(driver_.check(
      driver_.cuStreamGetCaptureInfo(as_stream(stream), &status, &id, nullptr, nullptr, nullptr),
      "cuStreamGetCaptureInfo(device {})", device));
  switch (status) {
    case CuCaptureStatus::Active:
      return Capture{CaptureState::Active, id};
    case CuCaptureStatus::Invalidated:
      return Capture{CaptureState::Invalidated, 0};
    case CuCaptureStatus::None:
      break;
  }
  return Capture{};
}

Result<Event> CudaMachine::create_event(int device, bool timing) {
  const ScopedContext scoped = TRY(enter(device));
  const ScopedRelaxedCapture relaxed(driver_);
  CuEvent event = nullptr;
  TRY(driver_.check(driver_.cuEventCreate(&event, timing ? 0 : kCuEventDisableTiming),
                    "cuEventCreate(device {})", device));
  return Event(this, event);
}

Status CudaMachine::release_event(void* handle) {
  const ScopedRelaxedCapture relaxed(driver_);
  const ScopedContext scoped = TRY(enter_any());
  return driver_.check(driver_.cuEventDestroy(static_cast<CuEvent>(handle)), "cuEventDestroy");
}

Status CudaMachine::record_event(const Event& event, int device, StreamHandle stream) {
  const ScopedContext scoped = TRY(enter(device));
  return driver_.check(driver_.cuEventRecord(as_event(event), as_stream(stream)),
                       "cuEventRecord(device {})", device);
}

Status CudaMachine::wait_event(int device, StreamHandle stream, const Event& event) {
  const ScopedContext scoped = TRY(enter(device));
  return driver_.check(driver_.cuStreamWaitEvent(as_stream(stream), as_event(event), 0),
                       "cuStreamWaitEvent(device {})", device);
}

Status CudaMachine::synchronize_event(const Event& event) {
  const ScopedContext scoped = TRY(enter_any());
  return driver_.check(driver_.cuEventSynchronize(as_event(event)), "cuEventSynchronize");
}

Result<bool> CudaMachine::await_event(const Event& event, Deadline deadline) {
  const ScopedContext scoped = TRY(enter_any());
  for (;;) {
    CuResult result = kCuSuccess;
    {
      // Otherwise querying an event would invalidate captures, even if it is an event of none of
      // them.
      const ScopedRelaxedCapture relaxed(driver_);
      result = driver_.cuEventQuery(as_event(event));
    }
    if (result != kCuNotReady) {
      TRY(driver_.check(result, "cuEventQuery"));
      return true;
    }
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(kPause);
  }
}

Result<float> CudaMachine::elapsed_milliseconds(const Event& start, const Event& stop) {
  const ScopedContext scoped = TRY(enter_any());
  float milliseconds = 0;
  TRY(driver_.check(driver_.cuEventElapsedTime(&milliseconds, as_event(start), as_event(stop)),
                    "cuEventElapsedTime"));
  return milliseconds;
}

Status CudaMachine::copy_async(void* target, const void* source, size_t bytes, int device,
                               StreamHandle stream) {
  const ScopedContext scoped = TRY(enter(device));
  return driver_.check(
      driver_.cuMemcpyAsync(as_pointer(target), as_pointer(source), bytes, as_stream(stream)),
      "cuMemcpyAsync({} bytes on device {})", bytes, device);
}

Status CudaMachine::set_async(void* target, uint8_t value, size_t bytes, int device,
                              StreamHandle stream) {
  const ScopedContext scoped = TRY(enter(device));
  return driver_.check(driver_.cuMemsetD8Async(as_pointer(target), value, bytes, as_stream(stream)),
                       "cuMemsetD8Async({} bytes on device {})", bytes, device);
}

Status CudaMachine::call_host(int device, StreamHandle stream, void (*function)(void*),
                              void* data) {
  const ScopedContext scoped = TRY(enter(device));
  return driver_.check(driver_.cuLaunchHostFunc(as_stream(stream), function, data),
                       "cuLaunchHostFunc(device {})", device);
}

// Work of a device, whatever its streams, is what its context has: to record it, or to wait for it,
// is refused while a stream of the context is capturing, in any mode and by any thread.
Status CudaMachine::check_drain(CuResult result, const char* call, int device) {
  if (result == kCuStreamCaptureUnsupported) {
    return Status::invalid_usage(
        "device {} cannot be waited for while a stream of it is being captured, and the capture is "
        "now invalid: end captures before finalizing, destroying or aborting a communicator",
        device);
  }
  return driver_.check(result, "{}(device {})", call, device);
}

namespace {

class RecordedBacklog final : public Backlog {
 public:
  RecordedBacklog(Streams& machine, Event event) : machine_(machine), event_(std::move(event)) {}
  Result<bool> await(Deadline deadline) override { return machine_.await_event(event_, deadline); }

 private:
  Streams& machine_;
  const Event event_;
};

// For drivers before CUDA 12.5, which can wait for a whole context only without a deadline: a
// thread of its own does, and is left behind when it takes too long.
class SynchronizedBacklog final : public Backlog {
 public:
  using Check = std::function<Status(CuResult)>;
  SynchronizedBacklog(const Driver& driver, CuContext context, Check check)
      : check_(std::move(check)) {
    std::promise<CuResult> promise;
    done_ = promise.get_future().share();
    std::thread([&driver, context, promise = std::move(promise)]() mutable {
      CuResult result = driver.cuCtxSetCurrent(context);
      if (result == kCuSuccess) result = driver.cuCtxSynchronize();
      promise.set_value(result);
    }).detach();
  }
  Result<bool> await(Deadline deadline) override {
    while (done_.wait_for(std::chrono::milliseconds(deadline.poll_milliseconds(100))) !=
           std::future_status::ready) {
      if (deadline.passed()) return false;
    }
    TRY(check_(done_.get()));
    return true;
  }

 private:
  const Check check_;
  std::shared_future<CuResult> done_;
};

}  // namespace

Result<std::shared_ptr<Backlog>> CudaMachine::backlog(int device) {
  CuContext primary = TRY(context(device));
  if (driver_.cuCtxRecordEvent == nullptr)
    return std::shared_ptr<Backlog>(
        std::make_shared<SynchronizedBacklog>(driver_, primary, [this, device](CuResult result) {
          return check_drain(result, "cuCtxSynchronize", device);
        }));
  Event event = TRY(create_event(device, /*timing=*/false));
  TRY(check_drain(driver_.cuCtxRecordEvent(primary, as_event(event)), "cuCtxRecordEvent", device));
  return std::shared_ptr<Backlog>(std::make_shared<RecordedBacklog>(*this, std::move(event)));
}

}  // namespace niccolite::gpu::cuda
