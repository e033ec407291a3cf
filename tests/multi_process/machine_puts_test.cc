// Puts and signals to ranks of other machines, which NCCL_HOSTID makes of processes of this one: by
// sockets and by the example of a plug-in; and how they fail.

#include <gmock/gmock.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "tests/multi_process/process.h"
#include "tests/multi_process/put_programs.h"
#include "tests/multi_process/ranks.h"

namespace niccolite::test {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string new_id() {
  ncclUniqueId id;
  EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess) << ncclGetLastError(nullptr);
  return to_text(id);
}

// id nranks first count
ROLE(puts) {
  const int nranks = std::stoi(arguments[1]), first = std::stoi(arguments[2]);
  LocalRanks ranks(to_id(arguments[0]), nranks, first, std::stoi(arguments[3]));
  const bool is_right = perform_puts(ranks, {.nranks = nranks, .first = first});
  ranks.destroy();
  return is_right ? 0 : 1;
}

struct Layout {
  const char* name;
  int machines;
  int devices;
  Process::Environment environment{};
};
std::ostream& operator<<(std::ostream& out, const Layout& layout) { return out << layout.name; }

class MachinePuts : public testing::TestWithParam<Layout> {};

TEST_P(MachinePuts, AreRightOnEveryRank) {
  const auto& [name, machines, devices, environment] = GetParam();
  const std::string id = new_id();
  std::vector<Process> running;
  for (int machine = 0; machine < machines; ++machine) {
    Process::Environment of_machine = environment;
    of_machine["NCCL_HOSTID"] = "machine" + std::to_string(machine);
    running.emplace_back("puts",
                         Arguments{id, std::to_string(machines * devices),
                                   std::to_string(machine * devices), std::to_string(devices)},
                         of_machine);
  }
  for (Process& process : running) {
    EXPECT_EQ(process.wait(seconds(240)), 0) << process.output();
    EXPECT_THAT(process.output(), Not(HasSubstr("NCCL WARN")));
  }
}

INSTANTIATE_TEST_SUITE_P(
    , MachinePuts,
    testing::Values(
        Layout{"two_machines", 2, 1}, Layout{"three_machines", 3, 2},
        Layout{"several_proxies", 2, 2, {{"NICCOLITE_NET_PROXIES", "2"}}},
        Layout{"plugin", 2, 2, {{"NCCL_NET_PLUGIN", NET_PLUGINS "/libnccl-net-NOTHING.so"}}},
        Layout{"plugin_of_small_messages",
               2,
               1,
               {{"NCCL_NET_PLUGIN", NET_PLUGINS "/libnccl-net-SIZES.so"}}}),
    testing::PrintToStringParamName());

// The work on the stream ends with the communicator.
int abort_and_wait(LocalRanks& ranks) {
  REQUIRE_NCCL(ncclCommAbort(ranks.comms[0]));
  REQUIRE_CUDA(cudaStreamSynchronize(ranks.streams[0]));
  std::printf("ENDED\n");
  return 0;
}

// Waits until the communicator has failed, says how, and aborts it.
int await_failure(LocalRanks& ranks) {
  ncclResult_t state = ncclSuccess;
  while (state == ncclSuccess) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    REQUIRE_NCCL(ncclCommGetAsyncError(ranks.comms[0], &state));
  }
  std::printf("FAILURE %d %s\n", state, ncclGetLastError(ranks.comms[0]));
  return abort_and_wait(ranks);
}

// id rank what: one of two ranks, each on a machine of its own.
ROLE(put_fault) {
  const int rank = std::stoi(arguments[1]);
  const std::string& what = arguments[2];
  LocalRanks ranks(to_id(arguments[0]), 2, rank, 1);
  constexpr size_t kBytes = 4 << 20;
  REQUIRE_CUDA(cudaSetDevice(rank));
  char* memory = nullptr;
  ncclWindow_t window = nullptr, other = nullptr;
  REQUIRE_NCCL(ncclMemAlloc(reinterpret_cast<void**>(&memory), kBytes));
  REQUIRE_NCCL(
      ncclCommWindowRegister(ranks.comms[0], memory, kBytes, &window, NCCL_WIN_COLL_SYMMETRIC));
  REQUIRE_NCCL(
      ncclCommWindowRegister(ranks.comms[0], memory, kBytes, &other, NCCL_WIN_COLL_SYMMETRIC));
  const auto put = [&](ncclWindow_t into, size_t at = 0) {
    return ncclPutSignal(memory, kBytes / 2, ncclChar, 1 - rank, into, at, 0, 0, 0, ranks.comms[0],
                         ranks.streams[0]);
  };
  const auto wait = [&] {
    ncclWaitSignalDesc_t descriptor{1, 1 - rank, 0, 0};
    REQUIRE_NCCL(ncclWaitSignal(1, &descriptor, ranks.comms[0], ranks.streams[0]));
  };
  if (what == "deregistered") {
    if (rank == 1) {
      REQUIRE_NCCL(ncclCommWindowDeregister(ranks.comms[0], other));
      REQUIRE_NCCL(ncclSignal(0, 0, 0, 0, ranks.comms[0], ranks.streams[0]));
      wait();
    } else {
      wait();
      REQUIRE_NCCL(put(other));
      wait();  // for a signal that nobody sends
    }
    return await_failure(ranks);
  }
  if (what == "arguments") {
    // Refused on this rank, and the communicator goes on.
    std::printf("BEYOND %d %s\n", put(window, kBytes / 2 + 1), ncclGetLastError(nullptr));
    std::printf("FOREIGN %d %s\n", put(reinterpret_cast<ncclWindow_t>(memory)),
                ncclGetLastError(nullptr));
    REQUIRE_NCCL(put(window, kBytes / 2));
    wait();
    REQUIRE_CUDA(cudaStreamSynchronize(ranks.streams[0]));
    ranks.destroy();
    return 0;
  }
  if (what == "leaver") {  // sends no signal
    if (rank == 1) return abort_and_wait(ranks);
    wait();
    return await_failure(ranks);
  }
  if (what == "wait") {  // for one that is gone, or says nothing
    if (rank == 0) wait();
  } else {  // more than the connection has room for
    for (int i = 0; rank == 0 && i < 64; ++i) REQUIRE_NCCL(put(window));
  }
  if (rank == 0) {
    wait();
    std::printf("WAITING\n");
    std::fflush(stdout);
    if (arguments.size() == 3) return await_failure(ranks);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    return abort_and_wait(ranks);
  }
  std::printf("WAITING\n");
  std::fflush(stdout);
  std::this_thread::sleep_for(std::chrono::hours(1));
  return 1;
}

