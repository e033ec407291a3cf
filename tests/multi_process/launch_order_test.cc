// Several communicators on the same GPUs, each on a stream of its own, where not all of their
// operations fit the GPU at a time (NICCOLITE_VIRTUAL_SMS): they begin in the order in which the
// program launches them, or stand still, each GPU in another operation.
#include <gmock/gmock.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>

#include "tests/multi_process/process.h"
#include "tests/multi_process/ranks.h"

namespace niccolite::test {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr int kCommunicators = 3;
constexpr int kRanks = 2;

constexpr size_t kMostBytes = 8 << 20;  // that a stream sets before an operation

bool are_done(const std::vector<LocalRanks>& all, std::chrono::steady_clock::time_point limit) {
  for (const LocalRanks& ranks : all)
    for (size_t rank = 0; rank < kRanks; ++rank)
      while (ranks.is_waiting(rank)) {
        if (std::chrono::steady_clock::now() > limit) return false;
        std::this_thread::sleep_for(milliseconds(1));
      }
  return true;
}

// rounds seed: in each round an all-reduce of each communicator, in an order of the round's, behind
// work of the program's own that takes another time on each stream.
ROLE(several) {
  std::vector<LocalRanks> all;
  for (int i = 0; i < kCommunicators; ++i) {
    ncclUniqueId id;
    REQUIRE_NCCL(ncclGetUniqueId(&id));
    all.emplace_back(id, kRanks, 0, kRanks);
  }
  for (LocalRanks& ranks : all)
    if (!ranks.all_reduce(2000)) return 1;
  std::vector<void*> memory(kCommunicators * kRanks);
  for (size_t i = 0; i < memory.size(); ++i) {
    REQUIRE_CUDA(cudaSetDevice(static_cast<int>(i % kRanks)));
    REQUIRE_CUDA(cudaMalloc(&memory[i], kMostBytes));
  }
  std::mt19937 random(static_cast<unsigned>(std::stoul(arguments[1])));
  for (int round = 0; round < std::stoi(arguments[0]); ++round) {
    std::vector<size_t> order{0, 1, 2};
    std::shuffle(order.begin(), order.end(), random);
    for (const size_t i : order) {
      for (size_t rank = 0; rank < kRanks; ++rank)
        REQUIRE_CUDA(cudaMemsetAsync(memory[i * kRanks + rank], 1, 1 + random() % kMostBytes,
                                     all[i].streams[rank]));
      // Of data of the round before: what counts is that it ends.
      REQUIRE_NCCL(all[i].queue(2000));
    }
    if (!are_done(all, std::chrono::steady_clock::now() + std::chrono::seconds(3))) {
      std::printf("STANDS STILL in round %d\n", round);
      std::fflush(stdout);
      // Memory cannot be freed while another communicator's operation holds the device.
      std::_Exit(0);
    }
  }
  for (LocalRanks& ranks : all)
    if (!ranks.all_reduce(2000)) return 2;
  for (LocalRanks& ranks : all) ranks.destroy();
  for (void* const each : memory) REQUIRE_CUDA(cudaFree(each));
  std::printf("RIGHT\n");
  return 0;
}

// A thread for each GPU, one of which launches all of the first communicator's operations before
// the second's, the other the other way round: in no order that all agree on, and right where both
// fit a GPU at a time.
ROLE(opposite) {
  constexpr int kRounds = 20;
  std::vector<LocalRanks> all;
  for (int i = 0; i < kCommunicators; ++i) {  // the third has nothing to do
    ncclUniqueId id;
    REQUIRE_NCCL(ncclGetUniqueId(&id));
    all.emplace_back(id, kRanks, 0, kRanks);
  }
  std::vector<float*> memory(2 * kRanks);
  constexpr size_t kCount = 2000;
  for (size_t i = 0; i < memory.size(); ++i) {
    REQUIRE_CUDA(cudaSetDevice(static_cast<int>(i % kRanks)));
    REQUIRE_CUDA(cudaMalloc(&memory[i], kCount * sizeof(float)));
  }
  const auto launch = [&](size_t rank) {
    for (size_t turn = 0; turn < 2; ++turn) {
      const size_t i = (turn + rank) % 2;
      float* const buffer = memory[i * kRanks + rank];
      for (int round = 0; round < kRounds; ++round)
        if (ncclAllReduce(buffer, buffer, kCount, ncclFloat, ncclSum, all[i].comms[rank],
                          all[i].streams[rank]) != ncclSuccess)
          std::_Exit(3);
    }
  };
  // Connections are there: no call waits for a peer any more.
  for (LocalRanks& ranks : all)
    if (!ranks.all_reduce(kCount)) return 1;
  std::thread first(launch, 0), second(launch, 1);
  first.join();
  second.join();
  if (!are_done(all, std::chrono::steady_clock::now() + std::chrono::seconds(10))) {
    std::printf("STANDS STILL\n");
    std::fflush(stdout);
    std::_Exit(0);
  }
  for (LocalRanks& ranks : all) ranks.destroy();
  for (float* const each : memory) REQUIRE_CUDA(cudaFree(each));
  std::printf("RIGHT\n");
  return 0;
}

// The same seed with and without the order.
const Arguments kStress{"60", "7"}, kUntilItStandsStill{"2000", "7"};

TEST(LaunchOrder, ThreeCommunicatorsOnThreeStreamsNeverHang) {
  Process process("several", kStress, {{"NICCOLITE_VIRTUAL_SMS", "1"}});
  EXPECT_EQ(process.wait(), 0) << process.output();
  EXPECT_THAT(process.output(), HasSubstr("RIGHT"));
}

TEST(LaunchOrder, WithoutItTheyStandStill) {
  Process process("several", kUntilItStandsStill,
                  {{"NICCOLITE_VIRTUAL_SMS", "1"}, {"NCCL_LAUNCH_ORDER_IMPLICIT", "0"}});
  EXPECT_EQ(process.wait(), 0) << process.output();
  EXPECT_THAT(process.output(), HasSubstr("STANDS STILL"));
}

TEST(LaunchOrder, WhereAllFitTheGpuItChangesNothing) {
  for (const char* const ordered : {"0", "1"}) {
    Process process("several", kStress, {{"NCCL_LAUNCH_ORDER_IMPLICIT", ordered}});
    EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_THAT(process.output(), HasSubstr("RIGHT"));
  }
}

// Two places, and two operations of one CTA at a time: who waited for the begin of what was
// launched before would wait in a circle.
TEST(LaunchOrder, HoldsUpNothingThatFitsTheGpu) {
  Process process("opposite", {}, {{"NICCOLITE_VIRTUAL_SMS", "2"}});
  EXPECT_EQ(process.wait(), 0) << process.output();
  EXPECT_THAT(process.output(), HasSubstr("RIGHT"));
}

}  // namespace
}  // namespace niccolite::test
