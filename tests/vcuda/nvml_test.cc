// libnvidia-ml.so.1 of virtual GPUs, opened as programs open NVIDIA's.
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

namespace {

void* library() {
  static void* const opened = dlopen(NVML, RTLD_NOW | RTLD_LOCAL);
  return opened;
}

template <typename... Arguments>
int call(const char* name, Arguments... arguments) {
  const auto function = reinterpret_cast<int (*)(Arguments...)>(dlsym(library(), name));
  if (function == nullptr) {
    ADD_FAILURE() << name << " is missing";
    return -1;
  }
  return function(arguments...);
}

struct PciInfo {
  char old_bus_id[16];
  unsigned int domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};
struct Memory {
  unsigned long long total, free, used;
};

constexpr int kUninitialized = 1, kInvalidArgument = 2, kNotFound = 6, kInsufficientSize = 7;

TEST(ManagementLibrary, WantsToBeInitialised) {
  ASSERT_NE(library(), nullptr) << dlerror();
  unsigned int count = 0;
  EXPECT_EQ(call("nvmlDeviceGetCount_v2", &count), kUninitialized);
  ASSERT_EQ(call("nvmlInit_v2"), 0);
  EXPECT_EQ(call("nvmlDeviceGetCount_v2", &count), 0);
  EXPECT_EQ(call("nvmlShutdown"), 0);
  EXPECT_EQ(call("nvmlShutdown"), kUninitialized);
}

TEST(ManagementLibrary, DescribesTheGpusOfTheRuntime) {
  ASSERT_EQ(call("nvmlInit_v2"), 0);
  unsigned int count = 0;
  int of_runtime = 0;
  ASSERT_EQ(call("nvmlDeviceGetCount_v2", &count), 0);
  ASSERT_EQ(cudaGetDeviceCount(&of_runtime), cudaSuccess);
  EXPECT_EQ(static_cast<int>(count), of_runtime);
  void* device = nullptr;
  ASSERT_EQ(call("nvmlDeviceGetHandleByIndex_v2", 1u, &device), 0);
  cudaDeviceProp properties;
  ASSERT_EQ(cudaGetDeviceProperties(&properties, 1), cudaSuccess);
  char text[96] = "";
  ASSERT_EQ(call("nvmlDeviceGetName", device, +text, 96u), 0);
  EXPECT_STREQ(text, properties.name);
  ASSERT_EQ(call("nvmlDeviceGetUUID", device, +text, 96u), 0);
  char expected[64] = "";
  const auto* const bytes = reinterpret_cast<const unsigned char*>(properties.uuid.bytes);
  std::snprintf(expected, sizeof expected, "GPU-%02x%02x%02x%02x-%02x", bytes[0], bytes[1],
                bytes[2], bytes[3], bytes[4]);
  EXPECT_EQ(std::string(text).find(expected), 0u) << text;
  void* found = nullptr;
  const char* const name = text;
  EXPECT_EQ(call("nvmlDeviceGetHandleByUUID", name, &found), 0);
  EXPECT_EQ(found, device);
  PciInfo pci{};
  ASSERT_EQ(call("nvmlDeviceGetPciInfo_v3", device, &pci), 0);
  EXPECT_EQ(static_cast<int>(pci.bus), properties.pciBusID);
  EXPECT_EQ(static_cast<int>(pci.domain), properties.pciDomainID);
  const char* const address = pci.bus_id;
  EXPECT_EQ(call("nvmlDeviceGetHandleByPciBusId_v2", address, &found), 0);
  EXPECT_EQ(found, device);
  Memory memory{};
  ASSERT_EQ(call("nvmlDeviceGetMemoryInfo", device, &memory), 0);
  EXPECT_GT(memory.total, 0u);
  EXPECT_EQ(memory.free + memory.used, memory.total);
  int version = 0;
  EXPECT_EQ(call("nvmlSystemGetCudaDriverVersion_v2", &version), 0);
  EXPECT_EQ(version, CUDART_VERSION);
  EXPECT_EQ(call("nvmlShutdown"), 0);
}

TEST(ManagementLibrary, RefusesWhatThereIsNot) {
  ASSERT_EQ(call("nvmlInit_v2"), 0);
  void* device = nullptr;
  char text[4] = "";
  EXPECT_EQ(call("nvmlDeviceGetHandleByIndex_v2", 100'000u, &device), kInvalidArgument);
  EXPECT_EQ(call("nvmlDeviceGetHandleByUUID", static_cast<const char*>("GPU-0"), &device),
            kNotFound);
  EXPECT_EQ(call("nvmlDeviceGetName", static_cast<void*>(text), +text, 4u), kInvalidArgument);
  EXPECT_EQ(call("nvmlSystemGetDriverVersion", +text, 4u), kInsufficientSize);
  EXPECT_EQ(call("nvmlShutdown"), 0);
}

}  // namespace
