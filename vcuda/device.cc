// Devices.
#include <cstdio>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "gpu/virtual/host.h"
#include "vcuda/call.h"

using niccolite::gpu::DeviceInfo;
using niccolite::gpu::virtual_::device_bus;
using niccolite::gpu::virtual_::device_bus_domain;
using niccolite::gpu::virtual_::device_bus_id;
using vcuda::ask;
using vcuda::call;
using vcuda::Error;
using vcuda::Runtime;

namespace {

constexpr int kThreadsPerBlock = 1024;
constexpr int kWarp = 32;
constexpr size_t kSharedBytes = 227 << 10;

// Pairs (device, peer) for which the program has asked for peer access. All virtual GPUs see all
// memory anyway; this serves the rules on asking twice.
struct Peers {
  std::mutex mutex;
  std::set<std::pair<int, int>> enabled;
};
Peers& peers() {
  static Peers* const instance = new Peers;
  return *instance;
}

Error describe(Runtime& runtime, int device, cudaDeviceProp* prop) {
  const niccolite::Result<DeviceInfo> result = runtime.describe(device);
  if (!result.is_ok()) return Error::InvalidDevice;
  const DeviceInfo& info = result.value();
  const int on_machine = runtime.visible().on_machine(device);
  *prop = {};
  std::snprintf(prop->name, sizeof prop->name, "%s", info.name.c_str());
  std::memcpy(prop->uuid.bytes, info.uuid.data(), sizeof prop->uuid.bytes);
  prop->totalGlobalMem = info.total_bytes;
  prop->sharedMemPerBlock = 48 << 10;
  prop->sharedMemPerBlockOptin = kSharedBytes;
  prop->sharedMemPerMultiprocessor = kSharedBytes + 1024;
  prop->reservedSharedMemPerBlock = 1024;
  prop->regsPerBlock = prop->regsPerMultiprocessor = 65536;
  prop->warpSize = kWarp;
  prop->memPitch = INT32_MAX;
  prop->maxThreadsPerBlock = kThreadsPerBlock;
  prop->maxThreadsPerMultiProcessor = 2 * kThreadsPerBlock;
  prop->maxBlocksPerMultiProcessor = kWarp;
  prop->maxThreadsDim[0] = prop->maxThreadsDim[1] = kThreadsPerBlock;
  prop->maxThreadsDim[2] = 64;
  prop->maxGridSize[0] = INT32_MAX;
  prop->maxGridSize[1] = prop->maxGridSize[2] = 65535;
  prop->totalConstMem = 64 << 10;
  prop->major = info.compute_capability / 10;
  prop->minor = info.compute_capability % 10;
  prop->multiProcessorCount = info.multiprocessors;
  prop->textureAlignment = 512;
  prop->canMapHostMemory = prop->concurrentKernels = prop->unifiedAddressing = 1;
  prop->pciDomainID = device_bus_domain(on_machine);
  prop->pciBusID = device_bus(on_machine);
  prop->asyncEngineCount = 1;
  prop->gpuDirectRDMAFlushWritesOptions = cudaFlushGPUDirectRDMAWritesOptionHost;
  prop->gpuDirectRDMAWritesOrdering = cudaGPUDirectRDMAWritesOrderingAllDevices;
  prop->streamPrioritiesSupported = 1;
  prop->managedMemory = prop->concurrentManagedAccess = prop->pageableMemoryAccess = 1;
  prop->pageableMemoryAccessUsesHostPageTables = prop->directManagedMemAccessFromHost = 1;
  prop->hostNativeAtomicSupported = prop->hostRegisterSupported = 1;
  prop->canUseHostPointerForRegisteredMem = 1;
  prop->isMultiGpuBoard = 0;
  prop->deviceNumaId = prop->hostNumaId = -1;
  return Error::None;
}

Error attribute(Runtime& runtime, int device, cudaDeviceAttr attr, int* value) {
  cudaDeviceProp prop;
  TRY_VIRTUAL(describe(runtime, device, &prop));
  switch (attr) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = prop.maxThreadsPerBlock;
      break;
    case cudaDevAttrMaxBlockDimX:
      *value = prop.maxThreadsDim[0];
      break;
    case cudaDevAttrMaxBlockDimY:
      *value = prop.maxThreadsDim[1];
      break;
    case cudaDevAttrMaxBlockDimZ:
      *value = prop.maxThreadsDim[2];
      break;
    case cudaDevAttrMaxGridDimX:
      *value = prop.maxGridSize[0];
      break;
    case cudaDevAttrMaxGridDimY:
      *value = prop.maxGridSize[1];
      break;
    case cudaDevAttrMaxGridDimZ:
      *value = prop.maxGridSize[2];
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = static_cast<int>(prop.sharedMemPerBlock);
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(prop.sharedMemPerBlockOptin);
      break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = static_cast<int>(prop.sharedMemPerMultiprocessor);
      break;
    case cudaDevAttrTotalConstantMemory:
      *value = static_cast<int>(prop.totalConstMem);
      break;
    case cudaDevAttrWarpSize:
      *value = prop.warpSize;
      break;
    case cudaDevAttrMaxPitch:
      *value = INT32_MAX;
      break;
    case cudaDevAttrMaxRegistersPerBlock:
      *value = prop.regsPerBlock;
      break;
    case cudaDevAttrMaxRegistersPerMultiprocessor:
      *value = prop.regsPerMultiprocessor;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = prop.multiProcessorCount;
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = prop.maxThreadsPerMultiProcessor;
      break;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      *value = prop.maxBlocksPerMultiProcessor;
      break;
    case cudaDevAttrPciBusId:
      *value = prop.pciBusID;
      break;
    case cudaDevAttrPciDeviceId:
      *value = prop.pciDeviceID;
      break;
    case cudaDevAttrPciDomainId:
      *value = prop.pciDomainID;
      break;
    case cudaDevAttrAsyncEngineCount:
      *value = prop.asyncEngineCount;
      break;
    case cudaDevAttrGPUDirectRDMAFlushWritesOptions:
      *value = static_cast<int>(prop.gpuDirectRDMAFlushWritesOptions);
      break;
    case cudaDevAttrGPUDirectRDMAWritesOrdering:
      *value = prop.gpuDirectRDMAWritesOrdering;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = prop.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = prop.minor;
      break;
    case cudaDevAttrGpuOverlap:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrHostNativeAtomicSupported:
    case cudaDevAttrPageableMemoryAccess:
    case cudaDevAttrConcurrentManagedAccess:
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
    case cudaDevAttrHostRegisterSupported:
    case cudaDevAttrPageableMemoryAccessUsesHostPageTables:
    case cudaDevAttrDirectManagedMemAccessFromHost:
      *value = 1;
      break;
    default:
      *value = 0;
      break;  // a feature that virtual GPUs do not have
  }
  return Error::None;
}

}  // namespace

