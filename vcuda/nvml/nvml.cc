// libnvidia-ml.so.1: the functions of NVIDIA's management library that say which GPUs a machine
// has, for virtual ones. As NVIDIA's it shows all of them, whatever CUDA_VISIBLE_DEVICES says.
// Programs compile against NVIDIA's header; functions that are not here (temperatures, clocks,
// links) they find missing, as in an older library. Thread safety: any thread.
#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <new>
#include <string>
#include <vector>

#include "base/host_memory.h"
#include "gpu/choice.h"
#include "gpu/virtual/host.h"

namespace {

using niccolite::gpu::virtual_::device_bus;
using niccolite::gpu::virtual_::device_bus_domain;
using niccolite::gpu::virtual_::device_bus_id;
using niccolite::gpu::virtual_::device_uuid;
using niccolite::gpu::virtual_::uuid_text;

// nvmlReturn_t.
enum Result : int {
  kSuccess = 0,
  kUninitialized = 1,
  kInvalidArgument = 2,
  kNotFound = 6,
  kInsufficientSize = 7,
  kDriverNotLoaded = 9,
  kUnknown = 999,
};

// The driver that came with CUDA 13.0.
constexpr char kDriverVersion[] = "580.65.06";
constexpr char kNvmlVersion[] = "13.580.65.06";
constexpr int kCudaVersion = 13000;
constexpr int kComputeMajor = 9, kComputeMinor = 0;
constexpr unsigned int kHopper = 9;
constexpr unsigned int kNoBrand = 0;

}  // namespace

struct nvmlDevice_st {
  int number = 0;  // on the machine
};

namespace {

using Device = nvmlDevice_st*;

std::atomic<int> users{0};

// Devices by number; empty: NICCOLITE_DEVICES is malformed. Never destroyed.
const std::vector<nvmlDevice_st>& devices() {
  static const auto* const made = [] {
    auto* const all = new std::vector<nvmlDevice_st>;
    const auto choice = niccolite::gpu::chosen_devices();
    for (int i = 0; choice.is_ok() && i < choice.value().virtual_devices; ++i) all->push_back({i});
    return all;
  }();
  return *made;
}

/// Runs body(), which returns a Result, between nvmlInit() and nvmlShutdown().
template <typename Body>
int call(Body&& body) {
  if (users.load(std::memory_order_relaxed) == 0) return kUninitialized;
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return kUnknown;
  }
}

/// Calls body(device), which takes the device's number.
template <typename Body>
int call(Device device, Body&& body) {
  return call([&] {
    for (const nvmlDevice_st& known : devices())
      if (&known == device) return static_cast<int>(body(known.number));
    return static_cast<int>(kInvalidArgument);
  });
}

Result copy(const std::string& text, char* target, unsigned int length) {
  if (target == nullptr) return kInvalidArgument;
  if (text.size() >= length) return kInsufficientSize;
  std::memcpy(target, text.c_str(), text.size() + 1);
  return kSuccess;
}

Result find(Device* out, const auto& is_it) {
  if (out == nullptr) return kInvalidArgument;
  for (const nvmlDevice_st& known : devices()) {
    if (!is_it(known.number)) continue;
    *out = const_cast<Device>(&known);
    return kSuccess;
  }
  return kNotFound;
}

// NVIDIA writes the domain with eight digits, and takes it with four as well.
std::string long_bus_id(int device) { return "0000" + device_bus_id(device); }

struct Memory {
  unsigned long long total, free;
};
Memory memory() {
  const niccolite::HostMemory host = niccolite::measure_host_memory();
  const unsigned long long total = host.limit / std::max<size_t>(devices().size(), 1);
  return {total, std::min<unsigned long long>(total, host.available)};
}

struct PciInfo {
  char old_bus_id[16];
  unsigned int domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};
struct PciInfoExt {
  unsigned int version, domain, bus, device, device_id, subsystem_id, base_class, sub_class;
  char bus_id[32];
};
struct MemoryInfo {
  unsigned long long total, free, used;
};
struct MemoryInfoV2 {
  unsigned int version;
  unsigned long long total, reserved, free, used;
};
struct DriverBranch {
  unsigned int version;
  char branch[80];
};

}  // namespace

extern "C" {

int nvmlInitWithFlags(unsigned int /*flags*/) {
  if (devices().empty()) return kDriverNotLoaded;
  users.fetch_add(1, std::memory_order_relaxed);
  return kSuccess;
}
int nvmlInit_v2() { return nvmlInitWithFlags(0); }
int nvmlInit() { return nvmlInit_v2(); }
int nvmlShutdown() {
  int before = users.load(std::memory_order_relaxed);
  while (before > 0)
    if (users.compare_exchange_weak(before, before - 1, std::memory_order_relaxed)) return kSuccess;
  return kUninitialized;
}

const char* nvmlErrorString(int result) {
  switch (result) {
    case kSuccess:
      return "Success";
    case kUninitialized:
      return "Uninitialized";
    case kInvalidArgument:
      return "Invalid Argument";
    case kNotFound:
      return "Not Found";
    case kInsufficientSize:
      return "Insufficient Size";
    case kDriverNotLoaded:
      return "Driver Not Loaded: NICCOLITE_DEVICES names no number of virtual GPUs";
    default:
      return "Unknown Error";
  }
}

int nvmlSystemGetDriverVersion(char* version, unsigned int length) {
  return call([&] { return copy(kDriverVersion, version, length); });
}
int nvmlSystemGetNVMLVersion(char* version, unsigned int length) {
  return copy(kNvmlVersion, version, length);
}
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  if (version == nullptr) return kInvalidArgument;
  *version = kCudaVersion;
  return kSuccess;
}
int nvmlSystemGetCudaDriverVersion(int* version) {
  return nvmlSystemGetCudaDriverVersion_v2(version);
}
int nvmlSystemGetDriverBranch(DriverBranch* branch, unsigned int length) {
  return call([&] {
    return branch == nullptr ? kInvalidArgument
                             : copy("virtual", branch->branch,
                                    std::min<unsigned int>(length, sizeof branch->branch));
  });
}
int nvmlSystemGetProcessName(unsigned int pid, char* name, unsigned int length) {
  return call([&] {
    std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline");
    std::string text;
    if (!std::getline(file, text, '\0')) return kNotFound;
    return copy(text, name, length);
  });
}

