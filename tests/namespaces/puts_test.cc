// Puts and signals between machines that reach each other by wires alone: by sockets and by virtual
// NICs.
#include <gmock/gmock.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <vector>

#include "tests/multi_process/put_programs.h"
#include "tests/multi_process/ranks.h"
#include "tests/namespaces/job.h"

namespace niccolite::test {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::ContainsRegex;
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
  Process::Environment environment{{"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_SUBSYS", "NET"}};
#ifdef NICCOLITE_VVERBS
  if (layout.by_verbs)
    environment.insert({{"LD_LIBRARY_PATH", NICCOLITE_VVERBS},
                        {"NICCOLITE_NICS", "virtual:1"},
                        {"NCCL_NET", "IB"}});
#endif
  return environment;
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
    EXPECT_THAT(process.output(), HasSubstr(layout.by_verbs ? "via NET/IB/0" : "via NET/Socket/0"));
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

// ---- wires that are cut

// ... puts or waits: two ranks that put to each other without end, or wait for a signal that nobody
// sends, until the communicator fails.
ROLE(put_until) {
  const LocalIds ids(arguments);
  const int rank = std::stoi(arguments[3]);
  LocalRanks ranks(ids.one, 2, rank, 1);
  constexpr size_t kBytes = 200'000;
  void* memory = nullptr;
  ncclWindow_t window = nullptr;
  REQUIRE_NCCL(ncclMemAlloc(&memory, 2 * kBytes));
  REQUIRE_NCCL(
      ncclCommWindowRegister(ranks.comms[0], memory, 2 * kBytes, &window, NCCL_WIN_COLL_SYMMETRIC));
  // The next call reports the failure, or the communicator does.
  ncclResult_t state = ncclSuccess;
  for (int round = 0; state == ncclSuccess; ++round) {
    std::printf("ROUND %d\n", round);
    std::fflush(stdout);
    ncclWaitSignalDesc_t descriptor{1, 1 - rank, 0, 0};
    if (arguments[5] == "puts" || round < 6)
      state = ncclPutSignal(memory, kBytes, ncclChar, 1 - rank, window, kBytes, 0, 0, 0,
                            ranks.comms[0], ranks.streams[0]);
    if (state == ncclSuccess)
      state = ncclWaitSignal(1, &descriptor, ranks.comms[0], ranks.streams[0]);
    while (state == ncclSuccess && cudaStreamQuery(ranks.streams[0]) == cudaErrorNotReady)
      REQUIRE_NCCL(ncclCommGetAsyncError(ranks.comms[0], &state));
  }
  std::printf("FAILURE %d %s\n", state, ncclGetLastError(ranks.comms[0]));
  REQUIRE_NCCL(ncclCommAbort(ranks.comms[0]));
  REQUIRE_CUDA(cudaStreamSynchronize(ranks.streams[0]));
  return 0;
}

// ... : puts by one communicator that name a window of another one, and then its own.
ROLE(put_into_another) {
  const LocalIds ids(arguments);
  const int rank = std::stoi(arguments[3]);
  LocalRanks one(ids.one, 2, rank, 1), two(ids.two, 2, rank, 1);
  constexpr size_t kBytes = 100'000;
  struct Window {
    char* memory = nullptr;
    ncclWindow_t handle = nullptr;
  } mine, foreign;
  const auto make = [](Window& window, ncclComm_t comm) {
    REQUIRE_NCCL(ncclMemAlloc(reinterpret_cast<void**>(&window.memory), 2 * kBytes));
    REQUIRE_NCCL(ncclCommWindowRegister(comm, window.memory, 2 * kBytes, &window.handle,
                                        NCCL_WIN_COLL_SYMMETRIC));
    REQUIRE_CUDA(cudaMemset(window.memory, 0, 2 * kBytes));
  };
  make(mine, one.comms[0]);
  make(foreign, two.comms[0]);
  const auto put = [&](const Window& from, const Window& into) {
    const ncclResult_t result = ncclPutSignal(from.memory, kBytes, ncclChar, 1 - rank, into.handle,
                                              kBytes, 0, 0, 0, one.comms[0], one.streams[0]);
    if (result != ncclSuccess) std::printf("REFUSED %d %s\n", result, ncclGetLastError(nullptr));
  };
  put(mine, foreign);
  put(foreign, mine);
  // Both communicators go on.
  REQUIRE_CUDA(cudaMemset(mine.memory, 10 + rank, kBytes));
  put(mine, mine);
  ncclWaitSignalDesc_t descriptor{1, 1 - rank, 0, 0};
  REQUIRE_NCCL(ncclWaitSignal(1, &descriptor, one.comms[0], one.streams[0]));
  REQUIRE_CUDA(cudaStreamSynchronize(one.streams[0]));
  std::vector<char> found(kBytes);
  REQUIRE_CUDA(cudaMemcpy(found.data(), mine.memory + kBytes, kBytes, cudaMemcpyDeviceToHost));
  bool is_right = std::ranges::count(found, 11 - rank) == kBytes;
  REQUIRE_CUDA(cudaMemcpy(found.data(), foreign.memory + kBytes, kBytes, cudaMemcpyDeviceToHost));
  is_right &= std::ranges::count(found, 0) == kBytes;
  is_right &= two.all_reduce(1000);
  one.destroy();
  two.destroy();
  return is_right ? 0 : 1;
}

struct By {
  const char* network;
  bool is_verbs = false;
};
std::ostream& operator<<(std::ostream& out, const By& by) { return out << by.network; }

/// Puts between two machines by sockets, and by virtual NICs.
class PutFaults : public testing::TestWithParam<By> {
 protected:
  static Process::Environment environment() {
    Process::Environment environment = environment_of({.name = "",
                                                       .machines = 2,
                                                       .devices = 1,
                                                       .large_bytes = 0,
                                                       .by_verbs = GetParam().is_verbs});
    environment["NCCL_DEBUG"] = "WARN";
    return environment;
  }
};
INSTANTIATE_TEST_SUITE_P(, PutFaults,
                         testing::Values(By{"sockets"}
#ifdef NICCOLITE_VVERBS
                                         ,
                                         By{"verbs", true}
#endif
                                         ),
                         testing::PrintToStringParamName());

TEST_P(PutFaults, WindowsOfAnotherCommunicatorAreRefusedAndNothingIsPut) {
  NETWORK_OR_SKIP(network, .machines = 2);
  std::vector<Process> running =
      start(*network, {.role = "put_into_another", .environment = environment()});
  for (Process& process : running) {
    EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_THAT(process.output(),
                AllOf(ContainsRegex("REFUSED 4 .* peerWin argument .* is not a live window of this "
                                    "communicator"),
                      ContainsRegex("REFUSED 4 .* localbuff argument .* are not in a window of "
                                    "this communicator")));
  }
}

TEST_P(PutFaults, OfARankThatIsKilledAreAnErrorOfTheOther) {
  NETWORK_OR_SKIP(network, .machines = 2);
  for (const char* const what : {"puts", "waits"}) {
    std::vector<Process> running =
        start(*network, {.role = "put_until", .rest = {what}, .environment = environment()});
    for (Process& process : running)
      ASSERT_TRUE(process.wait_for_line("ROUND 6")) << process.output();
    running[1].kill(SIGKILL);
    EXPECT_EQ(running[0].wait(seconds(30)), 0) << running[0].output();
    EXPECT_THAT(
        running[0].output(),
        AllOf(ContainsRegex("FAILURE 6 rank 1 \\(process [0-9]+ on host .*\\) ended unexpectedly"),
              ContainsRegex("\\((ncclWaitSignal|ncclPutSignal)\\) NCCL WARN rank 1")));
  }
}

class CutPuts : public testing::TestWithParam<const char*> {};

TEST_P(CutPuts, AreAnErrorOnBothRanks) {
  NETWORK_OR_SKIP(network, .machines = 2);
  std::vector<Process> running = start(
      *network,
      {.role = "put_until", .rest = {GetParam()}, .environment = {{"NICCOLITE_NET_TIMEOUT", "3"}}});
  for (Process& process : running)
    ASSERT_TRUE(process.wait_for_line("ROUND 6")) << process.output();
  ASSERT_TRUE(network->configure(-1, "link set m1r0 nomaster\n", network_reason)) << network_reason;
  for (int rank = 0; rank < 2; ++rank) {
    Process& process = running[static_cast<size_t>(rank)];
    EXPECT_EQ(process.wait(seconds(30)), 0) << process.output();
    EXPECT_THAT(process.output(), testing::AllOf(HasSubstr("FAILURE 6"),
                                                 HasSubstr("rank " + std::to_string(1 - rank)),
                                                 HasSubstr("nothing has come from it for 3 s")));
  }
}

INSTANTIATE_TEST_SUITE_P(, CutPuts, testing::Values("puts", "waits"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace niccolite::test
