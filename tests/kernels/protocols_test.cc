// Kernels of niccolite/device.h on virtual GPUs, in many interleavings: what each word promises.
#include "tests/kernels/ranks.h"

namespace niccolite::test {
namespace {

using device::Barrier;
using device::Buffer;
using device::Channel;
using device::ChannelsHandle;
using device::Comm;
using device::Pack;
using device::ThisBlock;
using device::Warp;

constexpr int kRounds = 3;
#ifdef NICCOLITE_EMULATION_TSAN
constexpr uint64_t kSeeds = 1;  // it sees what could have happened in another order, and is slow
#else
constexpr uint64_t kSeeds = 4;
#endif

// All-reduce: after a barrier every rank sums a part of all peers' inputs and stores it to all.
__global__ void all_reduce(Comm comm, Buffer<float> data, ChannelsHandle) {
  Barrier barrier(ThisBlock(), comm, static_cast<int>(blockIdx.x));
  if (!barrier.sync()) return;
  const size_t packs = data.count() / 4;
  const size_t ranks = static_cast<size_t>(comm.nranks());
  for (size_t i =
           static_cast<size_t>(comm.rank()) + ranks * (threadIdx.x + blockDim.x * blockIdx.x);
       i < packs; i += ranks * blockDim.x * gridDim.x)
    device::store_all(comm, data, i * 4, device::load_reduce(comm, data, i * 4).rounded());
  (void)barrier.sync();
}

TEST(AllReduceKernel, SumsInEveryInterleaving) {
  for (const int nranks : {1, 2, 3, 5}) {
    constexpr size_t kCount = 1024;
    KernelRanks<float> ranks(nranks, kCount, 2, 0);
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      SCOPED_TRACE(testing::Message() << nranks << " ranks, seed " << seed);
      emulation::set_seed(seed);
      for (int rank = 0; rank < nranks; ++rank)
        for (size_t i = 0; i < kCount; ++i)
          ranks.memory(rank)[i] = static_cast<float>((rank + 1) * (static_cast<int>(i) + 3));
      ranks.run(all_reduce, 2, 64);
      for (int rank = 0; rank < nranks; ++rank)
        for (size_t i = 0; i < kCount; ++i)
          ASSERT_EQ(ranks.memory(rank)[i],
                    static_cast<float>(nranks * (nranks + 1) / 2 * (static_cast<int>(i) + 3)))
              << rank << " " << i;
    }
  }
}

// Each rank sends a block to every peer, kRounds times, to halves of the peer's buffer in turn. A
// peer that has read says so by a second channel, before its block is written again.
__global__ void exchange(Comm comm, Buffer<int> data, ChannelsHandle channels, int count,
                         int* errors) {
  Channel arrived(ThisBlock(), comm, channels, static_cast<int>(2 * blockIdx.x));
  Channel done(ThisBlock(), comm, channels, static_cast<int>(2 * blockIdx.x + 1));
  NICCOLITE_SHARED(int, out, 64);
  const size_t ranks = static_cast<size_t>(comm.nranks());
  const size_t n = static_cast<size_t>(count);
  for (int round = 0; round < kRounds; ++round) {
    if (round > 0 && !done.wait_all()) return;
    for (int peer = 0; peer < comm.nranks(); ++peer) {
      for (unsigned i = threadIdx.x; i < n; i += blockDim.x)
        out[i] = round * 100000 + comm.rank() * 1000 + peer * 100 + static_cast<int>(i);
      __syncthreads();
      const size_t place = (blockIdx.x * ranks + static_cast<size_t>(comm.rank())) * n;
      device::put(ThisBlock(), comm, data, place, peer, out, n);
      arrived.flush();
    }
    arrived.signal_all();
    if (!arrived.wait_all()) return;
    const int* const mine = data.own() + blockIdx.x * ranks * n;
    for (size_t i = threadIdx.x; i < ranks * n; i += blockDim.x) {
      const int from = static_cast<int>(i / n);
      const int expected =
          round * 100000 + from * 1000 + comm.rank() * 100 + static_cast<int>(i % n);
      if (mine[i] != expected) atomicAdd(errors, 1);
    }
    done.signal_all();
  }
  (void)done.wait_all();
}

TEST(ExchangeKernel, DeliversEveryBlockInEveryInterleaving) {
  for (const int nranks : {1, 2, 4}) {
    constexpr int kCount = 37;  // elements, not a multiple of a pack
    constexpr unsigned kBlocks = 2;
    KernelRanks<int> ranks(nranks, kBlocks * kCount * static_cast<size_t>(nranks), 0, 2 * kBlocks);
    int* errors = nullptr;
    ASSERT_CUDA(cudaMallocHost(reinterpret_cast<void**>(&errors), sizeof *errors));
    *errors = 0;
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      emulation::set_seed(100 + seed);
      ranks.run(exchange, kBlocks, 64, kCount, errors);
    }
    EXPECT_EQ(*errors, 0);
    EXPECT_CUDA(cudaFreeHost(errors));
  }
}

