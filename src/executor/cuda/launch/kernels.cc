#include "executor/cuda/launch/kernels.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "executor/cuda/launch/fatbins.h"
#include "executor/cuda/launch/kernel_list.h"
#include "gpu/cuda/machine.h"
#include "gpu/cuda/open.h"

namespace niccolite::executor::cuda {
namespace {

using gpu::cuda::CudaMachine;
using gpu::cuda::CuFunction;
using gpu::cuda::CuKernel;
using gpu::cuda::CuLibrary;
using gpu::cuda::Driver;
using gpu::cuda::ScopedContext;
using gpu::cuda::ScopedRelaxedCapture;

constexpr std::array kReduceOpNames{"sum", "product", "max", "min"};  // as in the kernels' names
static_assert(kReduceOpNames.size() == kReduceOps);
// The enumerator's name in lower case.
std::string kernel_name_of(DataType type) {
  constexpr std::array kNames{
#define X(name, bytes, text) #name,
      NICCOLITE_DATA_TYPES(X)
#undef X
  };
  std::string name = kNames[static_cast<size_t>(type)];
  name[0] = static_cast<char>(name[0] - 'A' + 'a');
  return name;
}

struct Named {
  KernelId id;
  std::string name;
};

// An entry of the list; the operation has the name WHAT.
struct Listed {
  const char* name;
  KernelVariant variant;
  Protocol protocol;
  uint32_t most_peers;
  Counters counters;
};
#define LISTED(name, variant, protocol, most_peers, counters, ...) \
  {"niccolite_" #name, KernelVariant::variant, Protocol::protocol, most_peers, Counters::counters},
constexpr Listed kReduceList[] = {NICCOLITE_REDUCE_KERNELS(LISTED, WHAT, )};
constexpr Listed kTeamList[] = {NICCOLITE_TEAM_KERNELS(LISTED, WHAT, )};
constexpr Listed kCopyList[] = {NICCOLITE_COPY_KERNELS_BESIDE(LISTED, )
                                    NICCOLITE_COPY_KERNELS(LISTED, )};
#undef LISTED

// The kernels that reduce elements of one type by one reduction, or that move bytes.
std::vector<Named> kernels_of(bool reduces, DataType type, ReduceOp op) {
  constexpr std::string_view kWhat = "WHAT";
  const std::string what =
      fmt::format("{}_{}", kernel_name_of(type), kReduceOpNames[static_cast<size_t>(op)]);
  std::vector<Named> kernels;
  const auto add = [&](std::span<const Listed> list) {
    for (const Listed& of : list) {
      std::string name = of.name;
      if (reduces) name.replace(name.find(kWhat), kWhat.size(), what);
      kernels.push_back({{of.protocol, reduces, of.variant, of.most_peers, type, op, of.counters},
                         std::move(name)});
    }
  };
  add(reduces ? std::span<const Listed>(kReduceList) : kCopyList);
  if (reduces && switch_reduces(type, op)) add(kTeamList);
  return kernels;
}

// Every kernel's place in a device's table.
// Instances of the program: for each protocol, and LL over proxies.
constexpr size_t kPrograms = kProtocols + 1;
// Instances of each other variant: for few peers and for many, for each place of counters.
constexpr size_t kInstances = 6;
constexpr size_t kVariants = kPrograms + kInstances * (kKernelVariants - 1);
constexpr size_t kReduceKernels = size_t{kDataTypes} * kReduceOps * kVariants;
constexpr size_t kFirstOneSided = kReduceKernels + kVariants;
constexpr size_t kKernels = kFirstOneSided + kOneSidedKernels;
constexpr std::array kOneSidedNames{"niccolite_put", "niccolite_relayed_put",
                                    "niccolite_signal_wait", "niccolite_team_trial"};
static_assert(kOneSidedNames.size() == kOneSidedKernels);
size_t index_of(OneSidedKernel kernel) { return kFirstOneSided + static_cast<size_t>(kernel); }
size_t index_of(const KernelId& id) {
  const size_t instance =
      (id.most_peers > kFewDirectPeers ? 1 : 0) + 2 * static_cast<size_t>(id.counters);
  const size_t variant =
      id.variant == KernelVariant::Program
          ? (id.counters == Counters::OfProxies ? kProtocols : static_cast<size_t>(id.protocol))
          : kPrograms + kInstances * (static_cast<size_t>(id.variant) - 1) + instance;
  if (!id.reduces) return kReduceKernels + variant;
  return (static_cast<size_t>(id.type) * kReduceOps + static_cast<size_t>(id.op)) * kVariants +
         variant;
}
using Table = std::array<CuFunction, kKernels>;

std::string name_of(const KernelId& id) {
  for (const Named& kernel : kernels_of(id.reduces, id.type, id.op))
    if (index_of(kernel.id) == index_of(id)) return kernel.name;
  return "that is in no list";
}

// Libraries belong to the process, functions to a device's context. Never unloaded: kernels may run
// until the process ends.
class Kernels {
 public:
  static Kernels& instance() {
    static Kernels* const kernels = new Kernels;
    return *kernels;
  }

  Result<const Table*> table(int device) {
    const std::lock_guard lock(mutex_);
    if (const auto found = tables_.find(device); found != tables_.end()) return &found->second;
    if (fatbins().empty()) {
      return Status::cuda_error(
          "this build of Niccolite has no CUDA kernels; build it with nvcc (-DNICCOLITE_CUDA=ON)");
    }
    auto& machine = static_cast<CudaMachine&>(*TRY(gpu::cuda::open()));
    const ScopedContext context = TRY(machine.enter(device));
    const ScopedRelaxedCapture relaxed(machine.driver());
    Table loaded{};
    for (const Fatbin& fatbin : fatbins()) TRY(load(machine, device, fatbin, loaded));
    return &tables_.emplace(device, loaded).first->second;
  }

 private:
  Status load(CudaMachine& machine, int device, const Fatbin& fatbin, Table& table) {
    const Driver& driver = machine.driver();
    CuLibrary& library = libraries_[fatbin.name];
    if (library == nullptr) {
      TRY(driver.check(
          driver.cuLibraryLoadData(&library, fatbin.data, nullptr, nullptr, 0, nullptr, nullptr, 0),
          "cuLibraryLoadData(kernels of {} on device {})", fatbin.name, device));
    }
    const auto load_named = [&](const std::string& name, size_t index) -> Status {
      CuKernel kernel = nullptr;
      TRY(driver.check(driver.cuLibraryGetKernel(&kernel, library, name.c_str()),
                       "cuLibraryGetKernel({})", name));
      CuFunction& function = table[index];
      if (function != nullptr) return Status::internal("kernel {} has the place of another", name);
      TRY(driver.check(driver.cuKernelGetFunction(&function, kernel),
                       "cuKernelGetFunction({} on device {})", name, device));
      if (driver.cuFuncLoad != nullptr) {
        return driver.check(driver.cuFuncLoad(function), "cuFuncLoad({} on device {})", name,
                            device);
      }
      // Drivers before CUDA 12.4: asking for a function's properties loads it.
      int registers = 0;
      return driver.check(
          driver.cuFuncGetAttribute(&registers, gpu::cuda::kCuFunctionRegisters, function),
          "cuFuncGetAttribute({} on device {})", name, device);
    };
    if (std::string(fatbin.name) == "copy") {
      for (size_t i = 0; i < kOneSidedNames.size(); ++i)
        TRY(load_named(kOneSidedNames[i], kFirstOneSided + i));
      for (const Named& kernel : kernels_of(/*reduces=*/false, DataType::Uint8, ReduceOp::Sum))
        TRY(load_named(kernel.name, index_of(kernel.id)));
      return {};
    }
    for (int t = 0; t < kDataTypes; ++t) {
      const auto type = static_cast<DataType>(t);
      if (kernel_name_of(type) != fatbin.name) continue;
      for (int f = 0; f < kReduceOps; ++f) {
        const auto op = static_cast<ReduceOp>(f);
        if (reduced_as(type, op) != type) continue;
        for (const Named& kernel : kernels_of(/*reduces=*/true, type, op))
          TRY(load_named(kernel.name, index_of(kernel.id)));
      }
    }
    return {};
  }

  std::mutex mutex_;
  std::map<std::string, CuLibrary> libraries_;  // guarded by mutex_
  std::map<int, Table> tables_;                 // guarded by mutex_; complete once entered
};

}  // namespace

Status load(int device) {
  TRY(Kernels::instance().table(device));
  return {};
}

Result<CuFunction> find_kernel(int device, const KernelId& id) {
  const Table* table = TRY(Kernels::instance().table(device));
  CuFunction function = (*table)[index_of(id)];
  if (function == nullptr) {
    return Status::internal(
        "kernel {} is missing from this build of the library: were all types built "
        "(NICCOLITE_CUDA_TYPES)?",
        name_of(id));
  }
  return function;
}

Result<CuFunction> find_kernel(int device, OneSidedKernel kernel) {
  const Table* table = TRY(Kernels::instance().table(device));
  return (*table)[index_of(kernel)];
}

}  // namespace niccolite::executor::cuda
