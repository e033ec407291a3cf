#include "vcuda/driver/context.h"

#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "gpu/virtual/tasks.h"

// Null if NVIDIA's libcudart.so.13 is loaded: it has the name of ours and calls this driver, so the
// driver must not call it.
extern "C" [[gnu::weak]] niccolite::gpu::virtual_::VirtualMachine* niccolite_virtual_driver(int);

struct CUctx_st {
  int device = 0;
  bool is_primary = false;
  std::atomic<bool> is_in_runtime = false;  // a primary one that the runtime has made current
  unsigned int flags = 0;
  unsigned long long id = 0;
  int retained = 0;  // a primary one
};

namespace vcuda::driver {

bool has_runtime() { return niccolite_virtual_driver != nullptr; }

niccolite::gpu::virtual_::VirtualMachine* machine() {
  if (!has_runtime()) return nullptr;
  return niccolite_virtual_driver(niccolite::gpu::virtual_::kInterfaceVersion);
}

namespace {

std::atomic<bool> initialized{false};

// Never destroyed: threads may use the driver until the process ends.
struct Contexts {
  std::mutex mutex;
  std::vector<CUctx_st*> primary;  // by device
  std::set<CUctx_st*> others;
  unsigned long long next_id = 1;

  static Contexts& instance() {
    static Contexts* const contexts = new Contexts;
    return *contexts;
  }
  CUctx_st* primary_of(int device) {  // the mutex is held
    if (static_cast<size_t>(device) >= primary.size())
      primary.resize(static_cast<size_t>(device) + 1);
    CUctx_st*& context = primary[static_cast<size_t>(device)];
    if (context == nullptr)
      context = new CUctx_st{.device = device, .is_primary = true, .id = next_id++};
    return context;
  }
  bool is_known(CUctx_st* context) {  // the same
    if (others.contains(context)) return true;
    for (const CUctx_st* known : primary)
      if (known != nullptr && known == context) return true;
    return false;
  }
};

thread_local std::vector<CUctx_st*> stack;

int device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

CUresult check_device(CUdevice device) {
  if (!is_initialized()) return kNotInitialized;
  return device < 0 || device >= device_count() ? kInvalidDevice : kSuccess;
}

CUresult check_context(CUcontext context) {
  if (!is_initialized()) return kNotInitialized;
  Contexts& contexts = Contexts::instance();
  std::lock_guard lock(contexts.mutex);
  return contexts.is_known(context) ? kSuccess : kInvalidContext;
}

// A program that also uses the runtime may have made a device current by it, or gone to another one
// with cudaSetDevice.
void follow_runtime() {
  if (stack.empty()) {
    niccolite::gpu::virtual_::VirtualMachine* const found = machine();
    if (found == nullptr || !found->driver_calls().is_in_runtime()) return;
    stack.push_back(nullptr);
  }
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) device = 0;
  if (stack.back() != nullptr && stack.back()->device == device) return;
  stack.back() = primary_context(device);
  stack.back()->is_in_runtime = true;
}

CUresult enter_top() {
  if (!stack.empty()) return of(cudaSetDevice(stack.back()->device));
  if (niccolite::gpu::virtual_::VirtualMachine* const found = machine())
    found->driver_calls().leave_runtime();
  return kSuccess;
}

}  // namespace

CUresult refuse_foreign_runtime() {
  static std::atomic<bool> is_told{false};
  if (!is_told.exchange(true, std::memory_order_relaxed))
    std::fprintf(stderr,
                 "virtual GPUs: this program uses NVIDIA's CUDA runtime (libcudart_static.a, "
                 "nvcc's default, "
                 "or its libcudart.so), which works with NVIDIA's driver only. Link it with "
                 "-cudart shared, and "
                 "put the folder of virtual GPUs' libcudart.so.13 first in LD_LIBRARY_PATH\n");
  return kNotSupported;
}

CUresult of(cudaError_t error) {
  switch (error) {
    case cudaErrorInvalidDevice:
      return kInvalidDevice;
    default:
      return static_cast<CUresult>(error);
  }
}

