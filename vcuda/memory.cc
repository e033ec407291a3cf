// Memory: allocation, copies, attributes, and sharing between processes.
#include "gpu/virtual/memory.h"

#include <cstring>
#include <utility>

#include "vcuda/call.h"
#include "vcuda/volume.h"

using niccolite::gpu::PointerKind;
using niccolite::gpu::virtual_::Copy;
using niccolite::gpu::virtual_::HostCall;
using niccolite::gpu::virtual_::MemoryOrigin;
using niccolite::gpu::virtual_::MemoryProperties;
using niccolite::gpu::virtual_::RemoteName;
using niccolite::gpu::virtual_::Set;
using vcuda::call;
using vcuda::Error;
using vcuda::Place;
using vcuda::place_of;
using vcuda::Runtime;

namespace {

// The content of a cudaIpcMemHandle_t.
struct IpcHandle {
  uint64_t magic;
  RemoteName name;
};
constexpr uint64_t kIpcMagic = 0x6e6963636f6c6974;
static_assert(sizeof(IpcHandle) <= CUDA_IPC_HANDLE_SIZE);

Error allocate(Runtime& runtime, PointerKind kind, void** out, size_t size) {
  if (out == nullptr) return Error::InvalidValue;
  TRY_VIRTUAL(runtime.check_unsafe_call());
  *out = nullptr;
  if (size == 0) return Error::None;
  const int device = kind == PointerKind::Host ? -1 : Runtime::current_device();
  MemoryProperties made;
  TRY_VIRTUAL(runtime.memory().allocate(device, size, kind, false, &made));
  *out = made.base;
  return Error::None;
}

bool is_known(Runtime& runtime, const void* pointer) {
  MemoryProperties ignored;
  return runtime.memory().find(pointer, &ignored);
}

// Checks that the direction agrees with the kinds of the pointers; host memory of either kind
// passes for "host".
Error check_direction(Runtime& runtime, const void* target, const void* source,
                      cudaMemcpyKind kind) {
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (static_cast<unsigned int>(kind) > cudaMemcpyDefault) return Error::InvalidMemcpyDirection;
  if (to_device && !is_known(runtime, target)) return Error::InvalidValue;
  if (from_device && !is_known(runtime, source)) return Error::InvalidValue;
  return Error::None;
}

cudaError_t copy(const Copy& copy, cudaMemcpyKind kind, cudaStream_t stream, bool waits) {
  return call([&](Runtime& runtime) {
    if (!is_empty(copy)) TRY_VIRTUAL(check_direction(runtime, copy.target, copy.source, kind));
    const Place place = place_of(runtime, stream);
    return runtime.copy(place.device, place.stream, copy, waits);
  });
}

Copy line(void* target, const void* source, size_t bytes) {
  return {static_cast<std::byte*>(target), static_cast<const std::byte*>(source), bytes};
}

cudaError_t copy_2d(void* target, size_t target_pitch, const void* source, size_t source_pitch,
                    size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t stream,
                    bool waits) {
  if (height > 0 && (width > target_pitch || width > source_pitch))
    return vcuda::keep(cudaErrorInvalidPitchValue);
  Copy rows = line(target, source, width);
  rows.rows = height;
  rows.target_pitch = target_pitch;
  rows.source_pitch = source_pitch;
  return copy(rows, kind, stream, waits);
}

cudaError_t copy_3d(const cudaMemcpy3DParms* volume, cudaStream_t stream, bool waits) {
  Copy made{};
  const Error error = vcuda::copy_of(volume, &made);
  if (error != Error::None) return vcuda::keep(static_cast<cudaError_t>(error));
  return copy(made, volume->kind, stream, waits);
}

cudaError_t fill(void* target, int value, size_t width, size_t rows, size_t pitch,
                 cudaStream_t stream, bool waits) {
  return call([&](Runtime& runtime) {
    const Place place = place_of(runtime, stream);
    const Set set{static_cast<std::byte*>(target), static_cast<uint8_t>(value), width, rows, pitch};
    return runtime.set(place.device, place.stream, set, waits);
  });
}

}  // namespace

cudaError_t cudaMalloc(void** pointer, size_t size) {
  return call(
      [&](Runtime& runtime) { return allocate(runtime, PointerKind::Device, pointer, size); });
}

cudaError_t cudaMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height) {
  return call([&](Runtime& runtime) {
    constexpr size_t kPitch = 512;
    if (pitch == nullptr || width > SIZE_MAX / 2) return Error::InvalidValue;
    *pitch = (width + kPitch - 1) / kPitch * kPitch;
    if (height != 0 && *pitch > SIZE_MAX / height) return Error::MemoryAllocation;
    return allocate(runtime, PointerKind::Device, pointer, *pitch * height);
  });
}

cudaError_t cudaMallocManaged(void** pointer, size_t size, unsigned int flags) {
  return call([&](Runtime& runtime) {
    if (flags != cudaMemAttachGlobal && flags != cudaMemAttachHost) return Error::InvalidValue;
    if (size == 0) return Error::InvalidValue;
    return allocate(runtime, PointerKind::Managed, pointer, size);
  });
}

