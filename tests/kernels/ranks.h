// Ranks of one process with a window each and a device communicator, as a program with kernels of
// niccolite/device.h has them.
#pragma once

#include <niccolite/device.h>

#include <vector>

#include "tests/api/cluster.h"

namespace niccolite::test {

template <typename T>
class KernelRanks {
 public:
  /// `count` elements of a window for each rank, `barriers` and `channels`; multicast addresses
  /// where `has_multicast`; networking by `contexts`, of four signals each.
  KernelRanks(int nranks, size_t count, int barriers, int channels, bool has_multicast = false,
              int contexts = 0)
      : cluster_(nranks),
        count_(count),
        memories_(static_cast<size_t>(nranks)),
        windows_(static_cast<size_t>(nranks)),
        devices_(static_cast<size_t>(nranks)),
        channels_(static_cast<size_t>(nranks)) {
    std::vector<ncclDevResourceRequirements_t> lists(static_cast<size_t>(nranks));
    EXPECT_NCCL(ncclGroupStart());
    for (int rank = 0; rank < nranks; ++rank) {
      const auto i = static_cast<size_t>(rank);
      EXPECT_CUDA(cudaSetDevice(rank));
      EXPECT_NCCL(ncclMemAlloc(reinterpret_cast<void**>(&memories_[i]), count * sizeof(T)));
      EXPECT_NCCL(ncclCommWindowRegister(cluster_.comm(rank), memories_[i], count * sizeof(T),
                                         &windows_[i], NCCL_WIN_COLL_SYMMETRIC));
    }
    EXPECT_NCCL(ncclGroupEnd());
    EXPECT_NCCL(ncclGroupStart());
    for (int rank = 0; rank < nranks; ++rank) {
      const auto i = static_cast<size_t>(rank);
      lists[i] = device::require_channels(channels, nranks, &channels_[i]);
      ncclDevCommRequirements_t needs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
      needs.lsaBarrierCount = barriers;
      needs.lsaMultimem = has_multicast;
      needs.resourceRequirementsList = &lists[i];
      if (contexts > 0) {
        needs.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
        needs.ginContextCount = contexts;
        needs.ginSignalCount = 4;
      }
      EXPECT_NCCL(ncclDevCommCreate(cluster_.comm(rank), &needs, &devices_[i]));
    }
    EXPECT_NCCL(ncclGroupEnd());
  }
  ~KernelRanks() { give_back(); }
  /// All but the communicators.
  void give_back() {
    if (std::exchange(has_given_back_, true)) return;
    for (int rank = 0; rank < nranks(); ++rank) {
      const auto i = static_cast<size_t>(rank);
      EXPECT_NCCL(ncclDevCommDestroy(cluster_.comm(rank), &devices_[i]));
      EXPECT_NCCL(ncclCommWindowDeregister(cluster_.comm(rank), windows_[i]));
      EXPECT_NCCL(ncclMemFree(memories_[i]));
    }
  }

  int nranks() const { return cluster_.nranks(); }
  Cluster& cluster() { return cluster_; }
  T* memory(int rank) const { return memories_[static_cast<size_t>(rank)]; }
  device::Comm comm(int rank) const { return device::Comm(devices_[static_cast<size_t>(rank)]); }
  const ncclDevComm_t& made(int rank) const { return devices_[static_cast<size_t>(rank)]; }
  ncclWindow_t window(int rank) const { return windows_[static_cast<size_t>(rank)]; }
  device::Buffer<T> buffer(int rank) const {
    return device::Buffer<T>(windows_[static_cast<size_t>(rank)], count_);
  }
  device::ChannelsHandle channels(int rank) const { return channels_[static_cast<size_t>(rank)]; }

  /// Sets the flag that the communicator's abort raises.
  void abort_flag(int rank, uint32_t value) {
    __atomic_store_n(devices_[static_cast<size_t>(rank)].abortFlag, value, __ATOMIC_RELEASE);
  }

  /// Launches kernel(comm, buffer, channels, more...) on all ranks, and waits for them.
  template <typename Kernel, typename... More>
  void run(Kernel kernel, unsigned blocks, unsigned threads, More... more) {
    for (int rank = 0; rank < nranks(); ++rank) {
      EXPECT_CUDA(cudaSetDevice(rank));
      EXPECT_CUDA(launch(kernel, dim3(blocks), dim3(threads), 0, cluster_.stream(rank), comm(rank),
                         buffer(rank), channels(rank), more...));
    }
    cluster_.synchronize();
  }

 private:
  Cluster cluster_;
  size_t count_;
  bool has_given_back_ = false;
  std::vector<T*> memories_;
  std::vector<ncclWindow_t> windows_;
  std::vector<ncclDevComm_t> devices_;
  std::vector<device::ChannelsHandle> channels_;
};

}  // namespace niccolite::test