std::vector<Process> start(const std::string& what, const std::string& more = {}) {
  const std::string id = new_id();
  std::vector<Process> running;
  for (const int rank : {0, 1}) {
    Arguments arguments{id, std::to_string(rank), what};
    if (!more.empty()) arguments.push_back(more);
    running.emplace_back("put_fault", arguments,
                         Process::Environment{{"NCCL_HOSTID", "machine" + std::to_string(rank)}});
  }
  return running;
}

TEST(MachinePutErrors, OfAWindowThatIsGoneAreOnBothRanks) {
  std::vector<Process> running = start("deregistered");
  for (Process& process : running) {
    EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_THAT(process.output(),
                AllOf(HasSubstr("FAILURE 6"), HasSubstr("ENDED"),
                      HasSubstr("rank 0 puts into window number 1 of rank 1, which is not "
                                "registered here")));
  }
}

TEST(MachinePutErrors, InArgumentsAreSaidOnTheSpot) {
  std::vector<Process> running = start("arguments");
  for (Process& process : running) {
    EXPECT_EQ(process.wait(), 0) << process.output();
    EXPECT_THAT(process.output(), AllOf(HasSubstr("BEYOND 4"), HasSubstr("reaches beyond the"),
                                        HasSubstr("FOREIGN 4"),
                                        HasSubstr("is not a live window of this communicator")));
  }
}

TEST(MachinePutErrors, OfAPeerThatHasLeftEndAWait) {
  std::vector<Process> running = start("leaver");
  for (Process& process : running) EXPECT_EQ(process.wait(), 0) << process.output();
  EXPECT_THAT(running[0].output(),
              AllOf(HasSubstr("FAILURE 6"), HasSubstr("ENDED"),
                    HasSubstr("rank 0 waits in ncclWaitSignal for rank 1, which has left")));
}

class MachinePutFaults : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, MachinePutFaults, testing::Values("wait", "put"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(MachinePutFaults, OfAPeerThatDiesAreAnError) {
  std::vector<Process> running = start(GetParam());
  for (Process& process : running)
    ASSERT_TRUE(process.wait_for_line("WAITING")) << process.output();
  running[1].kill(SIGKILL);
  EXPECT_EQ(running[0].wait(), 0) << running[0].output();
  EXPECT_THAT(running[0].output(),
              AllOf(HasSubstr("FAILURE 6"), HasSubstr("rank 1"), HasSubstr("ENDED")));
}

TEST(MachinePutErrors, OfNoCallAreSaidWithTheLastCallOfTheRank) {
  std::vector<Process> running = start("wait");
  for (Process& process : running)
    ASSERT_TRUE(process.wait_for_line("WAITING")) << process.output();
  running[1].kill(SIGKILL);
  EXPECT_EQ(running[0].wait(), 0) << running[0].output();
  EXPECT_THAT(running[0].output(),
              testing::ContainsRegex("\\(ncclWaitSignal\\) NCCL WARN rank 1 .*ended"));
}

TEST_P(MachinePutFaults, OfAPeerThatStandsStillEndWithAnAbort) {
  std::vector<Process> running = start(GetParam(), "abort");
  for (Process& process : running)
    ASSERT_TRUE(process.wait_for_line("WAITING")) << process.output();
  running[1].kill(SIGSTOP);
  EXPECT_EQ(running[0].wait(), 0) << running[0].output();
  EXPECT_THAT(running[0].output(), HasSubstr("ENDED"));
}

}  // namespace
}  // namespace niccolite::test
