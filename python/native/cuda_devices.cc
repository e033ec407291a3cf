#include "cuda_devices.h"

#include <dlfcn.h>

#include <mutex>
#include <string>
#include <vector>

#include "errors.h"

namespace niccolite::python {
namespace {

// The driver's interface of cuda.h 13.0, without the toolkit's header.
using Result = int;
using Context = void*;
constexpr Result kSuccess = 0;
constexpr Result kNotReady = 600;
constexpr unsigned kNonBlockingStream = 1;
constexpr unsigned kEventWithoutTime = 2;
constexpr int kMemoryType = 2;     // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
constexpr int kDeviceOrdinal = 9;  // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
constexpr unsigned kHostMemory = 1;

struct Functions {
  Result (*cuInit)(unsigned) = nullptr;
  Result (*cuGetErrorString)(Result, const char**) = nullptr;
  Result (*cuDeviceGetCount)(int*) = nullptr;
  Result (*cuDevicePrimaryCtxRetain)(Context*, int) = nullptr;
  Result (*cuCtxSetCurrent)(Context) = nullptr;
  Result (*cuCtxGetDevice)(int*) = nullptr;
  Result (*cuStreamCreate)(void**, unsigned) = nullptr;
  Result (*cuStreamDestroy_v2)(void*) = nullptr;
  Result (*cuStreamQuery)(void*) = nullptr;
  Result (*cuStreamSynchronize)(void*) = nullptr;
  Result (*cuStreamIsCapturing)(void*, int*) = nullptr;
  Result (*cuEventCreate)(void**, unsigned) = nullptr;
  Result (*cuEventRecord)(void*, void*) = nullptr;
  Result (*cuEventQuery)(void*) = nullptr;
  Result (*cuEventDestroy_v2)(void*) = nullptr;
  Result (*cuPointerGetAttribute)(void*, int, uintptr_t) = nullptr;
  Result (*cuMemcpy)(uintptr_t, uintptr_t, size_t) = nullptr;
};

template <typename Function>
bool look_up(void* driver, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(driver, name));
  return function != nullptr;
}

bool look_up_all(void* driver, Functions& cuda) {
#define NICCOLITE_LOOK_UP(name) look_up(driver, #name, cuda.name)
  return NICCOLITE_LOOK_UP(cuInit) && NICCOLITE_LOOK_UP(cuGetErrorString) &&
         NICCOLITE_LOOK_UP(cuDeviceGetCount) && NICCOLITE_LOOK_UP(cuDevicePrimaryCtxRetain) &&
         NICCOLITE_LOOK_UP(cuCtxSetCurrent) && NICCOLITE_LOOK_UP(cuCtxGetDevice) &&
         NICCOLITE_LOOK_UP(cuStreamCreate) && NICCOLITE_LOOK_UP(cuStreamDestroy_v2) &&
         NICCOLITE_LOOK_UP(cuStreamQuery) && NICCOLITE_LOOK_UP(cuStreamSynchronize) &&
         NICCOLITE_LOOK_UP(cuStreamIsCapturing) && NICCOLITE_LOOK_UP(cuEventCreate) &&
         NICCOLITE_LOOK_UP(cuEventRecord) && NICCOLITE_LOOK_UP(cuEventQuery) &&
         NICCOLITE_LOOK_UP(cuEventDestroy_v2) && NICCOLITE_LOOK_UP(cuPointerGetAttribute) &&
         NICCOLITE_LOOK_UP(cuMemcpy);
#undef NICCOLITE_LOOK_UP
}

void* as_stream(Stream stream) {
  return reinterpret_cast<void*>(stream);  // NOLINT(performance-no-int-to-ptr)
}

class CudaDevices final : public Devices {
 public:
  CudaDevices(const Functions& cuda, int count)
      : cuda_(cuda), contexts_(static_cast<size_t>(count)) {}

  bool is_virtual() const override { return false; }
  int count() override { return static_cast<int>(contexts_.size()); }

