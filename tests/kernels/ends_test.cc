// Device communicators and communicators that end while kernels run: the kernels' memory, their
// queues and their abort flag stay until they have ended.
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/kernels/ranks.h"

namespace niccolite::test {
namespace {

using device::Barrier;
using device::Buffer;
using device::Channel;
using device::ChannelsHandle;
using device::Comm;
using device::Network;
using device::ThisBlock;

constexpr size_t kCount = 512;
constexpr std::chrono::seconds kPatience{60};

/// Words in host memory by which a kernel and the test talk.
struct Words {
  uint32_t begun;
  uint32_t may_end;
  uint32_t answer;
  Comm* comm;  // for kernels that have it by this address alone
};

/// Two ranks with a window and a device communicator that has everything.
class Ranks {
 public:
  Ranks() : cluster_(2), memories_(2), windows_(2), devices_(2), channels_(2) {
    EXPECT_NCCL(ncclGroupStart());
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_CUDA(cudaSetDevice(static_cast<int>(i)));
      EXPECT_NCCL(ncclMemAlloc(reinterpret_cast<void**>(&memories_[i]), kCount * sizeof(uint64_t)));
      EXPECT_NCCL(ncclCommWindowRegister(comm(i), memories_[i], kCount * sizeof(uint64_t),
                                         &windows_[i], NCCL_WIN_COLL_SYMMETRIC));
    }
    EXPECT_NCCL(ncclGroupEnd());
    std::vector<ncclDevResourceRequirements_t> lists(2);
    EXPECT_NCCL(ncclGroupStart());
    for (size_t i = 0; i < 2; ++i) {
      lists[i] = device::require_channels(1, ncclTeamLsa(comm(i)).nRanks, &channels_[i]);
      ncclDevCommRequirements_t needs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
      needs.lsaBarrierCount = 1;
      needs.resourceRequirementsList = &lists[i];
      needs.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
      needs.ginContextCount = 1;
      needs.ginSignalCount = 2;
      EXPECT_NCCL(ncclDevCommCreate(comm(i), &needs, &devices_[i]));
    }
    EXPECT_NCCL(ncclGroupEnd());
    EXPECT_CUDA(cudaMallocHost(reinterpret_cast<void**>(&words_), sizeof *words_));
    *words_ = {};
  }
  ~Ranks() {
    cluster_.abort();
    for (uint64_t* const memory : memories_) EXPECT_NCCL(ncclMemFree(memory));
    EXPECT_CUDA(cudaFreeHost(words_));
  }

  ncclComm_t comm(size_t rank) const { return cluster_.comm(static_cast<int>(rank)); }
  Cluster& cluster() { return cluster_; }
  const ncclDevComm_t& device(size_t rank) const { return devices_[rank]; }
  Words& words() { return *words_; }
  uint64_t* memory(size_t rank) const { return memories_[rank]; }
  ncclResult_t end(size_t rank, ncclResult_t (*how)(ncclComm_t)) {
    return how(std::exchange(cluster_.comms()[rank], nullptr));
  }

