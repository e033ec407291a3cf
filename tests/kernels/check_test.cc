// Kernels compiled with NICCOLITE_DEVICE_CHECK=1: a bad call does nothing, and the host names it.
#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include "tests/kernels/ranks.h"

namespace niccolite::test {
namespace {

static_assert(NICCOLITE_DEVICE_CHECK, "this program is compiled with checks");

using device::Barrier;
using device::Buffer;
using device::Channel;
using device::ChannelsHandle;
using device::Comm;
using device::Pack;
using device::ThisBlock;

constexpr size_t kCount = 64;
constexpr std::chrono::seconds kPatience{60};

template <typename Condition>
bool await(Condition&& is_true) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!is_true()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

enum class Bad : int { PutPeer, PutRange, Barrier, Channel, Signal, Wait, LoadReduce, StoreAll };

__global__ void do_bad(Comm comm, Buffer<int> data, ChannelsHandle channels, Bad bad) {
  if (comm.rank() != 1 || blockIdx.x != 2) return;
  NICCOLITE_SHARED(int, source, 8);
  const ThisBlock block;
  Channel channel(block, comm, channels, bad == Bad::Channel ? 7 : 0);
  switch (bad) {
    case Bad::PutPeer:
      device::put(block, comm, data, 0, 5, source, 1);
      break;
    case Bad::PutRange:
      device::put(block, comm, data, data.count() - 3, 0, source, 4);
      break;
    case Bad::Barrier: {
      Barrier barrier(block, comm, 4);
      (void)barrier.sync();
      break;
    }
    case Bad::Channel:
      channel.signal_all();
      break;
    case Bad::Signal:
      channel.signal(-1);
      break;
    case Bad::Wait:
      (void)channel.wait(2);
      break;
    case Bad::LoadReduce:
      (void)device::load_reduce(comm, data, 1);
      break;
    case Bad::StoreAll:
      device::store_all(comm, data, data.count(), Pack<int>{});
      break;
  }
}

struct BadCall {
  Bad bad;
  const char* text;  // of the error, after rank, block and thread
};
void PrintTo(const BadCall& call, std::ostream* out) { *out << call.text; }

class BadCalls : public testing::TestWithParam<BadCall> {};

TEST_P(BadCalls, AreNamedAndDoNothing) {
  KernelRanks<int> ranks(2, kCount, 1, 1);
  for (int rank = 0; rank < 2; ++rank)
    std::fill(ranks.memory(rank), ranks.memory(rank) + kCount, 77);
  ranks.run(do_bad, 3, 32, GetParam().bad);
  for (int rank = 0; rank < 2; ++rank) {
    ncclResult_t error = ncclSuccess;
    EXPECT_TRUE(await([&] {
      return ncclCommGetAsyncError(ranks.cluster().comm(rank), &error) != ncclSuccess ||
             error != ncclSuccess;
    })) << "no error of rank "
        << rank;
    EXPECT_EQ(error, ncclInvalidUsage);
    const std::string text = ncclGetLastError(nullptr);
    EXPECT_NE(text.find("rank 1: block 2, thread "), std::string::npos) << text;
    EXPECT_NE(text.find(GetParam().text), std::string::npos) << text;
    for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(ranks.memory(rank)[i], 77);
  }
  ranks.give_back();
  ranks.cluster().abort();
}

INSTANTIATE_TEST_SUITE_P(
    , BadCalls,
    testing::Values(BadCall{Bad::PutPeer, "puts elements up to 1 to peer 5"},
                    BadCall{Bad::PutRange, "puts elements up to 65 to peer 0"},
                    BadCall{Bad::Barrier, "makes barrier 4"}, BadCall{Bad::Channel, "on a channel"},
                    BadCall{Bad::Signal, "signals peer -1"}, BadCall{Bad::Wait, "waits for peer 2"},
                    BadCall{Bad::LoadReduce, "loads and reduces the pack at element 1"},
                    BadCall{Bad::StoreAll, "stores to all peers the pack at element 64"}));

/// The log from byte `begin` on. A test before may have written to it, too; the library begins it
/// anew with its first communicator.
std::string read_log(size_t begin = 0) {
  const char* const path = std::getenv("NCCL_DEBUG_FILE");
  std::ifstream file(path == nullptr ? "" : path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str().substr(begin);
}

__global__ void come_to_barrier(Comm comm, Buffer<int>, ChannelsHandle) {
  Barrier barrier(ThisBlock(), comm, static_cast<int>(blockIdx.x));
  (void)barrier.sync();
}

// The third block of one rank has no partner: the grids differ.
TEST(GridsThatDiffer, AreNamedByTheBarrierThatStandsStill) {
  if (std::getenv("NCCL_DEBUG_FILE") == nullptr) GTEST_SKIP() << "reads the log: NCCL_DEBUG_FILE";
  KernelRanks<int> ranks(2, kCount, 3, 1);
  const size_t begin = read_log().size();
  const auto launch_blocks = [&](int rank, unsigned blocks) {
    ASSERT_CUDA(cudaSetDevice(rank));
    ASSERT_CUDA(launch(come_to_barrier, blocks, 32, 0, ranks.cluster().stream(rank),
                       ranks.comm(rank), ranks.buffer(rank), ranks.channels(rank)));
  };
  launch_blocks(0, 2);
  launch_blocks(1, 3);
  EXPECT_TRUE(await([&] {
    return read_log(begin).find(
               "rank 1: block 2, thread 0 of a kernel waits at barrier 2 for peer 0") !=
           std::string::npos;
  })) << read_log(begin);
  // The flag that an abort raises lets it go.
  ranks.abort_flag(1, 1);
  ranks.cluster().synchronize();
  ranks.abort_flag(1, 0);
}

__global__ void wait_for_signal(Comm comm, Buffer<int> data, ChannelsHandle channels) {
  Channel channel(ThisBlock(), comm, channels, 0);
  if (comm.rank() == 0 && channel.wait(1)) data.own()[threadIdx.x] = 1;
  if (comm.rank() == 1) channel.signal(0);
}

TEST(Waits, ThatStandStillAreNamedAndGoOn) {
  if (std::getenv("NCCL_DEBUG_FILE") == nullptr) GTEST_SKIP() << "reads the log: NCCL_DEBUG_FILE";
  KernelRanks<int> ranks(2, kCount, 0, 1);
  const size_t begin = read_log().size();
  for (int rank = 0; rank < 2; ++rank) {
    if (rank == 1) {
      EXPECT_TRUE(await([&] {
        return read_log(begin).find("waits on channel 0 for a signal of peer 1") !=
               std::string::npos;
      })) << read_log(begin);
    }
    ASSERT_CUDA(cudaSetDevice(rank));
    ASSERT_CUDA(launch(wait_for_signal, 1, 32, 0, ranks.cluster().stream(rank), ranks.comm(rank),
                       ranks.buffer(rank), ranks.channels(rank)));
  }
  ranks.cluster().synchronize();
  EXPECT_EQ(ranks.memory(0)[31], 1);
}

}  // namespace
}  // namespace niccolite::test