// Sixteen ranks pass a number round, a warp each; a unit test of a protocol on a laptop.
__global__ void ring(Comm comm, Buffer<int> data, ChannelsHandle channels) {
  Channel channel(Warp(), comm, channels, 0);
  const int next = (comm.rank() + 1) % comm.nranks();
  const int before = (comm.rank() + comm.nranks() - 1) % comm.nranks();
  for (int hop = 0; hop < 2; ++hop) {
    if ((comm.rank() != 0 || hop > 0) && !channel.wait(before)) return;
    if (comm.rank() == 0 && hop > 0) break;
    if (threadIdx.x == 0) {
      const int value = *data.own() + 1;
      *data.of(next) = value;
    }
    channel.signal(next);
    if (comm.rank() != 0) break;
  }
}

TEST(RingKernel, OfSixteenRanksPassesANumberRound) {
  KernelRanks<int> ranks(16, 1024, 0, 1);
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    emulation::set_seed(seed);
    *ranks.memory(0) = 0;
    ranks.run(ring, 1, 32);
    EXPECT_EQ(*ranks.memory(0), 16);
  }
}

// Kernels that begin one after the other on each rank: epochs outlive them.
TEST(Kernels, KeepTheirEpochsFromLaunchToLaunch) {
  constexpr size_t kCount = 256;
  KernelRanks<float> ranks(3, kCount, 1, 0);
  for (int rank = 0; rank < 3; ++rank)
    std::fill(ranks.memory(rank), ranks.memory(rank) + kCount, 1.0F);
  for (int launches = 0; launches < 5; ++launches)
    for (int rank = 0; rank < 3; ++rank) {
      ASSERT_CUDA(cudaSetDevice(rank));
      ASSERT_CUDA(launch(all_reduce, 1, 32, 0, ranks.cluster().stream(rank), ranks.comm(rank),
                         ranks.buffer(rank), ranks.channels(rank)));
    }
  ranks.cluster().synchronize();
  EXPECT_EQ(ranks.memory(1)[kCount - 1], 243.0F);
}

__global__ void wait_for_nobody(Comm comm, Buffer<int> data, ChannelsHandle channels) {
  Channel channel(ThisBlock(), comm, channels, 0);
  const bool came = channel.wait((comm.rank() + 1) % comm.nranks());
  if (threadIdx.x == 0) data.own()[0] = came ? 1 : 2;
}

TEST(Kernels, EndWhenTheCommunicatorIsAborted) {
  // Not KernelRanks: the communicators end before what belongs to them.
  Cluster cluster(2);
  std::vector<ncclDevComm_t> devices(2);
  std::vector<device::ChannelsHandle> channels(2);
  std::vector<ncclDevResourceRequirements_t> lists(2);
  std::vector<int*> memories(2);
  std::vector<ncclWindow_t> windows(2);
  ASSERT_NCCL(ncclGroupStart());
  for (size_t i = 0; i < 2; ++i) {
    lists[i] = device::require_channels(1, 2, &channels[i]);
    ncclDevCommRequirements_t needs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
    needs.resourceRequirementsList = &lists[i];
    ASSERT_NCCL(ncclDevCommCreate(cluster.comm(static_cast<int>(i)), &needs, &devices[i]));
  }
  ASSERT_NCCL(ncclGroupEnd());
  ASSERT_NCCL(ncclGroupStart());
  for (size_t i = 0; i < 2; ++i) {
    ASSERT_CUDA(cudaSetDevice(static_cast<int>(i)));
    ASSERT_NCCL(ncclMemAlloc(reinterpret_cast<void**>(&memories[i]), 4096));
    ASSERT_NCCL(ncclCommWindowRegister(cluster.comm(static_cast<int>(i)), memories[i], 4096,
                                       &windows[i], 0));
  }
  ASSERT_NCCL(ncclGroupEnd());
  int* const answer = memories[0];
  ASSERT_CUDA(cudaSetDevice(0));
  ASSERT_CUDA(launch(wait_for_nobody, 1, 64, 0, cluster.stream(0), Comm(devices[0]),
                     Buffer<int>(windows[0], 1024), channels[0]));
  EXPECT_EQ(cudaStreamQuery(cluster.stream(0)), cudaErrorNotReady);
  // The flag that ncclCommAbort raises; the windows stay until the kernel has ended.
  __atomic_store_n(devices[0].abortFlag, 1U, __ATOMIC_RELEASE);
  EXPECT_CUDA(cudaStreamSynchronize(cluster.stream(0)));
  EXPECT_EQ(*answer, 2);
  __atomic_store_n(devices[0].abortFlag, 0U, __ATOMIC_RELEASE);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_NCCL(ncclCommWindowDeregister(cluster.comm(static_cast<int>(i)), windows[i]));
    EXPECT_NCCL(ncclMemFree(memories[i]));
  }
}

}  // namespace
}  // namespace niccolite::test
