// Devices, versions, names of errors.
#include <cstdio>
#include <cstring>

#include "vcuda/driver/context.h"

using namespace vcuda::driver;  // NOLINT(google-build-using-namespace)

namespace {

CUresult properties_of(CUdevice device, cudaDeviceProp& properties) {
  if (!is_initialized()) return kNotInitialized;
  return of(cudaGetDeviceProperties(&properties, device));
}

CUresult check(CUdevice device) {
  if (!is_initialized()) return kNotInitialized;
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || device < 0 || device >= count)
    return kInvalidDevice;
  return kSuccess;
}

// Attributes that the runtime has no name for, or answers otherwise: CU_DEVICE_ATTRIBUTE_*.
enum Attribute : int {
  kVirtualMemoryManagement = 102,
  kFileDescriptorHandles = 103,
  kMemoryPools = 115,
  kPoolHandleTypes = 119,
  kWaitsFor64Bits = 122,
  kWaitsForNotAllBits = 123,
  kDmaBuf = 124,
  kMulticast = 132,
};

}  // namespace

extern "C" {

CUresult cuDriverGetVersion(int* version) {
  if (version == nullptr) return kInvalidValue;
  if (!has_runtime()) return refuse_foreign_runtime();
  return of(cudaDriverGetVersion(version));
}

CUresult cuGetErrorName(CUresult error, const char** name) {
  if (name == nullptr) return kInvalidValue;
  *name = cudaGetErrorName(static_cast<cudaError_t>(error));
  return kSuccess;
}
CUresult cuGetErrorString(CUresult error, const char** text) {
  if (text == nullptr) return kInvalidValue;
  *text = cudaGetErrorString(static_cast<cudaError_t>(error));
  return kSuccess;
}

CUresult cuDeviceGetCount(int* count) {
  if (!is_initialized()) return kNotInitialized;
  return count == nullptr ? kInvalidValue : of(cudaGetDeviceCount(count));
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (const CUresult result = check(ordinal); result != kSuccess) return result;
  if (device == nullptr) return kInvalidValue;
  *device = ordinal;
  return kSuccess;
}
CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  cudaDeviceProp properties;
  if (const CUresult result = properties_of(device, properties); result != kSuccess) return result;
  if (name == nullptr || length <= 0) return kInvalidValue;
  std::snprintf(name, static_cast<size_t>(length), "%s", properties.name);
  return kSuccess;
}
CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  cudaDeviceProp properties;
  if (const CUresult result = properties_of(device, properties); result != kSuccess) return result;
  if (uuid == nullptr) return kInvalidValue;
  std::memcpy(uuid->bytes, properties.uuid.bytes, sizeof uuid->bytes);
  return kSuccess;
}
CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) { return cuDeviceGetUuid_v2(uuid, device); }
CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  cudaDeviceProp properties;
  if (const CUresult result = properties_of(device, properties); result != kSuccess) return result;
  if (bytes == nullptr) return kInvalidValue;
  *bytes = properties.totalGlobalMem;
  return kSuccess;
}
CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
  cudaDeviceProp properties;
  if (const CUresult result = properties_of(device, properties); result != kSuccess) return result;
  if (major == nullptr || minor == nullptr) return kInvalidValue;
  *major = properties.major;
  *minor = properties.minor;
  return kSuccess;
}
CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice device) {
  if (const CUresult result = check(device); result != kSuccess) return result;
  if (value == nullptr) return kInvalidValue;
  switch (attribute) {
    case kMemoryPools:
    case kVirtualMemoryManagement:
    case kFileDescriptorHandles:
    case kWaitsFor64Bits:
    case kWaitsForNotAllBits:
    case kMulticast:
    case kDmaBuf:
      *value = 1;
      return kSuccess;
    case kPoolHandleTypes:
      *value = 1;  // file descriptors
      return kSuccess;
    default:
      break;
  }
  // The numbers are the runtime's. A virtual GPU does not have attributes that it does not know.
  if (cudaDeviceGetAttribute(value, static_cast<cudaDeviceAttr>(attribute), device) == cudaSuccess)
    return kSuccess;
  static_cast<void>(cudaGetLastError());
  *value = 0;
  return attribute <= 0 ? kInvalidValue : kSuccess;
}
CUresult cuDeviceGetPCIBusId(char* id, int length, CUdevice device) {
  if (const CUresult result = check(device); result != kSuccess) return result;
  return of(cudaDeviceGetPCIBusId(id, length, device));
}
CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* id) {
  if (!is_initialized()) return kNotInitialized;
  return of(cudaDeviceGetByPCIBusId(device, id));
}
CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  if (const CUresult result = check(device); result != kSuccess) return result;
  return of(cudaDeviceCanAccessPeer(can, device, peer));
}
CUresult cuDeviceGetP2PAttribute(int* value, int attribute, CUdevice device, CUdevice peer) {
  constexpr int kRank = 1, kArrays = 4;
  if (value == nullptr || attribute < kRank || attribute > kArrays) return kInvalidValue;
  const CUresult result = cuDeviceCanAccessPeer(value, device, peer);
  if (attribute == kRank || attribute == kArrays) *value = 0;
  return result;
}
CUresult cuFlushGPUDirectRDMAWrites(int target, int scope) {
  return in_context([&] {
    return of(
        cudaDeviceFlushGPUDirectRDMAWrites(static_cast<cudaFlushGPUDirectRDMAWritesTarget>(target),
                                           static_cast<cudaFlushGPUDirectRDMAWritesScope>(scope)));
  });
}
// Tables that NVIDIA's own libraries share and no document describes. Its runtime asks for one
// first, and gives up without it.
CUresult cuGetExportTable(const void** table, const CUuuid* /*id*/) {
  if (table == nullptr) return kInvalidValue;
  *table = nullptr;
  return refuse_foreign_runtime();
}
CUresult cuDeviceGetExecAffinitySupport(int* value, int /*type*/, CUdevice device) {
  if (const CUresult result = check(device); result != kSuccess) return result;
  if (value == nullptr) return kInvalidValue;
  *value = 0;
  return kSuccess;
}

}  // extern "C"
