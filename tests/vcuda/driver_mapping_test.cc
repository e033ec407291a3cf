// Virtual memory management of libcuda.so.1: what CUDA's driver 13.0 answers on an H100 is what is
// expected here.
#include <fcntl.h>
#include <nccl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "driver_fixture.h"
#include "two_processes.h"

namespace {

using vcuda_test::receive_descriptor;
using vcuda_test::send_descriptor;

CUmemAllocationProp on_device(int device) {
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  wanted.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  return wanted;
}
CUmemAccessDesc access_for(int device, CUmemAccess_flags flags) {
  CUmemAccessDesc access{};
  access.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  access.flags = flags;
  return access;
}

class Mapping : public Driver {
 protected:
  CUmemGenericAllocationHandle create(size_t bytes, int device = 0) {
    CUmemGenericAllocationHandle handle = 0;
    const CUmemAllocationProp wanted = on_device(device);
    EXPECT_EQ(cuMemCreate(&handle, bytes, &wanted, 0), CUDA_SUCCESS);
    return handle;
  }
  CUdeviceptr reserve(size_t bytes, CUdeviceptr hint = 0) {
    CUdeviceptr address = 0;
    EXPECT_EQ(cuMemAddressReserve(&address, bytes, 0, hint, 0), CUDA_SUCCESS);
    return address;
  }
  CUresult allow(CUdeviceptr address, size_t bytes, int device = 0,
                 CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
    const CUmemAccessDesc access = access_for(device, flags);
    return cuMemSetAccess(address, bytes, &access, 1);
  }
  /// Maps new memory of `device`, whose handle is let go of.
  void put(CUdeviceptr address, size_t bytes, int device = 0) {
    const CUmemGenericAllocationHandle handle = create(bytes, device);
    ASSERT_CU(cuMemMap(address, bytes, 0, handle, 0));
    ASSERT_CU(cuMemRelease(handle));
    ASSERT_CU(allow(address, bytes, device));
  }
  unsigned char byte_at(CUdeviceptr address) {
    unsigned char byte = 0xee;
    EXPECT_EQ(cuMemcpyDtoH(&byte, address, 1), CUDA_SUCCESS);
    return byte;
  }
};

// A file in the place of a dma-buf, for virtual NICs.
TEST_F(Mapping, IsGivenToNetworkAdapters) {
  const CUdeviceptr address = reserve(2 * kUnit);
  put(address, kUnit);
  ASSERT_CU(allow(address, kUnit));
  ASSERT_CU(cuMemsetD8(address, 5, kUnit));
  int value = 0;
  ASSERT_CU(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 0));
  EXPECT_EQ(value, 1);
  const auto give = [](int* descriptor, CUdeviceptr at, size_t bytes) {
    return cuMemGetHandleForAddressRange(descriptor, at, bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
                                         0);
  };
  int descriptor = -1;
  ASSERT_CU(give(&descriptor, address, kUnit));
  char byte = 0;
  EXPECT_EQ(pread(descriptor, &byte, 1, kUnit - 1), 1);
  EXPECT_EQ(byte, 5);
  close(descriptor);
  EXPECT_EQ(give(&descriptor, address + 1, 4096), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(give(&descriptor, address, 100), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(give(&descriptor, address, 2 * kUnit), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(give(&descriptor, address + 4096, 4096), CUDA_ERROR_NOT_SUPPORTED);
  CUdeviceptr plain = 0;
  ASSERT_CU(cuMemAlloc(&plain, 4096));
  EXPECT_EQ(give(&descriptor, plain, 4096), CUDA_ERROR_NOT_SUPPORTED);
  ASSERT_CU(cuMemFree(plain));
  ASSERT_CU(cuMemUnmap(address, kUnit));
  ASSERT_CU(cuMemAddressFree(address, 2 * kUnit));
}

TEST_F(Mapping, CreatesMemoryOfWholeUnits) {
  size_t least = 0, best = 0;
  CUmemAllocationProp wanted = on_device(0);
  ASSERT_CU(cuMemGetAllocationGranularity(&least, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  ASSERT_CU(cuMemGetAllocationGranularity(&best, &wanted, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  EXPECT_EQ(least, kUnit);
  EXPECT_EQ(best, kUnit);
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_EQ(cuMemCreate(&handle, kUnit + 4096, &wanted, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemCreate(&handle, 0, &wanted, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemCreate(&handle, kUnit, &wanted, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemCreate(&handle, size_t{1} << 45, &wanted, 0), CUDA_ERROR_OUT_OF_MEMORY);
  wanted.location.id = 99;
  EXPECT_EQ(cuMemCreate(&handle, kUnit, &wanted, 0), CUDA_ERROR_INVALID_DEVICE);
  wanted = on_device(0);
  wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
  EXPECT_EQ(cuMemCreate(&handle, kUnit, &wanted, 0), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(cuMemRelease(0x1234), CUDA_ERROR_INVALID_VALUE);

  size_t before = 0, during = 0, after = 0, total = 0;
  ASSERT_CU(cuMemGetInfo(&before, &total));
  handle = create(64 * kUnit, 1);
  CUmemAllocationProp found{};
  ASSERT_CU(cuMemGetAllocationPropertiesFromHandle(&found, handle));
  EXPECT_EQ(found.type, CU_MEM_ALLOCATION_TYPE_PINNED);
  EXPECT_EQ(found.requestedHandleTypes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  EXPECT_EQ(found.location.id, 1);
  ASSERT_CU(cuMemRelease(handle));
  EXPECT_EQ(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE) << "released twice";
  EXPECT_EQ(cuMemGetAllocationPropertiesFromHandle(&found, handle), CUDA_ERROR_INVALID_VALUE);

  // The memory is the device's while it is mapped, whoever released the handle.
  CUdeviceptr address = reserve(64 * kUnit);
  ASSERT_CU(cuMemGetInfo(&before, &total));
  put(address, 64 * kUnit);
  ASSERT_CU(cuMemsetD8(address, 1, 64 * kUnit));
  ASSERT_CU(cuMemGetInfo(&during, &total));
  EXPECT_LT(during + 32 * kUnit, before);
  ASSERT_CU(cuMemUnmap(address, 64 * kUnit));
  ASSERT_CU(cuMemGetInfo(&after, &total));
  EXPECT_GT(after, during + 32 * kUnit);
  ASSERT_CU(cuMemAddressFree(address, 64 * kUnit));
}

TEST_F(Mapping, ReservesAddressesWhereItIsTold) {
  CUdeviceptr address = 0;
  EXPECT_EQ(cuMemAddressReserve(&address, 4096, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressReserve(&address, 0, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressReserve(&address, kUnit, 3 * kUnit, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressReserve(&address, kUnit, 0, 0, 1), CUDA_ERROR_INVALID_VALUE);
  ASSERT_CU(cuMemAddressReserve(&address, kUnit, 64 * kUnit, 0, 0));
  EXPECT_EQ(address % (64 * kUnit), 0u);
  ASSERT_CU(cuMemAddressFree(address, kUnit));

  const CUdeviceptr first = reserve(8 * kUnit);
  EXPECT_EQ(first % kUnit, 0u);
  const CUdeviceptr elsewhere = reserve(kUnit, first);
  EXPECT_NE(elsewhere, first) << "the hint is taken";
  ASSERT_CU(cuMemAddressFree(elsewhere, kUnit));
  EXPECT_EQ(cuMemAddressFree(first, 4 * kUnit), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressFree(first + kUnit, 7 * kUnit), CUDA_ERROR_INVALID_VALUE);
  ASSERT_CU(cuMemAddressFree(first, 8 * kUnit));
  EXPECT_EQ(cuMemAddressFree(first, 8 * kUnit), CUDA_ERROR_INVALID_VALUE) << "freed twice";
  EXPECT_EQ(reserve(8 * kUnit, first), first) << "free again, and asked for";
  ASSERT_CU(cuMemAddressFree(first, 8 * kUnit));
}

TEST_F(Mapping, MapsAllocationsAsAWhole) {
  const CUdeviceptr address = reserve(8 * kUnit);
  const CUmemGenericAllocationHandle small = create(kUnit), large = create(2 * kUnit);
  EXPECT_EQ(cuMemMap(address, kUnit, 4096, small, 0), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuMemMap(address, kUnit, kUnit, large, 0), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuMemMap(address, 2 * kUnit, 0, small, 0), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cuMemMap(address + 4096, kUnit, 0, small, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemMap(address, 0, 0, small, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemMap(address, kUnit, 0, small, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemMap(address, kUnit, 0, 0x1234, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemMap(address + 7 * kUnit, 2 * kUnit, 0, large, 0), CUDA_ERROR_INVALID_VALUE);

  ASSERT_CU(cuMemMap(address, kUnit, 0, small, 0));
  EXPECT_EQ(cuMemMap(address, kUnit, 0, small, 0), CUDA_ERROR_INVALID_VALUE) << "mapped twice";
  ASSERT_CU(cuMemMap(address + kUnit, 2 * kUnit, 0, large, 0));
  ASSERT_CU(cuMemMap(address + 4 * kUnit, kUnit, 0, small, 0));  // a second place
  EXPECT_EQ(allow(address, kUnit / 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(allow(address, 2 * kUnit), CUDA_ERROR_INVALID_VALUE) << "a part of a mapping";
  EXPECT_EQ(allow(address, 8 * kUnit), CUDA_ERROR_INVALID_VALUE) << "not all is mapped";
  EXPECT_EQ(allow(address, kUnit, 99), CUDA_ERROR_INVALID_VALUE);
  ASSERT_CU(allow(address, 3 * kUnit));
  ASSERT_CU(allow(address + 4 * kUnit, kUnit));

  // One range over two mappings, and one memory at two addresses.
  ASSERT_CU(cuMemsetD8(address, 5, 3 * kUnit));
  EXPECT_EQ(byte_at(address + 3 * kUnit - 1), 5);
  EXPECT_EQ(byte_at(address + 4 * kUnit), 5);
  std::vector<unsigned char> across(64);
  ASSERT_CU(cuMemcpyDtoH(across.data(), address + kUnit - 32, 64));
  EXPECT_EQ(across, std::vector<unsigned char>(64, 5));

  EXPECT_EQ(cuMemAddressFree(address, 8 * kUnit), CUDA_ERROR_INVALID_VALUE) << "it is mapped";
  EXPECT_EQ(cuMemUnmap(address, kUnit / 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemUnmap(address + kUnit, kUnit), CUDA_ERROR_INVALID_VALUE) << "a part of a mapping";
  ASSERT_CU(cuMemUnmap(address, 8 * kUnit));
  ASSERT_CU(cuMemUnmap(address, 8 * kUnit));  // as on CUDA, nothing to unmap is no error

  // The contents are the allocation's.
  ASSERT_CU(cuMemMap(address + 6 * kUnit, kUnit, 0, small, 0));
  ASSERT_CU(allow(address + 6 * kUnit, kUnit));
  EXPECT_EQ(byte_at(address + 6 * kUnit), 5);
  ASSERT_CU(cuMemUnmap(address, 8 * kUnit));
  ASSERT_CU(cuMemAddressFree(address, 8 * kUnit));
  ASSERT_CU(cuMemRelease(small));
  ASSERT_CU(cuMemRelease(large));
}

TEST_F(Mapping, RefusesMemoryThatCannotBeAccessed) {
  const CUdeviceptr address = reserve(2 * kUnit);
  const CUmemGenericAllocationHandle handle = create(kUnit);
  char byte = 0;
  unsigned long long flags = 77;
  const CUmemLocation here{CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  const CUmemLocation there{CU_MEM_LOCATION_TYPE_DEVICE, {1}};
  EXPECT_EQ(cuMemcpyDtoH(&byte, address, 1), CUDA_ERROR_INVALID_VALUE) << "reserved";
  EXPECT_EQ(cuMemcpyHtoD(address, &byte, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemsetD32(address, 7, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemGetAccess(&flags, &here, address), CUDA_ERROR_INVALID_VALUE);
  ASSERT_CU(cuMemMap(address, kUnit, 0, handle, 0));
  EXPECT_EQ(cuMemcpyDtoH(&byte, address, 1), CUDA_ERROR_INVALID_VALUE) << "mapped only";
  EXPECT_EQ(cuMemsetD8(address, 7, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemsetD32(address, 7, 1), CUDA_ERROR_INVALID_VALUE);
  ASSERT_CU(cuMemGetAccess(&flags, &here, address));
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);

  ASSERT_CU(allow(address, kUnit));
  ASSERT_CU(cuMemsetD8(address, 7, kUnit));
  EXPECT_EQ(cuMemsetD8(address, 7, kUnit + 1), CUDA_ERROR_INVALID_VALUE) << "beyond the mapping";
  EXPECT_EQ(cuMemsetD32(address + kUnit - 4, 7, 2), CUDA_ERROR_INVALID_VALUE);
  ASSERT_CU(cuMemGetAccess(&flags, &here, address + kUnit - 1));
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  ASSERT_CU(cuMemGetAccess(&flags, &there, address));
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
  const CUmemLocation nowhere{CU_MEM_LOCATION_TYPE_DEVICE, {99}};
  EXPECT_EQ(cuMemGetAccess(&flags, &nowhere, address), CUDA_ERROR_INVALID_DEVICE);

  ASSERT_CU(allow(address, kUnit, 0, CU_MEM_ACCESS_FLAGS_PROT_READ));
  EXPECT_EQ(byte_at(address), 7);
  EXPECT_EQ(cuMemsetD8(address, 8, 1), CUDA_ERROR_INVALID_VALUE) << "read only";
  EXPECT_EQ(cuMemcpyHtoD(address, &byte, 1), CUDA_ERROR_INVALID_VALUE);
  ASSERT_CU(allow(address, kUnit, 0, CU_MEM_ACCESS_FLAGS_PROT_NONE));
  EXPECT_EQ(cuMemcpyDtoH(&byte, address, 1), CUDA_ERROR_INVALID_VALUE);

  ASSERT_CU(allow(address, kUnit));
  EXPECT_EQ(cuMemFree(address), CUDA_ERROR_INVALID_VALUE) << "not for cuMemFree";
  CUipcMemHandle ipc;
  EXPECT_EQ(cuIpcGetMemHandle(&ipc, address), CUDA_ERROR_INVALID_VALUE);
  ASSERT_CU(cuMemUnmap(address, kUnit));
  EXPECT_EQ(cuMemcpyDtoH(&byte, address, 1), CUDA_ERROR_INVALID_VALUE) << "unmapped";
  ASSERT_CU(cuMemAddressFree(address, 2 * kUnit));
  EXPECT_EQ(cuMemcpyDtoH(&byte, address, 1), CUDA_ERROR_INVALID_VALUE) << "freed";
  ASSERT_CU(cuMemRelease(handle));
}

TEST_F(Mapping, UnmapsAfterTheWorkThatIsQueued) {
  const CUdeviceptr address = reserve(16 * kUnit);
  put(address, 16 * kUnit);
  CUstream stream = nullptr;
  ASSERT_CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  ASSERT_CU(cuLaunchHostFunc(
      stream, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(50)); }, nullptr));
  for (unsigned char value = 0; value < 20; ++value)
    ASSERT_CU(cuMemsetD8Async(address, value, 16 * kUnit, stream));
  ASSERT_CU(cuMemUnmap(address, 16 * kUnit));
  EXPECT_EQ(cuStreamQuery(stream), CUDA_SUCCESS);
  ASSERT_CU(cuStreamDestroy(stream));
  ASSERT_CU(cuMemAddressFree(address, 16 * kUnit));
}

TEST_F(Mapping, GivesTheHandleThatAnAddressWasMappedBy) {
  const CUdeviceptr address = reserve(2 * kUnit);
  const CUmemGenericAllocationHandle handle = create(kUnit);
  CUmemGenericAllocationHandle found = 0;
  ASSERT_CU(cuMemMap(address, kUnit, 0, handle, 0));
  const auto at = [&](size_t offset) { return reinterpret_cast<void*>(address + offset); };
  ASSERT_CU(cuMemRetainAllocationHandle(&found, at(5)));
  EXPECT_EQ(found, handle);
  EXPECT_EQ(cuMemRetainAllocationHandle(&found, at(kUnit)), CUDA_ERROR_INVALID_VALUE);
  ASSERT_CU(cuMemRelease(handle));
  ASSERT_CU(cuMemRelease(handle));
  EXPECT_EQ(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE) << "as often as it was got";
  ASSERT_CU(cuMemRetainAllocationHandle(&found, at(0)));
  EXPECT_EQ(found, handle) << "it is mapped yet";
  ASSERT_CU(cuMemUnmap(address, kUnit));
  ASSERT_CU(cuMemMap(address + kUnit, kUnit, 0, found, 0));
  ASSERT_CU(cuMemRelease(found));
  ASSERT_CU(cuMemUnmap(address + kUnit, kUnit));
  EXPECT_EQ(cuMemMap(address, kUnit, 0, found, 0), CUDA_ERROR_INVALID_VALUE) << "gone";
  CUdeviceptr plain = 0;
  ASSERT_CU(cuMemAlloc(&plain, 4096));
  EXPECT_EQ(cuMemRetainAllocationHandle(&found, reinterpret_cast<void*>(plain)),
            CUDA_ERROR_INVALID_VALUE);
  ASSERT_CU(cuMemFree(plain));
  ASSERT_CU(cuMemAddressFree(address, 2 * kUnit));
}

TEST_F(Mapping, DescribesMappedAddresses) {
  const CUdeviceptr address = reserve(4 * kUnit);
  const CUmemGenericAllocationHandle handle = create(kUnit, 1);
  const CUdeviceptr inside = address + kUnit + 100;
  CUdeviceptr base = 0;
  size_t bytes = 0;
  const auto get = [](CUpointer_attribute attribute, CUdeviceptr of) {
    uint64_t value = 0;
    EXPECT_EQ(cuPointerGetAttribute(&value, attribute, of), CUDA_SUCCESS) << attribute;
    return value;
  };
  int ordinal = 0;
  EXPECT_EQ(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, inside),
            CUDA_ERROR_INVALID_VALUE)
      << "reserved";
  EXPECT_EQ(cuMemGetAddressRange(&base, &bytes, inside), CUDA_ERROR_NOT_FOUND);
  CUpointer_attribute range[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_MAPPED,
                                 CU_POINTER_ATTRIBUTE_RANGE_SIZE};
  int is_mapped = 7;
  void* out[] = {&base, &is_mapped, &bytes};
  ASSERT_CU(cuPointerGetAttributes(3, range, out, inside));
  EXPECT_EQ(base, address);
  EXPECT_EQ(bytes, 4 * kUnit);
  EXPECT_EQ(is_mapped, 0);

  ASSERT_CU(cuMemMap(address + kUnit, kUnit, 0, handle, 0));
  EXPECT_EQ(cuMemGetAddressRange(&base, &bytes, inside), CUDA_ERROR_NOT_FOUND) << "no access";
  EXPECT_EQ(cuPointerGetAttribute(&base, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, inside),
            CUDA_ERROR_INVALID_VALUE);
  ASSERT_CU(allow(address + kUnit, kUnit, 1));
  ASSERT_CU(cuMemGetAddressRange(&base, &bytes, inside));
  EXPECT_EQ(base, address + kUnit);
  EXPECT_EQ(bytes, kUnit);
  EXPECT_EQ(get(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, inside), inside);
  EXPECT_EQ(get(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, inside), 1u);
  EXPECT_EQ(get(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, inside), uint64_t{CU_MEMORYTYPE_DEVICE});
  EXPECT_EQ(get(CU_POINTER_ATTRIBUTE_CONTEXT, inside), 0u);
  EXPECT_EQ(get(CU_POINTER_ATTRIBUTE_MAPPED, inside), 1u);
  EXPECT_EQ(get(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, inside), address);
  EXPECT_EQ(get(CU_POINTER_ATTRIBUTE_RANGE_SIZE, inside), 4 * kUnit);
  EXPECT_EQ(get(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, inside), address + kUnit);
  EXPECT_EQ(get(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, inside), kUnit);
  EXPECT_EQ(get(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, inside), 0u);
  EXPECT_EQ(get(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, inside),
            uint64_t{CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR});
  EXPECT_EQ(get(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, inside), 0u) << "device 0 has none";
  ASSERT_CU(allow(address + kUnit, kUnit, 0, CU_MEM_ACCESS_FLAGS_PROT_READ));
  EXPECT_EQ(get(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, inside), 1u);
  const uint64_t first = get(CU_POINTER_ATTRIBUTE_BUFFER_ID, inside);
  const uint64_t block = get(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, inside);
  ASSERT_CU(cuMemUnmap(address + kUnit, kUnit));
  ASSERT_CU(cuMemMap(address + kUnit, kUnit, 0, handle, 0));
  EXPECT_NE(get(CU_POINTER_ATTRIBUTE_BUFFER_ID, inside), first) << "another mapping";
  EXPECT_EQ(get(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, inside), block) << "of the same memory";
  ASSERT_CU(cuMemUnmap(address + kUnit, kUnit));
  ASSERT_CU(cuMemRelease(handle));
  ASSERT_CU(cuMemAddressFree(address, 4 * kUnit));
}

TEST_F(Mapping, ImportsDescriptors) {
  const CUmemGenericAllocationHandle handle = create(2 * kUnit, 1);
  int descriptor = -1, unused = -1;
  ASSERT_CU(cuMemExportToShareableHandle(&descriptor, handle,
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  EXPECT_EQ(cuMemExportToShareableHandle(&unused, handle, CU_MEM_HANDLE_TYPE_FABRIC, 0),
            CUDA_ERROR_INVALID_VALUE);
  const auto import = [](int from, CUmemGenericAllocationHandle* out) {
    return cuMemImportFromShareableHandle(out, reinterpret_cast<void*>(intptr_t{from}),
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  };
  CUmemGenericAllocationHandle imported = 0, none = 0;
  ASSERT_CU(import(descriptor, &imported));
  ASSERT_EQ(close(descriptor), 0);
  EXPECT_NE(imported, handle);
  CUmemAllocationProp found{};
  ASSERT_CU(cuMemGetAllocationPropertiesFromHandle(&found, imported));
  EXPECT_EQ(found.location.id, 1);
  EXPECT_EQ(found.requestedHandleTypes, CU_MEM_HANDLE_TYPE_NONE);
  EXPECT_EQ(
      cuMemExportToShareableHandle(&unused, imported, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      CUDA_ERROR_INVALID_VALUE)
      << "imports are not handed on";

  const CUdeviceptr address = reserve(4 * kUnit);
  ASSERT_CU(cuMemMap(address, 2 * kUnit, 0, handle, 0));
  ASSERT_CU(cuMemMap(address + 2 * kUnit, 2 * kUnit, 0, imported, 0));
  ASSERT_CU(allow(address, 4 * kUnit));
  ASSERT_CU(cuMemsetD8(address, 9, 2 * kUnit));
  EXPECT_EQ(byte_at(address + 4 * kUnit - 1), 9);

  EXPECT_EQ(import(-1, &none), CUDA_ERROR_INVALID_VALUE);
  const int file = open("/dev/zero", O_RDWR | O_CLOEXEC);
  EXPECT_EQ(import(file, &none), CUDA_ERROR_INVALID_VALUE) << "no memory of a GPU";
  close(file);
  CUmemAllocationProp wanted = on_device(0);
  wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
  ASSERT_CU(cuMemCreate(&none, kUnit, &wanted, 0));
  EXPECT_EQ(
      cuMemExportToShareableHandle(&unused, none, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
      CUDA_ERROR_INVALID_VALUE);
  ASSERT_CU(cuMemRelease(none));
  ASSERT_CU(cuMemUnmap(address, 4 * kUnit));
  ASSERT_CU(cuMemAddressFree(address, 4 * kUnit));
  ASSERT_CU(cuMemRelease(handle));
  ASSERT_CU(cuMemRelease(imported));
}

// ---- NCCL

#define ASSERT_NCCL(...) ASSERT_EQ((__VA_ARGS__), ncclSuccess) << ncclGetLastError(nullptr)

constexpr size_t kFloats = kUnit / 2;  // of 2 MiB each, so that a buffer reaches over two mappings

void fill(CUdeviceptr address, float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  ASSERT_CU(cuMemsetD32(address, bits, kFloats));
}
void expect_all(CUdeviceptr address, float value) {
  std::vector<float> host(kFloats);
  ASSERT_CU(cuMemcpyDtoH(host.data(), address, host.size() * sizeof(float)));
  EXPECT_EQ(host, std::vector<float>(kFloats, value));
}

class MappingForCollectives : public Mapping, public testing::WithParamInterface<const char*> {
 protected:
  MappingForCollectives() { setenv("NCCL_ALGO", GetParam(), 1); }
  ~MappingForCollectives() override { unsetenv("NCCL_ALGO"); }
};
// By a multicast team (NVLS), too, which binds each mapping by itself.
INSTANTIATE_TEST_SUITE_P(, MappingForCollectives, testing::Values("ring", "NVLS"));

TEST_P(MappingForCollectives, MayBeTwoMappings) {
  constexpr int kRanks = 2;
  std::array<ncclComm_t, kRanks> comms{};
  std::array<CUdeviceptr, kRanks> buffers{};
  const int devices[] = {0, 1};
  ASSERT_NCCL(ncclCommInitAll(comms.data(), kRanks, devices));
  for (int rank = 0; rank < kRanks; ++rank) {
    buffers[rank] = reserve(2 * kUnit);
    put(buffers[rank], kUnit, rank);
    put(buffers[rank] + kUnit, kUnit, rank);
  }
  const auto each = [&](auto&& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        CUcontext context = nullptr;
        ASSERT_CU(cuDevicePrimaryCtxRetain(&context, rank));
        ASSERT_CU(cuCtxSetCurrent(context));
        body(rank);
        ASSERT_CU(cuDevicePrimaryCtxRelease(rank));
      });
    }
    for (std::thread& thread : threads) thread.join();
  };
  const auto all_reduce = [&](int rank) {
    void* const buffer = reinterpret_cast<void*>(buffers[rank]);
    fill(buffers[rank], static_cast<float>(rank + 1));
    ASSERT_NCCL(ncclAllReduce(buffer, buffer, kFloats, ncclFloat, ncclSum, comms[rank], nullptr));
    ASSERT_CU(cuStreamSynchronize(nullptr));
    expect_all(buffers[rank], 3);
  };
  each(all_reduce);
  each([&](int rank) {
    void *registration = nullptr, *const buffer = reinterpret_cast<void*>(buffers[rank]);
    ASSERT_NCCL(ncclCommRegister(comms[rank], buffer, 2 * kUnit, &registration));
    all_reduce(rank);
    ASSERT_NCCL(ncclCommDeregister(comms[rank], registration));
    ncclWindow_t window = nullptr;
    ASSERT_NCCL(
        ncclCommWindowRegister(comms[rank], buffer, 2 * kUnit, &window, NCCL_WIN_COLL_SYMMETRIC));
    ASSERT_NE(window, nullptr);
    all_reduce(rank);
    ASSERT_NCCL(ncclCommWindowDeregister(comms[rank], window));
  });
  // Not all of it is mapped any more.
  ASSERT_CU(cuMemUnmap(buffers[0] + kUnit, kUnit));
  void* const buffer = reinterpret_cast<void*>(buffers[0]);
  EXPECT_EQ(ncclAllReduce(buffer, buffer, kFloats, ncclFloat, ncclSum, comms[0], nullptr),
            ncclInvalidArgument);
  for (int rank = 0; rank < kRanks; ++rank) {
    ASSERT_NCCL(ncclCommDestroy(comms[rank]));
    ASSERT_CU(cuMemUnmap(buffers[rank], 2 * kUnit));
    ASSERT_CU(cuMemAddressFree(buffers[rank], 2 * kUnit));
  }
}

// ---- two processes

/// All-reduces memory that this process mapped, registered, with the other process.
void all_reduce_with_peer(int rank, const ncclUniqueId& id, CUdeviceptr address) {
  ncclComm_t comm = nullptr;
  ncclWindow_t window = nullptr;
  void* const buffer = reinterpret_cast<void*>(address);
  ASSERT_NCCL(ncclCommInitRank(&comm, 2, id, rank));
  for (const bool is_window : {false, true}) {
    if (is_window) {
      ASSERT_NCCL(
          ncclCommWindowRegister(comm, buffer, 2 * kUnit, &window, NCCL_WIN_COLL_SYMMETRIC));
    }
    fill(address, static_cast<float>(rank + 1));
    ASSERT_NCCL(ncclAllReduce(buffer, buffer, kFloats, ncclFloat, ncclSum, comm, nullptr));
    ASSERT_CU(cuStreamSynchronize(nullptr));
    expect_all(address, 3);
  }
  ASSERT_NCCL(ncclCommWindowDeregister(comm, window));
  ASSERT_NCCL(ncclCommDestroy(comm));
}

TEST_F(Mapping, SharesMemoryWithAnotherProcess) {
  int socket = -1;
  const pid_t child = vcuda_test::run_other_process("Mapping.DISABLED_IsTheOtherProcess", &socket);
  ASSERT_GT(child, 0);

  const CUmemGenericAllocationHandle handle = create(kUnit);
  const CUdeviceptr address = reserve(2 * kUnit);
  ASSERT_CU(cuMemMap(address, kUnit, 0, handle, 0));
  ASSERT_CU(allow(address, kUnit));
  ASSERT_CU(cuMemsetD8(address, 7, kUnit));
  int descriptor = -1;
  ASSERT_CU(cuMemExportToShareableHandle(&descriptor, handle,
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  send_descriptor(socket, descriptor);
  close(descriptor);
  char answer = 0;
  ASSERT_EQ(read(socket, &answer, 1), 1) << "the child failed";
  EXPECT_EQ(byte_at(address), 9) << "what the child wrote";
  // The child has the memory, too.
  ASSERT_CU(cuMemUnmap(address, kUnit));
  ASSERT_CU(cuMemRelease(handle));

  // A pool, and an allocation of it.
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  CUmemoryPool pool = nullptr;
  CUdeviceptr pooled = 0;
  CUmemPoolPtrExportData data;
  ASSERT_CU(cuMemPoolCreate(&pool, &properties));
  ASSERT_CU(cuMemPoolExportToShareableHandle(&descriptor, pool,
                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  send_descriptor(socket, descriptor);
  close(descriptor);
  ASSERT_CU(cuMemAllocFromPoolAsync(&pooled, 64, pool, nullptr));
  ASSERT_CU(cuMemsetD8(pooled, 3, 64));
  ASSERT_CU(cuMemPoolExportPointer(&data, pooled));
  ASSERT_EQ(write(socket, &data, sizeof data), static_cast<ssize_t>(sizeof data));
  ASSERT_EQ(read(socket, &answer, 1), 1) << "the child failed";
  EXPECT_EQ(byte_at(pooled), 4) << "what the child wrote";
  ASSERT_CU(cuMemFreeAsync(pooled, nullptr));
  ASSERT_CU(cuMemPoolDestroy(pool));

  put(address, kUnit);
  put(address + kUnit, kUnit);
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  ASSERT_EQ(write(socket, &id, sizeof id), static_cast<ssize_t>(sizeof id));
  all_reduce_with_peer(0, id, address);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  close(socket);
  ASSERT_CU(cuMemUnmap(address, 2 * kUnit));
  ASSERT_CU(cuMemAddressFree(address, 2 * kUnit));
}

TEST_F(Mapping, DISABLED_IsTheOtherProcess) {
  const char* const variable = std::getenv(vcuda_test::kSocketVariable);
  ASSERT_NE(variable, nullptr) << "SharesMemoryWithAnotherProcess runs this";
  const int socket = std::atoi(variable);
  const int descriptor = receive_descriptor(socket);
  ASSERT_GE(descriptor, 0);
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_CU(cuMemImportFromShareableHandle(&handle, reinterpret_cast<void*>(intptr_t{descriptor}),
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(descriptor);
  const CUdeviceptr address = reserve(2 * kUnit);
  ASSERT_CU(cuMemMap(address, kUnit, 0, handle, 0));
  ASSERT_CU(allow(address, kUnit));
  EXPECT_EQ(byte_at(address + kUnit - 1), 7);
  ASSERT_CU(cuMemsetD8(address, 9, kUnit));
  const char done = 1;
  ASSERT_EQ(write(socket, &done, 1), 1);

  const int of_pool = receive_descriptor(socket);
  CUmemoryPool pool = nullptr;
  CUdeviceptr pooled = 0;
  CUmemPoolPtrExportData data;
  ASSERT_CU(cuMemPoolImportFromShareableHandle(&pool, reinterpret_cast<void*>(intptr_t{of_pool}),
                                               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  close(of_pool);
  ASSERT_EQ(read(socket, &data, sizeof data), static_cast<ssize_t>(sizeof data));
  ASSERT_CU(cuMemPoolImportPointer(&pooled, pool, &data));
  EXPECT_EQ(byte_at(pooled + 63), 3);
  ASSERT_CU(cuMemsetD8(pooled, 4, 64));
  ASSERT_CU(cuMemFree(pooled));
  ASSERT_CU(cuMemPoolDestroy(pool));
  ASSERT_EQ(write(socket, &done, 1), 1);

  ncclUniqueId id;
  ASSERT_EQ(read(socket, &id, sizeof id), static_cast<ssize_t>(sizeof id));
  EXPECT_EQ(byte_at(address), 9) << "the exporter has let go of it";
  ASSERT_CU(cuMemUnmap(address, kUnit));
  ASSERT_CU(cuMemRelease(handle));
  CUcontext context = nullptr;
  ASSERT_CU(cuDevicePrimaryCtxRetain(&context, 1));
  ASSERT_CU(cuCtxSetCurrent(context));
  put(address, kUnit, 1);
  put(address + kUnit, kUnit, 1);
  all_reduce_with_peer(1, id, address);
  ASSERT_CU(cuDevicePrimaryCtxRelease(1));
}

}  // namespace
