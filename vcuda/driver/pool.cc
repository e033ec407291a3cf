// Pools: allocation in the order of streams, and pools that processes share.
//
// A pool is a device to allocate on. Memory is given back at once, so that there is nothing to keep
// or to trim. A shared pool is a file that names the device; its allocations are shared one by one,
// by the names that cudaIpcGetMemHandle gives them.
#include "vcuda/driver/pool.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "vcuda/driver/context.h"

struct CUmemPoolHandle_st {
  std::shared_ptr<const niccolite::gpu::virtual_::MemoryPool> pool;
  bool is_import = false;
  unsigned long long release_threshold = 0;
};

namespace {

using namespace vcuda::driver;  // NOLINT(google-build-using-namespace)
using niccolite::Fd;
using niccolite::gpu::virtual_::DriverCalls;
using niccolite::gpu::virtual_::MemoryPool;

constexpr int kPinned = 1, kOnDevice = 1, kFileDescriptor = 1;

CUmemoryPool make_pool(int device, bool is_exportable) {
  return new CUmemPoolHandle_st{.pool = std::make_shared<const MemoryPool>(
                                    MemoryPool{.device = device, .is_exportable = is_exportable})};
}

struct Pools {
  std::mutex mutex;
  std::set<CUmemoryPool> made;
  std::vector<CUmemoryPool> defaults;  // by device
  std::vector<CUmemoryPool> chosen;    // by cuDeviceSetMemPool; null: the default one
  std::map<CUdeviceptr, CUmemoryPool> of_allocation;
  std::set<CUdeviceptr> imported;

  static Pools& instance() {
    static Pools* const pools = new Pools;
    return *pools;
  }
  CUmemoryPool default_of(int device) {
    std::lock_guard lock(mutex);
    return place(defaults, device) == nullptr
               ? place(defaults, device) = make_pool(device, /*is_exportable=*/false)
               : place(defaults, device);
  }
  CUmemoryPool current_of(int device) {
    const CUmemoryPool usual = default_of(device);
    std::lock_guard lock(mutex);
    const CUmemoryPool pool = place(chosen, device);
    return pool == nullptr ? usual : pool;
  }
  bool is_known(CUmemoryPool pool) {
    std::lock_guard lock(mutex);
    return made.contains(pool) ||
           (pool != nullptr && std::find(defaults.begin(), defaults.end(), pool) != defaults.end());
  }
  static CUmemoryPool& place(std::vector<CUmemoryPool>& by_device, int device) {
    const auto index = static_cast<size_t>(device);
    if (index >= by_device.size()) by_device.resize(index + 1);
    return by_device[index];
  }
  void add(CUmemoryPool pool) {
    std::lock_guard lock(mutex);
    made.insert(pool);
  }
};

bool is_device(int device) {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && device >= 0 && device < count;
}

CUresult allocate(CUdeviceptr* address, size_t bytes, CUmemoryPool wanted, CUstream stream) {
  return in_stream(stream, [&](int device, DriverCalls& calls) -> CUresult {
    if (address == nullptr) return kInvalidValue;
    Pools& pools = Pools::instance();
    const CUmemoryPool pool = wanted == nullptr ? pools.current_of(device) : wanted;
    if (pool->is_import) return kInvalidValue;
    *address = 0;
    if (bytes == 0) return kSuccess;
    void* pointer = nullptr;
    const auto result =
        static_cast<CUresult>(calls.allocate_in_order(device, stream, pool->pool, bytes, &pointer));
    if (result != kSuccess) return result;
    *address = reinterpret_cast<CUdeviceptr>(pointer);
    std::lock_guard lock(pools.mutex);
    pools.of_allocation[*address] = pool;
    return kSuccess;
  });
}

/// Runs body(), with `device` as the thread's.
template <typename Body>
CUresult on_device(int device, Body&& body) {
  int before = 0;
  if (cudaGetDevice(&before) != cudaSuccess) return kInvalidDevice;
  if (const CUresult result = of(cudaSetDevice(device)); result != kSuccess) return result;
  const CUresult result = body();
  static_cast<void>(cudaSetDevice(before));
  return result;
}

}  // namespace

namespace vcuda::driver {

CUmemoryPool pool_of(CUdeviceptr base) {
  Pools& pools = Pools::instance();
  std::lock_guard lock(pools.mutex);
  const auto found = pools.of_allocation.find(base);
  return found == pools.of_allocation.end() ? nullptr : found->second;
}
bool is_exportable(CUmemoryPool pool) { return pool != nullptr && pool->pool->is_exportable; }
bool forget_allocation(CUdeviceptr base) {
  Pools& pools = Pools::instance();
  std::lock_guard lock(pools.mutex);
  pools.of_allocation.erase(base);
  return pools.imported.erase(base) > 0;
}

}  // namespace vcuda::driver

