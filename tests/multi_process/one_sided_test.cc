// Puts and signals between ranks that live in several processes.

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/multi_process/process.h"
#include "tests/multi_process/ranks.h"

namespace niccolite::test {
namespace {

constexpr size_t kMost = 100'000;

// id nranks first count: every rank puts to the next, round after round; the last word of a put
// tells its round. A rank answers with a signal, so that no round overtakes another.
ROLE(put_ring) {
  const int nranks = std::stoi(arguments[1]);
  const int first = std::stoi(arguments[2]);
  LocalRanks ranks(to_id(arguments[0]), nranks, first, std::stoi(arguments[3]));
  const size_t count = ranks.comms.size();
  std::vector<int*> memory(count);
  std::vector<ncclWindow_t> windows(count);
  REQUIRE_NCCL(ncclGroupStart());
  for (size_t i = 0; i < count; ++i) {
    REQUIRE_CUDA(cudaSetDevice(first + static_cast<int>(i)));
    REQUIRE_NCCL(ncclMemAlloc(reinterpret_cast<void**>(&memory[i]), 2 * kMost * sizeof(int)));
    REQUIRE_NCCL(ncclCommWindowRegister(ranks.comms[i], memory[i], 2 * kMost * sizeof(int),
                                        &windows[i], NCCL_WIN_COLL_SYMMETRIC));
  }
  REQUIRE_NCCL(ncclGroupEnd());
  int wrong = 0;
  for (const size_t words : {size_t{1}, size_t{1000}, kMost, size_t{7}, kMost, size_t{2}}) {
    const auto next = [&](size_t i) { return (first + static_cast<int>(i) + 1) % nranks; };
    const auto previous = [&](size_t i) {
      return (first + static_cast<int>(i) + nranks - 1) % nranks;
    };
    for (size_t i = 0; i < count; ++i) {
      const std::vector<int> values(words, static_cast<int>(words) + first + static_cast<int>(i));
      REQUIRE_CUDA(cudaMemcpyAsync(memory[i] + kMost, values.data(), words * sizeof(int),
                                   cudaMemcpyHostToDevice, ranks.streams[i]));
      REQUIRE_NCCL(ncclPutSignal(memory[i] + kMost, words, ncclInt, next(i), windows[i], 0, 0, 0, 0,
                                 ranks.comms[i], ranks.streams[i]));
    }
    for (size_t i = 0; i < count; ++i) {
      ncclWaitSignalDesc_t put{1, previous(i), 0, 0};
      REQUIRE_NCCL(ncclWaitSignal(1, &put, ranks.comms[i], ranks.streams[i]));
      std::vector<int> values(words);
      REQUIRE_CUDA(cudaMemcpyAsync(values.data(), memory[i], words * sizeof(int),
                                   cudaMemcpyDeviceToHost, ranks.streams[i]));
      REQUIRE_CUDA(cudaStreamSynchronize(ranks.streams[i]));
      const int expected = static_cast<int>(words) + previous(i);
      wrong += std::count(values.begin(), values.end(), expected) != static_cast<long>(words);
      REQUIRE_NCCL(ncclSignal(previous(i), 0, 0, 0, ranks.comms[i], ranks.streams[i]));
    }
    for (size_t i = 0; i < count; ++i) {
      ncclWaitSignalDesc_t taken{1, next(i), 0, 0};
      REQUIRE_NCCL(ncclWaitSignal(1, &taken, ranks.comms[i], ranks.streams[i]));
      REQUIRE_CUDA(cudaStreamSynchronize(ranks.streams[i]));
    }
  }
  std::printf("%d wrong\n", wrong);
  for (size_t i = 0; i < count; ++i) {
    REQUIRE_NCCL(ncclCommWindowDeregister(ranks.comms[i], windows[i]));
    REQUIRE_NCCL(ncclMemFree(memory[i]));
  }
  ranks.destroy();
  return wrong == 0 ? 0 : 1;
}

class PutRing : public testing::TestWithParam<std::pair<int, int>> {};

TEST_P(PutRing, EveryPutArrivesBeforeItsSignal) {
  const auto [processes, devices] = GetParam();
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess) << ncclGetLastError(nullptr);
  std::vector<Process> running;
  for (int p = 0; p < processes; ++p)
    running.emplace_back("put_ring",
                         Arguments{to_text(id), std::to_string(processes * devices),
                                   std::to_string(p * devices), std::to_string(devices)});
  for (Process& process : running) EXPECT_EQ(process.wait(), 0) << process.output();
}

INSTANTIATE_TEST_SUITE_P(, PutRing, testing::Values(std::pair(2, 1), std::pair(3, 2)));

}  // namespace
}  // namespace niccolite::test