// The memory may be used at once, which is more than the stream's order promises.
cudaError_t cudaMallocAsync(void** pointer, size_t size, cudaStream_t stream) {
  return call([&](Runtime& runtime) {
    if (pointer == nullptr) return Error::InvalidValue;
    *pointer = nullptr;
    const Place place = place_of(runtime, stream);
    niccolite::gpu::virtual_::CaptureInfo capture;
    TRY_VIRTUAL(runtime.capture_info(place.device, place.stream, &capture));
    if (capture.state != niccolite::gpu::CaptureState::None) return Error::NotSupported;
    if (size == 0) return Error::None;
    MemoryProperties made;
    TRY_VIRTUAL(runtime.memory().allocate(place.device, size, PointerKind::Device, false, &made));
    *pointer = made.base;
    return Error::None;
  });
}

cudaError_t cudaFree(void* pointer) {
  return call([&](Runtime& runtime) {
    if (pointer == nullptr) return Error::None;
    TRY_VIRTUAL(runtime.check_unsafe_call());
    MemoryProperties found;
    if (!runtime.memory().find(pointer, &found) || found.base != pointer)
      return Error::InvalidValue;
    // As on CUDA, memory that the program has mapped by the driver must be released by the driver.
    if (found.origin != MemoryOrigin::Carved || found.kind == PointerKind::Host)
      return Error::InvalidValue;
    // As on CUDA, work that was queued before may still use the memory.
    (void)runtime.drain(found.device, niccolite::Deadline::never());
    return runtime.memory().release(pointer);
  });
}

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  return call([&](Runtime& runtime) {
    MemoryProperties found;
    if (!runtime.memory().find(pointer, &found) || found.base != pointer)
      return Error::InvalidValue;
    if (found.origin != MemoryOrigin::Carved || found.kind != PointerKind::Device)
      return Error::InvalidValue;
    const Place place = place_of(runtime, stream);
    niccolite::gpu::virtual_::CaptureInfo capture;
    TRY_VIRTUAL(runtime.capture_info(place.device, place.stream, &capture));
    if (capture.state != niccolite::gpu::CaptureState::None) return Error::NotSupported;
    // A second free before the first has run finds nothing and is lost, as any error after the call
    // would be.
    return runtime.submit(place.device, place.stream, HostCall{[&runtime, pointer] {
                            (void)runtime.memory().release(pointer);
                          }});
  });
}

cudaError_t cudaHostAlloc(void** pointer, size_t size, unsigned int) {
  return call(
      [&](Runtime& runtime) { return allocate(runtime, PointerKind::Host, pointer, size); });
}

