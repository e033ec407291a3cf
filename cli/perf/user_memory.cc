#include "cli/perf/user_memory.h"

#include <dlfcn.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/log.h"
#include "gpu/cuda/driver_api.h"

namespace niccolite::perf {
namespace {

using gpu::cuda::CuAccess;
using gpu::cuda::CuAllocation;
using gpu::cuda::CuAllocationProperties;
using gpu::cuda::CuContext;
using gpu::cuda::CuDevice;
using gpu::cuda::CuPointer;
using gpu::cuda::CuResult;
using gpu::cuda::CuStream;
using CuPool = struct CuPoolObject*;

// CUmemPoolProps of CUDA 12 and later.
struct CuPoolProperties {
  int allocation_type;
  int handle_types;
  gpu::cuda::CuLocation location;
  void* win32_security_attributes;
  size_t max_bytes;
  unsigned short usage;
  unsigned char reserved[54];
};
static_assert(sizeof(CuPoolProperties) == 88);
constexpr unsigned kCuMemAttachGlobal = 1;

// X(member, symbol of the driver, parameters)
#define NICCOLITE_PERF_DRIVER_FUNCTIONS(X)                                                    \
  X(init, cuInit, (unsigned flags))                                                           \
  X(error_name, cuGetErrorName, (CuResult result, const char** name))                         \
  X(device_get, cuDeviceGet, (CuDevice * device, int ordinal))                                \
  X(device_attribute, cuDeviceGetAttribute, (int* value, int attribute, CuDevice device))     \
  X(retain_context, cuDevicePrimaryCtxRetain, (CuContext * context, CuDevice device))         \
  X(set_context, cuCtxSetCurrent, (CuContext context))                                        \
  X(allocate, cuMemAlloc_v2, (CuPointer * address, size_t bytes))                             \
  X(free, cuMemFree_v2, (CuPointer address))                                                  \
  X(allocate_managed, cuMemAllocManaged, (CuPointer * address, size_t bytes, unsigned flags)) \
  X(allocate_host, cuMemHostAlloc, (void** address, size_t bytes, unsigned flags))            \
  X(free_host, cuMemFreeHost, (void* address))                                                \
  X(allocate_async, cuMemAllocAsync, (CuPointer * address, size_t bytes, CuStream stream))    \
  X(free_async, cuMemFreeAsync, (CuPointer address, CuStream stream))                         \
  X(create_pool, cuMemPoolCreate, (CuPool * pool, const CuPoolProperties* properties))        \
  X(allocate_from_pool, cuMemAllocFromPoolAsync,                                              \
    (CuPointer * address, size_t bytes, CuPool pool, CuStream stream))                        \
  X(granularity, cuMemGetAllocationGranularity,                                               \
    (size_t * bytes, const CuAllocationProperties* properties, int option))                   \
  X(create, cuMemCreate,                                                                      \
    (CuAllocation * allocation, size_t bytes, const CuAllocationProperties* properties,       \
     unsigned long long flags))                                                               \
  X(release, cuMemRelease, (CuAllocation allocation))                                         \
  X(reserve, cuMemAddressReserve,                                                             \
    (CuPointer * address, size_t bytes, size_t alignment, CuPointer hint,                     \
     unsigned long long flags))                                                               \
  X(free_addresses, cuMemAddressFree, (CuPointer address, size_t bytes))                      \
  X(map, cuMemMap,                                                                            \
    (CuPointer address, size_t bytes, size_t offset, CuAllocation allocation,                 \
     unsigned long long flags))                                                               \
  X(unmap, cuMemUnmap, (CuPointer address, size_t bytes))                                     \
  X(set_access, cuMemSetAccess,                                                               \
    (CuPointer address, size_t bytes, const CuAccess* access, size_t count))

/// The driver API as programs find it: by its symbols.
struct Driver {
#define X(member, symbol, parameters) CuResult(*member) parameters = nullptr;
  NICCOLITE_PERF_DRIVER_FUNCTIONS(X)
#undef X

