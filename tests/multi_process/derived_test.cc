// Communicators made from communicators whose ranks are in several processes.
#include <gmock/gmock.h>
#include <signal.h>

#include "tests/api/working.h"
#include "tests/multi_process/process.h"
#include "tests/multi_process/ranks.h"

namespace niccolite::test {
namespace {

using testing::HasSubstr;

ncclUniqueId make_id() {
  ncclUniqueId id;
  EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess) << ncclGetLastError(nullptr);
  return id;
}

/// Of a role: what its EXPECTs came to.
int outcome() { return testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed() ? 1 : 0; }

/// This process' ranks of a communicator whose ranks are on the devices `devices`.
struct Family {
  std::vector<ncclComm_t> comms;
  std::vector<int> devices;

  void expect_works() const { test::expect_works(comms, devices); }
  void destroy() const {
    for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommDestroy(comm));
  }
  int device(size_t local) const { return RankAtWork::device_of(comms[local]); }

  /// By color and key of devices; what this process has of each color.
  std::map<int, Family> split(const std::function<int(int)>& color,
                              const std::function<int(int)>& key) const {
    std::vector<ncclComm_t> made(comms.size());
    EXPECT_NCCL(ncclGroupStart());
    for (size_t i = 0; i < comms.size(); ++i)
      EXPECT_NCCL(ncclCommSplit(comms[i], color(device(i)), key(device(i)), &made[i], nullptr));
    EXPECT_NCCL(ncclGroupEnd());
    std::map<int, Family> children;
    for (size_t i = 0; i < comms.size(); ++i)
      if (made[i] != nullptr) children[color(device(i))].comms.push_back(made[i]);
    for (auto& [of_color, family] : children) {
      for (const int of : devices)
        if (color(of) == of_color) family.devices.push_back(of);
      std::stable_sort(family.devices.begin(), family.devices.end(),
                       [&](int a, int b) { return key(a) < key(b); });
    }
    return children;
  }
};

// id nranks first count: splits and splits of splits; ends parents before and after children.
ROLE(splitter) {
  const int nranks = std::stoi(arguments[1]);
  LocalRanks ranks(to_id(arguments[0]), nranks, std::stoi(arguments[2]), std::stoi(arguments[3]));
  Family all{ranks.comms, {}};
  for (int rank = 0; rank < nranks; ++rank) all.devices.push_back(rank);
  all.expect_works();
  std::vector<Family> kept;
  for (int round = 0; round < 4; ++round) {
    auto children = all.split([&](int device) { return (device + round) % 3 % 2; },
                              [&](int device) { return round % 2 == 0 ? -device : device; });
    for (const auto& [color, child] : children) {
      child.expect_works();
      for (const auto& [of, grandchild] :
           child.split([](int device) { return device % 2 == 0 ? 5 : NCCL_SPLIT_NOCOLOR; },
                       [](int device) { return device; })) {
        grandchild.expect_works();
        kept.push_back(grandchild);
      }
      child.destroy();
    }
    all.expect_works();
  }
  ranks.destroy();  // and every child before: the grandchildren stay
  for (const Family& family : kept) family.expect_works();
  for (const Family& family : kept) family.destroy();
  std::printf("SPLIT\n");
  return outcome();
}

using Placement = std::vector<std::pair<int, int>>;  // first rank, count
class SplitInProcesses : public testing::TestWithParam<Placement> {};

TEST_P(SplitInProcesses, WorksThroughGenerations) {
  const std::string id = to_text(make_id());
  const Placement& placement = GetParam();
  const int nranks = placement.back().first + placement.back().second;
  std::vector<Process> processes;
  for (const auto& [first, count] : placement)
    processes.emplace_back("splitter", Arguments{id, std::to_string(nranks), std::to_string(first),
                                                 std::to_string(count)});
  for (Process& process : processes) {
    EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_THAT(process.output(), HasSubstr("SPLIT"));
  }
}

INSTANTIATE_TEST_SUITE_P(Derived, SplitInProcesses,
                         testing::Values(Placement{{0, 1}, {1, 1}, {2, 1}},
                                         Placement{{0, 2}, {2, 2}},
                                         Placement{{0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 1}},
                                         Placement{{0, 3}, {3, 1}, {4, 2}, {6, 1}}));

}  // namespace
}  // namespace niccolite::test
