// Streams, events, host functions, capture.
#include <memory>

#include "vcuda/driver/context.h"

using namespace vcuda::driver;  // NOLINT(google-build-using-namespace)
using niccolite::gpu::virtual_::Comparison;
using niccolite::gpu::virtual_::DriverCalls;

namespace {

/// CU_STREAM_CAPTURE_STATUS_*, as the runtime's.
CUresult capture_info(CUstream stream, int* status, unsigned long long* id, CUgraph* graph,
                      const CUgraphNode** dependencies, const cudaGraphEdgeData** edges,
                      size_t* count) {
  return in_context([&] {
    if (status == nullptr) return kInvalidValue;
    cudaStreamCaptureStatus found = cudaStreamCaptureStatusNone;
    const CUresult result =
        of(cudaStreamGetCaptureInfo(stream, &found, id, graph, dependencies, edges, count));
    *status = static_cast<int>(found);
    return result;
  });
}

CUresult wait_value(CUstream stream, CUdeviceptr address, uint64_t value, size_t bytes,
                    unsigned int flags) {
  constexpr unsigned int kFlush = 1u << 30, kLast = 3;
  if ((flags & ~kFlush) > kLast) return kInvalidValue;
  return in_stream(stream, [&](int device, DriverCalls& calls) {
    return static_cast<CUresult>(calls.wait_value(device, stream, reinterpret_cast<void*>(address),
                                                  value, bytes,
                                                  static_cast<Comparison>(flags & ~kFlush)));
  });
}

CUresult write_value(CUstream stream, CUdeviceptr address, uint64_t value, size_t bytes,
                     unsigned int flags) {
  constexpr unsigned int kNoBarrier = 1;
  if (flags > kNoBarrier) return kInvalidValue;
  return in_stream(stream, [&](int device, DriverCalls& calls) {
    return static_cast<CUresult>(
        calls.write_value(device, stream, reinterpret_cast<void*>(address), value, bytes));
  });
}

}  // namespace

extern "C" {

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned int flags, int priority) {
  return in_context([&] { return of(cudaStreamCreateWithPriority(stream, flags, priority)); });
}
CUresult cuStreamCreate(CUstream* stream, unsigned int flags) {
  return cuStreamCreateWithPriority(stream, flags, 0);
}
CUresult cuStreamDestroy_v2(CUstream stream) {
  return in_context([&] { return of(cudaStreamDestroy(stream)); });
}
CUresult cuStreamSynchronize(CUstream stream) {
  return in_context([&] { return of(cudaStreamSynchronize(stream)); });
}
CUresult cuStreamQuery(CUstream stream) {
  return in_context([&] { return of(cudaStreamQuery(stream)); });
}
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
  return in_context([&] { return of(cudaStreamWaitEvent(stream, event, flags)); });
}
CUresult cuStreamGetFlags(CUstream stream, unsigned int* flags) {
  return in_context([&] { return of(cudaStreamGetFlags(stream, flags)); });
}
CUresult cuStreamGetPriority(CUstream stream, int* priority) {
  return in_context([&] { return of(cudaStreamGetPriority(stream, priority)); });
}
CUresult cuStreamGetDevice(CUstream stream, CUdevice* device) {
  return in_context([&] { return of(cudaStreamGetDevice(stream, device)); });
}
CUresult cuStreamGetId(CUstream stream, unsigned long long* id) {
  return in_context([&] { return of(cudaStreamGetId(stream, id)); });
}
CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
  if (context == nullptr) return kInvalidValue;
  int device = 0;
  const CUresult result = cuStreamGetDevice(stream, &device);
  if (result == kSuccess) *context = primary_context(device);
  return result;
}
CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext* context, void** green) {
  if (green != nullptr) *green = nullptr;  // there are none
  return cuStreamGetCtx(stream, context);
}
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  return in_context([&] { return of(cudaLaunchHostFunc(stream, function, data)); });
}
CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void* data,
                             unsigned int flags) {
  struct Call {
    CUstreamCallback callback;
    void* data;
    static void run(cudaStream_t stream, cudaError_t status, void* held) {
      const std::unique_ptr<Call> call(static_cast<Call*>(held));
      call->callback(stream, of(status), call->data);
    }
  };
  return in_context([&] {
    if (callback == nullptr) return kInvalidValue;
    auto call = std::make_unique<Call>(Call{callback, data});
    const CUresult result = of(cudaStreamAddCallback(stream, Call::run, call.get(), flags));
    if (result == kSuccess) static_cast<void>(call.release());  // the stream's, from now on
    return result;
  });
}

// ---- words in memory
// Which flush or barrier a flag asks for makes no difference: all memory is one.

CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value,
                                unsigned int flags) {
  return wait_value(stream, address, value, sizeof value, flags);
}
CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, uint64_t value,
                                unsigned int flags) {
  return wait_value(stream, address, value, sizeof value, flags);
}
CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value,
                                 unsigned int flags) {
  return write_value(stream, address, value, sizeof value, flags);
}
CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, uint64_t value,
                                 unsigned int flags) {
  return write_value(stream, address, value, sizeof value, flags);
}
CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned int count, CUstreamBatchMemOpParams* list,
                               unsigned int flags) {
  constexpr int kWait32 = 1, kWrite32 = 2, kFlush = 3, kWait64 = 4, kWrite64 = 5, kBarrier = 6;
  constexpr unsigned int kMost = 256;
  if (list == nullptr || count == 0 || count > kMost || flags != 0) return kInvalidValue;
  for (unsigned int i = 0; i < count; ++i) {
    const auto& one = list[i].value;
    CUresult result = kSuccess;
    switch (one.operation) {
      case kWait32:
        result = wait_value(stream, one.address, static_cast<uint32_t>(one.value), 4, one.flags);
        break;
      case kWait64:
        result = wait_value(stream, one.address, one.value, 8, one.flags);
        break;
      case kWrite32:
        result = write_value(stream, one.address, static_cast<uint32_t>(one.value), 4, one.flags);
        break;
      case kWrite64:
        result = write_value(stream, one.address, one.value, 8, one.flags);
        break;
      case kFlush:
      case kBarrier:
        break;
      default:
        result = kInvalidValue;
    }
    if (result != kSuccess) return result;
  }
  return kSuccess;
}

// ---- capture

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) {
  return in_context(
      [&] { return of(cudaStreamBeginCapture(stream, static_cast<cudaStreamCaptureMode>(mode))); });
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  return in_context([&] { return of(cudaStreamEndCapture(stream, graph)); });
}
CUresult cuStreamIsCapturing(CUstream stream, int* status) {
  return in_context([&] {
    if (status == nullptr) return kInvalidValue;
    cudaStreamCaptureStatus found = cudaStreamCaptureStatusNone;
    const CUresult result = of(cudaStreamIsCapturing(stream, &found));
    *status = static_cast<int>(found);
    return result;
  });
}
CUresult cuStreamGetCaptureInfo_v2(CUstream stream, int* status, unsigned long long* id,
                                   CUgraph* graph, const CUgraphNode** dependencies,
                                   size_t* count) {
  return capture_info(stream, status, id, graph, dependencies, nullptr, count);
}
CUresult cuStreamGetCaptureInfo_v3(CUstream stream, int* status, unsigned long long* id,
                                   CUgraph* graph, const CUgraphNode** dependencies,
                                   const cudaGraphEdgeData** edges, size_t* count) {
  return capture_info(stream, status, id, graph, dependencies, edges, count);
}
CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode* dependencies, size_t count,
                                           unsigned int flags) {
  return in_context([&] {
    return of(cudaStreamUpdateCaptureDependencies(stream, dependencies, nullptr, count, flags));
  });
}
CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode* dependencies,
                                              const cudaGraphEdgeData* edges, size_t count,
                                              unsigned int flags) {
  return in_context([&] {
    return of(cudaStreamUpdateCaptureDependencies(stream, dependencies, edges, count, flags));
  });
}
CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph,
                                     const CUgraphNode* dependencies,
                                     const cudaGraphEdgeData* edges, size_t count, int mode) {
  return in_context([&] {
    return of(cudaStreamBeginCaptureToGraph(stream, graph, dependencies, edges, count,
                                            static_cast<cudaStreamCaptureMode>(mode)));
  });
}
CUresult cuThreadExchangeStreamCaptureMode(int* mode) {
  if (mode == nullptr) return kInvalidValue;
  auto exchanged = static_cast<cudaStreamCaptureMode>(*mode);
  const CUresult result = of(cudaThreadExchangeStreamCaptureMode(&exchanged));
  *mode = static_cast<int>(exchanged);
  return result;
}

// ---- events

CUresult cuEventCreate(CUevent* event, unsigned int flags) {
  return in_context([&] { return of(cudaEventCreateWithFlags(event, flags)); });
}
CUresult cuEventRecord(CUevent event, CUstream stream) {
  return in_context([&] { return of(cudaEventRecord(event, stream)); });
}
CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags) {
  return in_context([&] { return of(cudaEventRecordWithFlags(event, stream, flags)); });
}
CUresult cuEventQuery(CUevent event) {
  return is_initialized() ? of(cudaEventQuery(event)) : kNotInitialized;
}
CUresult cuEventSynchronize(CUevent event) {
  return is_initialized() ? of(cudaEventSynchronize(event)) : kNotInitialized;
}
CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return is_initialized() ? of(cudaEventElapsedTime(milliseconds, start, end)) : kNotInitialized;
}
CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  return cuEventElapsedTime(milliseconds, start, end);
}
CUresult cuEventDestroy_v2(CUevent event) {
  return is_initialized() ? of(cudaEventDestroy(event)) : kNotInitialized;
}

}  // extern "C"
