// Kernels that reach ranks outside of their load-store team: what each word of device::Network
// promises. ctest runs them with NCCL_LSA_TEAM_SIZE 1, 2 and unset.
#include <chrono>
#include <filesystem>
#include <thread>

#include "tests/kernels/ranks.h"

namespace niccolite::test {
namespace {

using device::Buffer;
using device::Comm;
using device::Network;
using device::ThisBlock;
using device::ThisThread;

constexpr size_t kCount = 512;
constexpr int kSignals = 4;
constexpr std::chrono::seconds kPatience{60};

/// Ranks with a window of numbers each and a device communicator with networking.
class NetworkRanks {
 public:
  explicit NetworkRanks(int nranks, int contexts = 1)
      : cluster_(nranks),
        memories_(static_cast<size_t>(nranks)),
        windows_(static_cast<size_t>(nranks)),
        devices_(static_cast<size_t>(nranks)) {
    EXPECT_NCCL(ncclGroupStart());
    for (size_t i = 0; i < memories_.size(); ++i) {
      const int rank = static_cast<int>(i);
      EXPECT_CUDA(cudaSetDevice(rank));
      EXPECT_NCCL(ncclMemAlloc(reinterpret_cast<void**>(&memories_[i]), kBytes));
      EXPECT_NCCL(ncclCommWindowRegister(cluster_.comm(rank), memories_[i], kBytes, &windows_[i],
                                         NCCL_WIN_COLL_SYMMETRIC));
    }
    EXPECT_NCCL(ncclGroupEnd());
    devices_ = make(contexts);
  }
  ~NetworkRanks() { give_back(); }
  void give_back() {
    if (memories_.empty()) return;
    end(devices_);
    for (size_t i = 0; i < memories_.size(); ++i) {
      EXPECT_NCCL(ncclCommWindowDeregister(cluster_.comm(static_cast<int>(i)), windows_[i]));
      EXPECT_NCCL(ncclMemFree(memories_[i]));
    }
    memories_.clear();
  }

  std::vector<ncclDevComm_t> make(int contexts) {
    std::vector<ncclDevComm_t> made(memories_.size());
    EXPECT_NCCL(ncclGroupStart());
    for (size_t i = 0; i < made.size(); ++i) {
      ncclDevCommRequirements_t needs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
      needs.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
      needs.ginContextCount = contexts;
      needs.ginSignalCount = kSignals;
      needs.ginCounterCount = 1;
      EXPECT_NCCL(ncclDevCommCreate(cluster_.comm(static_cast<int>(i)), &needs, &made[i]));
    }
    EXPECT_NCCL(ncclGroupEnd());
    return made;
  }
  void end(const std::vector<ncclDevComm_t>& made) {
    for (size_t i = 0; i < made.size(); ++i)
      EXPECT_NCCL(ncclDevCommDestroy(cluster_.comm(static_cast<int>(i)), &made[i]));
  }

  Cluster& cluster() { return cluster_; }
  int nranks() const { return cluster_.nranks(); }
  uint64_t* memory(int rank) const { return memories_[static_cast<size_t>(rank)]; }
  const std::vector<ncclDevComm_t>& devices() const { return devices_; }
  ncclWindow_t window(int rank) const { return windows_[static_cast<size_t>(rank)]; }

  template <typename Kernel, typename... More>
  void start(const std::vector<ncclDevComm_t>& devices, Kernel kernel, unsigned blocks,
             unsigned threads, More... more) {
    for (size_t i = 0; i < devices.size(); ++i) {
      EXPECT_CUDA(cudaSetDevice(static_cast<int>(i)));
      EXPECT_CUDA(launch(kernel, dim3(blocks), dim3(threads), 0,
                         cluster_.stream(static_cast<int>(i)), Comm(devices[i]),
                         Buffer<uint64_t>(windows_[i], kCount), more...));
    }
  }
  template <typename Kernel, typename... More>
  void run(Kernel kernel, unsigned blocks, unsigned threads, More... more) {
    start(devices_, kernel, blocks, threads, more...);
    cluster_.synchronize();
  }

