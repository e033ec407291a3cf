// Windows of ranks of one process, and what programs do wrong with them.
#include <nccl_device.h>

#include <cstring>
#include <functional>
#include <thread>

#include "tests/api/cluster.h"

namespace niccolite::test {
namespace {

constexpr size_t kBytes = 3 * 4096;

/// Memory of ncclMemAlloc on each device, filled with the rank's number.
class SharedMemory {
 public:
  SharedMemory(int nranks, size_t bytes) : bytes_(bytes), memory_(static_cast<size_t>(nranks)) {
    for (int rank = 0; rank < nranks; ++rank) {
      EXPECT_CUDA(cudaSetDevice(rank));
      EXPECT_NCCL(ncclMemAlloc(&memory_[static_cast<size_t>(rank)], bytes));
      EXPECT_CUDA(cudaMemset(memory_[static_cast<size_t>(rank)], rank + 1, bytes));
    }
  }
  ~SharedMemory() {
    for (void* memory : memory_) EXPECT_NCCL(ncclMemFree(memory));
  }
  SharedMemory(const SharedMemory&) = delete;
  unsigned char* of(int rank) const {
    return static_cast<unsigned char*>(memory_[static_cast<size_t>(rank)]);
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_;
  std::vector<void*> memory_;
};

using Windows = std::vector<ncclWindow_t>;

/// What each rank registers; the result of ncclGroupEnd.
using Registers = std::function<ncclResult_t(int rank, ncclWindow_t* window)>;
ncclResult_t register_all(const Cluster& cluster, const Registers& one, Windows& windows) {
  windows.assign(static_cast<size_t>(cluster.nranks()), nullptr);
  EXPECT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < cluster.nranks(); ++rank)
    EXPECT_NCCL(one(rank, &windows[static_cast<size_t>(rank)]));
  return ncclGroupEnd();
}
Windows register_all(const Cluster& cluster, const SharedMemory& memory,
                     int flags = NCCL_WIN_COLL_SYMMETRIC) {
  Windows windows;
  EXPECT_NCCL(register_all(
      cluster,
      [&](int rank, ncclWindow_t* window) {
        return ncclCommWindowRegister(cluster.comm(rank), memory.of(rank), memory.bytes(), window,
                                      flags);
      },
      windows));
  return windows;
}
void deregister_all(const Cluster& cluster, const Windows& windows) {
  for (int rank = 0; rank < cluster.nranks(); ++rank)
    EXPECT_NCCL(ncclCommWindowDeregister(cluster.comm(rank), windows[static_cast<size_t>(rank)]));
}

int first_byte(const void* address) {
  unsigned char byte = 0;
  EXPECT_CUDA(cudaMemcpy(&byte, address, 1, cudaMemcpyDeviceToHost));
  return byte;
}
std::string last_error() { return ncclGetLastError(nullptr); }

TEST(Windows, EveryRankSeesEveryCopy) {
  for (const int nranks : {1, 2, 5}) {
    Cluster cluster(nranks);
    const SharedMemory memory(nranks, kBytes);
    for (const int flags : {NCCL_WIN_DEFAULT, NCCL_WIN_COLL_SYMMETRIC,
                            NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING}) {
      const Windows windows = register_all(cluster, memory, flags);
      for (int rank = 0; rank < nranks; ++rank) {
        const ncclWindow_t window = windows[static_cast<size_t>(rank)];
        ASSERT_NE(window, nullptr);
        void* user = nullptr;
        ASSERT_NCCL(ncclWinGetUserPtr(cluster.comm(rank), window, &user));
        EXPECT_EQ(user, memory.of(rank));
        for (int peer = 0; peer < nranks; ++peer) {
          void* by_rank = nullptr;
          void* by_member = nullptr;
          ASSERT_NCCL(ncclGetPeerDevicePointer(window, 100, peer, &by_rank));
          ASSERT_NCCL(ncclGetLsaDevicePointer(window, 100, peer, &by_member));
          EXPECT_EQ(by_rank, by_member);
          EXPECT_EQ(first_byte(by_rank), peer + 1);
          // Stores through one address are loads through the other.
          ASSERT_CUDA(cudaMemset(by_rank, 0x77, 1));
          EXPECT_EQ(first_byte(memory.of(peer) + 100), 0x77);
          ASSERT_CUDA(cudaMemset(memory.of(peer) + 100, peer + 1, 1));
        }
      }
      deregister_all(cluster, windows);
    }
  }
}

// What kernels compiled with NVIDIA's headers compute.
TEST(Windows, TheRecordLeadsToEveryCopy) {
  constexpr int kRanks = 3;
  Cluster cluster(kRanks);
  const SharedMemory memory(kRanks, kBytes);
  const Windows windows = register_all(cluster, memory);
  for (int rank = 0; rank < kRanks; ++rank) {
    struct Record {
      void* host;
      char* flat_base;
      int lsa_rank, world_rank;
      unsigned stride_4g;
      char rest[68];
    } record;
    static_assert(sizeof record == 96);
    const ncclWindow_t window = windows[static_cast<size_t>(rank)];
    ASSERT_CUDA(cudaMemcpy(&record, window, sizeof record, cudaMemcpyDeviceToHost));
    EXPECT_EQ(record.lsa_rank, rank);
    EXPECT_EQ(record.world_rank, rank);
    EXPECT_GE(record.stride_4g, 1u);
    for (int peer = 0; peer < kRanks; ++peer) {
      char* const copy = record.flat_base + (size_t(peer) * record.stride_4g << 32) + 4097;
      EXPECT_EQ(first_byte(copy), peer + 1);
      void* pointer = nullptr;
      ASSERT_NCCL(ncclGetLsaDevicePointer(window, 4097, peer, &pointer));
      EXPECT_EQ(pointer, copy);
      cudaPointerAttributes attributes;
      ASSERT_CUDA(cudaPointerGetAttributes(&attributes, pointer));
      EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
    }
  }
  deregister_all(cluster, windows);
}

TEST(Windows, AreInTheMiddleOfMemoryAndOfOtherSizes) {
  constexpr int kRanks = 3;
  Cluster cluster(kRanks);
  const SharedMemory memory(kRanks, 8 * 4096);
  const auto offset = [](int rank) { return static_cast<size_t>(rank) * 4096; };
  const auto bytes = [](int rank) { return 1000 + static_cast<size_t>(rank) * 4096; };
  Windows windows;
  ASSERT_NCCL(register_all(
      cluster,
      [&](int rank, ncclWindow_t* window) {
        return ncclCommWindowRegister(cluster.comm(rank), memory.of(rank) + offset(rank),
                                      bytes(rank), window, NCCL_WIN_COLL_SYMMETRIC);
      },
      windows));
  for (int peer = 0; peer < kRanks; ++peer) {
    ASSERT_CUDA(cudaMemset(memory.of(peer) + offset(peer), 0x40 + peer, 1));
    void* pointer = nullptr;
    ASSERT_NCCL(ncclGetPeerDevicePointer(windows[0], 0, peer, &pointer));
    EXPECT_EQ(first_byte(pointer), 0x40 + peer);
    // Of the peer's window, whatever the size of the own.
    EXPECT_NCCL(ncclGetPeerDevicePointer(windows[0], bytes(peer) - 1, peer, &pointer));
    EXPECT_EQ(ncclGetPeerDevicePointer(windows[0], bytes(peer), peer, &pointer),
              ncclInvalidArgument);
    EXPECT_EQ(pointer, nullptr);
  }
  deregister_all(cluster, windows);
}

// As nccl-tests do: one group, one thread, several GPUs, several windows.
TEST(Windows, SeveralOfAGroupAreMadeInTheirOrder) {
  constexpr int kRanks = 3;
  Cluster cluster(kRanks);
  const SharedMemory one(kRanks, kBytes);
  const SharedMemory two(kRanks, 2 * kBytes);
  Windows first(kRanks);
  Windows second(kRanks);
  void* handles[kRanks];
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < kRanks; ++rank) {
    const ncclComm_t comm = cluster.comm(rank);
    ASSERT_NCCL(ncclCommRegister(comm, one.of(rank), kBytes, &handles[rank]));
    ASSERT_NCCL(ncclCommWindowRegister(comm, one.of(rank), kBytes, &first[size_t(rank)],
                                       NCCL_WIN_COLL_SYMMETRIC));
    ASSERT_NCCL(ncclCommWindowRegister(comm, two.of(rank), 2 * kBytes, &second[size_t(rank)],
                                       NCCL_WIN_DEFAULT));
    EXPECT_EQ(first[size_t(rank)], nullptr);
  }
  ASSERT_NCCL(ncclGroupEnd());
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_NE(first[size_t(rank)], second[size_t(rank)]);
    void* pointer = nullptr;
    EXPECT_EQ(ncclGetPeerDevicePointer(first[size_t(rank)], 2 * kBytes - 1, 0, &pointer),
              ncclInvalidArgument);
    EXPECT_NCCL(ncclGetPeerDevicePointer(second[size_t(rank)], 2 * kBytes - 1, 0, &pointer));
  }
  deregister_all(cluster, second);
  deregister_all(cluster, first);
}

