#include "cli/perf/device_memory.h"

#include <dlfcn.h>

namespace niccolite::perf {
namespace {

// The driver API's cuMemGetInfo and the virtual driver's cudaMemGetInfo have one signature.
struct MemGetInfo {
  int (*call)(size_t* free, size_t* total);
};

Result<MemGetInfo> find(gpu::Kind kind) {
  const bool is_cuda = kind == gpu::Kind::Cuda;
  const char* library = is_cuda ? "libcuda.so.1" : "libcudart.so.13";
  const char* name = is_cuda ? "cuMemGetInfo_v2" : "cudaMemGetInfo";
  // The machine has loaded it, and for good.
  void* handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  void* function = handle ? dlsym(handle, name) : nullptr;
  if (function == nullptr)
    return Status::cuda_error("--memory: {} of {} cannot be found", name, library);
  return MemGetInfo{reinterpret_cast<int (*)(size_t*, size_t*)>(function)};
}

}  // namespace

Result<int64_t> free_device_memory(gpu::Machine& machine, int device) {
  static const Result<MemGetInfo> mem_get_info = find(machine.kind());
  if (!mem_get_info.is_ok()) return Status::cuda_error("{}", mem_get_info.status().message());
  TRY(machine.set_current_device(device));
  size_t free = 0;
  size_t total = 0;
  if (const int error = mem_get_info.value().call(&free, &total); error != 0)
    return Status::cuda_error("asking device {} for its free memory: error {}", device, error);
  return static_cast<int64_t>(free);
}

}  // namespace niccolite::perf