 private:
  static constexpr size_t kBytes = kCount * sizeof(uint64_t);
  Cluster cluster_;
  std::vector<uint64_t*> memories_;
  std::vector<ncclWindow_t> windows_;
  std::vector<ncclDevComm_t> devices_;
};

// Every rank puts 8 numbers to every rank, in rounds, and signals; who has read says so.
__global__ void exchange(Comm comm, Buffer<uint64_t> data, int rounds, uint64_t begin,
                         int* errors) {
  Network network(ThisBlock(), comm, static_cast<int>(blockIdx.x));
  constexpr size_t kEach = 8;
  const auto n = static_cast<size_t>(network.nranks());
  const size_t in = blockIdx.x * 2 * n * kEach;
  const size_t out = in + n * kEach;
  for (int round = 0; round < rounds; ++round) {
    const uint64_t past = begin + static_cast<uint64_t>(round);
    if (!network.wait(1, past * n)) return;  // all have read what this rank sent before
    for (size_t i = threadIdx.x; i < n * kEach; i += blockDim.x)
      data.own()[out + i] = past * 1000000 + static_cast<uint64_t>(network.rank()) * 1000 + i;
    for (int peer = 0; peer < network.nranks(); ++peer) {
      network.put(data, in + static_cast<size_t>(network.rank()) * kEach, peer, data,
                  out + static_cast<size_t>(peer) * kEach, kEach);
      network.signal(peer, 0);
    }
    if (!network.wait(0, (past + 1) * n) || !network.flush()) return;
    for (size_t i = threadIdx.x; i < n * kEach; i += blockDim.x) {
      const uint64_t expected = past * 1000000 + i / kEach * 1000 +
                                static_cast<uint64_t>(network.rank()) * kEach + i % kEach;
      if (data.own()[in + i] != expected) atomicAdd(errors, 1);
    }
    for (int peer = 0; peer < network.nranks(); ++peer) network.signal(peer, 1);
  }
}

class Errors {
 public:
  Errors() {
    EXPECT_CUDA(cudaMallocHost(reinterpret_cast<void**>(&count_), sizeof *count_));
    *count_ = 0;
  }
  ~Errors() { EXPECT_CUDA(cudaFreeHost(count_)); }
  int* place() const { return count_; }

