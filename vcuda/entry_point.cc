// cudaGetDriverEntryPoint: functions of the driver, by name. The driver's library lies beside this
// one, and is loaded at the first question.
#include <dlfcn.h>

#include <climits>
#include <string>

#include "vcuda/call.h"

namespace {

using Find = int (*)(const char* name, void** function, int version, uint64_t flags, int* status);

/// Null: there is no such library.
Find open_driver() {
  Dl_info own{};
  if (dladdr(reinterpret_cast<const void*>(&open_driver), &own) == 0) return nullptr;
  std::string path = own.dli_fname;
  path.erase(path.rfind('/') + 1);  // without a folder it is the loader's to find
  void* const library = dlopen((path + "libcuda.so.1").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  return reinterpret_cast<Find>(dlsym(library, "cuGetProcAddress_v2"));
}

}  // namespace

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function,
                                             unsigned int version, unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* status) {
  static const Find find = open_driver();
  if (symbol == nullptr || function == nullptr || version > INT_MAX)
    return vcuda::keep(cudaErrorInvalidValue);
  if (find == nullptr) return vcuda::keep(cudaErrorInsufficientDriver);
  int found = 0;  // numbered as the runtime's
  const int result = find(symbol, function, static_cast<int>(version), flags, &found);
  if (result != 0) return vcuda::keep(static_cast<cudaError_t>(result));
  if (status != nullptr)
    *status = static_cast<cudaDriverEntryPointQueryResult>(found);
  else if (found != cudaDriverEntryPointSuccess)
    return vcuda::keep(cudaErrorSymbolNotFound);
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* status) {
  return cudaGetDriverEntryPointByVersion(symbol, function, CUDART_VERSION, flags, status);
}