  Status check(CuResult result, const char* call, size_t bytes) const {
    if (result == gpu::cuda::kCuSuccess) return {};
    const char* name = nullptr;
    if (error_name(result, &name) != gpu::cuda::kCuSuccess || name == nullptr) name = "unknown";
    return Status::cuda_error("{}({} bytes) failed: {} ({})", call, bytes, name, result);
  }
};

/// The library with the driver's names. The virtual driver's lies beside its runtime, which the
/// machine has loaded; the system's libcuda.so.1 may be another one.
Result<void*> open_driver(gpu::Kind kind) {
  std::string path = "libcuda.so.1";
  if (kind == gpu::Kind::Virtual) {
    void* const runtime = dlopen("libcudart.so.13", RTLD_LAZY | RTLD_NOLOAD);
    void* const symbol = runtime ? dlsym(runtime, "niccolite_virtual_driver") : nullptr;
    Dl_info info = {};
    if (symbol == nullptr || dladdr(symbol, &info) == 0)
      return Status::cuda_error("--allocator: the library of virtual GPUs cannot be found");
    path = std::filesystem::path(info.dli_fname).parent_path() / path;
  }
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Status::cuda_error("--allocator: {}", dlerror());
  return library;
}

Result<Driver> load_driver(gpu::Kind kind) {
  void* const library = TRY(open_driver(kind));
  Driver driver;
#define X(member, symbol, parameters)                                                \
  driver.member = reinterpret_cast<CuResult(*) parameters>(dlsym(library, #symbol)); \
  if (driver.member == nullptr)                                                      \
    return Status::cuda_error("--allocator: the driver has no " #symbol);
  NICCOLITE_PERF_DRIVER_FUNCTIONS(X)
#undef X
  TRY(driver.check(driver.init(0), "cuInit", 0));
  return driver;
}

Result<const Driver*> driver_of(gpu::Machine& machine) {
  static const Result<Driver> driver = load_driver(machine.kind());
  if (!driver.is_ok()) return driver.status().copy();
  return &driver.value();
}

/// Makes the device current for calls of `driver`: in another thread, perhaps, than before.
Status enter(gpu::Machine& machine, const Driver& driver, int ordinal) {
  TRY(machine.set_current_device(ordinal));
  if (machine.kind() == gpu::Kind::Cuda) return {};
  // The virtual driver's machine works without contexts, and its driver API does not.
  CuDevice device = 0;
  CuContext context = nullptr;
  TRY(driver.check(driver.device_get(&device, ordinal), "cuDeviceGet", 0));
  TRY(driver.check(driver.retain_context(&context, device), "cuDevicePrimaryCtxRetain", 0));
  return driver.check(driver.set_context(context), "cuCtxSetCurrent", 0);
}

void* address_of(CuPointer pointer) { return std::bit_cast<void*>(uintptr_t{pointer}); }

Result<CuAllocationProperties> granule_properties(const Driver& driver, int ordinal,
                                                  bool is_exportable) {
  CuDevice device = 0;
  int can_be_rdma_target = 0;
  TRY(driver.check(driver.device_get(&device, ordinal), "cuDeviceGet", 0));
  TRY(driver.check(driver.device_attribute(&can_be_rdma_target,
                                           gpu::cuda::kCuGpuDirectRdmaWithVmmSupported, device),
                   "cuDeviceGetAttribute", 0));
  CuAllocationProperties properties{};
  properties.type = gpu::cuda::kCuAllocationPinned;
  properties.requested_handle_types =
      is_exportable ? gpu::cuda::kCuHandlePosixFd : gpu::cuda::kCuHandleNone;
  properties.location = {gpu::cuda::kCuLocationDevice, device};
  properties.flags.gpu_direct_rdma_capable = can_be_rdma_target != 0 ? 1 : 0;
  return properties;
}

/// One range of addresses, over granules of memory that are mapped side by side.
class Granules {
 public:
  static Result<std::shared_ptr<Granules>> create(const Driver& driver, int ordinal, size_t bytes,
                                                  bool is_exportable) {
    // PyTorch grows an expandable segment by 20 MiB, and the segment of small tensors by 2 MiB.
    constexpr size_t kLargeGranule = size_t{20} << 20;
    const CuAllocationProperties properties =
        TRY(granule_properties(driver, ordinal, is_exportable));
    size_t granularity = 0;
    TRY(driver.check(
        driver.granularity(&granularity, &properties, gpu::cuda::kCuGranularityMinimum),
        "cuMemGetAllocationGranularity", bytes));
    size_t granule = bytes > kLargeGranule ? kLargeGranule : granularity;
    granule = (granule + granularity - 1) / granularity * granularity;
    auto made = std::make_shared<Granules>(driver, granule);
    TRY(made->map(properties, std::max<size_t>((bytes + granule - 1) / granule, 2)));
    return made;
  }
  Granules(const Driver& driver, size_t granule) : driver_(driver), granule_(granule) {}
  Granules(const Granules&) = delete;
  ~Granules() { release().ignore("what was not mapped to the end is given back as far as it was"); }

  void* data() const { return address_of(address_); }

  Status release() {
    Status status;
    const auto keep_first = [&](Status next) {
      if (status.is_ok()) status = std::move(next);
    };
    for (; mapped_ > 0; --mapped_)
      keep_first(driver_.check(driver_.unmap(address_ + (mapped_ - 1) * granule_, granule_),
                               "cuMemUnmap", granule_));
    if (const size_t bytes = std::exchange(reserved_, 0); bytes > 0)
      keep_first(driver_.check(driver_.free_addresses(address_, bytes), "cuMemAddressFree", bytes));
    return status;
  }

 private:
  Status map(const CuAllocationProperties& properties, size_t granules) {
    const size_t bytes = granules * granule_;
    TRY(driver_.check(driver_.reserve(&address_, bytes, 0, 0, 0), "cuMemAddressReserve", bytes));
    reserved_ = bytes;
    for (size_t i = 0; i < granules; ++i) {
      CuAllocation allocation = 0;
      TRY(driver_.check(driver_.create(&allocation, granule_, &properties, 0), "cuMemCreate",
                        granule_));
      const CuResult mapped = driver_.map(address_ + i * granule_, granule_, 0, allocation, 0);
      // The mapping keeps the memory alive.
      TRY(driver_.check(driver_.release(allocation), "cuMemRelease", granule_));
      TRY(driver_.check(mapped, "cuMemMap", granule_));
      ++mapped_;
    }
    const CuAccess access = {properties.location, gpu::cuda::kCuAccessReadWrite};
    return driver_.check(driver_.set_access(address_, bytes, &access, 1), "cuMemSetAccess", bytes);
  }

  const Driver& driver_;
  const size_t granule_;
  CuPointer address_ = 0;
  size_t reserved_ = 0;  // bytes
  size_t mapped_ = 0;    // granules
};

/// A pool of `ordinal` whose memory can be exported by descriptor, and which no other device may
/// access. One for each device, for as long as the process lives.
Result<CuPool> exportable_pool(const Driver& driver, int ordinal) {
  static std::mutex mutex;
  static std::map<int, CuPool> pools;
  const std::lock_guard lock(mutex);
  CuPool& pool = pools[ordinal];
  if (pool != nullptr) return pool;
  CuPoolProperties properties{};
  properties.allocation_type = gpu::cuda::kCuAllocationPinned;
  properties.handle_types = gpu::cuda::kCuHandlePosixFd;
  properties.location = {gpu::cuda::kCuLocationDevice, ordinal};
  TRY(driver.check(driver.create_pool(&pool, &properties), "cuMemPoolCreate", 0));
  return pool;
}

}  // namespace

Result<UserMemory> UserMemory::allocate_shareable(const MemorySource& source, size_t bytes) {
  const auto memory = std::make_shared<gpu::Memory>(
      TRY(source.machine->allocate(source.device, bytes, /*shareable=*/true)));
  return UserMemory(memory->data(), [memory]() -> Status {
    memory->reset();
    return {};
  });
}

Result<UserMemory> UserMemory::allocate(const MemorySource& source, size_t bytes) {
  gpu::Machine& machine = *source.machine;
  TRY(machine.set_current_device(source.device));
  // A build of virtual GPUs may have no driver API beside it; the default needs none.
  if (source.allocator == Allocator::Malloc && machine.kind() == gpu::Kind::Virtual) {
    const auto memory =
        std::make_shared<gpu::Memory>(TRY(machine.allocate_as_user(source.device, bytes)));
    return UserMemory(memory->data(), [memory]() -> Status {
      memory->reset();
      return {};
    });
  }
  if (source.allocator == Allocator::Nccl) {
    const Library& nccl = *source.library;
    if (nccl.mem_alloc == nullptr || nccl.mem_free == nullptr)
      return Status::invalid_argument("--allocator: {} has no ncclMemAlloc", nccl.path());
    void* data = nullptr;
    TRY(nccl.check(nccl.mem_alloc(&data, bytes), "ncclMemAlloc"));
    return UserMemory(data, [&machine, &nccl, data, device = source.device]() -> Status {
      TRY(machine.set_current_device(device));
      return nccl.check(nccl.mem_free(data), "ncclMemFree");
    });
  }
  const Driver& driver = *TRY(driver_of(machine));
  TRY(enter(machine, driver, source.device));
  const auto owner = [&](void* data, const char* call, auto free) {
    return UserMemory(data,
                      [&machine, &driver, device = source.device, bytes, call, free]() -> Status {
                        TRY(enter(machine, driver, device));
                        return driver.check(free(), call, bytes);
                      });
  };
  const auto stream = static_cast<CuStream>(source.stream);
  const auto plain = [&](CuPointer pointer) {
    return owner(address_of(pointer), "cuMemFree",
                 [&driver, pointer] { return driver.free(pointer); });
  };
  const auto ordered = [&](CuPointer pointer) {
    return owner(address_of(pointer), "cuMemFreeAsync",
                 [&driver, pointer, stream] { return driver.free_async(pointer, stream); });
  };
  CuPointer pointer = 0;
  void* host = nullptr;
  switch (source.allocator) {
    case Allocator::Vmm:
    case Allocator::VmmPrivate: {
      const std::shared_ptr<Granules> granules =
          TRY(Granules::create(driver, source.device, bytes, source.allocator == Allocator::Vmm));
      return UserMemory(granules->data(), [granules] { return granules->release(); });
    }
    case Allocator::Async:
      TRY(driver.check(driver.allocate_async(&pointer, bytes, stream), "cuMemAllocAsync", bytes));
      return ordered(pointer);
    case Allocator::Pool: {
      const CuPool pool = TRY(exportable_pool(driver, source.device));
      TRY(driver.check(driver.allocate_from_pool(&pointer, bytes, pool, stream),
                       "cuMemAllocFromPoolAsync", bytes));
      return ordered(pointer);
    }
    case Allocator::Managed:
      TRY(driver.check(driver.allocate_managed(&pointer, bytes, kCuMemAttachGlobal),
                       "cuMemAllocManaged", bytes));
      return plain(pointer);
    case Allocator::Host:
      TRY(driver.check(
          driver.allocate_host(&host, bytes,
                               gpu::cuda::kCuHostAllocPortable | gpu::cuda::kCuHostAllocDeviceMap),
          "cuMemHostAlloc", bytes));
      return owner(host, "cuMemFreeHost", [&driver, host] { return driver.free_host(host); });
    case Allocator::Malloc:
    case Allocator::Nccl:
      break;
  }
  TRY(driver.check(driver.allocate(&pointer, bytes), "cuMemAlloc", bytes));
  return plain(pointer);
}

void UserMemory::reset() {
  data_ = nullptr;
  if (const std::function<Status()> release = std::exchange(release_, nullptr)) {
    const Status status = release();
    if (!status.is_ok()) LOG(Warn, All, "{}", status.message());
  }
}

}  // namespace niccolite::perf
