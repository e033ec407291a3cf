// Ranks in several processes: they find each other by the id alone and map each other's memory by
// descriptor.

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/multi_process/process.h"
#include "tests/multi_process/programs.h"
#include "tests/multi_process/ranks.h"

namespace niccolite::test {
namespace {

// id nranks first count
ROLE(reduce) {
  LocalRanks ranks(to_id(arguments[0]), std::stoi(arguments[1]), std::stoi(arguments[2]),
                   std::stoi(arguments[3]));
  bool right = true;
  for (size_t count : {1u, 1000u, 40'000u, 300'007u, 3u, 1000u})
    right = right && ranks.all_reduce(count);
  ranks.destroy();
  return right ? 0 : 1;
}

class MultiProcess : public testing::TestWithParam<std::tuple<int, int, const char*>> {};

TEST_P(MultiProcess, AllReduceIsRightOnEveryRank) {
  const auto& [processes, devices, transport] = GetParam();
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess) << ncclGetLastError(nullptr);
  std::vector<Process> running;
  for (int p = 0; p < processes; ++p)
    running.emplace_back("reduce",
                         Arguments{to_text(id), std::to_string(processes * devices),
                                   std::to_string(p * devices), std::to_string(devices)},
                         Process::Environment{{"NCCL_IPC_USE_ABSTRACT_SOCKET", transport}});
  for (Process& process : running) EXPECT_EQ(process.wait(), 0) << process.output();
}

INSTANTIATE_TEST_SUITE_P(, MultiProcess,
                         testing::Values(std::tuple(2, 1, "1"), std::tuple(4, 2, "1"),
                                         std::tuple(3, 1, "0")));

// id id nranks first count: one communicator is suspended and resumed while the other works.
ROLE(suspend) {
  const int nranks = std::stoi(arguments[2]);
  LocalRanks sleeps(to_id(arguments[0]), nranks, std::stoi(arguments[3]), std::stoi(arguments[4]));
  LocalRanks works(to_id(arguments[1]), nranks, std::stoi(arguments[3]), std::stoi(arguments[4]));
  bool right = true;
  for (const size_t count : {10u, 300'007u, 1000u}) {
    right = right && sleeps.all_reduce(count) && works.all_reduce(count);
    REQUIRE_NCCL(ncclGroupStart());
    for (ncclComm_t comm : sleeps.comms) REQUIRE_NCCL(ncclCommSuspend(comm, NCCL_SUSPEND_MEM));
    REQUIRE_NCCL(ncclGroupEnd());
    right = right && works.all_reduce(count);
    REQUIRE_NCCL(ncclGroupStart());
    for (ncclComm_t comm : sleeps.comms) REQUIRE_NCCL(ncclCommResume(comm));
    REQUIRE_NCCL(ncclGroupEnd());
    right = right && sleeps.all_reduce(count);
  }
  sleeps.destroy();
  works.destroy();
  return right ? 0 : 1;
}

TEST_P(MultiProcess, ASuspendedCommunicatorWorksAsBefore) {
  const auto& [processes, devices, transport] = GetParam();
  ncclUniqueId one, two;
  ASSERT_EQ(ncclGetUniqueId(&one), ncclSuccess) << ncclGetLastError(nullptr);
  ASSERT_EQ(ncclGetUniqueId(&two), ncclSuccess) << ncclGetLastError(nullptr);
  std::vector<Process> running;
  for (int p = 0; p < processes; ++p)
    running.emplace_back("suspend",
                         Arguments{to_text(one), to_text(two), std::to_string(processes * devices),
                                   std::to_string(p * devices), std::to_string(devices)},
                         Process::Environment{{"NCCL_IPC_USE_ABSTRACT_SOCKET", transport}});
  for (Process& process : running) EXPECT_EQ(process.wait(), 0) << process.output();
}

// id id nranks first count: every collective, then random programs, on two communicators.
ROLE(perform) {
  const int nranks = std::stoi(arguments[2]);
  LocalRanks one(to_id(arguments[0]), nranks, std::stoi(arguments[3]), std::stoi(arguments[4]));
  LocalRanks two(to_id(arguments[1]), nranks, std::stoi(arguments[3]), std::stoi(arguments[4]));
  const bool is_right =
      perform_programs(one, two, {.nranks = nranks, .first_rank = std::stoi(arguments[3])});
  one.destroy();
  two.destroy();
  return is_right ? 0 : 1;
}

TEST_P(MultiProcess, EveryOperationIsRightOnEveryRank) {
  const auto& [processes, devices, transport] = GetParam();
  ncclUniqueId one, two;
  ASSERT_EQ(ncclGetUniqueId(&one), ncclSuccess) << ncclGetLastError(nullptr);
  ASSERT_EQ(ncclGetUniqueId(&two), ncclSuccess) << ncclGetLastError(nullptr);
  std::vector<Process> running;
  for (int p = 0; p < processes; ++p)
    running.emplace_back("perform",
                         Arguments{to_text(one), to_text(two), std::to_string(processes * devices),
                                   std::to_string(p * devices), std::to_string(devices)},
                         Process::Environment{{"NCCL_IPC_USE_ABSTRACT_SOCKET", transport}});
  // Half a minute with a sanitizer, and more beside other work.
  constexpr std::chrono::seconds kLimit{240};
  for (Process& process : running) EXPECT_EQ(process.wait(kLimit), 0) << process.output();
}

// A port that nobody has. Those from 32768 on are given out to whoever asks for any, at any time.
uint16_t unused_port() {
  constexpr uint16_t kFirst = 20'000;
  constexpr uint16_t kPorts = 10'000;
  for (int attempt = 0; attempt < kPorts; ++attempt) {
    const auto port = static_cast<uint16_t>(kFirst + (getpid() + attempt) % kPorts);
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const bool is_unused =
        bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    close(listener);
    if (is_unused) return port;
  }
  ADD_FAILURE() << "no port is free";
  return 0;
}

TEST(MultiProcessEnvironment, CommIdNamesTheRendezvousWithoutAnId) {
  const std::string root = "127.0.0.1:" + std::to_string(unused_port());
  std::vector<Process> running;
  for (int p = 0; p < 2; ++p)
    running.emplace_back("reduce_by_environment", Arguments{"2", std::to_string(p)},
                         Process::Environment{{"NCCL_COMM_ID", root}});
  for (Process& process : running) EXPECT_EQ(process.wait(), 0) << process.output();
}

ROLE(reduce_by_environment) {
  ncclUniqueId id;
  REQUIRE_NCCL(ncclGetUniqueId(&id));
  LocalRanks ranks(id, std::stoi(arguments[0]), std::stoi(arguments[1]), 1);
  const bool right = ranks.all_reduce(1000);
  ranks.destroy();
  return right ? 0 : 1;
}

}  // namespace
}  // namespace niccolite::test