 private:
  int* count_ = nullptr;
};

struct Shape {
  int nranks, contexts;
};
TEST(NetworkKernel, DeliversPutsBeforeTheirSignals) {
  for (const Shape& shape : {Shape{1, 1}, Shape{2, 2}, Shape{4, 2}}) {
    SCOPED_TRACE(shape.nranks);
    NetworkRanks ranks(shape.nranks, shape.contexts);
    const Errors errors;
    for (uint64_t launch = 0; launch < 3; ++launch)
      ranks.run(exchange, static_cast<unsigned>(shape.contexts), 64U, 4, launch * 4,
                errors.place());
    EXPECT_EQ(*errors.place(), 0);
  }
}

// Rank 0 writes values of all sizes, reads them back, counts and adds.
template <typename T>
__device__ bool round_trip(Network<ThisBlock>& network, const Buffer<T>& data, size_t at, T value) {
  network.put_value(data, at, 1, value);
  network.put_value(data, at + 1, 1, T(0));  // which must not reach its neighbours
  if (!network.flush()) return false;
  network.get(data, at, 1, data, at + 8, 2);
  return network.flush() && data.own()[at + 8] == value && data.own()[at + 9] == T(0);
}
__global__ void words(Comm comm, Buffer<uint64_t> data, ncclWindow_t window, int* errors) {
  Network network(ThisBlock(), comm, 0);
  if (network.rank() == 1) {
    // 5 + 7 at once and one after the other, in a word of the window and in a signal.
    if (!network.wait_at(data, 100, 12) || !network.wait(2, 0x1234567890123456)) return;
    if (threadIdx.x == 0 && (data.own()[100] != 12 || data.own()[40] != 4711)) atomicAdd(errors, 1);
    return;
  }
  const bool is_right =
      round_trip<uint64_t>(network, data, 0, 0x8877665544332211) &
      round_trip(network, Buffer<uint8_t>(window, kCount, 1024), 3, uint8_t{0xa5}) &
      round_trip(network, Buffer<uint16_t>(window, kCount, 1280), 3, uint16_t{0xa5b6}) &
      round_trip(network, Buffer<uint32_t>(window, kCount, 1536), 3, uint32_t{0xa5b6c7d8});
  if (threadIdx.x == 0) data.own()[40] = 4711;
  network.put_counted(data, 40, 1, data, 40, 1, 0);
  const bool is_counted = network.wait_counter(0, 1);
  if (threadIdx.x == 0) data.own()[40] = 0;  // the source may be written again
  network.signal_at(data, 100, 1, 5);
  network.signal_at(data, 100, 1, 7);
  network.signal(1, 2, 0x1234567890123456);
  if (threadIdx.x == 0 && (!is_right || !is_counted)) atomicAdd(errors, 1);
}

TEST(NetworkKernel, PutsValuesGetsCountsAndAddsInMemory) {
  NetworkRanks ranks(2);
  const Errors errors;
  for (int rank = 0; rank < 2; ++rank)
    std::fill(ranks.memory(rank), ranks.memory(rank) + kCount, 0);
  // The record that a window is; both ranks have one of their own.
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_CUDA(cudaSetDevice(rank));
    EXPECT_CUDA(launch(words, 1, 32, 0, ranks.cluster().stream(rank),
                       Comm(ranks.devices()[static_cast<size_t>(rank)]),
                       Buffer<uint64_t>(ranks.window(rank), kCount), ranks.window(rank),
                       errors.place()));
  }
  ranks.cluster().synchronize();
  EXPECT_EQ(*errors.place(), 0);
}

// Threads of all warps and blocks share one context, whose queues turn over many times.
__global__ void flood(Comm comm, Buffer<uint64_t> data, int each) {
  Network network(ThisThread(), comm, 0);
  const size_t thread = blockIdx.x * blockDim.x + threadIdx.x;
  const int peer = (network.rank() + 1) % network.nranks();
  for (int i = 1; i <= each; ++i) {
    network.put_value(data, thread, peer, static_cast<uint64_t>(i) * 1000 + thread);
    network.signal(peer, 0);
  }
}

TEST(NetworkKernel, TakesOperationsOfManyThreadsThroughAFullQueue) {
  constexpr int kEach = 5;
  NetworkRanks ranks(2);
  ranks.run(flood, 2U, 64U, kEach);
  const auto signals = [&](int rank) {
    return static_cast<const device::NetworkContext*>(
               ranks.devices()[static_cast<size_t>(rank)].ginHandles[0])
        ->signals;
  };
  const auto end = std::chrono::steady_clock::now() + kPatience;
  for (int rank = 0; rank < 2; ++rank) {
    while (__atomic_load_n(signals(rank), __ATOMIC_ACQUIRE) < 2 * 64 * kEach &&
           std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(__atomic_load_n(signals(rank), __ATOMIC_ACQUIRE), 2U * 64 * kEach);
    for (size_t i = 0; i < 128; ++i) ASSERT_EQ(ranks.memory(rank)[i], kEach * 1000 + i) << i;
  }
}

// Numbers of operations have 32 bits. As if all but the last depth of a queue had been used.
TEST(NetworkKernel, GoesOnBehindTheLargestNumberOfAnOperation) {
  NetworkRanks ranks(2);
  const Errors errors;
  for (const ncclDevComm_t& made : ranks.devices()) {
    const auto& context = *static_cast<const device::NetworkContext*>(made.ginHandles[0]);
    for (int peer = 0; peer < 2; ++peer) {
      context.produced[peer] = 0U - context.depth;
      const_cast<uint32_t*>(context.consumed)[peer] = 0U - context.depth;
    }
  }
  ranks.run(exchange, 1U, 32U, 80, uint64_t{0}, errors.place());
  ranks.run(flood, 2U, 64U, 2);
  EXPECT_EQ(*errors.place(), 0);
  for (const ncclDevComm_t& made : ranks.devices()) {
    const auto& context = *static_cast<const device::NetworkContext*>(made.ginHandles[0]);
    EXPECT_GT(context.produced[1], 0U);
    EXPECT_LT(context.produced[1], 0U - context.depth);  // it has begun again
  }
}

TEST(NetworkKernel, OfTwoDeviceCommunicatorsDoNotMeet) {
  NetworkRanks ranks(2);
  const std::vector<ncclDevComm_t> other = ranks.make(1);
  const Errors errors;
  ranks.run(exchange, 1U, 32U, 2, uint64_t{0}, errors.place());
  ranks.start(other, exchange, 1U, 32U, 3, uint64_t{0}, errors.place());
  ranks.start(ranks.devices(), exchange, 1U, 32U, 2, uint64_t{2}, errors.place());
  ranks.cluster().synchronize();
  EXPECT_EQ(*errors.place(), 0);
  ranks.end(other);
}

size_t threads_of_process() {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    (void)entry;
    ++count;
  }
  return count;
}

TEST(NetworkKernel, LeavesNothingBehind) {
  NetworkRanks ranks(2);
  const Errors errors;
  const auto free_memory = [] {
    size_t free = 0, total = 0;
    EXPECT_CUDA(cudaSetDevice(0));
    EXPECT_CUDA(cudaMemGetInfo(&free, &total));
    return free;
  };
  const auto cycle = [&] { ranks.end(ranks.make(2)); };
  cycle();  // pools of memory
  const size_t threads = threads_of_process();
  const size_t free = free_memory();
  for (int i = 0; i < 100; ++i) cycle();
  EXPECT_EQ(free_memory(), free);
  for (int i = 0; i < 50; ++i) {
    const std::vector<ncclDevComm_t> made = ranks.make(2);
    if (i % 10 == 0) {
      ranks.start(made, exchange, 1U, 32U, 1, uint64_t{0}, errors.place());
      ranks.cluster().synchronize();
    }
    ranks.end(made);
  }
  EXPECT_EQ(*errors.place(), 0);
  EXPECT_EQ(threads_of_process(), threads);
  EXPECT_EQ(free_memory(), free);
}

__global__ void wait_for_nobody(Comm comm, Buffer<uint64_t> data) {
  Network network(ThisBlock(), comm, 0);
  const bool came = network.wait(0, 1);
  if (threadIdx.x == 0) data.own()[0] = came ? 1 : 2;
}

TEST(NetworkKernel, EndsWhenTheCommunicatorIsAborted) {
  NetworkRanks ranks(2);
  ranks.start(ranks.devices(), wait_for_nobody, 1U, 64U);
  EXPECT_EQ(cudaStreamQuery(ranks.cluster().stream(0)), cudaErrorNotReady);
  for (const ncclDevComm_t& made : ranks.devices())
    __atomic_store_n(made.abortFlag, 1U, __ATOMIC_RELEASE);
  ranks.cluster().synchronize();
  EXPECT_EQ(ranks.memory(0)[0], 2U);
  for (const ncclDevComm_t& made : ranks.devices())
    __atomic_store_n(made.abortFlag, 0U, __ATOMIC_RELEASE);
}

// Rank 1 asks for what cannot be; and goes on asking, for more than a queue holds.
__global__ void ask_badly(Comm comm, Buffer<uint64_t> data, int bad) {
  Network network(ThisBlock(), comm, 0);
  if (network.rank() != 1) return;
  if (bad == 0) network.put(data, kCount - 1, 0, data, 0, 2);
  if (bad == 1) network.signal(0, kSignals);
  if (bad == 2) network.put_counted(data, 0, 0, data, 0, 1, 7);
  if (bad == 3) network.get(data, kCount, 0, data, 0, 1);
  for (int i = 0; i < 300; ++i) network.signal(0, 0);
  (void)network.flush();
}

TEST(NetworkKernel, ThatAsksForTheImpossibleIsNamedAndEnds) {
  const char* const team = std::getenv("NCCL_LSA_TEAM_SIZE");
  if (team == nullptr || std::string(team) != "1") GTEST_SKIP() << "with NCCL_LSA_TEAM_SIZE=1";
  const char* const texts[] = {"rank 1: a kernel's put to rank 0, context 0: 16 bytes at offset",
                               "rank 1: a kernel's signal to rank 0, context 0: signal 4 of 4",
                               "rank 1: a kernel's put to rank 0, context 0: counter 7 of 1",
                               "rank 1: a kernel's get to rank 0, context 0: 8 bytes at offset"};
  for (int bad = 0; bad < 4; ++bad) {
    NetworkRanks ranks(2);
    ranks.run(ask_badly, 1U, 32U, bad);
    ncclResult_t error = ncclSuccess;
    EXPECT_NCCL(ncclCommGetAsyncError(ranks.cluster().comm(1), &error));
    EXPECT_EQ(error, ncclInvalidArgument);
    const std::string text = ncclGetLastError(nullptr);
    EXPECT_NE(text.find(texts[bad]), std::string::npos) << text;
    ranks.give_back();
    ranks.cluster().abort();
  }
}

}  // namespace
}  // namespace niccolite::test