cudaError_t cudaMallocHost(void** pointer, size_t size) {
  return cudaHostAlloc(pointer, size, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void* pointer) {
  return call([&](Runtime& runtime) {
    if (pointer == nullptr) return Error::None;
    TRY_VIRTUAL(runtime.check_unsafe_call());
    MemoryProperties found;
    if (!runtime.memory().find(pointer, &found) || found.base != pointer ||
        found.kind != PointerKind::Host || found.origin != MemoryOrigin::Carved)
      return Error::InvalidValue;
    for (int device = 0; device < runtime.device_count(); ++device)
      (void)runtime.drain(device, niccolite::Deadline::never());
    return runtime.memory().release(pointer);
  });
}

cudaError_t cudaHostRegister(void* pointer, size_t size, unsigned int) {
  return call([&](Runtime& runtime) { return runtime.memory().register_host(pointer, size); });
}

cudaError_t cudaHostUnregister(void* pointer) {
  return call([&](Runtime& runtime) {
    MemoryProperties found;
    if (!runtime.memory().find(pointer, &found) || found.base != pointer ||
        found.origin != MemoryOrigin::Registered)
      return Error::HostMemoryNotRegistered;
    return runtime.memory().release(pointer);
  });
}

cudaError_t cudaHostGetDevicePointer(void** device_pointer, void* host_pointer,
                                     unsigned int flags) {
  return call([&](Runtime& runtime) {
    MemoryProperties found;
    if (device_pointer == nullptr || flags != 0) return Error::InvalidValue;
    if (!runtime.memory().find(host_pointer, &found) || found.kind != PointerKind::Host)
      return Error::InvalidValue;
    *device_pointer = host_pointer;
    return Error::None;
  });
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return call([&](Runtime& runtime) {
    if (free == nullptr || total == nullptr) return Error::InvalidValue;
    runtime.memory().usage(Runtime::current_device(), free, total);
    return Error::None;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  return call([&](Runtime& runtime) {
    if (attributes == nullptr) return Error::InvalidValue;
    *attributes = {};
    attributes->device = cudaInvalidDeviceId;
    void* address = const_cast<void*>(pointer);
    MemoryProperties found;
    if (!runtime.memory().find(pointer, &found)) {
      attributes->type = cudaMemoryTypeUnregistered;
      attributes->hostPointer = address;
      return Error::None;
    }
    attributes->devicePointer = address;
    attributes->device = found.device < 0 ? Runtime::current_device() : found.device;
    attributes->hostPointer = found.kind == PointerKind::Device ? nullptr : address;
    attributes->type = found.kind == PointerKind::Device ? cudaMemoryTypeDevice
                       : found.kind == PointerKind::Host ? cudaMemoryTypeHost
                                                         : cudaMemoryTypeManaged;
    return Error::None;
  });
}

cudaError_t cudaMemcpy(void* target, const void* source, size_t count, cudaMemcpyKind kind) {
  return copy(line(target, source, count), kind, nullptr, true);
}
cudaError_t cudaMemcpyAsync(void* target, const void* source, size_t count, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return copy(line(target, source, count), kind, stream, false);
}
cudaError_t cudaMemcpyPeer(void* target, int, const void* source, int, size_t count) {
  return copy(line(target, source, count), cudaMemcpyDeviceToDevice, nullptr, true);
}
cudaError_t cudaMemcpyPeerAsync(void* target, int, const void* source, int, size_t count,
                                cudaStream_t stream) {
  return copy(line(target, source, count), cudaMemcpyDeviceToDevice, stream, false);
}
cudaError_t cudaMemcpy2D(void* target, size_t target_pitch, const void* source, size_t source_pitch,
                         size_t width, size_t height, cudaMemcpyKind kind) {
  return copy_2d(target, target_pitch, source, source_pitch, width, height, kind, nullptr, true);
}
cudaError_t cudaMemcpy2DAsync(void* target, size_t target_pitch, const void* source,
                              size_t source_pitch, size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  return copy_2d(target, target_pitch, source, source_pitch, width, height, kind, stream, false);
}

cudaError_t cudaMemcpy3D(const cudaMemcpy3DParms* volume) { return copy_3d(volume, nullptr, true); }
cudaError_t cudaMemcpy3DAsync(const cudaMemcpy3DParms* volume, cudaStream_t stream) {
  return copy_3d(volume, stream, false);
}

cudaError_t cudaMemset(void* target, int value, size_t count) {
  return fill(target, value, count, 1, 0, nullptr, true);
}
cudaError_t cudaMemsetAsync(void* target, int value, size_t count, cudaStream_t stream) {
  return fill(target, value, count, 1, 0, stream, false);
}
cudaError_t cudaMemset2D(void* target, size_t pitch, int value, size_t width, size_t height) {
  if (width > pitch) return vcuda::keep(cudaErrorInvalidPitchValue);
  return fill(target, value, width, height, pitch, nullptr, true);
}
cudaError_t cudaMemset2DAsync(void* target, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t stream) {
  if (width > pitch) return vcuda::keep(cudaErrorInvalidPitchValue);
  return fill(target, value, width, height, pitch, stream, false);
}

// Hints on where managed memory should be: it is where everybody has it already.
cudaError_t cudaMemPrefetchAsync(const void* pointer, size_t, cudaMemLocation, unsigned int,
                                 cudaStream_t) {
  return call([&](Runtime& runtime) {
    return is_known(runtime, pointer) ? Error::None : Error::InvalidValue;
  });
}
cudaError_t cudaMemAdvise(const void* pointer, size_t, cudaMemoryAdvise, cudaMemLocation) {
  return call([&](Runtime& runtime) {
    return is_known(runtime, pointer) ? Error::None : Error::InvalidValue;
  });
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* pointer) {
  return call([&](Runtime& runtime) {
    if (handle == nullptr) return Error::InvalidValue;
    IpcHandle content{kIpcMagic, {}};
    TRY_VIRTUAL(runtime.memory().name_for_others(pointer, &content.name));
    *handle = {};
    std::memcpy(handle->reserved, &content, sizeof content);
    return Error::None;
  });
}

cudaError_t cudaIpcOpenMemHandle(void** pointer, cudaIpcMemHandle_t handle, unsigned int flags) {
  return call([&](Runtime& runtime) {
    IpcHandle content;
    std::memcpy(&content, handle.reserved, sizeof content);
    if (pointer == nullptr || flags != cudaIpcMemLazyEnablePeerAccess || content.magic != kIpcMagic)
      return Error::InvalidValue;
    MemoryProperties made;
    TRY_VIRTUAL(runtime.memory().import_named(Runtime::current_device(), content.name, &made));
    *pointer = made.base;
    return Error::None;
  });
}

cudaError_t cudaIpcCloseMemHandle(void* pointer) {
  return call([&](Runtime& runtime) {
    MemoryProperties found;
    if (!runtime.memory().find(pointer, &found) || found.base != pointer ||
        found.origin != MemoryOrigin::Imported)
      return Error::InvalidValue;
    (void)runtime.drain(found.device, niccolite::Deadline::never());
    return runtime.memory().release(pointer);
  });
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t*, cudaEvent_t) {
  return vcuda::keep(cudaErrorNotSupported);
}
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t*, cudaIpcEventHandle_t) {
  return vcuda::keep(cudaErrorNotSupported);
}
