// Communicators of hundreds of ranks in few processes take what they use, and not something for
// each pair of ranks.
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/multi_process/process.h"
#include "tests/multi_process/ranks.h"

namespace niccolite::test {
namespace {

constexpr int kRanks = 260;
constexpr int kOfAProcess = kRanks / 2;

size_t count_mappings() {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);) ++count;
  return count;
}

// id first: its ranks all-reduce buffers that they have used before.
ROLE(one_of_many) {
  LocalRanks ranks(to_id(arguments[0]), kRanks, std::stoi(arguments[1]), kOfAProcess);
  for (int round = 0; round < 3; ++round)
    if (!ranks.all_reduce(1000)) return 1;
  // What is made behind the operations.
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  if (!ranks.all_reduce(1000)) return 1;
  constexpr size_t kFew = size_t{kOfAProcess} * kOfAProcess / 2;
  if (count_mappings() < kFew) return 0;
  std::printf("%zu mappings\n", count_mappings());
  return 2;
}

TEST(ManyRanks, DoNotMapTheBuffersOfEachOther) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<Process> processes;
  for (const int first : {0, kOfAProcess})
    processes.emplace_back(
        "one_of_many", Arguments{to_text(id), std::to_string(first)},
        Process::Environment{{"NICCOLITE_DEVICES", "virtual:" + std::to_string(kRanks)}});
  for (Process& process : processes) EXPECT_EQ(process.wait(), 0) << process.output();
}

}  // namespace
}  // namespace niccolite::test
