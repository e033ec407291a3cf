// Ranks as threads of one process.
#include "bootstrap/member.h"

#include <atomic>
#include <latch>

#include "base/socket.h"
#include "child.h"
#include "ranks.h"

namespace niccolite::bootstrap {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class Ranks : public testing::TestWithParam<int> {};

TEST_P(Ranks, GatherWhatEachContributes) {
  const int n = GetParam();
  auto members = join_all(loopback_id(), n);
  on_threads(first_ranks(n), [&](int rank) {
    Member& member = *members[static_cast<size_t>(rank)];
    EXPECT_EQ(member.rank(), rank);
    EXPECT_EQ(member.nranks(), n);
    for (int round = 0; round < 3; ++round) {
      const auto size = [&](int r) { return static_cast<size_t>((r + round) % 5 * 33); };
      auto all = member.all_gather(pattern(rank, size(rank), round), soon());
      ASSERT_TRUE(all.is_ok()) << all.status().message();
      ASSERT_EQ(all->size(), static_cast<size_t>(n));
      for (int r = 0; r < n; ++r)
        ASSERT_TRUE(same((*all)[r], pattern(r, size(r), round))) << rank << " from " << r;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Bootstrap, Ranks, testing::Values(1, 2, 3, 4, 5, 7, 8, 16, 17, 64, 256));

TEST(Member, SendsAndReceivesInOrderByTag) {
  auto members = join_all(loopback_id(), 3);
  for (int i = 0; i < 20; ++i)
    ASSERT_TRUE(members[0]->send(2, static_cast<uint32_t>(i % 2), pattern(0, 50, i)).is_ok());
  for (uint32_t tag : {1u, 0u})
    for (int i = static_cast<int>(tag); i < 20; i += 2) {
      auto got = members[2]->receive(0, tag, soon());
      ASSERT_TRUE(got.is_ok());
      EXPECT_TRUE(same(got.value(), pattern(0, 50, i)));
    }
  // To itself, too.
  ASSERT_TRUE(members[1]->send(1, 9, to_bytes("me")).is_ok());
  EXPECT_EQ(to_text(members[1]->receive(1, 9, soon()).value()), "me");
}

TEST(Member, AnswersRequestsWhileItsOwnThreadIsBusyAndOnceItServes) {
  auto members = join_all(loopback_id(), 2);
  std::thread asker([&] {
    auto answer = members[0]->request(1, to_bytes("ping"), soon());  // before serve()
    ASSERT_TRUE(answer.is_ok()) << answer.status().message();
    EXPECT_EQ(to_text(answer.value()), "pong to 0");
    auto refusal = members[0]->request(1, to_bytes("nonsense"), soon());
    ASSERT_FALSE(refusal.is_ok());
    EXPECT_EQ(refusal.status().code(), Code::InvalidArgument);
    EXPECT_EQ(refusal.status().message(), "nonsense is not known");
    ASSERT_TRUE(members[0]->send(1, 5, {}).is_ok());
  });
  members[1]->serve([](int from, std::span<const std::byte> request) -> Result<Bytes> {
    if (to_text(request) != "ping")
      return Status::invalid_argument("{} is not known", to_text(request));
    return to_bytes(fmt::format("pong to {}", from));
  });
  EXPECT_TRUE(members[1]->receive(0, 5, soon()).is_ok());  // busy until the asker is done
  asker.join();
}

TEST(Member, AsksSeveralPeersAtOnceAndEndsWithTheFirstThatFails) {
  auto members = join_all(loopback_id(), 4);
  for (int rank = 1; rank < 4; ++rank)
    members[static_cast<size_t>(rank)]->serve(
        [rank](int from, std::span<const std::byte> request) -> Result<Bytes> {
          if (to_text(request) == "no") return Status::invalid_argument("rank {} will not", rank);
          return to_bytes(fmt::format("{} of {} to {}", to_text(request), rank, from));
        });
  const Bytes one = to_bytes("one"), two = to_bytes("two"), no = to_bytes("no");

  const auto all =
      members[0]->request(std::vector<Query>{{3, one}, {1, two}, {2, one}, {1, one}}, soon());
  ASSERT_EQ(all.size(), 4u);
  const char* const expected[] = {"one of 3 to 0", "two of 1 to 0", "one of 2 to 0",
                                  "one of 1 to 0"};
  for (size_t i = 0; i < all.size(); ++i) {
    ASSERT_TRUE(all[i].is_ok()) << all[i].status().message();
    EXPECT_EQ(to_text(all[i].value()), expected[i]);
  }

  const auto refused = members[0]->request(std::vector<Query>{{1, one}, {2, no}, {3, one}}, soon());
  ASSERT_EQ(refused.size(), 2u);
  EXPECT_TRUE(refused[0].is_ok());
  EXPECT_EQ(refused[1].status().message(), "rank 2 will not");

  const auto nobody = members[0]->request(std::vector<Query>{{1, one}, {4, one}}, soon());
  ASSERT_EQ(nobody.size(), 2u);
  EXPECT_EQ(nobody[1].status().code(), Code::InvalidArgument);

  members[2]->leave();
  const auto left = members[0]->request(std::vector<Query>{{1, one}, {2, one}, {3, one}}, soon());
  ASSERT_EQ(left.size(), 2u);
  EXPECT_EQ(left[1].status().peer(), 2);
}

TEST(Member, RefusesWhatIsOutOfRange) {
  const UniqueId id = loopback_id();
  EXPECT_EQ(Member::join({.id = id, .nranks = 0, .rank = 0, .deadline = soon()}).status().code(),
            Code::InvalidArgument);
  EXPECT_EQ(Member::join({.id = id, .nranks = 2, .rank = 2, .deadline = soon()}).status().code(),
            Code::InvalidArgument);
  EXPECT_EQ(Member::join({.id = id, .nranks = 2, .rank = -1, .deadline = soon()}).status().code(),
            Code::InvalidArgument);
  auto members = join_all(id, 1);
  EXPECT_EQ(members[0]->send(1, 0, {}).code(), Code::InvalidArgument);
  EXPECT_EQ(members[0]->all_gather(Bytes(65 << 10), soon()).status().code(), Code::InvalidArgument);
}

TEST(Member, ThatLeavesFailsTheAllGatherOfOthersByName) {
  auto members = join_all(loopback_id(), 3);
  std::thread waiting([&] {
    const Status status = members[0]->barrier(soon());
    EXPECT_EQ(status.code(), Code::RemoteError);
    EXPECT_EQ(status.peer(), 1);
    EXPECT_THAT(status.message(), HasSubstr("rank 1"));
  });
  members[1]->leave();
  waiting.join();
  EXPECT_EQ(members[2]->barrier(soon()).peer(), 1);
  EXPECT_EQ(members[2]->send(1, 0, {}).peer(), 1);
  EXPECT_EQ(members[2]->receive(1, 0, soon()).status().peer(), 1);
  EXPECT_EQ(members[2]->request(1, {}, soon()).status().peer(), 1);
}

TEST(Member, StillDeliversWhatALeaverHasSent) {
  auto members = join_all(loopback_id(), 2);
  ASSERT_TRUE(members[0]->send(1, 3, to_bytes("last words")).is_ok());
  members[0]->leave();
  EXPECT_EQ(to_text(members[1]->receive(0, 3, soon()).value()), "last words");
}

TEST(Member, NamesWhoIsMissingFromAnAllGather) {
  auto members = join_all(loopback_id(), 5);
  std::thread other([&] { (void)members[1]->barrier(Deadline::after(100ms)).code(); });
  const Status status = members[0]->barrier(Deadline::after(200ms));
  other.join();
  EXPECT_EQ(status.code(), Code::RemoteError);
  EXPECT_EQ(status.peer(), 2);
  EXPECT_THAT(status.message(), HasSubstr("rank 0 of 5 heard nothing from ranks 2-4"));
  // The others' sequence has gone on without it: it must not join a later one by mistake.
  EXPECT_EQ(members[0]->barrier(soon()).message(), status.message());
}

TEST(Member, WaitsEndWhenTheAbortIsRaised) {
  const UniqueId id = loopback_id();
  std::vector<Abort> aborts(2);
  std::vector<std::unique_ptr<Member>> members(2);
  on_threads({0, 1}, [&](int rank) {
    auto member = Member::join({.id = id,
                                .nranks = 2,
                                .rank = rank,
                                .deadline = soon(),
                                .abort = &aborts[static_cast<size_t>(rank)]});
    ASSERT_TRUE(member.is_ok());
    members[static_cast<size_t>(rank)] = std::move(member.value());
  });
  std::vector<Status> ends(3);
  std::latch waiting(3);
  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    waiting.count_down();
    ends[0] = members[0]->barrier(soon());
  });
  threads.emplace_back([&] {
    waiting.count_down();
    ends[1] = members[0]->receive(1, 0, soon()).status().copy();
  });
  threads.emplace_back([&] {
    waiting.count_down();
    ends[2] = members[0]->request(1, {}, soon()).status().copy();
  });
  waiting.wait();
  aborts[0].raise(Status::invalid_usage("enough"));
  for (auto& thread : threads) thread.join();
  for (const Status& end : ends) EXPECT_EQ(end.message(), "enough");
}

TEST(Join, EndsForAllWhenOneRankIsAborted) {
  const UniqueId id = loopback_id();
  Abort abort;
  std::thread aborted([&] {
    auto member =
        Member::join({.id = id, .nranks = 3, .rank = 0, .deadline = soon(), .abort = &abort});
    EXPECT_EQ(member.status().message(), "enough");
  });
  std::thread other([&] {
    auto member = Member::join({.id = id, .nranks = 3, .rank = 1, .deadline = soon()});
    ASSERT_FALSE(member.is_ok());
    EXPECT_THAT(member.status().message(),
                AllOf(HasSubstr("rank 0"), HasSubstr("gave up"), HasSubstr("enough")));
  });
  abort.raise(Status::invalid_usage("enough"));
  aborted.join();
  other.join();
}

TEST(Join, OfOneRankTwiceInAProcessFailsForBoth) {
  const UniqueId id = loopback_id();
  on_threads({0, 0}, [&](int rank) {
    auto member = Member::join({.id = id, .nranks = 3, .rank = rank, .deadline = soon()});
    ASSERT_FALSE(member.is_ok());
    EXPECT_EQ(member.status().code(), Code::InvalidUsage);
    EXPECT_THAT(member.status().message(), HasSubstr("two callers claim rank 0"));
  });
}

TEST(Member, ThatIsAbortedIsStillToldHowOthersDo) {
  const UniqueId id = loopback_id();
  const auto members = join_all(id, 2);
  members[1]->serve([](int, std::span<const std::byte> request) -> Result<Bytes> {
    return Bytes(request.begin(), request.end());
  });
  Abort abort, cancel;
  const auto one = members[0]->derive({.id = 7, .ranks = {0, 1}, .rank = 0, .abort = &abort});
  const auto other = members[1]->derive({.id = 7, .ranks = {0, 1}, .rank = 1});
  other->serve([](int, std::span<const std::byte> request) -> Result<Bytes> {
    return Bytes(request.begin(), request.end());
  });
  abort.raise(Status::invalid_usage("enough"));
  EXPECT_FALSE(one->request(1, to_bytes("ping"), soon()).is_ok());
  EXPECT_TRUE(one->request(1, to_bytes("ping"), soon(), cancel).is_ok());
}

// Four callers, such as two communicators that are started with one id by one process.
TEST(Join, OfAllRanksTwiceInAProcessIsAWrongUse) {
  const UniqueId id = loopback_id();
  std::atomic<int> accused{0};
  on_threads({0, 1, 0, 1}, [&](int rank) {
    auto member = Member::join({.id = id, .nranks = 2, .rank = rank, .deadline = soon()});
    if (member.is_ok()) return;  // two of them may have been ready before the others came
    EXPECT_EQ(member.status().code(), Code::InvalidUsage) << member.status().message();
    ++accused;
  });
  EXPECT_GE(accused.load(), 2);
}

TEST(Join, WithAnotherSecretIsRefusedAndDisturbsNobody) {
  const UniqueId id = loopback_id();
  auto bytes = UniqueId::random(id.root());  // right address, wrong secret
  auto stranger = Member::join({.id = bytes, .nranks = 2, .rank = 0, .deadline = soon()});
  ASSERT_FALSE(stranger.is_ok());
  EXPECT_EQ(stranger.status().code(), Code::RemoteError);
  EXPECT_THAT(stranger.status().message(), HasSubstr("authentication failed"));
  EXPECT_EQ(join_all(id, 2).size(), 2u);
}

TEST(Join, WithoutARootNamesTheAddress) {
  UniqueId id = UniqueId::random(Address::parse("127.0.0.1:1").value());
  auto member =
      Member::join({.id = id, .nranks = 2, .rank = 0, .deadline = Deadline::after(300ms)});
  ASSERT_FALSE(member.is_ok());
  EXPECT_EQ(member.status().code(), Code::RemoteError);
  EXPECT_THAT(member.status().message(),
              AllOf(HasSubstr("127.0.0.1 port 1"), HasSubstr("refused")));
}

TEST(Join, ByEnvironmentIdServesOneCommunicatorAfterTheOther) {
  // A free port: the system's choice for a listener that is closed again.
  const uint16_t port =
      Socket::listen(loopback_id().root().with_port(0)).value().local_address().value().port();
  const auto id = UniqueId::from_environment(fmt::format("127.0.0.1:{}", port), AF_UNSPEC);
  ASSERT_TRUE(id.is_ok());
  for (int round = 0; round < 5; ++round) {
    auto members = join_all(id.value(), 3);
    on_threads(first_ranks(3), [&](int rank) {
      EXPECT_TRUE(members[static_cast<size_t>(rank)]->barrier(soon()).is_ok());
    });
  }
}

TEST(Join, WorksOverIpv6) {
  auto address = Address::parse("[::1]:1");
  auto listener = Socket::listen(address.value().with_port(0));
  if (!listener.is_ok()) GTEST_SKIP() << listener.status().message();
  auto id = Root::start(address.value());
  ASSERT_TRUE(id.is_ok());
  auto members = join_all(id.value(), 2);
  EXPECT_TRUE(members[0]->same_process(1));
}

TEST(Root, ServesAThousandIdsByOneThreadAndOnePort) {
  const UniqueId first = loopback_id();
  // In a process of its own, where nothing of other tests is left to end meanwhile.
  Child child({.scenario = "ids", .id = first, .nranks = 1, .ranks = {0}});
  EXPECT_EQ(child.line(), "descriptors 0 threads 0 roots 1001");
  EXPECT_EQ(child.wait(), 0);
  std::vector<UniqueId> ids;
  for (int i = 0; i < 1000; ++i) ids.push_back(loopback_id());
  // Each of them is an id of its own.
  for (const size_t i : {0u, 499u, 999u}) {
    EXPECT_EQ(ids[i].root(), first.root());
    const auto members = join_all(ids[i], 2);
    EXPECT_TRUE(members[0] != nullptr && members[1] != nullptr);
  }
}

TEST(Root, RefusesAnIdThatWasUsed) {
  [[maybe_unused]] const UniqueId other = loopback_id();  // so that the port stays
  const UniqueId id = loopback_id();
  join_all(id, 2);
  const auto again = Member::join({.id = id, .nranks = 1, .rank = 0, .deadline = soon()});
  ASSERT_FALSE(again.is_ok());
  EXPECT_THAT(again.status().message(),
              testing::HasSubstr("has used the unique id for another communicator before"));
}

TEST(Member, ThatGivesUpEndsTheRendezvousWithItsReason) {
  const UniqueId id = loopback_id();
  std::thread gives_up([&] {
    Member::give_up({.id = id, .nranks = 2, .rank = 1, .deadline = soon()},
                    Status::invalid_usage("its settings make no sense"));
  });
  const auto waits = Member::join({.id = id, .nranks = 2, .rank = 0, .deadline = soon()});
  gives_up.join();
  ASSERT_FALSE(waits.is_ok());
  EXPECT_EQ(waits.status().code(), Code::InvalidUsage);
  EXPECT_THAT(waits.status().message(), testing::AllOf(testing::HasSubstr("rank 1 (process"),
                                                       testing::HasSubstr("make no sense")));
}

}  // namespace
}  // namespace niccolite::bootstrap
