// What survivors see when something goes wrong in another process: the documented code within
// seconds, a message that names the culprit, and no hang.

#include <gmock/gmock.h>
#include <signal.h>

#include "tests/api/trial.h"
#include "tests/multi_process/process.h"
#include "tests/multi_process/ranks.h"

namespace niccolite::test {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

ncclUniqueId make_id() {
  ncclUniqueId id;
  EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess) << ncclGetLastError(nullptr);
  return id;
}

// id nranks rank: all-reduces once, says so, then starts an operation when told by its only
// argument's peers' absence.
ROLE(survivor) {
  LocalRanks ranks(to_id(arguments[0]), std::stoi(arguments[1]), std::stoi(arguments[2]), 1);
  if (!ranks.all_reduce(1000)) return 1;
  REQUIRE_NCCL(ranks.start(100'000));
  std::printf("STARTED\n");
  const ncclResult_t state = ranks.finish();
  std::printf("STATE %d LAST %s\n", state, ncclGetLastError(nullptr));
  // The communicator stays failed, and can be aborted.
  const ncclResult_t again = ranks.start(8);
  std::printf("AGAIN %d\n", again);
  const ncclResult_t aborted = ncclCommAbort(ranks.comms[0]);
  std::printf("ABORTED %d\n", aborted);
  return 0;
}

// id nranks rank: takes part in the first operation, then does nothing until it is killed.
ROLE(victim) {
  LocalRanks ranks(to_id(arguments[0]), std::stoi(arguments[1]), std::stoi(arguments[2]), 1);
  if (!ranks.all_reduce(1000)) return 1;
  std::printf("READY\n");
  for (;;) pause();
}

TEST(Faults, AKilledPeerEndsTheOperationsThatWaitForIt) {
  const std::string id = to_text(make_id());
  Process first("survivor", {id, "3", "0"}), second("survivor", {id, "3", "1"}),
      victim("victim", {id, "3", "2"});
  ASSERT_TRUE(victim.wait_for_line("READY")) << victim.output();
  ASSERT_TRUE(first.wait_for_line("STARTED")) << first.output();
  ASSERT_TRUE(second.wait_for_line("STARTED")) << second.output();
  victim.kill(SIGKILL);
  for (Process* survivor : {&first, &second}) {
    EXPECT_EQ(survivor->wait(seconds(30)), 0) << survivor->output();
    EXPECT_THAT(survivor->output(), HasSubstr("STATE 6"));  // ncclRemoteError
    EXPECT_THAT(survivor->output(), HasSubstr("rank 2"));
    EXPECT_THAT(survivor->output(), HasSubstr("AGAIN 6"));
    EXPECT_THAT(survivor->output(), HasSubstr("ABORTED 0"));
  }
}

// id nranks rank kind: runs operations of one kind until one fails.
ROLE(worker) {
  const int nranks = std::stoi(arguments[1]), rank = std::stoi(arguments[2]);
  const auto kind = static_cast<Kind>(std::stoi(arguments[3]));
  LocalRanks ranks(to_id(arguments[0]), nranks, rank, 1);
  std::vector<std::unique_ptr<Trial>> trials;
  if (kind == Kind::Message) {  // a ring of messages
    for (int from = 0; from < nranks; ++from)
      trials.push_back(std::make_unique<Trial>(
          Operation{kind, ncclFloat, ncclSum, 100'003, from, (from + 1) % nranks}, nranks));
  } else {
    trials.push_back(
        std::make_unique<Trial>(Operation{kind, ncclFloat, ncclSum, 100'003, 1}, nranks));
  }
  ncclResult_t state = ncclSuccess;
  for (int round = 0; state == ncclSuccess; ++round) {
    ncclGroupStart();
    for (const auto& trial : trials)
      if (trial->takes_part(rank)) trial->call(rank, ranks.comms[0], ranks.streams[0]);
    state = ncclGroupEnd();
    if (state == ncclSuccess) state = ranks.finish();
    if (round == 0) std::printf("RUNNING\n");
  }
  std::printf("STATE %d LAST %s\n", state, ncclGetLastError(nullptr));
  std::printf("ABORTED %d\n", ncclCommAbort(ranks.comms[0]));
  return 0;
}

class KilledInside : public testing::TestWithParam<Kind> {};

TEST_P(KilledInside, APeerIsNamedByTheOthers) {
  const std::string id = to_text(make_id()), kind = std::to_string(static_cast<int>(GetParam()));
  std::vector<Process> workers;
  for (int rank = 0; rank < 3; ++rank)
    workers.emplace_back("worker", Arguments{id, "3", std::to_string(rank), kind});
  for (Process& worker : workers) {
    ASSERT_TRUE(worker.wait_for_line("RUNNING")) << worker.output();
  }
  workers[1].kill(SIGKILL);
  for (int survivor : {0, 2}) {
    Process& worker = workers[static_cast<size_t>(survivor)];
    EXPECT_EQ(worker.wait(seconds(30)), 0) << worker.output();
    EXPECT_THAT(worker.output(), HasSubstr("STATE 6"));  // ncclRemoteError
    EXPECT_THAT(worker.output(), HasSubstr("rank 1"));
    EXPECT_THAT(worker.output(), HasSubstr("ABORTED 0"));
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, KilledInside,
                         testing::Values(Kind::AllReduce, Kind::AllToAll, Kind::Broadcast,
                                         Kind::Message),
                         [](const auto& kind) { return std::string(name_of(kind.param)); });

// id nranks rank: joins, and reports.
ROLE(joiner) {
  ncclComm_t comm = nullptr;
  REQUIRE_CUDA(cudaSetDevice(std::stoi(arguments[2])));
  std::printf("JOINING\n");
  const ncclResult_t result = ncclCommInitRank(&comm, std::stoi(arguments[1]), to_id(arguments[0]),
                                               std::stoi(arguments[2]));
  std::printf("RESULT %d LAST %s\n", result, ncclGetLastError(nullptr));
  return comm == nullptr ? 0 : 1;
}

TEST(Faults, RanksThatNeverComeAreNamed) {
  const std::string id = to_text(make_id());
  const Process::Environment patience{{"NICCOLITE_INIT_TIMEOUT", "2"}};
  Process first("joiner", {id, "4", "0"}, patience), second("joiner", {id, "4", "3"}, patience);
  for (Process* process : {&first, &second}) {
    EXPECT_EQ(process->wait(seconds(30)), 0) << process->output();
    EXPECT_THAT(process->output(), HasSubstr("RESULT 6"));
    EXPECT_THAT(process->output(), HasSubstr("ranks 1, 2"));
    EXPECT_THAT(process->output(), HasSubstr("NCCL_SOCKET_IFNAME"));
  }
}

TEST(Faults, APeerKilledDuringInitDoesNotLeaveTheOthersWaiting) {
  const std::string id = to_text(make_id());
  const Process::Environment patience{{"NICCOLITE_INIT_TIMEOUT", "5"}};
  Process first("joiner", {id, "3", "0"}, patience), second("joiner", {id, "3", "1"}, patience);
  ASSERT_TRUE(second.wait_for_line("JOINING"));
  second.kill(SIGKILL);
  EXPECT_EQ(first.wait(seconds(30)), 0) << first.output();
  EXPECT_THAT(first.output(), HasSubstr("RESULT 6"));
}

TEST(Faults, TwoRanksThatClaimOneNumberAreToldApart) {
  const std::string id = to_text(make_id());
  const Process::Environment patience{{"NICCOLITE_INIT_TIMEOUT", "10"}};
  Process first("joiner", {id, "2", "1"}, patience), second("joiner", {id, "2", "1"}, patience);
  for (Process* process : {&first, &second}) {
    EXPECT_EQ(process->wait(seconds(30)), 0) << process->output();
    EXPECT_THAT(process->output(), HasSubstr("RESULT 5"));  // ncclInvalidUsage
    EXPECT_THAT(process->output(), HasSubstr("rank 1"));
  }
}

TEST(Faults, RanksThatDisagreeOnTheirNumberAreTold) {
  const std::string id = to_text(make_id());
  const Process::Environment patience{{"NICCOLITE_INIT_TIMEOUT", "10"}};
  Process first("joiner", {id, "2", "0"}, patience), second("joiner", {id, "3", "1"}, patience);
  for (Process* process : {&first, &second}) {
    EXPECT_EQ(process->wait(seconds(30)), 0) << process->output();
    EXPECT_THAT(process->output(), testing::AnyOf(HasSubstr("RESULT 5"), HasSubstr("RESULT 4")));
    EXPECT_THAT(process->output(), testing::ContainsRegex("[^0-9]2[^0-9].*3|3.*[^0-9]2[^0-9]"));
  }
}

TEST(Faults, AnIdWithAnotherSecretDoesNotGetIn) {
  const ncclUniqueId id = make_id();
  ncclUniqueId other = make_id();
  // The address of the one, the secret of the other.
  std::copy(std::begin(id.internal), std::begin(id.internal) + 32, std::begin(other.internal));
  const Process::Environment patience{{"NICCOLITE_INIT_TIMEOUT", "3"}};
  Process stranger("joiner", {to_text(other), "2", "1"}, patience);
  EXPECT_EQ(stranger.wait(seconds(30)), 0) << stranger.output();
  EXPECT_THAT(stranger.output(), testing::Not(HasSubstr("RESULT 0")));
}

}  // namespace
}  // namespace niccolite::test
