#include "gpu/cuda/driver.h"

#include <dlfcn.h>

#include "gpu/owner.h"

namespace niccolite::gpu::cuda {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";
constexpr int kOldestVersion = 12000;

// The one function found by its symbol. It returns all others, with the signature of the requested
// version, whatever the driver's own version is.
using GetProcAddress = CuResult (*)(const char* name, void** function, int version,
                                    unsigned long long flags, int* found);
constexpr const char* kGetProcAddress = "cuGetProcAddress_v2";

template <typename Function>
Status resolve(GetProcAddress get, const char* name, int version, bool optional,
               Function*& function) {
  void* address = nullptr;
  int found = 0;
  const CuResult result = get(name, &address, version, /*flags=*/0, &found);
  if (result == kCuSuccess && address != nullptr) {
    function = reinterpret_cast<Function*>(address);
    return {};
  }
  if (optional) return {};
  return Status::cuda_error("the CUDA driver has no {} of CUDA {}.{} (error {})", name,
                            version / 1000, version % 1000 / 10, result);
}

Status load(Driver& driver) {
  // Never closed: the driver does not support being unloaded.
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Status::cuda_error("no CUDA driver: {}", dlerror());
  const auto get = reinterpret_cast<GetProcAddress>(dlsym(library, kGetProcAddress));
  if (get == nullptr) {
    return Status::cuda_error("the CUDA driver ({}) is older than CUDA 12.0: update it", kLibrary);
  }
#define X(function, version, parameters) \
  TRY(resolve(get, #function, version, /*optional=*/false, driver.function));
  NICCOLITE_CUDA_DRIVER_FUNCTIONS(X)
#undef X
#define X(function, version, parameters) \
  TRY(resolve(get, #function, version, /*optional=*/true, driver.function));
  NICCOLITE_CUDA_OPTIONAL_FUNCTIONS(X)
#undef X
  TRY(driver.check(driver.cuInit(0), "cuInit"));
  TRY(driver.check(driver.cuDriverGetVersion(&driver.version), "cuDriverGetVersion"));
  if (driver.version < kOldestVersion) {
    return Status::cuda_error(
        "the CUDA driver is of CUDA {}.{}, 12.0 or later is needed: update it",
        driver.version / 1000, driver.version % 1000 / 10);
  }
  int count = 0;
  TRY(driver.check(driver.cuDeviceGetCount(&count), "cuDeviceGetCount"));
  if (count == 0) {
    return Status::cuda_error("the CUDA driver finds no device (is CUDA_VISIBLE_DEVICES empty?)");
  }
  return {};
}

struct Loaded {
  Loaded() : status(load(driver)) {}
  Driver driver;
  Status status;
};

}  // namespace

Status Driver::failure(CuResult result, const std::string& what, SourceLocation place) const {
  if (result == kCuDeinitialized) note_end_of_driver();
  const char* name = nullptr;
  const char* text = nullptr;
  if (cuGetErrorName(result, &name) != kCuSuccess || name == nullptr)
    name = "unknown to the driver";
  if (cuGetErrorString(result, &text) != kCuSuccess || text == nullptr) text = "unknown error";
  Format<const std::string&, const char*&, const char*&, CuResult&> format(
      "{} failed: {} ({}, {})");
  format.place = place;
  return Status::error(Code::CudaError, format, what, text, name, result);
}

Result<const Driver*> load_driver() {
  static const Loaded* const loaded = new Loaded;  // never destroyed: used until the process ends
  if (!loaded->status.is_ok()) return loaded->status.copy();
  return &loaded->driver;
}

}  // namespace niccolite::gpu::cuda