bool is_initialized() {
  if (!initialized.load(std::memory_order_relaxed)) {
    niccolite::gpu::virtual_::VirtualMachine* const found = machine();
    if (found == nullptr || !found->driver_calls().is_runtime_used()) return false;
    initialized.store(true, std::memory_order_relaxed);
  }
  int device = 0;
  return cudaGetDevice(&device) != cudaErrorInitializationError;  // of a child made by fork()
}

CUresult current_device(int& device) {
  if (!is_initialized()) return kNotInitialized;
  follow_runtime();
  if (stack.empty()) return kInvalidContext;
  device = stack.back()->device;
  return of(cudaSetDevice(device));
}

int device_of_stream(CUstream stream, int current) {
  int device = current;
  return cudaStreamGetDevice(stream, &device) == cudaSuccess ? device : current;
}

CUcontext primary_context(int device) {
  Contexts& contexts = Contexts::instance();
  std::lock_guard lock(contexts.mutex);
  return contexts.primary_of(device);
}

int device_of(CUcontext context) {
  return check_context(context) == kSuccess ? context->device : -1;
}

}  // namespace vcuda::driver

using namespace vcuda::driver;  // NOLINT(google-build-using-namespace)

extern "C" {

CUresult cuInit(unsigned int flags) {
  if (flags != 0) return kInvalidValue;
  if (!has_runtime()) return refuse_foreign_runtime();
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaErrorInitializationError) return kNotInitialized;
  if (device_count() == 0) return kNoDevice;
  initialized.store(true, std::memory_order_relaxed);
  return kSuccess;
}

// ---- primary contexts

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  if (const CUresult result = check_device(device); result != kSuccess) return result;
  if (context == nullptr) return kInvalidValue;
  Contexts& contexts = Contexts::instance();
  std::lock_guard lock(contexts.mutex);
  *context = contexts.primary_of(device);
  ++(*context)->retained;
  return kSuccess;
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  if (const CUresult result = check_device(device); result != kSuccess) return result;
  Contexts& contexts = Contexts::instance();
  std::lock_guard lock(contexts.mutex);
  CUctx_st* const context = contexts.primary_of(device);
  if (context->retained == 0) return kInvalidContext;
  --context->retained;
  return kSuccess;
}
CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags) {
  if (const CUresult result = check_device(device); result != kSuccess) return result;
  primary_context(device)->flags = flags;
  return kSuccess;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int* flags, int* active) {
  if (const CUresult result = check_device(device); result != kSuccess) return result;
  if (flags == nullptr || active == nullptr) return kInvalidValue;
  follow_runtime();
  const CUctx_st* const context = primary_context(device);
  *flags = context->flags;
  *active = context->retained > 0 || context->is_in_runtime ? 1 : 0;
  return kSuccess;
}
// Does as cudaDeviceReset: waits, and frees nothing.
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  if (const CUresult result = check_device(device); result != kSuccess) return result;
  follow_runtime();
  int before = 0;
  static_cast<void>(cudaGetDevice(&before));
  static_cast<void>(cudaSetDevice(device));
  const CUresult result = of(cudaDeviceSynchronize());
  static_cast<void>(cudaSetDevice(before));
  static_cast<void>(enter_top());
  return result;
}

// ---- others