TEST(Windows, OutliveEachRanksView) {
  Cluster cluster(2);
  const SharedMemory memory(2, kBytes);
  const Windows windows = register_all(cluster, memory);
  void* pointer = nullptr;
  ASSERT_NCCL(ncclGetPeerDevicePointer(windows[0], 5, 1, &pointer));
  ASSERT_NCCL(ncclCommWindowDeregister(cluster.comm(1), windows[1]));
  EXPECT_EQ(first_byte(pointer), 2);
  ASSERT_NCCL(ncclCommWindowDeregister(cluster.comm(0), windows[0]));
  cudaPointerAttributes attributes;
  ASSERT_CUDA(cudaPointerGetAttributes(&attributes, pointer));
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
}

TEST(Windows, OfNonblockingCommunicatorsAreThereWhenItSaysSo) {
  constexpr int kRanks = 2;
  ncclComm_t comms[kRanks];
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclUniqueId id;
  ASSERT_NCCL(ncclGetUniqueId(&id));
  const auto settle = [&] {
    for (const ncclComm_t comm : comms) {
      ncclResult_t state = ncclInProgress;
      while (state == ncclInProgress) ASSERT_NCCL(ncclCommGetAsyncError(comm, &state));
      ASSERT_EQ(state, ncclSuccess) << last_error();
    }
  };
  ASSERT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < kRanks; ++rank) {
    ASSERT_CUDA(cudaSetDevice(rank));
    ASSERT_NCCL(ncclCommInitRankConfig(&comms[rank], kRanks, id, rank, &config));
  }
  EXPECT_EQ(ncclGroupEnd(), ncclInProgress);
  settle();
  const SharedMemory memory(kRanks, kBytes);
  Windows windows(kRanks);
  for (int rank = 0; rank < kRanks; ++rank)
    EXPECT_EQ(ncclCommWindowRegister(comms[rank], memory.of(rank), kBytes, &windows[size_t(rank)],
                                     NCCL_WIN_COLL_SYMMETRIC),
              ncclInProgress);
  settle();
  for (int rank = 0; rank < kRanks; ++rank) {
    void* pointer = nullptr;
    ASSERT_NCCL(ncclGetPeerDevicePointer(windows[size_t(rank)], 1, 1 - rank, &pointer));
    EXPECT_EQ(first_byte(pointer), 2 - rank);
    ASSERT_NCCL(ncclCommWindowDeregister(comms[rank], windows[size_t(rank)]));
  }
  for (const ncclComm_t comm : comms) ASSERT_NCCL(ncclCommDestroy(comm));
}