  /// Launches on rank 0, and waits until it has begun.
  template <typename Kernel, typename... Arguments>
  void start(Kernel kernel, Arguments... arguments) {
    EXPECT_CUDA(cudaSetDevice(0));
    EXPECT_CUDA(launch(kernel, 1, 64, 0, cluster_.stream(0), arguments..., words_));
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (read(words_->begun) == 0 && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(read(words_->begun), 1U);
  }
  void start_with_all(void (*kernel)(Comm, Buffer<uint64_t>, ChannelsHandle, Words*)) {
    start(kernel, Comm(devices_[0]), Buffer<uint64_t>(windows_[0], kCount), channels_[0]);
  }
  void let_end() {
    __atomic_store_n(&words_->may_end, 1U, __ATOMIC_RELEASE);
    EXPECT_CUDA(cudaStreamSynchronize(cluster_.stream(0)));
  }
  static uint32_t read(const uint32_t& word) { return __atomic_load_n(&word, __ATOMIC_ACQUIRE); }

 private:
  Cluster cluster_;
  std::vector<uint64_t*> memories_;
  std::vector<ncclWindow_t> windows_;
  std::vector<ncclDevComm_t> devices_;
  std::vector<ChannelsHandle> channels_;
  Words* words_ = nullptr;
};

__device__ void say_begun(Words* words) {
  if (threadIdx.x == 0) __atomic_store_n(&words->begun, 1U, __ATOMIC_RELEASE);
}
__device__ void answer(Words* words, bool came) {
  if (threadIdx.x == 0) __atomic_store_n(&words->answer, came ? 1U : 2U, __ATOMIC_RELEASE);
}

__global__ void wait_at_barrier(Comm comm, Buffer<uint64_t>, ChannelsHandle, Words* words) {
  Barrier barrier(ThisBlock(), comm, 0);
  say_begun(words);
  answer(words, barrier.sync());
}
__global__ void wait_for_channel(Comm comm, Buffer<uint64_t>, ChannelsHandle channels,
                                 Words* words) {
  Channel channel(ThisBlock(), comm, channels, 0);
  say_begun(words);
  answer(words, channel.wait(comm.nranks() - 1));
}
__global__ void wait_for_signal(Comm comm, Buffer<uint64_t>, ChannelsHandle, Words* words) {
  Network network(ThisBlock(), comm, 0);
  say_begun(words);
  answer(words, network.wait(0, 1));
}
// Reads the word of its window on and on; the last look is after the abort.
__global__ void wait_for_word(Comm comm, Buffer<uint64_t> data, ChannelsHandle, Words* words) {
  Network network(ThisBlock(), comm, 0);
  say_begun(words);
  answer(words, network.wait_at(data, kCount - 1, 1));
}

TEST(KernelsOfAnAbortedCommunicator, EndTheirWaits) {
  const bool is_alone = [] {
    const char* const team = std::getenv("NCCL_LSA_TEAM_SIZE");
    return team != nullptr && std::string(team) == "1";
  }();
  for (const auto kernel : {wait_at_barrier, wait_for_channel, wait_for_signal, wait_for_word}) {
    if (is_alone && kernel == wait_at_barrier) continue;  // of one rank: opens at once
    Ranks ranks;
    std::fill(ranks.memory(0), ranks.memory(0) + kCount, 0);
    ranks.start_with_all(kernel);
    EXPECT_EQ(cudaStreamQuery(ranks.cluster().stream(0)), cudaErrorNotReady);
    EXPECT_EQ(ranks.end(0, ncclCommAbort), ncclSuccess);
    EXPECT_CUDA(cudaStreamSynchronize(ranks.cluster().stream(0)));
    EXPECT_EQ(ranks.words().answer, 2U);
  }
}

// As a kernel that looks at no flag: it polls signals and posts more than the queue holds.
__device__ void go_on(const Comm& comm, Words* words) {
  Network network(ThisBlock(), comm, 0);
  say_begun(words);
  while (!__syncthreads_or(Ranks::read(words->may_end) != 0)) {
    (void)network.value(1);
    device::detail::pause();
  }
  const auto* const context = comm.context(0);
  for (int i = 0; i < 200; ++i) {
    network.signal(network.rank(), 0);
    const uint32_t until = device::detail::load_acquire(context->produced + network.rank());
    while (device::detail::load_acquire(context->consumed + network.rank()) != until)
      device::detail::pause();
    __syncthreads();
  }
  answer(words, network.value(0) == 200);
}
__global__ void go_on_known(Comm comm, Buffer<uint64_t>, ChannelsHandle, Words* words) {
  go_on(comm, words);
}
__global__ void go_on_unknown(Words* words) { go_on(*words->comm, words); }

/// Is as much device memory free as before, once the library has given its part back?
bool comes_back(size_t before) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  for (;;) {
    size_t free = 0, total = 0;
    EXPECT_CUDA(cudaSetDevice(0));
    EXPECT_CUDA(cudaMemGetInfo(&free, &total));
    if (free >= before) return true;
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

TEST(KernelsOfAnAbortedCommunicator, KeepTheirMemoryWhereTheyLookAtNoFlag) {
  size_t before = 0, total = 0;
  EXPECT_CUDA(cudaSetDevice(0));
  EXPECT_CUDA(cudaMemGetInfo(&before, &total));
  {
    Ranks ranks;
    ranks.start_with_all(go_on_known);
    EXPECT_EQ(ranks.end(0, ncclCommAbort), ncclSuccess);
    EXPECT_EQ(cudaStreamQuery(ranks.cluster().stream(0)), cudaErrorNotReady);
    ranks.let_end();
    EXPECT_NE(ranks.words().answer, 0U);  // its signals were dropped, or not
  }
  EXPECT_TRUE(comes_back(before));
}

TEST(KernelsOfADestroyedCommunicator, KeepTheirMemory) {
  Ranks ranks;
  ranks.start_with_all(go_on_known);
  EXPECT_EQ(ranks.end(0, ncclCommDestroy), ncclSuccess);
  ranks.let_end();
  EXPECT_EQ(ranks.words().answer, 1U);
}

TEST(DeviceCommunicators, AreNotDestroyedWhileAKernelUsesThem) {
  Ranks ranks;
  ranks.start_with_all(go_on_known);
  EXPECT_EQ(ncclDevCommDestroy(ranks.comm(0), &ranks.device(0)), ncclInvalidUsage);
  const std::string text = ncclGetLastError(nullptr);
  EXPECT_NE(text.find("ncclDevCommDestroy : rank 0"), std::string::npos) << text;
  EXPECT_NE(text.find("1 of the kernels that were launched on device 0"), std::string::npos)
      << text;
  ranks.let_end();
  EXPECT_EQ(ranks.words().answer, 1U);
  EXPECT_NCCL(ncclDevCommDestroy(ranks.comm(0), &ranks.device(0)));
  EXPECT_EQ(ncclDevCommDestroy(ranks.comm(0), &ranks.device(0)), ncclInvalidArgument);
  EXPECT_NCCL(ncclDevCommDestroy(ranks.comm(1), &ranks.device(1)));
}

TEST(DeviceCommunicators, ThatAreDestroyedStayForKernelsThatNobodyKnows) {
  Ranks ranks;
  Comm comm(ranks.device(0));
  ranks.words().comm = &comm;
  size_t before = 0, after = 0, total = 0;
  ranks.start(go_on_unknown);
  EXPECT_CUDA(cudaMemGetInfo(&before, &total));
  EXPECT_NCCL(ncclDevCommDestroy(ranks.comm(0), &ranks.device(0)));
  EXPECT_EQ(ncclDevCommDestroy(ranks.comm(0), &ranks.device(0)), ncclInvalidArgument);
  EXPECT_CUDA(cudaMemGetInfo(&after, &total));
  EXPECT_EQ(after, before);
  ranks.let_end();
  EXPECT_EQ(ranks.words().answer, 1U);
  EXPECT_TRUE(comes_back(before + 1));
}

}  // namespace
}  // namespace niccolite::test
