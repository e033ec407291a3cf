// Operations by a multicast team on symmetric windows, without slots (NVLS).
#include <gmock/gmock.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/api/nvls_cases.h"

namespace niccolite::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

/// Memory of every rank of a cluster, which is a window.
class ClusterWindow {
 public:
  ClusterWindow(Cluster& cluster, size_t bytes, int flags = NCCL_WIN_COLL_SYMMETRIC)
      : cluster_(cluster),
        memory_(static_cast<size_t>(cluster.nranks())),
        windows_(memory_.size()) {
    for (int rank = 0; rank < cluster.nranks(); ++rank) {
      EXPECT_CUDA(cudaSetDevice(rank));
      EXPECT_NCCL(ncclMemAlloc(&memory_[static_cast<size_t>(rank)], bytes));
    }
    EXPECT_NCCL(ncclGroupStart());
    for (int rank = 0; rank < cluster.nranks(); ++rank) {
      const auto at = static_cast<size_t>(rank);
      EXPECT_NCCL(
          ncclCommWindowRegister(cluster.comm(rank), memory_[at], bytes, &windows_[at], flags));
    }
    EXPECT_NCCL(ncclGroupEnd());
  }
  ClusterWindow(const ClusterWindow&) = delete;
  ~ClusterWindow() {
    end();
    for (void* const memory : memory_) EXPECT_NCCL(ncclMemFree(memory));
  }

  const std::vector<void*>& memory() const { return memory_; }
  unsigned char* at(int rank, size_t offset) const {
    return static_cast<unsigned char*>(memory_[static_cast<size_t>(rank)]) + offset;
  }
  void end() {
    for (int rank = 0; rank < cluster_.nranks(); ++rank)
      if (ncclWindow_t& window = windows_[static_cast<size_t>(rank)];
          window != nullptr && cluster_.comm(rank) != nullptr) {
        EXPECT_NCCL(ncclCommWindowDeregister(cluster_.comm(rank), window));
        window = nullptr;
      }
  }

 private:
  Cluster& cluster_;
  std::vector<void*> memory_;
  std::vector<ncclWindow_t> windows_;
};

// Counts of whole units go without slots, others through them.
TEST(NvlsWindows, EveryOperationIsRight) {
  for (const int nranks : {2, 3, 8}) {
    TeamCluster team(nranks);
    ClusterWindow window(*team, 16 << 20);
    for (const Call call : kCalls)
      for (const bool is_in_place : {false, true})
        for (const size_t count :
             {size_t{1}, size_t{16}, size_t{1003}, size_t{4096}, size_t{130'000}})
          for (const ncclDataType_t type : {ncclFloat, ncclBfloat16}) {
            const Case c{call, type, ncclSum, count, is_in_place};
            ASSERT_LE(needed(c, nranks), size_t{16} << 20);
            ASSERT_NO_FATAL_FAILURE(check(*team, c, window.memory()));
            // Memory without a window goes through slots, by the same plan.
            if (count == 4096) {
              ASSERT_NO_FATAL_FAILURE(check(*team, c));
            }
          }
  }
}

/// An all-reduce whose last rank has its buffer at another offset than the others.
std::string all_reduce_at(Cluster& cluster, const ClusterWindow& window, unsigned char* last) {
  constexpr size_t kCount = 4096;
  const int n = cluster.nranks();
  EXPECT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < n; ++rank) {
    unsigned char* const data = rank == n - 1 ? last : window.at(rank, 1 << 20);
    EXPECT_NCCL(ncclAllReduce(data, data, kCount, ncclFloat, ncclSum, cluster.comm(rank),
                              cluster.stream(rank)));
  }
  EXPECT_NCCL(ncclGroupEnd());
  std::string told;
  for (int rank = 0; rank < n; ++rank) {
    ncclResult_t state = ncclSuccess;
    while (state == ncclSuccess && cudaStreamQuery(cluster.stream(rank)) == cudaErrorNotReady)
      EXPECT_NCCL(ncclCommGetAsyncError(cluster.comm(rank), &state));
    EXPECT_EQ(state, ncclInvalidUsage);
    told += ncclGetLastError(cluster.comm(rank));
  }
  cluster.abort();
  return told;
}

TEST(NvlsWindows, AnotherOffsetOnOneRankIsNamed) {
  TeamCluster team(3);
  ClusterWindow window(*team, 4 << 20);
  EXPECT_THAT(all_reduce_at(*team, window, window.at(2, 2 << 20)),
              ContainsRegex("rank [0-9] and rank [0-9] pass different memory to "
                            "ncclAllReduce.*NCCL_WIN_COLL_SYMMETRIC"));
}

TEST(NvlsWindows, ABufferOfOneRankThatIsNoWindowIsNamed) {
  TeamCluster team(3);
  ClusterWindow window(*team, 4 << 20);
  const DeviceBuffer plain(2, 4096 * sizeof(float));
  EXPECT_THAT(all_reduce_at(*team, window, plain.data()),
              ContainsRegex("rank [0-9] and rank [0-9] pass different memory to ncclAllReduce"));
}

}  // namespace
}  // namespace niccolite::test