cudaError_t cudaGetDeviceCount(int* count) {
  if (count != nullptr) *count = 0;  // also where there is none, which is an error
  return ask([&](Runtime& runtime) {
    if (count == nullptr) return Error::InvalidValue;
    *count = runtime.device_count();
    return Error::None;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return ask([&](Runtime&) {
    if (device == nullptr) return Error::InvalidValue;
    *device = Runtime::current_device();
    return Error::None;
  });
}

cudaError_t cudaSetDevice(int device) {
  return call([&](Runtime& runtime) {
    if (!runtime.is_device(device)) return Error::InvalidDevice;
    Runtime::set_current_device(device);
    return Error::None;
  });
}

cudaError_t cudaInitDevice(int device, unsigned int, unsigned int) {
  return call([&](Runtime& runtime) {
    return runtime.is_device(device) ? Error::None : Error::InvalidDevice;
  });
}

cudaError_t cudaSetDeviceFlags(unsigned int flags) {
  // How to wait is for virtual GPUs to decide.
  return ask([&](Runtime&) {
    return (flags & ~static_cast<unsigned int>(cudaDeviceMask)) == 0 ? Error::None
                                                                     : Error::InvalidValue;
  });
}

cudaError_t cudaGetDeviceFlags(unsigned int* flags) {
  return ask([&](Runtime&) {
    if (flags == nullptr) return Error::InvalidValue;
    *flags = cudaDeviceScheduleAuto | cudaDeviceMapHost;
    return Error::None;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* prop, int device) {
  return ask([&](Runtime& runtime) {
    return prop == nullptr ? Error::InvalidValue : describe(runtime, device, prop);
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attr, int device) {
  return ask([&](Runtime& runtime) {
    return value == nullptr ? Error::InvalidValue : attribute(runtime, device, attr, value);
  });
}

cudaError_t cudaDeviceSynchronize() {
  return call(
      [&](Runtime& runtime) { return runtime.synchronize_device(Runtime::current_device()); });
}

// Ends the device's work. Allocations stay until they are freed or the process ends, as do streams
// and events: other libraries of the process may still hold theirs.
cudaError_t cudaDeviceReset() {
  return call([&](Runtime& runtime) {
    const int device = Runtime::current_device();
    TRY_VIRTUAL(runtime.synchronize_device(device));
    std::lock_guard lock(peers().mutex);
    std::erase_if(peers().enabled, [device](const auto& pair) { return pair.first == device; });
    return Error::None;
  });
}

cudaError_t cudaDeviceCanAccessPeer(int* can_access, int device, int peer) {
  return ask([&](Runtime& runtime) {
    if (can_access == nullptr) return Error::InvalidValue;
    if (!runtime.is_device(device) || !runtime.is_device(peer)) return Error::InvalidDevice;
    *can_access = device != peer;
    return Error::None;
  });
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags) {
  return call([&](Runtime& runtime) {
    const int device = Runtime::current_device();
    if (flags != 0) return Error::InvalidValue;
    if (!runtime.is_device(peer) || peer == device) return Error::InvalidDevice;
    std::lock_guard lock(peers().mutex);
    const bool added = peers().enabled.emplace(device, peer).second;
    return added ? Error::None : Error::PeerAccessAlreadyEnabled;
  });
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  return call([&](Runtime& runtime) {
    if (!runtime.is_device(peer)) return Error::InvalidDevice;
    std::lock_guard lock(peers().mutex);
    const bool removed = peers().enabled.erase({Runtime::current_device(), peer}) == 1;
    return removed ? Error::None : Error::PeerAccessNotEnabled;
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  return ask([&](Runtime& runtime) {
    if (!runtime.is_device(device)) return Error::InvalidDevice;
    const std::string id = device_bus_id(runtime.visible().on_machine(device));
    if (text == nullptr || length <= static_cast<int>(id.size())) return Error::InvalidValue;
    std::memcpy(text, id.c_str(), id.size() + 1);
    return Error::None;
  });
}

cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* text) {
  return ask([&](Runtime& runtime) {
    if (device == nullptr || text == nullptr) return Error::InvalidValue;
    for (int i = 0; i < runtime.device_count(); ++i) {
      if (device_bus_id(runtime.visible().on_machine(i)) != text) continue;
      *device = i;
      return Error::None;
    }
    return Error::InvalidDevice;
  });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return ask([&](Runtime&) {
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = -5;
    return Error::None;
  });
}

// Limits concern kernels, which do not run: a value that is set is forgotten.
cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit limit) {
  return call([&](Runtime&) {
    if (value == nullptr || limit < 0 || limit > cudaLimitPersistingL2CacheSize)
      return Error::InvalidValue;
    *value = 0;
    return Error::None;
  });
}
cudaError_t cudaDeviceSetLimit(cudaLimit limit, size_t /*value*/) {
  return call([&](Runtime&) {
    return limit < 0 || limit > cudaLimitPersistingL2CacheSize ? Error::InvalidValue : Error::None;
  });
}

cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr attribute, int device,
                                      int peer) {
  return ask([&](Runtime& runtime) {
    if (value == nullptr || attribute < cudaDevP2PAttrPerformanceRank ||
        attribute > cudaDevP2PAttrOnlyPartialNativeAtomicSupported)
      return Error::InvalidValue;
    if (!runtime.is_device(device) || !runtime.is_device(peer) || device == peer)
      return Error::InvalidDevice;
    *value = attribute == cudaDevP2PAttrAccessSupported ||
             attribute == cudaDevP2PAttrNativeAtomicSupported;
    return Error::None;
  });
}

// Memory of virtual GPUs is the host's, so data that a network device has written are there
// already.
cudaError_t cudaDeviceFlushGPUDirectRDMAWrites(cudaFlushGPUDirectRDMAWritesTarget target,
                                               cudaFlushGPUDirectRDMAWritesScope scope) {
  return call([&](Runtime&) {
    return target == cudaFlushGPUDirectRDMAWritesTargetCurrentDevice &&
                   (scope == cudaFlushGPUDirectRDMAWritesToOwner ||
                    scope == cudaFlushGPUDirectRDMAWritesToAllDevices)
               ? Error::None
               : Error::InvalidValue;
  });
}

cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }
