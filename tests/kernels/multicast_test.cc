// Kernels of niccolite/device.h by multicast: the same kernel gives the same results with and
// without (sums of these tests are exact in every order), and what goes by multicast addresses
// really does.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

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

// All-reduce in two halves: each rank sums its part of all inputs, and stores it to all.
template <typename T>
__global__ void all_reduce(Comm comm, Buffer<T> data, ChannelsHandle, int rounds) {
  Barrier barrier(ThisBlock(), comm, static_cast<int>(blockIdx.x));
  constexpr auto kPack = static_cast<size_t>(Pack<T>::kElements);
  const size_t packs = data.count() / kPack;
  const auto ranks = static_cast<size_t>(comm.nranks());
  for (int round = 0; round < rounds; ++round) {
    if (!barrier.sync()) return;
    for (size_t i =
             static_cast<size_t>(comm.rank()) + ranks * (threadIdx.x + blockDim.x * blockIdx.x);
         i < packs; i += ranks * blockDim.x * gridDim.x)
      device::store_all(comm, data, i * kPack,
                        device::load_reduce(comm, data, i * kPack).rounded());
  }
  (void)barrier.sync();
}

template <typename T>
void check_all_reduce(int nranks) {
  constexpr size_t kCount = 512;
  constexpr int kRounds = 2;
  for (const bool has_multicast : {true, false}) {
    SCOPED_TRACE(testing::Message() << nranks << " ranks, multicast " << has_multicast);
    KernelRanks<T> ranks(nranks, kCount, 2, 0, has_multicast);
    EXPECT_EQ(ranks.buffer(0).of_all(ranks.comm(0)) != nullptr, has_multicast);
    for (uint64_t seed = 0; seed < 2; ++seed) {
      emulation::set_seed(seed);
      for (int rank = 0; rank < nranks; ++rank)
        for (size_t i = 0; i < kCount; ++i)
          ranks.memory(rank)[i] =
              static_cast<T>(static_cast<float>((rank + static_cast<int>(i)) % 2));
      // Twice by one kernel, and once more by another: epochs stay in memory.
      ranks.run(all_reduce<T>, 2, 32, kRounds);
      ranks.run(all_reduce<T>, 2, 32, 1);
      for (int rank = 0; rank < nranks; ++rank)
        for (size_t i = 0; i < kCount; ++i) {
          int sum = 0;
          for (int peer = 0; peer < nranks; ++peer) sum += (peer + static_cast<int>(i)) % 2;
          ASSERT_EQ(static_cast<float>(ranks.memory(rank)[i]),
                    static_cast<float>(static_cast<T>(static_cast<float>(sum * nranks * nranks))))
              << rank << " " << i;
        }
    }
  }
}

TEST(MulticastKernel, SumsAsWithout) {
#ifdef NICCOLITE_EMULATION_TSAN  // slow, and it sees no types
  check_all_reduce<float>(2);
  check_all_reduce<uint8_t>(2);
#else
  for (const int nranks : {2, 3, 5}) {
    check_all_reduce<float>(nranks);
    check_all_reduce<__half>(nranks);
    check_all_reduce<__nv_bfloat16>(nranks);
    check_all_reduce<double>(nranks);
    check_all_reduce<int32_t>(nranks);
    check_all_reduce<uint64_t>(nranks);
    check_all_reduce<uint8_t>(nranks);  // added as without, and stored to all
  }
#endif
}

// Whoever reads a sum that a switch has rounded sees a value of the type.
__global__ void sum_halves(Comm comm, Buffer<__half> data, ChannelsHandle, float* out) {
  Barrier barrier(ThisBlock(), comm, 0);
  if (!barrier.sync()) return;
  if (threadIdx.x == 0 && comm.rank() == 0) *out = device::load_reduce(comm, data, 0).values[0];
  (void)barrier.sync();
}

