// Multicast objects of libcuda.so.1: a range of addresses whose stores reach the memory of a team
// of devices. The rules stand in the driver's manual ("Multicast Object Management").
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <thread>
#include <vector>

#include "driver_fixture.h"
#include "two_processes.h"

namespace {

CUmulticastObjectProp team_of(unsigned devices, size_t bytes) {
  CUmulticastObjectProp wanted{};
  wanted.numDevices = devices;
  wanted.size = bytes;
  wanted.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return wanted;
}

class Multicast : public Driver {
 protected:
  using Handle = CUmemGenericAllocationHandle;

  Handle create(unsigned devices, size_t bytes) {
    Handle handle = 0;
    const CUmulticastObjectProp wanted = team_of(devices, bytes);
    EXPECT_EQ(cuMulticastCreate(&handle, &wanted), CUDA_SUCCESS);
    return handle;
  }
  Handle team(unsigned devices, size_t bytes) {
    const Handle object = create(devices, bytes);
    for (unsigned device = 0; device < devices; ++device)
      EXPECT_EQ(cuMulticastAddDevice(object, static_cast<CUdevice>(device)), CUDA_SUCCESS);
    return object;
  }
  Handle memory_of(int device, size_t bytes) {
    CUmemAllocationProp wanted{};
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    Handle handle = 0;
    EXPECT_EQ(cuMemCreate(&handle, bytes, &wanted, 0), CUDA_SUCCESS);
    return handle;
  }
  CUdeviceptr map(Handle handle, size_t bytes, int device) {
    CUdeviceptr address = 0;
    EXPECT_EQ(cuMemAddressReserve(&address, bytes, 0, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemMap(address, bytes, 0, handle, 0), CUDA_SUCCESS);
    CUmemAccessDesc access{};
    access.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    EXPECT_EQ(cuMemSetAccess(address, bytes, &access, 1), CUDA_SUCCESS);
    return address;
  }
  void unmap(CUdeviceptr address, size_t bytes) {
    EXPECT_EQ(cuMemUnmap(address, bytes), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAddressFree(address, bytes), CUDA_SUCCESS);
  }
  unsigned char byte_at(CUdeviceptr address) {
    unsigned char byte = 0xee;
    EXPECT_EQ(cuMemcpyDtoH(&byte, address, 1), CUDA_SUCCESS);
    return byte;
  }
  size_t free_bytes() {
    size_t free = 0, total = 0;
    EXPECT_EQ(cuMemGetInfo(&free, &total), CUDA_SUCCESS);
    return free;
  }
};

TEST_F(Multicast, IsThereOnEachDevice) {
  int count = 0;
  ASSERT_CU(cuDeviceGetCount(&count));
  ASSERT_GE(count, 4);
  int supported = 0;
  ASSERT_CU(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, count - 1));
  EXPECT_EQ(supported, 1);
  const CUmulticastObjectProp wanted = team_of(4, kUnit);
  for (const auto option :
       {CU_MULTICAST_GRANULARITY_MINIMUM, CU_MULTICAST_GRANULARITY_RECOMMENDED}) {
    size_t granularity = 0;
    ASSERT_CU(cuMulticastGetGranularity(&granularity, &wanted, option));
    EXPECT_EQ(granularity, kUnit);
  }
}

// Each device binds two pieces; the second device binds them the other way around.
TEST_F(Multicast, StoresToTheMemoryOfAllDevices) {
  constexpr int kDevices = 3;
  const Handle object = team(kDevices, 2 * kUnit);
  std::array<Handle, kDevices> memory{};
  std::array<CUdeviceptr, kDevices> own{};
  for (int device = 0; device < kDevices; ++device) {
    memory[device] = memory_of(device, 2 * kUnit);
    own[device] = map(memory[device], 2 * kUnit, device);
    const size_t first = device == 1 ? kUnit : 0;
    ASSERT_CU(cuMulticastBindMem(object, 0, memory[device], first, kUnit, 0));
    ASSERT_CU(cuMulticastBindMem(object, kUnit, memory[device], kUnit - first, kUnit, 0));
  }
  const auto place = [&](int device, size_t offset) {
    return own[device] + (device == 1 ? (offset + kUnit) % (2 * kUnit) : offset);
  };
  const CUdeviceptr range = map(object, 2 * kUnit, 0);
  // A copy over the border between both pieces, a fill of words, and a word.
  std::vector<unsigned char> data(1000);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<unsigned char>(i % 251);
  ASSERT_CU(cuMemcpyHtoD(range + kUnit - 300, data.data(), data.size()));
  ASSERT_CU(cuMemsetD32(range + 4096, 0x01020304, 100));
  ASSERT_CU(cuStreamWriteValue32(nullptr, range + 2 * kUnit - 4, 0x55555555, 0));
  ASSERT_CU(cuStreamSynchronize(nullptr));
  for (int device = 0; device < kDevices; ++device) {
    for (size_t i = 0; i < data.size(); ++i)
      ASSERT_EQ(byte_at(place(device, kUnit - 300 + i)), data[i]) << device << " " << i;
    EXPECT_EQ(byte_at(place(device, 4096)), 4);
    EXPECT_EQ(byte_at(place(device, 4096 + 399)), 1);
    EXPECT_EQ(byte_at(place(device, 4096 + 400)), 0);
    EXPECT_EQ(byte_at(place(device, 2 * kUnit - 1)), 0x55);
  }
  // A plain load from the range means nothing.
  unsigned char byte = 0;
  EXPECT_EQ(cuMemcpyDtoH(&byte, range, 1), CUDA_ERROR_INVALID_VALUE);

  unmap(range, 2 * kUnit);
  EXPECT_EQ(cuMemRelease(object), CUDA_SUCCESS);
  for (int device = 0; device < kDevices; ++device) {
    unmap(own[device], 2 * kUnit);
    EXPECT_EQ(cuMemRelease(memory[device]), CUDA_SUCCESS);
  }
}

TEST_F(Multicast, StoresInGraphs) {
  const Handle object = team(2, kUnit);
  const Handle memory[] = {memory_of(0, kUnit), memory_of(1, kUnit)};
  const CUdeviceptr own[] = {map(memory[0], kUnit, 0), map(memory[1], kUnit, 1)};
  for (const Handle one : memory) ASSERT_CU(cuMulticastBindMem(object, 0, one, 0, kUnit, 0));
  const CUdeviceptr range = map(object, kUnit, 0);
  CUstream stream = nullptr;
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  ASSERT_CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  ASSERT_CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  ASSERT_CU(cuMemsetD8Async(range, 6, kUnit, stream));
  ASSERT_CU(cuStreamEndCapture(stream, &graph));
  ASSERT_CU(cuGraphInstantiate(&executable, graph, 0));
  for (int replay = 0; replay < 2; ++replay) {
    for (const CUdeviceptr one : own) ASSERT_CU(cuMemsetD8(one, 0, kUnit));
    ASSERT_CU(cuGraphLaunch(executable, stream));
    ASSERT_CU(cuStreamSynchronize(stream));
    for (const CUdeviceptr one : own) EXPECT_EQ(byte_at(one + kUnit - 1), 6);
  }
  ASSERT_CU(cuGraphExecDestroy(executable));
  ASSERT_CU(cuGraphDestroy(graph));
  ASSERT_CU(cuStreamDestroy(stream));
  unmap(range, kUnit);
  for (const CUdeviceptr one : own) unmap(one, kUnit);
  for (const Handle one : memory) EXPECT_EQ(cuMemRelease(one), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(object), CUDA_SUCCESS);
}

TEST_F(Multicast, WaitsForItsWholeTeam) {
  const Handle object = create(2, kUnit);
  const Handle memory = memory_of(0, kUnit);
  ASSERT_CU(cuMulticastAddDevice(object, 0));
  std::atomic<bool> is_bound{false};
  CUresult bound = CUDA_ERROR_UNKNOWN;
  std::thread binder([&] {
    bound = cuMulticastBindMem(object, 0, memory, 0, kUnit, 0);
    is_bound = true;
  });
  const bool was_bound = is_bound;
  EXPECT_EQ(cuMulticastAddDevice(object, 1), CUDA_SUCCESS);
  binder.join();
  EXPECT_FALSE(was_bound);
  EXPECT_EQ(bound, CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(object), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(memory), CUDA_SUCCESS);
}

TEST_F(Multicast, RefusesWhatTheManualForbids) {
  Handle none = 0;
  CUmulticastObjectProp wanted = team_of(2, kUnit + 4096);
  EXPECT_EQ(cuMulticastCreate(&none, &wanted), CUDA_ERROR_INVALID_VALUE);
  wanted = team_of(0, kUnit);
  EXPECT_EQ(cuMulticastCreate(&none, &wanted), CUDA_ERROR_INVALID_VALUE);
  wanted = team_of(1 << 30, kUnit);
  EXPECT_EQ(cuMulticastCreate(&none, &wanted), CUDA_ERROR_INVALID_VALUE);
  wanted = team_of(2, kUnit);
  wanted.flags = 1;
  EXPECT_EQ(cuMulticastCreate(&none, &wanted), CUDA_ERROR_INVALID_VALUE);

  const Handle object = team(2, 2 * kUnit);
  EXPECT_EQ(cuMulticastAddDevice(object, 1), CUDA_ERROR_INVALID_VALUE) << "twice";
  EXPECT_EQ(cuMulticastAddDevice(object, 2), CUDA_ERROR_INVALID_VALUE) << "the team is complete";
  EXPECT_EQ(cuMulticastAddDevice(object, 10000), CUDA_ERROR_INVALID_DEVICE);
  const Handle memory = memory_of(0, 2 * kUnit), stranger = memory_of(2, kUnit);
  EXPECT_EQ(cuMulticastAddDevice(memory, 0), CUDA_ERROR_INVALID_VALUE) << "no multicast object";
  EXPECT_EQ(cuMulticastBindMem(memory, 0, memory, 0, kUnit, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMulticastBindMem(object, 0, object, 0, kUnit, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMulticastBindMem(object, 0, stranger, 0, kUnit, 0), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuMulticastBindMem(object, 0, memory, 0, 3 * kUnit, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMulticastBindMem(object, kUnit, memory, 0, 2 * kUnit, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMulticastBindMem(object, 0, memory, kUnit, 2 * kUnit, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMulticastBindMem(object, 4096, memory, 0, kUnit, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMulticastBindMem(object, 0, memory, 0, kUnit, 1), CUDA_ERROR_INVALID_VALUE);
  ASSERT_CU(cuMulticastBindMem(object, 0, memory, 0, 2 * kUnit, 0));
  EXPECT_EQ(cuMulticastBindMem(object, kUnit, memory, 0, kUnit, 0), CUDA_ERROR_INVALID_VALUE)
      << "something is bound there";
  EXPECT_EQ(cuMulticastUnbind(object, 0, 0, kUnit), CUDA_ERROR_INVALID_VALUE) << "not the whole";
  EXPECT_EQ(cuMulticastUnbind(object, 1, 0, 2 * kUnit), CUDA_ERROR_INVALID_VALUE);
  CUmemAllocationProp found{};
  EXPECT_EQ(cuMemGetAllocationPropertiesFromHandle(&found, object), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMulticastUnbind(object, 0, 0, 2 * kUnit), CUDA_SUCCESS);
  for (const Handle handle : {object, memory, stranger})
    EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(cuMulticastAddDevice(object, 0), CUDA_ERROR_INVALID_VALUE) << "it is gone";
}

// Whatever goes first, the memory lives as long as something needs it, and then goes back.
TEST_F(Multicast, EndsInAnyOrder) {
  const size_t before = free_bytes();
  for (const bool object_first : {true, false}) {
    const Handle object = team(2, kUnit);
    const Handle memory[] = {memory_of(0, kUnit), memory_of(1, kUnit)};
    const CUdeviceptr own = map(memory[0], kUnit, 0);
    ASSERT_CU(cuMulticastBindAddr(object, 0, own, kUnit, 0));
    ASSERT_CU(cuMulticastBindMem(object, 0, memory[1], 0, kUnit, 0));
    const CUdeviceptr range = map(object, kUnit, 0);
    if (object_first) {
      EXPECT_EQ(cuMemRelease(object), CUDA_SUCCESS);
      for (const Handle one : memory) EXPECT_EQ(cuMemRelease(one), CUDA_SUCCESS);
    } else {
      for (const Handle one : memory) EXPECT_EQ(cuMemRelease(one), CUDA_SUCCESS);
      EXPECT_EQ(cuMemRelease(object), CUDA_SUCCESS);
    }
    EXPECT_LT(free_bytes(), before);
    ASSERT_CU(cuMemsetD8(range, 9, kUnit));
    EXPECT_EQ(byte_at(own + kUnit - 1), 9);
    if (object_first) unmap(own, kUnit);
    ASSERT_CU(cuMemsetD8(range, 8, kUnit));
    unmap(range, kUnit);
    if (!object_first) unmap(own, kUnit);
  }
  EXPECT_EQ(free_bytes(), before);
}

TEST_F(Multicast, StoresNothingWhereNothingIsBound) {
  const Handle object = team(2, kUnit);
  const Handle memory = memory_of(0, kUnit);
  const CUdeviceptr own = map(memory, kUnit, 0);
  const CUdeviceptr range = map(object, kUnit, 0);
  ASSERT_CU(cuMulticastBindMem(object, 0, memory, 0, kUnit, 0));
  ASSERT_CU(cuMemsetD8(own, 3, kUnit));
  ASSERT_CU(cuMemsetD8(range, 4, kUnit));  // device 1 has bound nothing
  EXPECT_EQ(byte_at(own), 3);
  unmap(range, kUnit);
  unmap(own, kUnit);
  EXPECT_EQ(cuMemRelease(object), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(memory), CUDA_SUCCESS);
}

// ---- two processes

TEST_F(Multicast, JoinsTheMemoryOfTwoProcesses) {
  int socket = -1;
  const pid_t child =
      vcuda_test::run_other_process("Multicast.DISABLED_IsTheOtherProcess", &socket);
  ASSERT_GT(child, 0);

  const Handle object = create(2, kUnit);
  int descriptor = -1;
  ASSERT_CU(cuMemExportToShareableHandle(&descriptor, object,
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  vcuda_test::send_descriptor(socket, descriptor);
  close(descriptor);
  ASSERT_CU(cuMulticastAddDevice(object, 0));
  const Handle memory = memory_of(0, kUnit);
  ASSERT_CU(cuMulticastBindMem(object, 0, memory, 0, kUnit, 0));  // waits for the child
  const CUdeviceptr own = map(memory, kUnit, 0);
  char answer = 0;
  ASSERT_EQ(read(socket, &answer, 1), 1) << "the child failed";
  EXPECT_EQ(byte_at(own + 7), 5) << "the child stored it";
  const CUdeviceptr range = map(object, kUnit, 0);
  ASSERT_CU(cuMemsetD8(range, 6, kUnit));
  ASSERT_EQ(write(socket, &answer, 1), 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  close(socket);
  // The child is gone with its binding; what this process has mapped of it stays, and is not there
  // for anybody else.
  ASSERT_CU(cuMemsetD8(range, 7, kUnit));
  unmap(range, kUnit);
  unmap(own, kUnit);
  EXPECT_EQ(cuMemRelease(object), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(memory), CUDA_SUCCESS);
}

TEST_F(Multicast, DISABLED_IsTheOtherProcess) {
  const char* const variable = std::getenv(vcuda_test::kSocketVariable);
  ASSERT_NE(variable, nullptr) << "JoinsTheMemoryOfTwoProcesses runs this";
  const int socket = std::atoi(variable);
  const int descriptor = vcuda_test::receive_descriptor(socket);
  ASSERT_GE(descriptor, 0);
  Handle object = 0;
  ASSERT_CU(cuMemImportFromShareableHandle(&object, reinterpret_cast<void*>(intptr_t{descriptor}),
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(descriptor);
  ASSERT_CU(cuMulticastAddDevice(object, 1));
  const Handle memory = memory_of(1, kUnit);
  ASSERT_CU(cuMulticastBindMem(object, 0, memory, 0, kUnit, 0));
  const CUdeviceptr own = map(memory, kUnit, 1), range = map(object, kUnit, 1);
  // Until the other process has bound its memory, stores go nowhere.
  for (unsigned char seen = 0; seen != 5; seen = byte_at(own)) {
    ASSERT_CU(cuMemsetD8(range, 5, kUnit));
  }
  char answer = 1;
  ASSERT_EQ(write(socket, &answer, 1), 1);
  ASSERT_EQ(read(socket, &answer, 1), 1);
  EXPECT_EQ(byte_at(own + kUnit - 1), 6) << "the other process stored it";
  unmap(range, kUnit);
  unmap(own, kUnit);
  ASSERT_CU(cuMemRelease(object));
  ASSERT_CU(cuMemRelease(memory));
}

TEST_F(Multicast, ImportsNoForgery) {
  const int file = memfd_create("virtual-gpu-multicast", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_GE(file, 0);
  Handle object = 0;
  const auto import = [&] {
    return cuMemImportFromShareableHandle(&object, reinterpret_cast<void*>(intptr_t{file}),
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  };
  EXPECT_EQ(import(), CUDA_ERROR_INVALID_VALUE) << "empty";
  ASSERT_EQ(ftruncate(file, 4 << 20), 0);
  EXPECT_EQ(import(), CUDA_ERROR_INVALID_VALUE) << "it could shrink";
  ASSERT_EQ(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_EQ(import(), CUDA_ERROR_INVALID_VALUE) << "zeros";
  close(file);
}

}  // namespace