TEST(Windows, EndWithTheirCommunicator) {
  const SharedMemory memory(2, kBytes);
  Windows windows;
  {
    Cluster cluster(2);
    windows = register_all(cluster, memory);
  }
  void* pointer = nullptr;
  EXPECT_EQ(ncclGetPeerDevicePointer(windows[0], 0, 1, &pointer), ncclInvalidArgument);
  EXPECT_NE(last_error().find("ncclGetPeerDevicePointer"), std::string::npos);
}

TEST(Windows, WhatIsWrongWithOneRankIsToldToAll) {
  constexpr int kRanks = 3;
  const SharedMemory memory(kRanks, 4 * kBytes);
  DeviceBuffer plain(1, kBytes);
  struct Case {
    const char* name;
    void* buffer;
    size_t bytes;
    int flags;
    ncclResult_t result;
    const char* text;
  };
  const Case cases[] = {
      {"null", nullptr, kBytes, 1, ncclInvalidArgument, "buff argument is NULL"},
      {"empty", memory.of(1), 0, 1, ncclInvalidArgument, "size argument is 0"},
      {"misaligned", memory.of(1) + 64, kBytes, 1, ncclInvalidArgument, "4096"},
      {"cudaMalloc", plain.data(), kBytes, 1, ncclUnhandledCudaError, "cannot be mapped"},
      {"unknown flags", memory.of(1), kBytes, 64 | 1, ncclInvalidArgument, "winFlags 0x41"},
      {"network only", memory.of(1), kBytes, 4, ncclInvalidArgument, "NCCL_WIN_GIN_ONLY asks"},
      {"other flags", memory.of(1), kBytes, 0, ncclInvalidArgument, "winFlags is 0x"},
      // By far, since other memory may lie right behind.
      {"too long", memory.of(1) + 3 * kBytes, size_t{1} << 40, 1, ncclUnhandledCudaError,
       "cannot be mapped"},
  };
  Cluster cluster(kRanks);
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    ncclResult_t results[kRanks];
    std::string texts[kRanks];
    ncclWindow_t windows[kRanks];
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank)
      threads.emplace_back([&, rank] {
        windows[rank] = reinterpret_cast<ncclWindow_t>(&windows);
        const bool is_wrong = rank == 1;
        results[rank] = ncclCommWindowRegister(
            cluster.comm(rank), is_wrong ? c.buffer : memory.of(rank), is_wrong ? c.bytes : kBytes,
            &windows[rank], is_wrong ? c.flags : 1);
        texts[rank] = last_error();
      });
    for (std::thread& thread : threads) thread.join();
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(results[rank], c.result) << rank;
      EXPECT_EQ(windows[rank], nullptr) << rank;
      EXPECT_NE(texts[rank].find("rank 1"), std::string::npos) << texts[rank];
      EXPECT_NE(texts[rank].find(c.text), std::string::npos) << texts[rank];
    }
  }
  // The communicator goes on.
  deregister_all(cluster, register_all(cluster, memory));
}

