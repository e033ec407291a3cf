#include "virtual_devices.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <filesystem>
#include <string>

#include "errors.h"
#include "library.h"

namespace niccolite::python {
namespace {

constexpr const char* kDriver = "libcudart.so.13";
constexpr const char* kEntryPoint = "niccolite_virtual_driver";

// clang-format off
#define NICCOLITE_VCUDA_FUNCTIONS(X)                                                              \
  X(cudaGetDeviceCount) X(cudaGetDevice) X(cudaSetDevice) X(cudaGetErrorString)                   \
  X(cudaStreamCreateWithFlags) X(cudaStreamDestroy) X(cudaStreamQuery) X(cudaStreamSynchronize)   \
  X(cudaStreamIsCapturing) X(cudaEventCreateWithFlags) X(cudaEventRecord) X(cudaEventQuery)       \
  X(cudaEventDestroy) X(cudaPointerGetAttributes) X(cudaHostRegister) X(cudaHostUnregister)       \
  X(cudaMemcpy)
// clang-format on

struct Functions {
#define NICCOLITE_MEMBER(name) decltype(&::name) name = nullptr;
  NICCOLITE_VCUDA_FUNCTIONS(NICCOLITE_MEMBER)
#undef NICCOLITE_MEMBER
};

void* loaded_driver() {
  if (dlsym(RTLD_DEFAULT, kEntryPoint) != nullptr) return dlopen(nullptr, RTLD_LAZY);
  void* library = dlopen(kDriver, RTLD_LAZY | RTLD_NOLOAD);
  return library != nullptr && dlsym(library, kEntryPoint) != nullptr ? library : nullptr;
}

void* load_driver() {
  if (void* loaded = loaded_driver()) return loaded;
  const auto path = std::filesystem::path(library().path()).parent_path() / "vcuda" / kDriver;
  void* loaded = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (loaded == nullptr)
    throw_runtime_error(std::string("cannot load the virtual GPUs: ") + dlerror());
  return loaded;
}

cudaStream_t as_stream(Stream stream) {
  return reinterpret_cast<cudaStream_t>(stream);  // NOLINT(performance-no-int-to-ptr)
}

class VirtualDevices final : public Devices {
 public:
  explicit VirtualDevices(void* driver) {
#define NICCOLITE_LOOK_UP(name) \
  vcuda_.name = reinterpret_cast<decltype(&::name)>(dlsym(driver, #name));
    NICCOLITE_VCUDA_FUNCTIONS(NICCOLITE_LOOK_UP)
#undef NICCOLITE_LOOK_UP
  }

  bool is_virtual() const override { return true; }

  int count() override {
    int count = 0;
    check(vcuda_.cudaGetDeviceCount(&count),
          "counting the virtual GPUs (NICCOLITE_DEVICES, CUDA_VISIBLE_DEVICES)");
    return count;
  }
  int current() override {
    int device = 0;
    check(vcuda_.cudaGetDevice(&device), "asking for the current device");
    return device;
  }
  void set_current(int device) override {
    check(vcuda_.cudaSetDevice(device), "making device " + std::to_string(device) + " current");
  }

  Stream create_stream(int device) override {
    const CurrentDevice current(device);
    cudaStream_t stream = nullptr;
    check(vcuda_.cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream");
    return reinterpret_cast<Stream>(stream);
  }
  void destroy_stream(Stream stream) override { vcuda_.cudaStreamDestroy(as_stream(stream)); }
  bool is_idle(Stream stream) override {
    return vcuda_.cudaStreamQuery(as_stream(stream)) != cudaErrorNotReady;
  }
  void wait_idle(Stream stream) override { vcuda_.cudaStreamSynchronize(as_stream(stream)); }
  bool is_capturing(Stream stream) override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    return vcuda_.cudaStreamIsCapturing(as_stream(stream), &status) == cudaSuccess &&
           status != cudaStreamCaptureStatusNone;
  }

  Event record(Stream stream) override {
    cudaEvent_t event = nullptr;
    if (vcuda_.cudaEventCreateWithFlags(&event, cudaEventDisableTiming) != cudaSuccess)
      return nullptr;
    if (vcuda_.cudaEventRecord(event, as_stream(stream)) == cudaSuccess) return event;
    vcuda_.cudaEventDestroy(event);
    return nullptr;
  }
  bool is_done(Event event) override {
    return vcuda_.cudaEventQuery(static_cast<cudaEvent_t>(event)) != cudaErrorNotReady;
  }
  void destroy(Event event) override { vcuda_.cudaEventDestroy(static_cast<cudaEvent_t>(event)); }

  Place place_of(const void* pointer) override {
    cudaPointerAttributes attributes{};
    if (vcuda_.cudaPointerGetAttributes(&attributes, pointer) != cudaSuccess) return {};
    switch (attributes.type) {
      case cudaMemoryTypeUnregistered:
        return {};
      case cudaMemoryTypeDevice:
        return {.kind = Place::Kind::Device, .device = attributes.device};
      default:
        return {.kind = Place::Kind::Host};
    }
  }
  bool register_host(void* base, size_t bytes) override {
    return vcuda_.cudaHostRegister(base, bytes, 0) == cudaSuccess;
  }
  void unregister_host(void* base) override { vcuda_.cudaHostUnregister(base); }
  void copy(void* target, const void* source, size_t bytes) override {
    check(vcuda_.cudaMemcpy(target, source, bytes, cudaMemcpyDefault), "copying memory");
  }

 private:
  void check(cudaError_t error, const std::string& what) const {
    if (error != cudaSuccess)
      throw_runtime_error(what + " failed: " + vcuda_.cudaGetErrorString(error));
  }
  Functions vcuda_;
};

}  // namespace

bool is_virtual_driver_loaded() { return loaded_driver() != nullptr; }

std::unique_ptr<Devices> open_virtual_devices() {
  return std::make_unique<VirtualDevices>(load_driver());
}

}  // namespace niccolite::python
