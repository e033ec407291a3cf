// Programs with kernels of their own. The compiler's code registers them before main(). That is
// accepted, because a library may bring kernels that are never launched. A launch is refused, and
// the first one tells the reason on stderr. The runtime's functions that need kernels, arrays or
// other hardware are refused in the same way.
#include <cxxabi.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "vcuda/call.h"

namespace {

// The names of registered kernels, by the address of the function that stands for them on the host.
struct Kernels {
  std::mutex mutex;
  std::map<const void*, std::string> names;

  static Kernels& instance() {
    static Kernels* const kernels = new Kernels;
    return *kernels;
  }
  std::string name_of(const void* function) {
    std::lock_guard lock(mutex);
    const auto at = names.find(function);
    if (at == names.end()) return "a kernel";
    int status = 0;
    const std::unique_ptr<char, decltype(&std::free)> readable(
        abi::__cxa_demangle(at->second.c_str(), nullptr, nullptr, &status), &std::free);
    return status == 0 ? readable.get() : at->second;
  }
};

cudaError_t refuse_launch(const void* function) {
  static std::atomic<bool> is_told{false};
  try {
    if (!is_told.exchange(true, std::memory_order_relaxed))
      std::fprintf(
          stderr,
          "virtual GPUs: this program launches a CUDA kernel of its own, %s, and virtual GPUs run "
          "only the library's. Run it where there is a GPU, or do the kernel's work on the host "
          "(cudaLaunchHostFunc): vcuda/README.md\n",
          Kernels::instance().name_of(function).c_str());
  } catch (const std::bad_alloc&) {
  }
  return vcuda::keep(cudaErrorNotSupported);
}

cudaError_t refuse(const char* name, std::atomic<bool>& is_told) {
  if (!is_told.exchange(true, std::memory_order_relaxed))
    std::fprintf(
        stderr,
        "virtual GPUs: %s is not supported: kernels of programs, arrays, textures and links to "
        "other interfaces need a GPU (vcuda/README.md)\n",
        name);
  return vcuda::keep(cudaErrorNotSupported);
}

// A configuration that the compiler's code keeps between a launch's <<<>>> and its arguments.
struct Configuration {
  dim3 grid, block;
  size_t shared = 0;
  cudaStream_t stream = nullptr;
};
thread_local Configuration configuration;

}  // namespace

cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void**, size_t, cudaStream_t) {
  return refuse_launch(function);
}

// NOLINTBEGIN(bugprone-reserved-identifier): names that CUDA's compiler calls
extern "C" {

cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3, dim3, void**, size_t,
                                        cudaStream_t) {
  return refuse_launch(function);
}
cudaError_t cudaLaunchKernelExC(const void* /*config*/, const void* function, void**) {
  return refuse_launch(function);
}
cudaError_t __cudaLaunchKernel(const void* kernel, dim3, dim3, void**, size_t, cudaStream_t) {
  return refuse_launch(kernel);
}
cudaError_t __cudaLaunchKernel_ptsz(const void* kernel, dim3, dim3, void**, size_t, cudaStream_t) {
  return refuse_launch(kernel);
}
cudaError_t cudaLaunchKernel_ptsz(const void* function, dim3, dim3, void**, size_t, cudaStream_t) {
  return refuse_launch(function);
}
// Handles of kernels are the host's functions.
cudaError_t __cudaGetKernel(const void** kernel, const void* function) {
  *kernel = function;
  return cudaSuccess;
}
unsigned int __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared,
                                         cudaStream_t stream) {
  configuration = {grid, block, shared, stream};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = configuration.grid;
  *block = configuration.block;
  *shared = configuration.shared;
  *static_cast<cudaStream_t*>(stream) = configuration.stream;
  return cudaSuccess;
}

void** __cudaRegisterFatBinary(void* /*binary*/) {
  static void* registered = nullptr;
  return &registered;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterFunction(void**, const char* function, char* /*on_device*/, const char* name,
                            int, void*, void*, void*, void*, int*) {
  Kernels& kernels = Kernels::instance();
  std::lock_guard lock(kernels.mutex);
  kernels.names[function] = name;
}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
void __cudaRegisterHostVar(void**, const char*, char*, size_t) {}
// A managed variable is used by its pointer, on the host as well.
void __cudaRegisterManagedVar(void**, void** variable, char*, const char*, int, size_t bytes, int,
                              int) {
  *variable = std::calloc(1, bytes);
}

#define X(name)                              \
  cudaError_t name() {                       \
    static std::atomic<bool> is_told{false}; \
    return refuse(#name, is_told);           \
  }
#include "vcuda/refused.def"
#undef X

}  // extern "C"
// NOLINTEND(bugprone-reserved-identifier)
