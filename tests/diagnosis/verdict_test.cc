// One sentence on every rank says for whom an operation stands still, and why.
#include "diagnosis/verdict.h"

#include <gmock/gmock.h>

#include <array>
#include <cstdlib>
#include <deque>
#include <set>

#include "base/log.h"
#include "tests/calls/calls.h"
#include "tests/diagnosis/world.h"
#include "tests/observe/marked_kernels.h"

namespace niccolite::diagnosis {

using namespace calls;
namespace {

using executor::ReportKind;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;

// What every rank of the world has noted; fails when they differ.
std::string common_verdict(World& world) {
  std::optional<std::string> common;
  for (int rank = 0; rank < static_cast<int>(world.ranks().size()); ++rank) {
    const std::optional<Verdict> verdict = world.of(rank).watch->last_verdict();
    const std::string text =
        verdict ? verdict->describe(0x77, fmt::format("process {}", verdict->rank)) : "";
    if (!common) common = text;
    EXPECT_EQ(text, *common) << "rank " << rank;
  }
  return *common;
}

// For a second and a half everybody but rank 2 waits: 1 for 2, 0 for 1.
void wait_for_rank_2(World& world, const Call& call, milliseconds length = milliseconds(1500)) {
  world.wait_for(length, [&](int repeats) {
    world.wait(0, 1, call, repeats);
    world.wait(1, 2, call, repeats);
  });
}

TEST(Verdict, NamesTheRankThatHasNotCalledOnEveryRank) {
  World world(3);
  world.call_all(all_reduce(1));
  for (int rank : {0, 1}) world.call(rank, all_reduce(2));
  wait_for_rank_2(world, all_reduce(2));
  EXPECT_THAT(
      common_verdict(world),
      AllOf(HasSubstr("communicator 0x77: ncclAllReduce(count 2, float, sum), collective "
                      "#2, stands still: rank 2 (process 2) has not called it"),
            HasSubstr("its last call was ncclAllReduce(count 1, float, sum), collective #1")));
  EXPECT_EQ(world.failure(), "");
}

TEST(Verdict, NamesTheRankThatAllWaitForInACallOfTheHost) {
  World world(4);
  world.call_all(all_reduce(1));
  const auto since = world.devices().now;
  std::deque<CallLog::HostCallScope> scopes;
  for (const int rank : {0, 1})
    scopes.emplace_back(&world.of(rank).log, "ncclCommShrink", std::vector{3}, since);
  world.pass(milliseconds(900));
  EXPECT_EQ(common_verdict(world), "");
  world.pass(milliseconds(300));
  EXPECT_THAT(common_verdict(world),
              AllOf(HasSubstr("communicator 0x77: ncclCommShrink stands still: rank 2 (process 2) "
                              "has not called it: its last call was ncclAllReduce(count 1"),
                    testing::Not(HasSubstr("rank 3"))));
  EXPECT_TRUE(world.of(0).watch->standing_verdict());
  EXPECT_FALSE(world.of(2).watch->standing_verdict());  // it is not in the call
  scopes.clear();
  EXPECT_FALSE(world.of(0).watch->standing_verdict());
  EXPECT_EQ(world.failure(), "");
}

TEST(Verdict, NamesAStoppedRankInACallOfTheHost) {
  World world(2);
  const CallLog::HostCallScope scope(&world.of(1).log, "ncclCommSplit", {}, world.devices().now);
  world.of(0).run_state = RunState::Stopped;
  world.pass(milliseconds(1200));
  EXPECT_THAT(common_verdict(world), HasSubstr("ncclCommSplit stands still: rank 0 (process 0) is "
                                               "stopped"));
}

TEST(Verdict, SaysNothingWithinASecond) {
  World world(3);
  for (int rank : {0, 1}) world.call(rank, all_reduce(2));
  wait_for_rank_2(world, all_reduce(2), milliseconds(750));
  EXPECT_EQ(common_verdict(world), "");
}

TEST(Verdict, TellsARankThatHasCalledNothing) {
  World world(3);
  for (int rank : {0, 1}) world.call(rank, all_reduce(2));
  wait_for_rank_2(world, all_reduce(2));
  EXPECT_THAT(common_verdict(world), HasSubstr("it has called nothing yet"));
}

TEST(Verdict, TellsACallThatWaitsForThatOfAnotherThread) {
  World world(3);
  for (int rank : {0, 1}) world.call(rank, all_reduce(2));
  const auto since = world.devices().now;
  const CallLog::HostCallScope holder(&world.of(2).log, "ncclCommWindowRegister", {}, since);
  const CallLog::BlockedScope blocked(&world.of(2).log, "ncclAllReduce", since);
  const CallLog::BlockedScope later(&world.of(2).log, "ncclBroadcast", since);
  wait_for_rank_2(world, all_reduce(2), milliseconds(1100));
  EXPECT_THAT(common_verdict(world),
              AllOf(HasSubstr("ncclAllReduce(count 2, float, sum), collective #1, stands still: "
                              "rank 2 (process 2) is in ncclAllReduce, which waits for another "
                              "thread's ncclCommWindowRegister on this communicator: one thread"),
                    testing::Not(HasSubstr("called nothing"))));
}

// It is not counted before it has the communicator.
TEST(Verdict, TellsACallOfTheHostThatWaitsForThatOfAnotherThread) {
  World world(2);
  const auto since = world.devices().now;
  const CallLog::HostCallScope of_0(&world.of(0).log, "ncclCommSplit", {}, since);
  const CallLog::BlockedScope of_1(&world.of(1).log, "ncclCommSplit", since);
  world.pass(milliseconds(1200));
  EXPECT_THAT(common_verdict(world),
              HasSubstr("ncclCommSplit stands still: rank 1 (process 1) is in ncclCommSplit, which "
                        "waits for another thread's call on this communicator"));
}

TEST(Verdict, ForgetsACallThatWaitsNoMore) {
  World world(3);
  for (int rank : {0, 1}) world.call(rank, all_reduce(2));
  {
    const CallLog::BlockedScope blocked(&world.of(2).log, "ncclAllReduce", world.devices().now);
    world.pass(milliseconds(600));
  }
  wait_for_rank_2(world, all_reduce(2));
  EXPECT_THAT(common_verdict(world), HasSubstr("it has called nothing yet"));
}

// Threads that take turns wait for moments.
TEST(Verdict, SaysNothingOfACallThatHasWaitedForAMoment) {
  World world(3);
  for (int rank : {0, 1}) world.call(rank, all_reduce(2));
  const CallLog::BlockedScope blocked(&world.of(2).log, "ncclAllReduce",
                                      world.devices().now + seconds(10));
  wait_for_rank_2(world, all_reduce(2));
  EXPECT_THAT(common_verdict(world), HasSubstr("it has called nothing yet"));
}

TEST(Verdict, TellsACallThatTheStreamHasNotComeTo) {
  World world(3);
  world.call_all(all_reduce(2));
  wait_for_rank_2(world, all_reduce(2));
  EXPECT_THAT(common_verdict(world),
              AllOf(HasSubstr("rank 2 (process 2) has not come to it"), HasSubstr("kernel")));
}

TEST(Verdict, SaysNothingOfARankThatIsInTheOperation) {
  World world(3);
  for (int rank : {0, 1, 2}) world.launch(rank, all_reduce(2));
  world.of(2).log.recorder()->begin(1);
  wait_for_rank_2(world, all_reduce(2));
  EXPECT_EQ(common_verdict(world), "");
}

// Of equal calls, as of the steps of a training: only the executor knows which of them waits.
TEST(Verdict, TellsEqualCallsApartByWhatHasBegun) {
  enum class Told { Nothing, ByExecutor, ByKernels };
  for (const Told told : {Told::Nothing, Told::ByExecutor, Told::ByKernels}) {
    const bool executor_tells = told != Told::Nothing;
    std::array<observe::MarkedKernels, 3> kernels;
    World world(3);
    if (told == Told::ByKernels)
      for (int rank : {0, 1, 2})
        world.of(rank).log.recorder()->read_marks(kernels[static_cast<size_t>(rank)].marks());
    for (int step = 0; step < 3; ++step)
      for (int rank : {0, 1}) world.launch(rank, all_reduce(2));
    for (int step = 0; step < 2; ++step) world.launch(2, all_reduce(2));
    if (told == Told::ByKernels)
      for (int rank : {0, 1, 2}) {
        observe::MarkedKernels& of_rank = kernels[static_cast<size_t>(rank)];
        for (uint64_t launch : {1, 2}) {
          of_rank.begin(launch, 1000 * launch);
          of_rank.end(launch, 1000 * launch + 1);
        }
        if (rank < 2) of_rank.begin(3, 3000);
      }
    if (told == Told::ByExecutor)
      for (int rank : {0, 1, 2}) {
        for (uint64_t launch : {1, 2}) {
          world.of(rank).log.recorder()->begin(launch);
          world.of(rank).log.recorder()->end(launch);
        }
        if (rank < 2) world.of(rank).log.recorder()->begin(3);
      }
    wait_for_rank_2(world, all_reduce(2));
    if (executor_tells) {
      EXPECT_THAT(common_verdict(world),
                  AllOf(HasSubstr("collective #3, stands still"), HasSubstr("has not called it"),
                        HasSubstr("its last call was ncclAllReduce(count 2, float, sum), "
                                  "collective #2")));
    } else {
      EXPECT_THAT(common_verdict(world),
                  AllOf(HasSubstr("ncclAllReduce(count 2, float, sum) stands still"),
                        HasSubstr("Its program has not made this call or launched its graph, or")));
    }
  }
}

TEST(Verdict, DoesNotKnowWhatGraphsHaveReplayed) {
  World world(3);
  for (int rank : {0, 1, 2}) world.capture(rank, all_reduce(2));
  wait_for_rank_2(world, all_reduce(2));
  EXPECT_THAT(common_verdict(world), HasSubstr("launched its graph"));
}

// It has replayed it, and waits for nothing; what it gave comes by a slow link.
TEST(Verdict, SaysNothingOfAReplayWhoseDataAreOnTheirWay) {
  World world(3);
  for (int rank : {0, 1, 2}) {
    world.capture(rank, all_reduce(2));
    world.of(rank).network = transport::NetworkState{.threads = {}, .peers = {}};
  }
  const transport::Traffic slow{.peer = 0, .from = {}, .to = {}, .is_under_way = true};
  transport::Traffic slow_too = slow;
  slow_too.peer = 1;
  world.of(2).network->peers = {slow, slow_too};
  wait_for_rank_2(world, all_reduce(2));
  EXPECT_EQ(common_verdict(world), "");
}

// The log keeps the newest calls. Of many equal ones the call that waits may have left it.
TEST(Verdict, OfOneWaitIsToldOnceByEachRankThatGoesOnCalling) {
  World world(3);
  world.of(2).run_state = RunState::Stopped;
  std::set<uint64_t> told;
  world.wait_for(seconds(9), [&](int repeats) {
    for (size_t i = 0; i < CallLog::kKept; ++i)
      for (int rank : {0, 1}) world.call(rank, all_reduce(2));
    world.wait(0, 1, all_reduce(2), repeats);
    world.wait(1, 2, all_reduce(2), repeats);
    if (const auto verdict = world.of(0).watch->last_verdict())
      told.insert(verdict->operation.number);
  });
  EXPECT_LE(told.size(), 2u);
}

TEST(Verdict, NamesAStoppedProcess) {
  World world(3);
  world.call_all(all_reduce(2));
  world.of(2).run_state = RunState::Stopped;
  wait_for_rank_2(world, all_reduce(2));
  EXPECT_THAT(common_verdict(world),
              AllOf(HasSubstr("rank 2 (process 2) is stopped"), HasSubstr("kill -CONT")));
  EXPECT_EQ(world.of(2).asked, 0) << "who is stopped does not answer";
}

TEST(Verdict, NamesAMachineThatDoesNotAnswer) {
  World world(3);
  world.call_all(all_reduce(2));
  world.of(2).run_state = RunState::Unknown;
  world.of(2).is_unreachable = true;
  wait_for_rank_2(world, all_reduce(2), seconds(9));
  EXPECT_THAT(common_verdict(world), HasSubstr("rank 2 (process 2) does not answer"));
}

// Ranks of one island reach each other, and no rank of another island. Each rank waits for one
// other rank, and its log, which the others may never see, has a sentence.
struct Cut {
  const char* name;
  std::vector<int> islands;    // by rank
  std::vector<int> waits_for;  // by rank
  std::vector<const char*> told;
};
class VerdictOnACut : public testing::TestWithParam<Cut> {};

TEST_P(VerdictOnACut, BlamesNoHealthyRank) {
  const Cut& cut = GetParam();
  const int nranks = static_cast<int>(cut.islands.size());
  World world(nranks);
  world.call_all(all_reduce(2));
  const auto at = [](const auto& values, int rank) { return values[static_cast<size_t>(rank)]; };
  for (int rank = 0; rank < nranks; ++rank) {
    world.of(rank).run_state = RunState::Unknown;
    world.of(rank).island = at(cut.islands, rank);
  }
  world.wait_for(seconds(20), [&](int repeats) {
    for (int rank = 0; rank < nranks; ++rank)
      world.wait(rank, at(cut.waits_for, rank), all_reduce(2), repeats);
  });
  for (int rank = 0; rank < nranks; ++rank) {
    const std::optional<Verdict> verdict = world.of(rank).watch->last_verdict();
    ASSERT_TRUE(verdict.has_value()) << rank;
    EXPECT_THAT(verdict->describe(0x77, "its process"), HasSubstr(at(cut.told, rank)))
        << "of rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Verdict, VerdictOnACut,
    testing::Values(
        Cut{"TheLast",
            {0, 0, 1},
            {1, 2, 0},
            {"rank 2 (its process) does not answer rank 1", "rank 2 (its process) does not answer",
             "rank 2 (its process) hears nothing from any other machine"}},
        Cut{"TheFirst",
            {1, 0, 0},
            {2, 0, 1},
            {"rank 0 (its process) hears nothing from any other machine",
             "rank 0 (its process) does not answer rank 1",
             "rank 0 (its process) does not answer"}},
        Cut{"OneOfTwo",
            {0, 1},
            {1, 0},
            {"does not answer rank 0: its process hangs, its machine is down, or the network "
             "between the two is",
             "does not answer rank 1: its process hangs, its machine is down, or the network "
             "between the two is"}},
        Cut{"HalfOfFour",
            {0, 0, 1, 1},
            {1, 2, 3, 0},
            {"rank 2 (its process) does not answer rank 1", "rank 2 (its process) does not answer",
             "rank 0 (its process) does not answer",
             "rank 0 (its process) does not answer rank 3"}},
        Cut{"AllOfFour",
            {0, 1, 2, 3},
            {1, 2, 3, 0},
            {"rank 0 (its process) hears nothing", "rank 1 (its process) hears nothing",
             "rank 2 (its process) hears nothing", "rank 3 (its process) hears nothing"}}),
    [](const auto& instance) { return instance.param.name; });

TEST(Verdict, OfARankThatIsCutOffInACallOfTheHostNamesItself) {
  World world(3);
  for (const int rank : {0, 1, 2}) world.of(rank).run_state = RunState::Unknown;
  world.of(2).island = 1;
  const CallLog::HostCallScope scope(&world.of(2).log, "ncclCommSplit", {}, world.devices().now);
  world.pass(seconds(20));
  const std::optional<Verdict> verdict = world.of(2).watch->last_verdict();
  ASSERT_TRUE(verdict.has_value());
  EXPECT_THAT(verdict->describe(0x77, "its process"),
              HasSubstr("ncclCommSplit stands still: rank 2 (its process) hears nothing from any"));
}

// The thread that looks after all ranks of a process asks for each of them in turn.
TEST(Verdict, NamesAMachineThatDoesNotAnswerWhereManyRanksShareAProcess) {
  for (const bool calls_host : {true, false}) {
    World world(12, 11);
    world.call_all(all_reduce(2));
    world.asking_takes_time = true;
    world.of(11).run_state = RunState::Unknown;
    world.of(11).is_unreachable = true;
    std::deque<CallLog::HostCallScope> scopes;
    const Watch::Time since = world.devices().now;
    for (int rank = 0; rank < 11 && calls_host; ++rank)
      scopes.emplace_back(&world.of(rank).log, "ncclCommSplit", std::vector<int>{}, since);
    for (int repeats = 0; world.devices().now < since + seconds(8); ++repeats) {
      world.pass(executor::kReportInterval);
      for (int rank = 0; rank < 11 && !calls_host; ++rank)
        world.wait(rank, 11, all_reduce(2), repeats);
    }
    const std::optional<Verdict> verdict = world.of(3).watch->last_verdict();
    ASSERT_TRUE(verdict) << (calls_host ? "call of the host" : "operation");
    EXPECT_EQ(verdict->cause, Cause::DoesNotAnswer);
    EXPECT_EQ(verdict->rank, 11);
  }
}

// A machine at its limit takes seconds for an answer.
TEST(Verdict, DoesNotAccuseAProcessThatAnswersLate) {
  World world(3);
  world.call_all(all_reduce(2));
  world.of(2).run_state = RunState::Unknown;
  world.of(2).answers_after = milliseconds(1500);
  wait_for_rank_2(world, all_reduce(2), seconds(40));
  EXPECT_THAT(common_verdict(world), testing::Not(HasSubstr("does not answer")));
}

// The process has set no NCCL_DEBUG.
class StandstillUnasked : public testing::Test {
 protected:
  StandstillUnasked() {
    if (const char* const level = std::getenv("NCCL_DEBUG")) level_ = level;
    unsetenv("NCCL_DEBUG");
    log::reset();
    world_.call_all(all_reduce(1));
    for (int rank : {0, 1}) world_.call(rank, all_reduce(2));
  }
  ~StandstillUnasked() override {
    if (level_) setenv("NCCL_DEBUG", level_->c_str(), 1);
    log::reset();
  }
  std::string printed_within(seconds length) {
    testing::internal::CaptureStderr();
    wait_for_rank_2(world_, all_reduce(2), length);
    return testing::internal::GetCapturedStderr();
  }
  std::optional<std::string> level_;
  World world_{3};
};

size_t count_of(std::string_view part, std::string_view text) {
  size_t count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST_F(StandstillUnasked, IsPrintedOnceForAllRanksWhenItLasts) {
  const std::string printed = printed_within(seconds(50));
  EXPECT_EQ(count_of("stands still: rank 2", printed), 1u) << printed;
  EXPECT_THAT(printed, HasSubstr("(10 s so far)"));
}

TEST_F(StandstillUnasked, IsPrintedAgainAfterOneAndTenMinutes) {
  const std::string printed = printed_within(seconds(900));
  EXPECT_EQ(count_of("stands still: rank 2", printed), 3u) << printed;
  EXPECT_THAT(printed, AllOf(HasSubstr("(10 s so far)"), HasSubstr("(60 s so far)"),
                             HasSubstr("(600 s so far)")));
}

TEST_F(StandstillUnasked, DoesNotSayOfAProcessThatWasContinuedThatItIsStopped) {
  world_.of(2).run_state = RunState::Stopped;
  testing::internal::CaptureStderr();
  world_.wait_for(seconds(12), [&](int repeats) {
    if (repeats * executor::kReportInterval >= seconds(9)) world_.of(2).run_state = RunState::Runs;
    world_.wait(0, 1, all_reduce(2), repeats);
    world_.wait(1, 2, all_reduce(2), repeats);
  });
  const std::string printed = testing::internal::GetCapturedStderr();
  EXPECT_EQ(count_of("(10 s so far)", printed), 0u) << printed;
}

TEST_F(StandstillUnasked, OfASlowJobThatGoesOnIsNotPrinted) {
  std::string printed;
  for (int step = 0; step < 10; ++step) {
    printed += printed_within(seconds(4));
    world_.call(2, all_reduce(2));
    for (int rank : {0, 1}) world_.call(rank, all_reduce(2));
  }
  EXPECT_EQ(printed, "");
}

TEST(Verdict, DoesNotAccuseAProcessThatRunsAndIsTooBusyToAnswer) {
  World world(3);
  world.call_all(all_reduce(2));
  world.of(2).is_unreachable = true;
  wait_for_rank_2(world, all_reduce(2), seconds(20));
  EXPECT_EQ(common_verdict(world), "");
}

TEST(Verdict, NamesTheMessageAndBothRanks) {
  World world(3);
  world.call(0, send(2, 5));
  world.wait_for(milliseconds(1500), [&](int repeats) {
    world.wait(0, 2, send(2, 5), repeats, executor::ReportKind::WaitingForCredit);
  });
  EXPECT_THAT(common_verdict(world),
              AllOf(HasSubstr("ncclSend(count 5, float, peer 2) of rank 0 stands still"),
                    HasSubstr("rank 2 (process 2) has not called it")));
}

TEST(Verdict, NamesTheCommunicatorThatHoldsTheStream) {
  Devices devices;
  World first(devices, {0, 1}), second(devices, {0, 1});
  // Rank 1 of the second waits for its rank 0, which has not come, and holds up rank 1 of the
  // first.
  first.launch(0, all_reduce(1));
  second.launch(1, all_reduce(9));
  first.launch(1, all_reduce(1));
  for (int repeats = 0; repeats < 6; ++repeats) {
    devices.pass(executor::kReportInterval);
    first.wait(0, 1, all_reduce(1), repeats);
    second.wait(1, 0, all_reduce(9), repeats);
  }
  devices.pass(milliseconds(100));
  EXPECT_THAT(common_verdict(first),
              AllOf(HasSubstr("rank 1 (process 1) has not come to it: its stream waits in "
                              "ncclAllReduce(count 9, float, sum) of communicator"),
                    HasSubstr("for rank 0")));
}

TEST(Verdict, OfSomebodyWhoComesIsReplacedByTheNext) {
  World world(3);
  for (int rank : {0, 1}) world.call(rank, all_reduce(1));
  wait_for_rank_2(world, all_reduce(1));
  const std::string first = common_verdict(world);
  world.call(2, all_reduce(1));
  for (int rank : {0, 1}) world.call(rank, all_reduce(2));
  wait_for_rank_2(world, all_reduce(2));
  EXPECT_NE(common_verdict(world), first);
}

// Who has just waited himself, and is late now, waits no more, whatever was reported a moment ago.
TEST(Verdict, NamesARankThatHasWaitedItselfAMomentAgo) {
  World world(3);
  for (int rank : {0, 1, 2}) {
    world.launch(rank, all_reduce(1));
    world.of(rank).log.recorder()->begin(1);
  }
  world.wait(2, 0, all_reduce(1), 3);
  world.pass(milliseconds(100));
  for (int rank : {0, 1, 2}) world.of(rank).log.recorder()->end(1);
  for (int rank : {0, 1}) {
    world.launch(rank, all_reduce(2));
    world.of(rank).log.recorder()->begin(2);
  }
  wait_for_rank_2(world, all_reduce(2));
  EXPECT_THAT(common_verdict(world), HasSubstr("rank 2 (process 2) has not called it"));
}

// ---- Of ranks on several machines

transport::Traffic unacknowledged(int peer, milliseconds age) {
  return {.peer = peer,
          .from = "10.0.0.1:4711",
          .to = "10.0.0.2:5000",
          .unacknowledged = age,
          .parts = 12,
          .bytes = 3072,
          .heard = std::nullopt};
}

// Rank 0 waits for rank 1, which waits for rank 2, and so on round: the link from 2 to 1 is cut.
class VerdictOnTheNetwork : public testing::Test {
 protected:
  VerdictOnTheNetwork() {
    for (int rank : {0, 1, 2}) {
      world_.launch(rank, all_reduce(2));
      world_.of(rank).log.recorder()->begin(1);
      world_.of(rank).network =
          transport::NetworkState{.threads = {{.name = "nccl-proxy"}}, .peers = {}};
      world_.of(rank).run_state = RunState::Unknown;
    }
  }
  transport::NetworkState& network(int rank) { return *world_.of(rank).network; }
  void wait_in_a_circle() {
    world_.wait_for(milliseconds(1500), [&](int repeats) {
      for (int rank : {0, 1, 2}) world_.wait(rank, (rank + 1) % 3, all_reduce(2), repeats);
    });
  }
  World world_{3};
};

TEST_F(VerdictOnTheNetwork, NamesTheLinkOnWhichNothingMoves) {
  network(2).peers = {unacknowledged(1, milliseconds(1100))};
  wait_in_a_circle();
  EXPECT_THAT(
      common_verdict(world_),
      AllOf(HasSubstr("collective #1, stands still: rank 2 (process 2) cannot reach rank 1: "
                      "its link (from 10.0.0.1:4711 to 10.0.0.2:5000) stands still"),
            HasSubstr("for 1.1 s, 12 parts of chunks (3072 bytes)")));
  EXPECT_EQ(world_.failure(), "");
}

// What the other rank has sent for credit, or has not been told of.
TEST_F(VerdictOnTheNetwork, NamesTheLinkOfTheRankThatWaits) {
  network(1).peers = {unacknowledged(2, milliseconds(1100))};
  wait_in_a_circle();
  EXPECT_THAT(common_verdict(world_),
              HasSubstr("rank 1 (process 1) cannot reach rank 2: its link"));
}

// Both links of rank 2 are cut at once: rank 1 finds one of them before it has heard of the other.
TEST_F(VerdictOnTheNetwork, IsTheFirstOfTwoThatAreFoundAtOnce) {
  network(2).peers = {unacknowledged(0, milliseconds(1100)), unacknowledged(1, milliseconds(1100))};
  wait_in_a_circle();
  const std::string first = common_verdict(world_);
  EXPECT_THAT(first, HasSubstr("rank 2 (process 2) cannot reach rank"));
  Verdict other = *world_.of(1).watch->last_verdict();
  other.link->peer = 1 - other.link->peer;
  world_.of(0).watch->decide(other);
  EXPECT_EQ(common_verdict(world_), first);
  // One that is found later, and therefore still holds, is news.
  world_.pass(seconds(2));
  world_.of(0).watch->decide(other);
  EXPECT_NE(common_verdict(world_), first);
}

TEST_F(VerdictOnTheNetwork, NamesALinkThatDoesNotComeAbout) {
  network(2).peers = {unacknowledged(1, milliseconds(1100))};
  network(2).peers[0].from = "";
  wait_in_a_circle();
  EXPECT_THAT(
      common_verdict(world_),
      HasSubstr("rank 2 (process 2) cannot reach rank 1: its link (to 10.0.0.2:5000) is not "
                "there: connecting has taken 1.1 s"));
}

TEST_F(VerdictOnTheNetwork, SaysNothingOfALinkOnWhichBytesStillCome) {
  network(2).peers = {unacknowledged(1, milliseconds(5000))};
  const transport::Traffic slow{
      .peer = 2, .from = {}, .to = {}, .unacknowledged = {}, .heard = milliseconds(300)};
  network(1).peers = {slow};
  wait_in_a_circle();
  EXPECT_EQ(common_verdict(world_), "");
}

TEST_F(VerdictOnTheNetwork, SaysNothingOfALinkThatAnotherIsToReplace) {
  network(2).peers = {unacknowledged(1, milliseconds(1100))};
  network(2).peers[0].has_another_way = true;
  wait_in_a_circle();
  EXPECT_EQ(common_verdict(world_), "");
}

TEST_F(VerdictOnTheNetwork, SaysNothingOfALinkWhoseProxyHasNoCore) {
  network(2).peers = {unacknowledged(1, milliseconds(1100))};
  network(1).threads[0].unanswered = milliseconds(900);
  wait_in_a_circle();
  EXPECT_EQ(common_verdict(world_), "");
}

// One look asks a proxy several times: its thread cannot have answered the question just before.
TEST_F(VerdictOnTheNetwork, NamesALinkWhoseProxyWasJustAsked) {
  network(2).peers = {unacknowledged(1, milliseconds(1100))};
  for (const int rank : {1, 2}) network(rank).threads[0].unanswered = milliseconds(1);
  wait_in_a_circle();
  EXPECT_THAT(common_verdict(world_), HasSubstr("cannot reach rank 1: its link"));
}

TEST_F(VerdictOnTheNetwork, SaysNothingOfALinkToAProcessThatWasJustContinued) {
  network(2).peers = {unacknowledged(1, seconds(10))};
  world_.of(1).awake_since = world_.devices().now + milliseconds(1400);
  wait_in_a_circle();
  EXPECT_EQ(common_verdict(world_), "");
}

TEST_F(VerdictOnTheNetwork, NamesAProxyThatIsStuckAndNotItsLinks) {
  network(2).peers = {unacknowledged(1, milliseconds(1100))};
  network(1).threads[0] = {.name = "nccl-proxy",
                           .number = 4712,
                           .unanswered = milliseconds(900),
                           .state = 't',
                           .is_stuck = true};
  wait_in_a_circle();
  EXPECT_THAT(common_verdict(world_),
              AllOf(HasSubstr("rank 1 (process 1) has a stuck proxy: its thread nccl-proxy (4712)"),
                    HasSubstr("for 0.9 s: it is stopped by a debugger")));
}

// Rank 0 has sent all, and ends when the proxy of rank 1 has confirmed it; rank 2 waits for rank 0.
class VerdictOnAnAcknowledgement : public testing::Test {
 protected:
  VerdictOnAnAcknowledgement() {
    for (int rank : {0, 1, 2}) {
      world_.launch(rank, all_reduce(1));
      world_.of(rank).network =
          transport::NetworkState{.threads = {{.name = "nccl-proxy"}}, .peers = {}};
    }
    for (int rank : {0, 2}) world_.of(rank).log.recorder()->begin(1);
  }
  void wait(milliseconds length) {
    world_.wait_for(length, [&](int repeats) {
      world_.wait(0, 1, all_reduce(1), repeats, ReportKind::WaitingForAcknowledgement);
      world_.wait(2, 0, all_reduce(1), repeats);
    });
  }
  World world_{3};
};

TEST_F(VerdictOnAnAcknowledgement, NamesAStoppedProcessWithinTwoSeconds) {
  world_.of(1).run_state = RunState::Stopped;
  wait(milliseconds(1750));
  EXPECT_THAT(common_verdict(world_), HasSubstr("rank 1 (process 1) is stopped"));
}

TEST_F(VerdictOnAnAcknowledgement, NamesAMachineThatDoesNotAnswer) {
  world_.of(1).run_state = RunState::Unknown;
  world_.of(1).is_unreachable = true;
  wait(seconds(9));
  EXPECT_THAT(common_verdict(world_), HasSubstr("rank 1 (process 1) does not answer"));
}

TEST_F(VerdictOnAnAcknowledgement, NamesTheLink) {
  for (int rank : {0, 1}) world_.of(rank).run_state = RunState::Unknown;
  world_.of(0).network->peers = {unacknowledged(1, milliseconds(1100))};
  wait(milliseconds(1750));
  EXPECT_THAT(common_verdict(world_),
              HasSubstr("rank 0 (process 0) cannot reach rank 1: its link"));
}

// Which acknowledges whatever its program does, and is no place to look for what comes next.
TEST_F(VerdictOnAnAcknowledgement, AccusesNobodyWhoHasMerelyNotComeToTheCall) {
  wait(seconds(20));
  EXPECT_EQ(common_verdict(world_), "");
  EXPECT_EQ(world_.failure(), "");
}

TEST_F(VerdictOnAnAcknowledgement, IsNoPartOfACircleOfCallsThatDoNotMatch) {
  world_.launch(0, send(1, 5));
  world_.launch(1, send(0, 7));
  for (int rank : {0, 1}) world_.of(rank).log.recorder()->begin(2);
  world_.wait_for(seconds(20), [&](int repeats) {
    world_.wait(0, 1, send(1, 5), repeats, ReportKind::WaitingForAcknowledgement);
    world_.wait(1, 0, send(0, 7), repeats, ReportKind::WaitingForCredit);
  });
  EXPECT_EQ(world_.failure(), "");
}

// What it waits for comes, as from one that is there: the proxy gives it up.
TEST_F(VerdictOnAnAcknowledgement, MindsNoRankThatHasLeft) {
  world_.of(1).has_left = true;
  wait(seconds(5));
  EXPECT_EQ(world_.failure(), "");
}

// Rank 0 has gone on to its second collective, and what it gave in the first is on a slow link.
TEST(VerdictOnASlowLink, DoesNotAccuseARankWhoseDataIsOnItsWay) {
  enum class Data { Nowhere, OnItsWay, ArrivedJustNow, ArrivedLongAgo };
  for (const Data data :
       {Data::Nowhere, Data::OnItsWay, Data::ArrivedJustNow, Data::ArrivedLongAgo}) {
    World world(2);
    for (int rank : {0, 1}) {
      for (const int count : {1, 2}) world.launch(rank, all_reduce(static_cast<size_t>(count)));
      world.of(rank).log.recorder()->begin(1);
      world.of(rank).run_state = RunState::Unknown;
      if (data != Data::Nowhere) world.of(rank).network.emplace();
    }
    world.of(0).log.recorder()->end(1);
    world.of(0).log.recorder()->begin(2);
    if (data != Data::Nowhere) {
      transport::Traffic traffic{.peer = 1};
      traffic.is_under_way = data == Data::OnItsWay;
      if (data == Data::ArrivedJustNow) traffic.acknowledged = milliseconds(100);
      if (data == Data::ArrivedLongAgo) traffic.acknowledged = seconds(20);
      world.of(0).network->peers = {traffic};
    }
    world.wait_for(milliseconds(1500), [&](int repeats) {
      world.wait(0, 1, all_reduce(2), repeats);
      world.wait(1, 0, all_reduce(1), repeats);
    });
    const bool is_proof = data == Data::Nowhere || data == Data::ArrivedLongAgo;
    EXPECT_EQ(!world.failures().empty(), is_proof) << static_cast<int>(data);
  }
}

// Kernels have given all data to their proxies, which cannot send for want of room at the peers'.
class MessageOverTheNetwork : public testing::Test {
 protected:
  MessageOverTheNetwork() {
    for (int rank : {0, 1}) {
      World::Rank& of_rank = world_.of(rank);
      of_rank.run_state = RunState::Unknown;
      of_rank.network = transport::NetworkState{.threads = {{.name = "nccl-proxy"}}, .peers = {}};
    }
  }
  void send_from(int rank) {
    world_.launch(rank, send(1 - rank, 5));
    world_.of(rank).log.recorder()->begin(1);
    transport::Traffic traffic{.peer = 1 - rank};
    traffic.is_under_way = true;
    traffic.acknowledged = milliseconds(30);
    world_.of(rank).network->peers = {traffic};
  }
  World world_{2};
};

TEST_F(MessageOverTheNetwork, ThatNobodyReceivesIsNamedWithinTwoSeconds) {
  send_from(0);
  world_.wait_for(milliseconds(1750), [&](int repeats) {
    world_.wait(0, 1, send(1, 5), repeats, ReportKind::WaitingForAcknowledgement);
  });
  EXPECT_THAT(common_verdict(world_),
              HasSubstr("ncclSend(count 5, float, peer 1) of rank 0 stands still: rank 1 (process "
                        "1) has not called it"));
}

TEST_F(MessageOverTheNetwork, OfTwoRanksThatBothSendFirstFailsWithinTwoSeconds) {
  for (int rank : {0, 1}) send_from(rank);
  world_.wait_for(milliseconds(1750), [&](int repeats) {
    world_.wait(0, 1, send(1, 5), repeats, ReportKind::WaitingForAcknowledgement);
    world_.wait(1, 0, send(0, 5), repeats, ReportKind::WaitingForCredit);
  });
  EXPECT_THAT(world_.failure(), HasSubstr("none can go on: make one of them call the other end"));
}

// It has given all to its proxy, and a slow link takes its time.
TEST(Verdict, SaysNothingOfARankThatHasDoneItsPart) {
  World world(3);
  for (int rank : {0, 1, 2}) {
    world.launch(rank, all_reduce(2));
    world.of(rank).log.recorder()->begin(1);
  }
  world.of(2).log.recorder()->end(1);
  wait_for_rank_2(world, all_reduce(2));
  EXPECT_EQ(common_verdict(world), "");
}

TEST(Verdict, NamesAStoppedProcessWithWhichRanksConnect) {
  World world(3);
  const auto since = world.devices().now;
  std::deque<CallLog::ConnectScope> scopes;
  for (const int rank : {0, 1}) scopes.emplace_back(&world.of(rank).log, "ncclAllReduce", since);
  world.of(2).run_state = RunState::Stopped;
  world.pass(milliseconds(900));
  EXPECT_EQ(common_verdict(world), "");
  world.pass(milliseconds(300));
  EXPECT_THAT(common_verdict(world), HasSubstr("ncclAllReduce, which connects ranks, stands still: "
                                               "rank 2 (process 2) is stopped"));
}

TEST(Verdict, DoesNotNameARankThatConnectsAsLate) {
  World world(3);
  for (int rank : {0, 1}) world.call(rank, all_reduce(2));
  const CallLog::ConnectScope scope(&world.of(2).log, "ncclAllReduce", world.devices().now);
  wait_for_rank_2(world, all_reduce(2));
  EXPECT_EQ(common_verdict(world), "");
}

TEST(Verdict, NamesAStoppedProcessWhileTheOthersWaitForEachOther) {
  World world(3);
  for (int rank : {0, 1, 2}) world.call(rank, all_reduce(2));
  world.of(2).run_state = RunState::Stopped;
  world.wait_for(milliseconds(2500), [&](int repeats) {
    world.wait(0, 1, all_reduce(2), repeats);
    world.wait(1, 0, all_reduce(2), repeats);
  });
  EXPECT_THAT(common_verdict(world), HasSubstr("rank 2 (process 2) is stopped"));
}

// A report of the wait before is read when the next of many equal calls has begun.
TEST(Verdict, IsNotOfTheCallAfterTheOneThatWaited) {
  World world(2);
  for (int rank : {0, 1}) world.launch(rank, all_reduce(1));
  world.launch(0, all_reduce(1));
  world.of(0).log.recorder()->begin(1);
  for (int repeats = 0; repeats < 3; ++repeats) {
    world.pass(executor::kReportInterval);
    world.wait(0, 1, all_reduce(1), repeats);
  }
  world.pass(executor::kReportInterval);
  world.wait(0, 1, all_reduce(1), 3);
  for (int rank : {0, 1}) world.of(rank).log.recorder()->end(1);
  world.of(0).log.recorder()->begin(2);
  world.pass(milliseconds(100));
  EXPECT_EQ(common_verdict(world), "");
}

TEST(Verdict, SaysNothingOfRanksThatAnswerWhileOthersConnect) {
  World world(2);
  const CallLog::ConnectScope scope(&world.of(0).log, "ncclAllReduce", world.devices().now);
  world.pass(milliseconds(3000));
  EXPECT_EQ(common_verdict(world), "");
}

TEST(Verdict, RefusesWhatNoRankSends) {
  World world(2);
  world.call(0, all_reduce(2));
  world.wait_for(milliseconds(1500),
                 [&](int repeats) { world.wait(0, 1, all_reduce(2), repeats); });
  const Bytes good = world.of(0).watch->last_verdict().value().encode();
  EXPECT_TRUE(Verdict::decode(good, 2).is_ok());
  EXPECT_FALSE(Verdict::decode(good, 1).is_ok()) << "a rank beyond the communicator";
  for (size_t size = 0; size < good.size(); ++size)
    EXPECT_FALSE(Verdict::decode(std::span(good).first(size), 2).is_ok()) << size;
}

}  // namespace
}  // namespace niccolite::diagnosis