CUresult cuCtxCreate_v2(CUcontext* context, unsigned int flags, CUdevice device) {
  if (const CUresult result = check_device(device); result != kSuccess) return result;
  if (context == nullptr) return kInvalidValue;
  Contexts& contexts = Contexts::instance();
  {
    std::lock_guard lock(contexts.mutex);
    *context = new CUctx_st{.device = device, .flags = flags, .id = contexts.next_id++};
    contexts.others.insert(*context);
  }
  follow_runtime();
  stack.push_back(*context);
  return enter_top();
}
CUresult cuCtxCreate_v4(CUcontext* context, const void* /*parameters*/, unsigned int flags,
                        CUdevice device) {
  return cuCtxCreate_v2(context, flags, device);
}
CUresult cuCtxDestroy_v2(CUcontext context) {
  if (const CUresult result = check_context(context); result != kSuccess) return result;
  if (context->is_primary) return kInvalidContext;
  std::erase(stack, context);
  Contexts& contexts = Contexts::instance();
  std::lock_guard lock(contexts.mutex);
  contexts.others.erase(context);  // its memory stays: other threads may have it current
  return enter_top();
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  if (const CUresult result = check_context(context); result != kSuccess) return result;
  follow_runtime();
  stack.push_back(context);
  return enter_top();
}
CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  if (!is_initialized()) return kNotInitialized;
  follow_runtime();
  if (stack.empty()) return kInvalidContext;
  if (context != nullptr) *context = stack.back();
  stack.pop_back();
  return enter_top();
}
CUresult cuCtxSetCurrent(CUcontext context) {
  if (!is_initialized()) return kNotInitialized;
  if (context == nullptr) {
    if (!stack.empty()) stack.pop_back();
    return enter_top();
  }
  if (const CUresult result = check_context(context); result != kSuccess) return result;
  if (stack.empty()) stack.push_back(nullptr);
  stack.back() = context;
  return enter_top();
}
CUresult cuCtxGetCurrent(CUcontext* context) {
  if (!is_initialized()) return kNotInitialized;
  if (context == nullptr) return kInvalidValue;
  follow_runtime();
  *context = stack.empty() ? nullptr : stack.back();
  return kSuccess;
}
CUresult cuCtxGetDevice(CUdevice* device) {
  if (device == nullptr) return kInvalidValue;
  return current_device(*device);
}
CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext context) {
  if (context == nullptr) return cuCtxGetDevice(device);
  if (const CUresult result = check_context(context); result != kSuccess) return result;
  if (device == nullptr) return kInvalidValue;
  *device = context->device;
  return kSuccess;
}
CUresult cuCtxGetFlags(unsigned int* flags) {
  return in_context([&] {
    if (flags == nullptr) return kInvalidValue;
    *flags = stack.back()->flags;
    return kSuccess;
  });
}
CUresult cuCtxGetId(CUcontext context, unsigned long long* id) {
  if (id == nullptr) return kInvalidValue;
  if (context == nullptr) {
    int device = 0;
    if (const CUresult result = current_device(device); result != kSuccess) return result;
    context = stack.back();
  }
  if (const CUresult result = check_context(context); result != kSuccess) return result;
  *id = context->id;
  return kSuccess;
}
CUresult cuCtxGetApiVersion(CUcontext context, unsigned int* version) {
  if (version == nullptr) return kInvalidValue;
  if (context != nullptr)
    if (const CUresult result = check_context(context); result != kSuccess) return result;
  *version = 3020;  // of all contexts that cuCtxCreate_v2 and later versions make
  return kSuccess;
}
CUresult cuCtxSynchronize() {
  return in_context([] { return of(cudaDeviceSynchronize()); });
}
CUresult cuCtxSynchronize_v2(CUcontext context) {
  if (context == nullptr) return cuCtxSynchronize();
  if (const CUresult result = check_context(context); result != kSuccess) return result;
  return cuDevicePrimaryCtxReset_v2(context->device);  // waits
}
CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return in_context([&] { return of(cudaDeviceGetStreamPriorityRange(least, greatest)); });
}

// Limits are about kernels, which do not run here, so a new limit is forgotten.
CUresult cuCtxSetLimit(int limit, size_t /*value*/) {
  return in_context([&] { return limit < 0 ? kInvalidValue : kSuccess; });
}
CUresult cuCtxGetLimit(size_t* value, int limit) {
  return in_context([&] {
    if (value == nullptr || limit < 0) return kInvalidValue;
    *value = 0;
    return kSuccess;
  });
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
  return in_context([&] {
    const int device = device_of(peer);
    return device < 0 ? kInvalidContext : of(cudaDeviceEnablePeerAccess(device, flags));
  });
}
CUresult cuCtxDisablePeerAccess(CUcontext peer) {
  return in_context([&] {
    const int device = device_of(peer);
    return device < 0 ? kInvalidContext : of(cudaDeviceDisablePeerAccess(device));
  });
}

}  // extern "C"