TEST(MulticastKernel, RoundsSumsOfHalvesOnce) {
  for (const bool has_multicast : {true, false}) {
    KernelRanks<__half> ranks(3, 8, 1, 0, has_multicast);
    // 2048 + 1 + 1: neither of the ones alone changes a half of 2048.
    for (int rank = 0; rank < 3; ++rank)
      ranks.memory(rank)[0] = static_cast<__half>(rank == 0 ? 2048.0f : 0.75f);
    float* out = nullptr;
    EXPECT_CUDA(cudaMallocHost(reinterpret_cast<void**>(&out), sizeof *out));
    ranks.run(sum_halves, 1, 32, out);
    EXPECT_EQ(*out, has_multicast ? 2050.0f : 2049.5f);
    EXPECT_CUDA(cudaFreeHost(out));
  }
}

// Data that come by put and signal are read by multicast.
__global__ void put_and_sum(Comm comm, Buffer<int> data, ChannelsHandle channels, int* source,
                            int* errors) {
  Channel channel(ThisBlock(), comm, channels, 0);
  Barrier barrier(ThisBlock(), comm, 0);
  for (int round = 1; round <= 3; ++round) {
    const int next = (comm.rank() + 1) % comm.nranks();
    for (unsigned i = threadIdx.x; i < 64; i += blockDim.x)
      source[i] = round * (comm.rank() + 1) + static_cast<int>(i);
    __syncthreads();
    device::put(ThisBlock(), comm, data, 0, next, source, 64);
    channel.signal(next);
    if (!channel.wait((comm.rank() + comm.nranks() - 1) % comm.nranks()) || !barrier.sync()) return;
    const int n = comm.nranks();
    if (threadIdx.x < 16) {
      const auto sums = device::load_reduce(comm, data, threadIdx.x * 4);
      for (int e = 0; e < 4; ++e)
        if (sums.values[e] != round * n * (n + 1) / 2 + n * (static_cast<int>(threadIdx.x) * 4 + e))
          atomicAdd(errors, 1);
    }
    if (!barrier.sync()) return;
  }
}

TEST(MulticastKernel, ReadsWhatPutsAndSignalsBrought) {
  KernelRanks<int> ranks(4, 64, 1, 1, /*has_multicast=*/true);
  int* memory = nullptr;
  EXPECT_CUDA(cudaMallocHost(reinterpret_cast<void**>(&memory), 5 * 64 * sizeof(int)));
  std::fill(memory, memory + 5 * 64, 0);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_CUDA(cudaSetDevice(rank));
    EXPECT_CUDA(launch(put_and_sum, dim3(1), dim3(32), 0, ranks.cluster().stream(rank),
                       ranks.comm(rank), ranks.buffer(rank), ranks.channels(rank),
                       memory + rank * 64, memory + 4 * 64));
  }
  ranks.cluster().synchronize();
  EXPECT_EQ(memory[4 * 64], 0);
  EXPECT_CUDA(cudaFreeHost(memory));
}

// A barrier's wait ends with an abort.
__global__ void wait_alone(Comm comm, Buffer<int>, ChannelsHandle, int* answer) {
  Barrier barrier(ThisBlock(), comm, 0);
  const bool has_come = comm.rank() == 0 || barrier.sync();
  if (threadIdx.x == 0 && comm.rank() == 1) *answer = has_come ? 1 : 2;
}

TEST(MulticastKernel, EndsItsBarriersWithAnAbort) {
  KernelRanks<int> ranks(2, 64, 1, 0, /*has_multicast=*/true);
  int* answer = nullptr;
  EXPECT_CUDA(cudaMallocHost(reinterpret_cast<void**>(&answer), sizeof *answer));
  *answer = 0;
  ranks.abort_flag(1, 1);
  ranks.run(wait_alone, 1, 64, answer);
  EXPECT_EQ(*answer, 2);
  ranks.abort_flag(1, 0);
  EXPECT_CUDA(cudaFreeHost(answer));
}

}  // namespace
}  // namespace niccolite::test
