#include "gpu_copies.h"

#include <dlfcn.h>

#include <map>
#include <mutex>
#include <type_traits>

namespace vverbs {
namespace {

// The driver's API, as far as it is used: cuda.h of CUDA 11 and later. 0: success.
struct Driver {
  int (*pointer_attribute)(void*, int, uint64_t);
  int (*device_get)(int*, int);
  int (*retain_context)(void**, int);
  int (*push_context)(void*);
  int (*pop_context)(void**);
  int (*exchange_capture_mode)(int*);
  int (*stream_create)(void**, unsigned);
  int (*copy)(uint64_t, uint64_t, size_t, void*);
  int (*stream_synchronize)(void*);

  /// Null: the program has loaded none yet.
  static const Driver* loaded() {
    static std::mutex mutex;
    static Driver driver{};
    const std::lock_guard lock(mutex);
    if (driver.stream_synchronize == nullptr) driver = open();
    return driver.stream_synchronize != nullptr ? &driver : nullptr;
  }

 private:
  static Driver open() {
    Driver driver{};
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) return driver;
    const auto find = [&](auto& function, const char* name) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      return function != nullptr;
    };
    const bool has_all = find(driver.pointer_attribute, "cuPointerGetAttribute") &&
                         find(driver.device_get, "cuDeviceGet") &&
                         find(driver.retain_context, "cuDevicePrimaryCtxRetain") &&
                         find(driver.push_context, "cuCtxPushCurrent_v2") &&
                         find(driver.pop_context, "cuCtxPopCurrent_v2") &&
                         find(driver.exchange_capture_mode, "cuThreadExchangeStreamCaptureMode") &&
                         find(driver.stream_create, "cuStreamCreate") &&
                         find(driver.copy, "cuMemcpyAsync") &&
                         find(driver.stream_synchronize, "cuStreamSynchronize");
    return has_all ? driver : Driver{};
  }
};

constexpr int kMemoryType = 2, kDeviceMemory = 2, kDeviceOrdinal = 9;
constexpr unsigned kNonBlocking = 1;  // of a stream: it does not wait for the default stream
constexpr int kRelaxed = 2;           // of a thread: other threads' captures do not concern it

/// A device's primary context, which the program uses too, and a stream.
struct Copier {
  void* context = nullptr;
  void* stream = nullptr;
};

const Copier* copier_of(const Driver& driver, uint64_t address) {
  static auto* const copiers = new std::map<int, Copier>;  // copies may go on while main() ends
  static std::mutex mutex;
  int ordinal = 0;
  if (driver.pointer_attribute(&ordinal, kDeviceOrdinal, address) != 0) return nullptr;
  const std::lock_guard lock(mutex);
  Copier& copier = (*copiers)[ordinal];
  if (copier.stream != nullptr) return &copier;
  int device = 0;
  void* popped = nullptr;
  if (driver.device_get(&device, ordinal) != 0 ||
      driver.retain_context(&copier.context, device) != 0 ||
      driver.push_context(copier.context) != 0)
    return nullptr;
  if (driver.stream_create(&copier.stream, kNonBlocking) != 0) copier.stream = nullptr;
  driver.pop_context(&popped);
  return copier.stream != nullptr ? &copier : nullptr;
}

bool copy(uint64_t to, uint64_t from, size_t bytes, uint64_t of_gpu) {
  const Driver* const driver = Driver::loaded();
  if (driver == nullptr) return false;
  int mode = kRelaxed;
  driver->exchange_capture_mode(&mode);
  const Copier* const copier = copier_of(*driver, of_gpu);
  bool is_done = false;
  if (copier != nullptr && driver->push_context(copier->context) == 0) {
    is_done = driver->copy(to, from, bytes, copier->stream) == 0 &&
              driver->stream_synchronize(copier->stream) == 0;
    void* popped = nullptr;
    driver->pop_context(&popped);
  }
  driver->exchange_capture_mode(&mode);
  return is_done;
}

}  // namespace

bool is_memory_of_gpu(uint64_t address, size_t bytes) {
  const Driver* const driver = Driver::loaded();
  if (driver == nullptr || bytes == 0) return false;
  for (const uint64_t at : {address, address + bytes - 1}) {
    unsigned type = 0;
    if (driver->pointer_attribute(&type, kMemoryType, at) != 0 || type != kDeviceMemory)
      return false;
  }
  return true;
}

bool copy_from_gpu(void* to, uint64_t from, size_t bytes) {
  return copy(reinterpret_cast<uintptr_t>(to), from, bytes, from);
}

bool copy_to_gpu(uint64_t to, const void* from, size_t bytes) {
  return copy(to, reinterpret_cast<uintptr_t>(from), bytes, to);
}

}  // namespace vverbs
