// Streams, events, host functions, and kernels (which only the library has).
#include <algorithm>

#include "vcuda/call.h"

using niccolite::gpu::virtual_::CaptureInfo;
using niccolite::gpu::virtual_::HostCall;
using niccolite::gpu::virtual_::Stream;
using vcuda::call;
using vcuda::Error;
using vcuda::Place;
using vcuda::place_of;
using vcuda::Runtime;

namespace {

Error properties(Runtime& runtime, cudaStream_t stream, Stream* out) {
  return runtime.stream_properties(Runtime::current_device(), stream, out);
}

}  // namespace

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int priority) {
  return call([&](Runtime& runtime) {
    if (stream == nullptr || flags > cudaStreamNonBlocking) return Error::InvalidValue;
    void* handle = nullptr;
    TRY_VIRTUAL(runtime.create_stream(Runtime::current_device(), flags != cudaStreamNonBlocking,
                                      std::clamp(priority, -5, 0), &handle));
    *stream = static_cast<cudaStream_t>(handle);
    return Error::None;
  });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return call([&](Runtime& runtime) { return runtime.destroy_stream(stream); });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return call([&](Runtime& runtime) {
    return runtime.synchronize_stream(place_of(runtime, stream).device, stream);
  });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return call([&](Runtime& runtime) {
    return runtime.query_stream(place_of(runtime, stream).device, stream);
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
  return call([&](Runtime& runtime) {
    if (flags > cudaEventWaitExternal) return Error::InvalidValue;
    return runtime.wait_event(place_of(runtime, stream).device, stream, event,
                              flags == cudaEventWaitExternal);
  });
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned int* flags) {
  return call([&](Runtime& runtime) {
    Stream found;
    if (flags == nullptr) return Error::InvalidValue;
    TRY_VIRTUAL(properties(runtime, stream, &found));
    *flags = found.is_blocking ? cudaStreamDefault : cudaStreamNonBlocking;
    return Error::None;
  });
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  return call([&](Runtime& runtime) {
    Stream found;
    if (priority == nullptr) return Error::InvalidValue;
    TRY_VIRTUAL(properties(runtime, stream, &found));
    *priority = found.priority;
    return Error::None;
  });
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
  return call([&](Runtime& runtime) {
    Stream found;
    if (device == nullptr) return Error::InvalidValue;
    TRY_VIRTUAL(properties(runtime, stream, &found));
    *device = found.device;
    return Error::None;
  });
}

cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  return call([&](Runtime& runtime) {
    uint64_t found = 0;
    if (id == nullptr) return Error::InvalidValue;
    TRY_VIRTUAL(runtime.stream_id(place_of(runtime, stream).device, stream, &found));
    *id = found;
    return Error::None;
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return call([&](Runtime& runtime) {
    if (function == nullptr) return Error::InvalidValue;
    return runtime.submit(place_of(runtime, stream).device, stream,
                          HostCall{nullptr, function, data});
  });
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data,
                                  unsigned int flags) {
  return call([&](Runtime& runtime) {
    if (callback == nullptr || flags != 0) return Error::InvalidValue;
    const Place place = place_of(runtime, stream);
    CaptureInfo capture;
    TRY_VIRTUAL(runtime.capture_info(place.device, stream, &capture));
    if (capture.state != niccolite::gpu::CaptureState::None) return Error::StreamCaptureUnsupported;
    return runtime.submit(place.device, stream, HostCall{[callback, stream, data] {
                            callback(stream, cudaSuccess, data);
                          }});
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  return call([&](Runtime& runtime) {
    if (event == nullptr || flags > 7) return Error::InvalidValue;
    // CUDA asks for both flags together; virtual GPUs have no events between processes.
    if ((flags & cudaEventInterprocess) != 0)
      return (flags & cudaEventDisableTiming) != 0 ? Error::NotSupported : Error::InvalidValue;
    void* handle = nullptr;
    TRY_VIRTUAL(runtime.create_event((flags & cudaEventDisableTiming) == 0, &handle));
    *event = static_cast<cudaEvent_t>(handle);
    return Error::None;
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags) {
  return call([&](Runtime& runtime) {
    if (flags > cudaEventRecordExternal) return Error::InvalidValue;
    return runtime.record_event(event, place_of(runtime, stream).device, stream,
                                flags == cudaEventRecordExternal);
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, cudaEventRecordDefault);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return call([&](Runtime& runtime) {
    TRY_VIRTUAL(runtime.check_unsafe_call());
    return runtime.query_event(event);
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return call([&](Runtime& runtime) { return runtime.synchronize_event(event); });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return call([&](Runtime& runtime) {
    if (milliseconds == nullptr) return Error::InvalidValue;
    return runtime.elapsed_milliseconds(start, end, milliseconds);
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return call([&](Runtime& runtime) { return runtime.destroy_event(event); });
}
