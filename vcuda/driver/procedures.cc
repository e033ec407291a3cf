// cuGetProcAddress: the functions by their names and versions, and the refused functions.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "vcuda/driver/context.h"

using namespace vcuda::driver;  // NOLINT(google-build-using-namespace)

namespace {

CUresult refuse(const char* name, std::atomic<bool>& told) {
  if (!told.exchange(true, std::memory_order_relaxed))
    std::fprintf(
        stderr,
        "virtual GPUs: %s is not supported: kernels of programs, their nodes in graphs, and "
        "arrays need a GPU (vcuda/README.md)\n",
        name);
  return kNotSupported;
}

}  // namespace

extern "C" {

#define X(name)                           \
  CUresult name() {                       \
    static std::atomic<bool> told{false}; \
    return refuse(#name, told);           \
  }
#include "vcuda/driver/refused.def"
#undef X

CUresult cuGetProcAddress_v2(const char* name, void** function, int version, uint64_t flags,
                             int* status);

// The functions of the other files; their types do not matter here.
#define X(name, symbol, since) CUresult symbol();
#include "vcuda/driver/procedures.def"
#undef X

}  // extern "C"

namespace {

using Function = CUresult (*)();

struct Procedure {
  std::string_view name;
  int since;  // the version of CUDA whose callers mean this function, as cuDriverGetVersion says it
  Function function;
};

// One of a name for each of its versions, ascending.
const Procedure kProcedures[] = {

#define X(name, symbol, since) {#name, since, symbol},
#include "vcuda/driver/procedures.def"
#undef X
#define X(name) {#name, 0, name},
#include "vcuda/driver/refused.def"
#undef X
};

/// The name without the version that a symbol ends with.
std::string_view base_of(std::string_view name) {
  const size_t at = name.rfind("_v");
  const bool is_version = at != std::string_view::npos && at + 3 == name.size() &&
                          name[at + 2] >= '2' && name[at + 2] <= '9';
  return is_version ? name.substr(0, at) : name;
}

void* find(std::string_view name, int version) {
  constexpr int kSecond = 12000;
  if (name == "cuGetProcAddress" && version >= kSecond)
    return reinterpret_cast<void*>(cuGetProcAddress_v2);
  Function found = nullptr;
  for (const Procedure& procedure : kProcedures)
    if (base_of(procedure.name) == name && procedure.since <= version) found = procedure.function;
  return reinterpret_cast<void*>(found);
}

}  // namespace

extern "C" {

// Flags choose legacy or per-thread default streams; here the handles name these streams.
CUresult cuGetProcAddress_v2(const char* name, void** function, int version, uint64_t /*flags*/,
                             int* status) {
  constexpr int kFound = 0, kUnknownName = 1, kTooOld = 2;
  if (name == nullptr || function == nullptr) return kInvalidValue;
  *function = find(name, version);
  const bool is_known = *function != nullptr || find(name, INT32_MAX) != nullptr;
  if (status != nullptr)
    *status = *function != nullptr ? kFound : is_known ? kTooOld : kUnknownName;
  return *function != nullptr || status != nullptr ? kSuccess : kNotFound;
}
CUresult cuGetProcAddress(const char* name, void** function, int version, uint64_t flags) {
  const CUresult result = cuGetProcAddress_v2(name, function, version, flags, nullptr);
  return result;
}

}  // extern "C"
