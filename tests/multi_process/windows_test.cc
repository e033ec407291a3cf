// Windows whose ranks live in several processes.

#include <gtest/gtest.h>
#include <nccl_device.h>

#include "tests/multi_process/process.h"
#include "tests/multi_process/ranks.h"

namespace niccolite::test {
namespace {

constexpr size_t kWords = 5000;

// Every rank's word in every rank's window, by that rank's own stores.
bool exchange(LocalRanks& ranks, int nranks, int first, int round) {
  std::vector<int*> memory(ranks.comms.size());
  std::vector<ncclWindow_t> windows(ranks.comms.size());
  REQUIRE_NCCL(ncclGroupStart());
  for (size_t i = 0; i < ranks.comms.size(); ++i) {
    REQUIRE_CUDA(cudaSetDevice(first + static_cast<int>(i)));
    REQUIRE_NCCL(ncclMemAlloc(reinterpret_cast<void**>(&memory[i]), kWords * sizeof(int)));
    REQUIRE_NCCL(ncclCommWindowRegister(ranks.comms[i], memory[i], kWords * sizeof(int),
                                        &windows[i], NCCL_WIN_COLL_SYMMETRIC));
  }
  REQUIRE_NCCL(ncclGroupEnd());
  for (size_t i = 0; i < ranks.comms.size(); ++i) {
    const int rank = first + static_cast<int>(i);
    for (int peer = 0; peer < nranks; ++peer) {
      void* word = nullptr;
      REQUIRE_NCCL(ncclGetPeerDevicePointer(windows[i], static_cast<size_t>(rank) * sizeof(int),
                                            peer, &word));
      const int value = 1000 * round + 100 * rank + peer;
      REQUIRE_CUDA(cudaMemcpy(word, &value, sizeof value, cudaMemcpyHostToDevice));
    }
  }
  bool right = ranks.all_reduce(1);  // all have stored
  for (size_t i = 0; i < ranks.comms.size(); ++i) {
    const int rank = first + static_cast<int>(i);
    std::vector<int> words(static_cast<size_t>(nranks));
    REQUIRE_CUDA(
        cudaMemcpy(words.data(), memory[i], words.size() * sizeof(int), cudaMemcpyDeviceToHost));
    for (int peer = 0; peer < nranks; ++peer) {
      const int value = words[static_cast<size_t>(peer)];
      if (value == 1000 * round + 100 * peer + rank) continue;
      std::printf("round %d: rank %d has %d of rank %d\n", round, rank, value, peer);
      right = false;
    }
  }
  for (size_t i = 0; i < ranks.comms.size(); ++i) {
    REQUIRE_NCCL(ncclCommWindowDeregister(ranks.comms[i], windows[i]));
    REQUIRE_NCCL(ncclMemFree(memory[i]));
  }
  return right;
}

// id nranks first count
ROLE(windows) {
  const int nranks = std::stoi(arguments[1]);
  const int first = std::stoi(arguments[2]);
  LocalRanks ranks(to_id(arguments[0]), nranks, first, std::stoi(arguments[3]));
  bool right = true;
  for (int round = 0; round < 20 && right; ++round) right = exchange(ranks, nranks, first, round);
  ranks.destroy();
  return right ? 0 : 1;
}

class WindowsOfProcesses : public testing::TestWithParam<std::pair<int, int>> {};

TEST_P(WindowsOfProcesses, EveryRankStoresToEveryOther) {
  const auto [processes, devices] = GetParam();
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess) << ncclGetLastError(nullptr);
  std::vector<Process> running;
  for (int p = 0; p < processes; ++p)
    running.emplace_back("windows",
                         Arguments{to_text(id), std::to_string(processes * devices),
                                   std::to_string(p * devices), std::to_string(devices)});
  for (Process& process : running) EXPECT_EQ(process.wait(), 0) << process.output();
}

INSTANTIATE_TEST_SUITE_P(, WindowsOfProcesses,
                         testing::Values(std::pair(2, 1), std::pair(4, 2), std::pair(1, 4)));

// id rank: the last of three ranks ends instead of registering.
ROLE(window_of_some) {
  const int rank = std::stoi(arguments[1]);
  LocalRanks ranks(to_id(arguments[0]), 3, rank, 1);
  if (rank == 2) {
    ranks.destroy();
    return 0;
  }
  void* memory = nullptr;
  ncclWindow_t window = nullptr;
  REQUIRE_NCCL(ncclMemAlloc(&memory, 4096));
  const ncclResult_t result = ncclCommWindowRegister(ranks.comms[0], memory, 4096, &window, 0);
  std::printf("%d %s\n", result, ncclGetLastError(nullptr));
  REQUIRE_NCCL(ncclCommAbort(ranks.comms[0]));
  REQUIRE_NCCL(ncclMemFree(memory));
  return result == ncclRemoteError && window == nullptr ? 0 : 1;
}

TEST(WindowOfSomeProcesses, ARankThatEndsInsteadIsNamed) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess) << ncclGetLastError(nullptr);
  std::vector<Process> running;
  for (int rank = 0; rank < 3; ++rank)
    running.emplace_back("window_of_some", Arguments{to_text(id), std::to_string(rank)});
  for (int rank = 0; rank < 3; ++rank) {
    Process& process = running[static_cast<size_t>(rank)];
    EXPECT_EQ(process.wait(), 0) << process.output();
    if (rank == 2) continue;
    EXPECT_NE(process.output().find("rank 2"), std::string::npos) << process.output();
  }
}

}  // namespace
}  // namespace niccolite::test
