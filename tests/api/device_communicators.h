// Device communicators as callers of different versions make them, and windows with multicast
// addresses: for the tests of the device API's host side.
#pragma once

#include <nccl_device.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/api/cluster.h"

namespace niccolite::test {

inline bool operator==(const ncclTeam_t& a, const ncclTeam_t& b) {
  return a.nRanks == b.nRanks && a.rank == b.rank && a.stride == b.stride;
}

// Offsets of fields in a caller's header. Source: device-api reference, sections 2 and 4. -1: not
// there.
struct DeviceCaller {
  const char* header;
  unsigned version;  // 0: its structs do not say
  size_t requirements, barriers_at;
  size_t bytes;  // of its ncclDevComm
  int magic, rank, lsa_rank, table, resources, base, stride, lsa_barrier, abort_flag;
};
inline constexpr DeviceCaller kDeviceCallers[] = {
    {"2.28.9", 0, 56, 24, 200, -1, 0, 12, 24, 32, 48, 64, 120, -1},
    {"2.29.3", 22903, 72, 40, 200, -1, 0, 12, 24, 32, 48, 64, 120, -1},
    {"2.29.7", 22907, 88, 40, 224, -1, 0, 12, 24, 32, 48, 64, 120, 216},
    {"2.30.4", 23004, 96, 40, 240, 0, 8, 20, 32, 40, 56, 72, 128, 208},
    {"2.30.7", 23007, 96, 40, 240, 0, 8, 20, 32, 40, 56, 72, 128, 208},
    {"2.31.2", 23102, 120, 40, 248, 0, 8, 20, 32, 40, 48, 56, 80, 168},
    {"2.32.3", 23203, 120, 40, 248, 0, 8, 20, 32, 40, 48, 56, 80, 168},
};

template <typename T>
T field(const std::vector<unsigned char>& bytes, int offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

/// Requirements as the caller's header lays them out, with lists.
inline std::vector<unsigned char> requirements_of(const DeviceCaller& caller, int barriers,
                                                  ncclDevResourceRequirements_t* list) {
  std::vector<unsigned char> bytes(caller.requirements);
  int list_at = 0;
  if (caller.version != 0) {
    const uint64_t size = caller.requirements;
    const unsigned head[] = {NCCL_API_MAGIC, caller.version};
    std::memcpy(bytes.data(), &size, sizeof size);
    std::memcpy(bytes.data() + 8, head, sizeof head);
    list_at = 16;
  }
  std::memcpy(bytes.data() + list_at, &list, sizeof list);
  std::memcpy(bytes.data() + caller.barriers_at, &barriers, sizeof barriers);
  return bytes;
}

/// ncclDevCommCreate on all ranks, of the caller's structs; what lies behind them is 0x5a.
inline std::vector<std::vector<unsigned char>> create_devices(
    const Cluster& cluster, const DeviceCaller& caller, int barriers,
    std::vector<ncclDevResourceRequirements_t>* lists = nullptr) {
  std::vector<std::vector<unsigned char>> devices;
  std::vector<std::vector<unsigned char>> needs;
  for (int rank = 0; rank < cluster.nranks(); ++rank) {
    devices.emplace_back(caller.bytes + 64, 0x5a);
    needs.push_back(requirements_of(
        caller, barriers, lists != nullptr ? &(*lists)[static_cast<size_t>(rank)] : nullptr));
  }
  EXPECT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < cluster.nranks(); ++rank) {
    const auto i = static_cast<size_t>(rank);
    EXPECT_NCCL(ncclDevCommCreate(
        cluster.comm(rank), reinterpret_cast<const ncclDevCommRequirements_t*>(needs[i].data()),
        reinterpret_cast<ncclDevComm_t*>(devices[i].data())));
    // The caller may reuse its structs.
    std::fill(needs[i].begin(), needs[i].end(), 0xff);
  }
  EXPECT_NCCL(ncclGroupEnd());
  return devices;
}

inline ncclResult_t destroy_device(const Cluster& cluster, int rank,
                                   const std::vector<unsigned char>& device) {
  const std::vector<unsigned char> copy = device;
  return ncclDevCommDestroy(cluster.comm(rank),
                            reinterpret_cast<const ncclDevComm_t*>(copy.data()));
}

inline void set_bytes(void* address, int value, size_t bytes) {
  EXPECT_CUDA(cudaMemset(address, value, bytes));
  EXPECT_CUDA(cudaDeviceSynchronize());
}

/// ncclMemAlloc'd memory of each rank as a window.
class MulticastWindow {
 public:
  MulticastWindow(const Cluster& cluster, size_t bytes, size_t offset = 0)
      : cluster_(cluster), bytes_(bytes), offset_(offset) {
    const auto ranks = static_cast<size_t>(cluster.nranks());
    memories_.resize(ranks);
    windows_.resize(ranks);
    EXPECT_NCCL(ncclGroupStart());
    for (size_t i = 0; i < ranks; ++i) {
      EXPECT_CUDA(cudaSetDevice(static_cast<int>(i)));
      EXPECT_NCCL(ncclMemAlloc(&memories_[i], bytes + offset));
      EXPECT_NCCL(ncclCommWindowRegister(cluster.comm(static_cast<int>(i)), own(i), bytes,
                                         &windows_[i], NCCL_WIN_COLL_SYMMETRIC));
    }
    EXPECT_NCCL(ncclGroupEnd());
  }
  ~MulticastWindow() {
    for (size_t i = 0; i < windows_.size(); ++i) end(i);
  }
  void end(size_t rank) {
    if (memories_[rank] == nullptr) return;
    EXPECT_NCCL(ncclCommWindowDeregister(cluster_.comm(static_cast<int>(rank)), windows_[rank]));
    EXPECT_NCCL(ncclMemFree(std::exchange(memories_[rank], nullptr)));
  }
  unsigned char* own(size_t rank) const {
    return static_cast<unsigned char*>(memories_[rank]) + offset_;
  }
  ncclWindow_t operator[](size_t rank) const { return windows_[rank]; }
  /// The address of all copies, as the host tells it.
  unsigned char* all(size_t rank) const {
    void* address = nullptr;
    EXPECT_NCCL(ncclGetLsaMultimemDevicePointer(windows_[rank], 0, &address));
    return static_cast<unsigned char*>(address);
  }
  /// As kernels compute it.
  unsigned char* all(size_t rank, void* base) const {
    uint32_t offset = 0;
    std::memcpy(&offset, reinterpret_cast<const unsigned char*>(windows_[rank]) + 28, 4);
    return static_cast<unsigned char*>(base) + uint64_t{offset} * 4096;
  }
  /// Each rank stores to all copies: the bytes are in all of them, and no others change.
  void check(void* const* bases) const {
    for (size_t rank = 0; rank < windows_.size(); ++rank) {
      EXPECT_CUDA(cudaSetDevice(static_cast<int>(rank)));
      ASSERT_NE(all(rank), nullptr);
      EXPECT_EQ(all(rank, bases[rank]), all(rank));
      for (size_t each = 0; each < windows_.size(); ++each) std::memset(own(each), 0x11, bytes_);
      const int value = static_cast<int>(0x80 + rank);
      set_bytes(all(rank) + 16, value, bytes_ - 32);
      for (size_t each = 0; each < windows_.size(); ++each)
        for (size_t i = 0; i < bytes_; ++i)
          ASSERT_EQ(own(each)[i], i < 16 || i >= bytes_ - 16 ? 0x11 : value)
              << "stored by " << rank << ", of " << each << ", byte " << i;
    }
  }

 private:
  const Cluster& cluster_;
  size_t bytes_, offset_;
  std::vector<void*> memories_;
  std::vector<ncclWindow_t> windows_;
};

/// Device communicators with multicast addresses.
inline std::vector<ncclDevComm_t> create_multicast(const Cluster& cluster, int barriers,
                                                   ncclResult_t result = ncclSuccess) {
  std::vector<ncclDevComm_t> devices(static_cast<size_t>(cluster.nranks()));
  EXPECT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < cluster.nranks(); ++rank) {
    ncclDevCommRequirements_t reqs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
    reqs.lsaMultimem = true;
    reqs.lsaBarrierCount = barriers;
    EXPECT_NCCL(ncclDevCommCreate(cluster.comm(rank), &reqs, &devices[static_cast<size_t>(rank)]));
  }
  EXPECT_EQ(ncclGroupEnd(), result);
  return devices;
}

inline std::vector<void*> bases_of(const std::vector<ncclDevComm_t>& devices) {
  std::vector<void*> bases;
  for (const ncclDevComm_t& device : devices) bases.push_back(device.lsaMultimem.mcBasePtr);
  return bases;
}

}  // namespace niccolite::test