int nvmlDeviceGetCount_v2(unsigned int* count) {
  return call([&] {
    if (count == nullptr) return kInvalidArgument;
    *count = static_cast<unsigned int>(devices().size());
    return kSuccess;
  });
}
int nvmlDeviceGetCount(unsigned int* count) { return nvmlDeviceGetCount_v2(count); }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, Device* device) {
  return call([&] {
    if (index >= devices().size()) return kInvalidArgument;
    return find(device, [&](int number) { return static_cast<unsigned int>(number) == index; });
  });
}
int nvmlDeviceGetHandleByIndex(unsigned int index, Device* device) {
  return nvmlDeviceGetHandleByIndex_v2(index, device);
}
int nvmlDeviceGetHandleByUUID(const char* uuid, Device* device) {
  return call([&] {
    if (uuid == nullptr) return kInvalidArgument;
    return find(device, [&](int number) { return uuid_text(device_uuid(number)) == uuid; });
  });
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* id, Device* device) {
  return call([&] {
    if (id == nullptr) return kInvalidArgument;
    std::string wanted = id;
    for (char& c : wanted) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return find(device, [&](int number) {
      return device_bus_id(number) == wanted || long_bus_id(number) == wanted;
    });
  });
}

int nvmlDeviceGetName(Device device, char* name, unsigned int length) {
  return call(device, [&](int) { return copy("Virtual GPU", name, length); });
}
int nvmlDeviceGetUUID(Device device, char* uuid, unsigned int length) {
  return call(device,
              [&](int number) { return copy(uuid_text(device_uuid(number)), uuid, length); });
}
int nvmlDeviceGetIndex(Device device, unsigned int* index) {
  return call(device, [&](int number) {
    if (index == nullptr) return kInvalidArgument;
    *index = static_cast<unsigned int>(number);
    return kSuccess;
  });
}
int nvmlDeviceGetMinorNumber(Device device, unsigned int* minor) {
  return nvmlDeviceGetIndex(device, minor);
}
int nvmlDeviceGetBrand(Device device, unsigned int* brand) {
  return call(device, [&](int) {
    if (brand == nullptr) return kInvalidArgument;
    *brand = kNoBrand;
    return kSuccess;
  });
}
int nvmlDeviceGetArchitecture(Device device, unsigned int* architecture) {
  return call(device, [&](int) {
    if (architecture == nullptr) return kInvalidArgument;
    *architecture = kHopper;
    return kSuccess;
  });
}
int nvmlDeviceGetCudaComputeCapability(Device device, int* major, int* minor) {
  return call(device, [&](int) {
    if (major == nullptr || minor == nullptr) return kInvalidArgument;
    *major = kComputeMajor;
    *minor = kComputeMinor;
    return kSuccess;
  });
}
int nvmlDeviceGetPciInfo_v3(Device device, PciInfo* info) {
  return call(device, [&](int number) {
    if (info == nullptr) return kInvalidArgument;
    *info = {};
    info->domain = static_cast<unsigned int>(device_bus_domain(number));
    info->bus = static_cast<unsigned int>(device_bus(number));
    static_cast<void>(copy(device_bus_id(number), info->old_bus_id, sizeof info->old_bus_id));
    return copy(long_bus_id(number), info->bus_id, sizeof info->bus_id);
  });
}
int nvmlDeviceGetPciInfoExt(Device device, PciInfoExt* info) {
  return call(device, [&](int number) {
    if (info == nullptr) return kInvalidArgument;
    const unsigned int version = info->version;
    *info = {};
    info->version = version;
    info->domain = static_cast<unsigned int>(device_bus_domain(number));
    info->bus = static_cast<unsigned int>(device_bus(number));
    return copy(long_bus_id(number), info->bus_id, sizeof info->bus_id);
  });
}
int nvmlDeviceGetMemoryInfo(Device device, MemoryInfo* info) {
  return call(device, [&](int) {
    if (info == nullptr) return kInvalidArgument;
    const Memory now = memory();
    *info = {.total = now.total, .free = now.free, .used = now.total - now.free};
    return kSuccess;
  });
}
int nvmlDeviceGetMemoryInfo_v2(Device device, MemoryInfoV2* info) {
  return call(device, [&](int) {
    if (info == nullptr) return kInvalidArgument;
    const Memory now = memory();
    *info = {.version = info->version,
             .total = now.total,
             .reserved = 0,
             .free = now.free,
             .used = now.total - now.free};
    return kSuccess;
  });
}
// All virtual GPUs reach each other's memory.
int nvmlDeviceGetP2PStatus(Device device, Device peer, int /*index*/, int* status) {
  return call(device, [&](int) {
    return call(peer, [&](int) {
      if (status == nullptr) return kInvalidArgument;
      *status = 0;
      return kSuccess;
    });
  });
}

}  // extern "C"
