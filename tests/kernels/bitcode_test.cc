// The functions of libniccolite_device.bc on virtual GPUs, from the source that clang compiles for
// GPUs: each keeps its promise, with addresses as numbers, and reports an abort.
#include "bitcode/device.cc"  // NOLINT(bugprone-suspicious-include)
#include "tests/kernels/ranks.h"

namespace niccolite::test {
namespace {

constexpr int kRanks = 4;
constexpr uint64_t kEach = 103;     // elements: packs, and a rest that is none
constexpr uint64_t kPlace = 104;    // elements from one rank's to the next: a multiple of a pack
constexpr uint64_t kWindow = 4096;  // elements

uint64_t number_of(const void* address) { return reinterpret_cast<uint64_t>(address); }

/// The arguments of a kernel: numbers alone.
struct Given {
  uint64_t comm, window;
  uint32_t channels;
  uint64_t memory;  // of this rank's GPU
  uint64_t* results;
};

template <typename Kernel>
void run(KernelRanks<float>& ranks, Kernel kernel, std::vector<std::vector<float>>& memories,
         std::vector<std::vector<uint64_t>>& results) {
  memories.assign(static_cast<size_t>(ranks.nranks()), std::vector<float>(kWindow));
  results.assign(static_cast<size_t>(ranks.nranks()), std::vector<uint64_t>(16));
  for (int rank = 0; rank < ranks.nranks(); ++rank) {
    const auto i = static_cast<size_t>(rank);
    EXPECT_CUDA(cudaSetDevice(rank));
    const Given given{number_of(&ranks.made(rank)), number_of(ranks.window(rank)),
                      ranks.channels(rank).handle, number_of(memories[i].data()),
                      results[i].data()};
    EXPECT_CUDA(launch(kernel, dim3(1), dim3(64), 0, ranks.cluster().stream(rank), given));
  }
  ranks.cluster().synchronize();
}

float value_of(int rank, uint64_t i) {
  return static_cast<float>((rank + 1) * 1000) + static_cast<float>(i);
}

// Each rank sums all inputs into its memory, stores the sums to its place of all peers, and puts
// its input into a place of its right neighbour.
__global__ void by_team(Given at) {
  const int rank = niccolite_rank(at.comm);
  const int nranks = niccolite_nranks(at.comm);
  auto* const own = reinterpret_cast<float*>(niccolite_own(at.window, 0));
  for (uint64_t i = threadIdx.x; i < kEach; i += blockDim.x) own[i] = value_of(rank, i);
  if (niccolite_barrier(at.comm, 0) == 0) return;
  niccolite_load_reduce_f32(at.comm, at.window, 0, kEach, at.memory);
  const uint64_t place = kPlace * sizeof(float);
  niccolite_store_all(at.comm, at.window, place * static_cast<uint64_t>(1 + rank), at.memory,
                      kEach * sizeof(float));
  const int right = (rank + 1) % nranks;
  const int left = (rank + nranks - 1) % nranks;
  niccolite_put(at.comm, at.window, place * static_cast<uint64_t>(1 + nranks), right,
                niccolite_own(at.window, 0), kEach * sizeof(float));
  niccolite_flush();
  niccolite_signal(at.comm, at.channels, 0, right);
  if (niccolite_wait(at.comm, at.channels, 0, left) == 0) return;
  niccolite_signal_all(at.comm, at.channels, 1);
  if (niccolite_wait_all(at.comm, at.channels, 1) == 0) return;
  if (threadIdx.x != 0) return;
  at.results[0] = 1;
  at.results[1] =
      *reinterpret_cast<const float*>(niccolite_peer(at.window, 4, right)) == value_of(right, 1);
  at.results[2] = niccolite_all(at.comm, at.window, 0);
  at.results[3] = static_cast<uint64_t>(niccolite_world_rank(at.comm));
  at.results[4] = static_cast<uint64_t>(niccolite_world_nranks(at.comm));
}

TEST(BitcodeWords, ReachTheTeam) {
  for (const bool has_multicast : {false, true}) {
    SCOPED_TRACE(has_multicast);
    KernelRanks<float> ranks(kRanks, kWindow, 1, 2, has_multicast);
    std::vector<std::vector<float>> memories;
    std::vector<std::vector<uint64_t>> results;
    for (uint64_t seed = 0; seed < 3; ++seed) {
      emulation::set_seed(seed);
      run(ranks, by_team, memories, results);
      for (int rank = 0; rank < kRanks; ++rank) {
        const auto r = static_cast<size_t>(rank);
        const float* const got = ranks.memory(rank);
        for (uint64_t i = 0; i < kEach; ++i) {
          const float sum = 10000 + 4 * static_cast<float>(i);
          ASSERT_EQ(memories[r][i], sum) << rank << " " << i;
          for (uint64_t from = 0; from < kRanks; ++from)
            ASSERT_EQ(got[(1 + from) * kPlace + i], sum) << rank << " " << from << " " << i;
          ASSERT_EQ(got[(1 + kRanks) * kPlace + i], value_of((rank + 3) % 4, i)) << rank;
        }
        EXPECT_EQ(memories[r][kEach], 0) << "stored beyond the count";
        EXPECT_EQ(results[r][0], 1);
        EXPECT_EQ(results[r][1], 1);
        EXPECT_EQ(results[r][2] != 0, has_multicast);
        EXPECT_EQ(results[r][3], r);
        EXPECT_EQ(results[r][4], 4U);
      }
    }
  }
}

__global__ void sums_of_halves(Given at) {
  niccolite_load_reduce_f16(at.comm, at.window, 0, 11, at.memory);
  niccolite_load_reduce_bf16(at.comm, at.window, 64, 11, at.memory + 64);
}

TEST(BitcodeWords, SumElementsOfTwoBytes) {
  KernelRanks<float> ranks(kRanks, kWindow, 1, 1);
  for (int rank = 0; rank < kRanks; ++rank) {
    auto* const halves = reinterpret_cast<__half*>(ranks.memory(rank));
    auto* const bfloats = reinterpret_cast<__nv_bfloat16*>(ranks.memory(rank) + 16);
    for (int i = 0; i < 11; ++i) {
      halves[i] = static_cast<__half>(static_cast<float>(i + rank) / 4);
      bfloats[i] = static_cast<__nv_bfloat16>(static_cast<float>(i + rank));
    }
  }
  std::vector<std::vector<float>> memories;
  std::vector<std::vector<uint64_t>> results;
  run(ranks, sums_of_halves, memories, results);
  for (const std::vector<float>& memory : memories)
    for (int i = 0; i < 11; ++i) {
      EXPECT_EQ(static_cast<float>(reinterpret_cast<const __half*>(memory.data())[i]),
                static_cast<float>(4 * i + 6) / 4);
      EXPECT_EQ(static_cast<float>(reinterpret_cast<const __nv_bfloat16*>(memory.data() + 16)[i]),
                static_cast<float>(4 * i + 6));
    }
}

__global__ void aborted(Given at) {
  const int results[] = {niccolite_barrier(at.comm, 0), niccolite_wait(at.comm, at.channels, 0, 1),
                         niccolite_wait_all(at.comm, at.channels, 1)};
  if (threadIdx.x == 0)
    for (int i = 0; i < 3; ++i) at.results[i] = static_cast<uint64_t>(results[i]) + 10;
}

TEST(BitcodeWords, SayThatTheCommunicatorWasAborted) {
  KernelRanks<float> ranks(2, kWindow, 1, 2);
  ranks.abort_flag(0, 1);
  std::vector<uint64_t> results(16);
  EXPECT_CUDA(cudaSetDevice(0));
  const Given given{number_of(&ranks.made(0)), number_of(ranks.window(0)), ranks.channels(0).handle,
                    0, results.data()};
  EXPECT_CUDA(launch(aborted, dim3(1), dim3(32), 0, ranks.cluster().stream(0), given));
  ranks.cluster().synchronize();
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(results[i], 10U) << i;
  ranks.abort_flag(0, 0);
}

// A ring: data and a value to the right, a signal, and what the right neighbour had.
__global__ void by_network(Given at) {
  const int rank = niccolite_world_rank(at.comm);
  const int nranks = niccolite_world_nranks(at.comm);
  const int right = (rank + 1) % nranks;
  auto* const own = reinterpret_cast<float*>(niccolite_own(at.window, 0));
  for (uint64_t i = threadIdx.x; i < kEach; i += blockDim.x) own[i] = value_of(rank, i);
  const uint64_t place = kPlace * sizeof(float);
  const uint64_t bytes = kEach * sizeof(float);
  niccolite_network_put(at.comm, 0, at.window, place, right, at.window, 0, bytes);
  niccolite_network_put_value(at.comm, 0, at.window, 3 * place, right,
                              static_cast<uint64_t>(rank) + 7);
  niccolite_network_signal(at.comm, 0, right, 1, 3);
  if (niccolite_network_wait(at.comm, 0, 1, 3) == 0) return;
  for (int peer = 0; peer < nranks; ++peer) niccolite_network_signal(at.comm, 0, peer, 2, 1);
  if (niccolite_network_wait(at.comm, 0, 2, static_cast<uint64_t>(nranks)) == 0) return;
  niccolite_network_get(at.comm, 0, at.window, 0, right, at.window, 2 * place, bytes);
  if (niccolite_network_flush(at.comm, 0) == 1 && threadIdx.x == 0) at.results[0] = 1;
}

TEST(KernelsOfBitcode, ReachAnyRank) {
  KernelRanks<float> ranks(kRanks, kWindow, 1, 1, false, 1);
  std::vector<std::vector<float>> memories;
  std::vector<std::vector<uint64_t>> results;
  run(ranks, by_network, memories, results);
  for (int rank = 0; rank < kRanks; ++rank) {
    const float* const got = ranks.memory(rank);
    EXPECT_EQ(results[static_cast<size_t>(rank)][0], 1U);
    for (uint64_t i = 0; i < kEach; ++i) {
      ASSERT_EQ(got[kPlace + i], value_of((rank + 3) % 4, i)) << rank << " " << i;
      ASSERT_EQ(got[2 * kPlace + i], value_of((rank + 1) % 4, i)) << rank << " " << i;
    }
    uint64_t value = 0;
    memcpy(&value, got + 3 * kPlace, sizeof value);
    EXPECT_EQ(value, static_cast<uint64_t>((rank + 3) % 4) + 7);
  }
}

}  // namespace
}  // namespace niccolite::test