  int current() override {
    const int device = chosen();
    return device == kNone ? 0 : device;  // as the CUDA runtime
  }
  int chosen() override {
    int device = kNone;
    return cuda_.cuCtxGetDevice(&device) == kSuccess ? device : kNone;
  }
  void set_current(int device) override {
    if (device < 0 || device >= count())
      throw_runtime_error("there is no GPU " + std::to_string(device) + ": this process sees " +
                          std::to_string(count()));
    check(cuda_.cuCtxSetCurrent(primary_context(device)), "making a GPU current");
  }

  Stream create_stream(int device) override {
    const CurrentDevice current(device);
    void* stream = nullptr;
    check(cuda_.cuStreamCreate(&stream, kNonBlockingStream), "creating a stream");
    return reinterpret_cast<Stream>(stream);
  }
  void destroy_stream(Stream stream) override { cuda_.cuStreamDestroy_v2(as_stream(stream)); }
  bool is_idle(Stream stream) override {
    return cuda_.cuStreamQuery(as_stream(stream)) != kNotReady;
  }
  void wait_idle(Stream stream) override { cuda_.cuStreamSynchronize(as_stream(stream)); }
  bool is_capturing(Stream stream) override {
    int status = 0;
    return cuda_.cuStreamIsCapturing(as_stream(stream), &status) == kSuccess && status != 0;
  }

  Event record(Stream stream) override {
    void* event = nullptr;
    if (cuda_.cuEventCreate(&event, kEventWithoutTime) != kSuccess) return nullptr;
    if (cuda_.cuEventRecord(event, as_stream(stream)) == kSuccess) return event;
    cuda_.cuEventDestroy_v2(event);
    return nullptr;
  }
  bool is_done(Event event) override { return cuda_.cuEventQuery(event) != kNotReady; }
  void destroy(Event event) override { cuda_.cuEventDestroy_v2(event); }

  Place place_of(const void* pointer) override {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    unsigned type = 0;
    if (cuda_.cuPointerGetAttribute(&type, kMemoryType, address) != kSuccess) return {};
    if (type == kHostMemory) return {.kind = Place::Kind::Host};
    int device = -1;
    if (cuda_.cuPointerGetAttribute(&device, kDeviceOrdinal, address) != kSuccess) return {};
    return {.kind = Place::Kind::Device, .device = device};
  }
  bool register_host(void*, size_t) override { return false; }
  void unregister_host(void*) override {}
  void copy(void* target, const void* source, size_t bytes) override {
    const CurrentDevice current(this->current());
    check(cuda_.cuMemcpy(reinterpret_cast<uintptr_t>(target), reinterpret_cast<uintptr_t>(source),
                         bytes),
          "copying memory");
  }

 private:
  Context primary_context(int device) {
    const std::lock_guard lock(mutex_);
    Context& context = contexts_[static_cast<size_t>(device)];
    if (context == nullptr)
      check(cuda_.cuDevicePrimaryCtxRetain(&context, device), "opening a GPU");
    return context;
  }

  void check(Result result, const std::string& what) const {
    if (result == kSuccess) return;
    const char* text = nullptr;
    cuda_.cuGetErrorString(result, &text);
    throw_runtime_error(what + " failed: " + (text != nullptr ? text : "unknown CUDA error"));
  }

  const Functions cuda_;
  std::mutex mutex_;
  std::vector<Context> contexts_;  // null until wanted; under mutex_
};

}  // namespace

std::unique_ptr<Devices> open_cuda_devices(std::string* why_not) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  Functions cuda;
  int count = 0;
  if (driver == nullptr)
    *why_not = dlerror();
  else if (!look_up_all(driver, cuda))
    *why_not = "libcuda.so.1 is too old";
  else if (const Result result = cuda.cuInit(0); result != kSuccess)
    *why_not = "the driver answers error " + std::to_string(result);
  else if (cuda.cuDeviceGetCount(&count) != kSuccess || count == 0)
    *why_not = "the driver sees no GPU";
  else
    return std::make_unique<CudaDevices>(cuda, count);
  return nullptr;
}

}  // namespace niccolite::python