TEST(Windows, HandlesThatAreNoneAreRefused) {
  Cluster cluster(2);
  Cluster other(1);
  const SharedMemory memory(2, kBytes);
  const Windows windows = register_all(cluster, memory);
  void* pointer = &pointer;
  ncclWindow_t window = nullptr;
  const auto stranger = reinterpret_cast<ncclWindow_t>(&window);
  const ncclComm_t comm = cluster.comm(0);

  EXPECT_EQ(ncclCommWindowRegister(comm, memory.of(0), kBytes, nullptr, 0), ncclInvalidArgument);
  EXPECT_EQ(ncclCommWindowRegister(nullptr, memory.of(0), kBytes, &window, 0), ncclInvalidArgument);
  EXPECT_NCCL(ncclCommWindowDeregister(comm, nullptr));
  EXPECT_EQ(ncclCommWindowDeregister(nullptr, windows[0]), ncclInvalidArgument);
  for (const ncclWindow_t wrong : {stranger, windows[1]}) {
    EXPECT_EQ(ncclCommWindowDeregister(comm, wrong), ncclInvalidArgument);
    EXPECT_NE(last_error().find("rank 0"), std::string::npos) << last_error();
    EXPECT_EQ(ncclWinGetUserPtr(comm, wrong, &pointer), ncclInvalidArgument);
    EXPECT_EQ(pointer, nullptr);
  }
  EXPECT_EQ(ncclWinGetUserPtr(comm, nullptr, &pointer), ncclInvalidArgument);
  EXPECT_EQ(ncclWinGetUserPtr(comm, windows[0], nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclWinGetUserPtr(other.comm(0), windows[0], &pointer), ncclInvalidArgument);
  for (const int rank : {-1, 2}) {
    EXPECT_EQ(ncclGetPeerDevicePointer(windows[0], 0, rank, &pointer), ncclInvalidArgument);
    EXPECT_EQ(ncclGetLsaDevicePointer(windows[0], 0, rank, &pointer), ncclInvalidArgument);
  }
  EXPECT_EQ(ncclGetPeerDevicePointer(windows[0], kBytes, 1, &pointer), ncclInvalidArgument);
  EXPECT_EQ(ncclGetPeerDevicePointer(windows[0], 0, 1, nullptr), ncclInvalidArgument);
  EXPECT_EQ(ncclGetPeerDevicePointer(stranger, 0, 1, &pointer), ncclInvalidArgument);
  EXPECT_EQ(ncclGetLsaDevicePointer(nullptr, 0, 1, &pointer), ncclInvalidArgument);

  pointer = &pointer;
  EXPECT_NCCL(ncclGetLsaMultimemDevicePointer(windows[0], 0, &pointer));
  EXPECT_EQ(pointer, nullptr);
  EXPECT_EQ(ncclGetLsaMultimemDevicePointer(windows[0], kBytes, &pointer), ncclInvalidArgument);
  EXPECT_EQ(ncclGetMultimemDevicePointer(windows[0], 0, {nullptr}, &pointer), ncclInvalidArgument);
  EXPECT_NCCL(ncclGetMultimemDevicePointer(windows[0], 0, {&pointer}, &pointer));
  EXPECT_EQ(pointer, nullptr);

  deregister_all(cluster, windows);
  EXPECT_EQ(ncclCommWindowDeregister(comm, windows[0]), ncclInvalidArgument);
  EXPECT_EQ(ncclGetPeerDevicePointer(windows[0], 0, 1, &pointer), ncclInvalidArgument);
}

TEST(Windows, BeyondTheAddressSpaceAreRefusedOnAllRanks) {
  Cluster cluster(2);
  const SharedMemory memory(2, kBytes);
  for (const size_t bytes : {SIZE_MAX, SIZE_MAX - 4095}) {
    Windows windows;
    EXPECT_EQ(register_all(
                  cluster,
                  [&](int rank, ncclWindow_t* window) {
                    return ncclCommWindowRegister(cluster.comm(rank), memory.of(rank),
                                                  rank == 1 ? bytes : kBytes, window, 0);
                  },
                  windows),
              ncclInvalidArgument);
    EXPECT_NE(last_error().find("size argument"), std::string::npos) << last_error();
  }
}

}  // namespace
}  // namespace niccolite::test
