// Puts and signals between machines that reach each other by wires alone: by sockets and by virtual
// NICs.
#include <gmock/gmock.h>

#include "tests/multi_process/put_programs.h"
#include "tests/multi_process/ranks.h"
#include "tests/namespaces/job.h"

namespace niccolite::test {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;

// ... large bytes, replays
ROLE(put_work) {
  const LocalIds ids(arguments);
  const int nranks = std::stoi(arguments[2]), first = std::stoi(arguments[3]);
  LocalRanks ranks(ids.one, nranks, first, std::stoi(arguments[4]));
  const bool is_right = perform_puts(ranks, {.nranks = nranks,
                                             .first = first,
                                             .large_bytes = std::stoull(arguments[5]),
                                             .replays = std::stoi(arguments[6])});
  ranks.destroy();
  return is_right ? 0 : 1;
}

struct Layout {
  const char* name;
  int machines;
  int devices;
  size_t large_bytes;
  bool by_verbs = false;
};
std::ostream& operator<<(std::ostream& out, const Layout& layout) { return out << layout.name; }

Process::Environment environment_of(const Layout& layout) {
  if (!layout.by_verbs) return {};
#ifdef NICCOLITE_VVERBS
  return {
      {"LD_LIBRARY_PATH", NICCOLITE_VVERBS}, {"NICCOLITE_NICS", "virtual:1"}, {"NCCL_NET", "IB"}};
#else
  return {};
#endif
}

class NamespacePuts : public testing::TestWithParam<Layout> {};

TEST_P(NamespacePuts, AreRightOnEveryRank) {
  const Layout& layout = GetParam();
  NETWORK_OR_SKIP(network, .machines = layout.machines);
  std::vector<Process> running =
      start(*network, {.role = "put_work",
                       .devices = layout.devices,
                       .rest = {std::to_string(layout.large_bytes), "100"},
                       .environment = environment_of(layout)});
  for (Process& process : running) {
    EXPECT_EQ(process.wait(seconds(240)), 0) << process.output();
    EXPECT_THAT(process.output(), Not(HasSubstr("NCCL WARN")));
  }
}

constexpr size_t kLarge = (16 << 20) - 1, kLess = (2 << 20) + 5;
INSTANTIATE_TEST_SUITE_P(, NamespacePuts,
                         testing::Values(Layout{"two_machines", 2, 1, kLarge},
                                         Layout{"three_machines", 3, 2, kLess}
#ifdef NICCOLITE_VVERBS
                                         ,
                                         Layout{"two_machines_by_verbs", 2, 1, kLarge, true},
                                         Layout{"three_machines_by_verbs", 3, 2, kLess, true}
#endif
                                         ),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace niccolite::test