extern "C" {

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
  if (!is_initialized()) return kNotInitialized;
  if (!is_device(device)) return kInvalidDevice;
  if (pool == nullptr) return kInvalidValue;
  *pool = Pools::instance().default_of(device);
  return kSuccess;
}
CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) {
  const CUresult result = cuDeviceGetDefaultMemPool(pool, device);
  if (result == kSuccess) *pool = Pools::instance().current_of(device);
  return result;
}
CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
  Pools& pools = Pools::instance();
  if (!pools.is_known(pool) || pool->pool->device != device || pool->is_import)
    return kInvalidValue;
  std::lock_guard lock(pools.mutex);
  Pools::place(pools.chosen, device) = pool;
  return kSuccess;
}
CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties) {
  if (!is_initialized()) return kNotInitialized;
  if (pool == nullptr || properties == nullptr || properties->allocType != kPinned)
    return kInvalidValue;
  if (properties->location.type != kOnDevice || (properties->handleTypes & ~kFileDescriptor) != 0)
    return kNotSupported;
  if (!is_device(properties->location.id)) return kInvalidDevice;
  *pool = make_pool(properties->location.id, properties->handleTypes != 0);
  Pools::instance().add(*pool);
  return kSuccess;
}
// Allocations of the pool stay.
CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  Pools& pools = Pools::instance();
  std::lock_guard lock(pools.mutex);
  if (pools.made.erase(pool) == 0) return kInvalidValue;
  std::erase_if(pools.of_allocation, [pool](const auto& one) { return one.second == pool; });
  std::replace(pools.chosen.begin(), pools.chosen.end(), pool, CUmemoryPool{nullptr});
  delete pool;
  return kSuccess;
}
CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t /*keep*/) {
  return Pools::instance().is_known(pool) ? kSuccess : kInvalidValue;
}
// CU_MEMPOOL_ATTR_*: the first three switch behaviour that virtual GPUs always have; the fourth is
// the threshold; all others tell of kept memory, which a pool does not have.
CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void* value) {
  constexpr int kThreshold = 4, kLast = 8;
  if (!Pools::instance().is_known(pool) || value == nullptr || attribute < 1 || attribute > kLast)
    return kInvalidValue;
  if (attribute == kThreshold) std::memcpy(&pool->release_threshold, value, sizeof(uint64_t));
  return kSuccess;
}
CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void* value) {
  constexpr int kLastSwitch = 3, kThreshold = 4, kYes = 1;
  if (!Pools::instance().is_known(pool) || value == nullptr || attribute < 1) return kInvalidValue;
  const uint64_t word = attribute == kThreshold ? pool->release_threshold : 0;
  if (attribute <= kLastSwitch) {
    std::memcpy(value, &kYes, sizeof kYes);
  } else {
    std::memcpy(value, &word, sizeof word);
  }
  return kSuccess;
}
CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* /*of*/, size_t /*count*/) {
  return Pools::instance().is_known(pool) ? kSuccess : kInvalidValue;  // all devices see all memory
}
CUresult cuMemPoolGetAccess(int* flags, CUmemoryPool pool, CUmemLocation* /*of*/) {
  constexpr int kReadsAndWrites = 3;
  if (flags == nullptr || !Pools::instance().is_known(pool)) return kInvalidValue;
  *flags = kReadsAndWrites;
  return kSuccess;
}

// ---- allocation

CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream stream) {
  return allocate(address, bytes, nullptr, stream);
}
CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool pool,
                                 CUstream stream) {
  if (!Pools::instance().is_known(pool)) return kInvalidValue;
  return allocate(address, bytes, pool, stream);
}
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  return in_stream(stream, [&](int device, DriverCalls& calls) {
    void* const pointer = reinterpret_cast<void*>(address);
    if (forget_allocation(address))
      return static_cast<CUresult>(calls.free_in_order(device, stream, pointer));
    return of(cudaFreeAsync(pointer, stream));
  });
}

// ---- other processes

CUresult cuMemPoolExportToShareableHandle(void* handle, CUmemoryPool pool, int type,
                                          unsigned long long flags) {
  if (handle == nullptr || !Pools::instance().is_known(pool) || type != kFileDescriptor ||
      flags != 0)
    return kInvalidValue;
  Fd file;
  const auto result =
      static_cast<CUresult>(machine()->driver_calls().export_pool(*pool->pool, &file));
  if (result != kSuccess) return result;
  const int descriptor = file.release();
  std::memcpy(handle, &descriptor, sizeof descriptor);
  return kSuccess;
}
// The descriptor is the pointer's value.
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool* pool, void* handle, int type,
                                            unsigned long long flags) {
  if (!is_initialized()) return kNotInitialized;
  if (pool == nullptr || type != kFileDescriptor || flags != 0) return kInvalidValue;
  if (machine() == nullptr) return kNoDevice;
  std::shared_ptr<const MemoryPool> imported;
  const int descriptor = static_cast<int>(reinterpret_cast<intptr_t>(handle));
  const auto result =
      static_cast<CUresult>(machine()->driver_calls().import_pool(descriptor, &imported));
  if (result != kSuccess) return result;
  *pool = new CUmemPoolHandle_st{.pool = std::move(imported), .is_import = true};
  Pools::instance().add(*pool);
  return kSuccess;
}
CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData* data, CUdeviceptr address) {
  static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(CUmemPoolPtrExportData));
  if (data == nullptr || !is_exportable(pool_of(address))) return kInvalidValue;
  cudaIpcMemHandle_t name;
  const CUresult result = of(cudaIpcGetMemHandle(&name, reinterpret_cast<void*>(address)));
  if (result == kSuccess) std::memcpy(data, &name, sizeof *data);
  return result;
}
CUresult cuMemPoolImportPointer(CUdeviceptr* address, CUmemoryPool pool,
                                CUmemPoolPtrExportData* data) {
  Pools& pools = Pools::instance();
  if (address == nullptr || data == nullptr || !pools.is_known(pool) || !pool->is_import)
    return kInvalidValue;
  return on_device(pool->pool->device, [&] {
    cudaIpcMemHandle_t name;
    std::memcpy(&name, data, sizeof name);
    void* pointer = nullptr;
    const CUresult result =
        of(cudaIpcOpenMemHandle(&pointer, name, cudaIpcMemLazyEnablePeerAccess));
    if (result != kSuccess) return result;
    *address = reinterpret_cast<CUdeviceptr>(pointer);
    std::lock_guard lock(pools.mutex);
    pools.imported.insert(*address);
    pools.of_allocation[*address] = pool;
    return kSuccess;
  });
}

}  // extern "C"
