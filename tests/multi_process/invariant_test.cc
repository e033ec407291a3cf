// NICCOLITE_INVARIANT=1 over processes: the same sums as in one (tests/api/invariant_test.cc),
// however ranks are spread, and whatever connects them.
#include "tests/api/invariant.h"

#include <gtest/gtest.h>

#include <tuple>

#include "tests/multi_process/process.h"
#include "tests/multi_process/ranks.h"

namespace niccolite::test {
namespace {

// id nranks first count seed
ROLE(invariant) {
  const int nranks = std::stoi(arguments[1]), first = std::stoi(arguments[2]);
  LocalRanks local(to_id(arguments[0]), nranks, first, std::stoi(arguments[3]));
  std::vector<invariant::Rank> ranks;
  for (int i = 0; i < local.count(); ++i)
    ranks.push_back({.number = first + i,
                     .device = first + i,
                     .comm = local.comms[static_cast<size_t>(i)],
                     .stream = local.streams[static_cast<size_t>(i)]});
  const std::string wrong =
      invariant::perform_all(ranks, nranks, static_cast<size_t>(std::stoi(arguments[4])));
  if (!wrong.empty()) std::printf("WRONG %s\n", wrong.c_str());
  local.destroy();
  return wrong.empty() ? 0 : 1;
}

struct Layout {
  int processes, ranks_of_each;
  const char* variable;  // that all processes have; empty: none
  const char* value;
  bool are_machines = false;  // each process on one of its own
};

class InvariantOverProcesses : public testing::TestWithParam<Layout> {};

TEST_P(InvariantOverProcesses, GivesTheSumsOfOneProcess) {
  const Layout& layout = GetParam();
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess) << ncclGetLastError(nullptr);
  std::vector<Process> running;
  for (int p = 0; p < layout.processes; ++p) {
    Process::Environment environment{{"NICCOLITE_INVARIANT", "1"}};
    if (*layout.variable != '\0') environment[layout.variable] = layout.value;
    if (layout.are_machines) environment["NCCL_HOSTID"] = "machine" + std::to_string(p);
    running.emplace_back(
        "invariant",
        Arguments{to_text(id), std::to_string(layout.processes * layout.ranks_of_each),
                  std::to_string(p * layout.ranks_of_each), std::to_string(layout.ranks_of_each),
                  "3"},
        environment);
  }
  for (Process& process : running) EXPECT_EQ(process.wait(), 0) << process.output();
}

INSTANTIATE_TEST_SUITE_P(, InvariantOverProcesses,
                         testing::Values(Layout{2, 1, "", ""}, Layout{2, 2, "NCCL_MIN_CTAS", "4"},
                                         Layout{3, 1, "NCCL_MAX_CTAS", "1"},
                                         Layout{2, 2, "NCCL_P2P_DIRECT_DISABLE", "1"},
                                         Layout{2, 1, "", "", /*are_machines=*/true},
                                         Layout{2, 2, "", "", /*are_machines=*/true}));

}  // namespace
}  // namespace niccolite::test
