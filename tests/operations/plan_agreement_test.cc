#include "operations/plan_agreement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <random>
#include <thread>

#include "tests/operations/post.h"

namespace niccolite::operations {
namespace {

using Kinds = PlanAgreement::Kinds;
constexpr Kinds kUsual = PlanAgreement::kind_of(5);
constexpr Kinds kOther = PlanAgreement::kind_of(6);

class World : public Post<PlanAgreement> {
 public:
  explicit World(int nranks, bool reached = false)
      : Post(nranks, [nranks, reached](int rank, const Abort& abort, auto tell) {
          return std::make_unique<PlanAgreement>(rank, nranks, reached, abort, tell);
        }) {}

  /// One collective by itself, whose buffers are reached, or not; or uses none that are offered.
  bool run(int of, std::optional<bool> is_reached = std::nullopt, Kinds kind = kUsual) {
    const Result<Kinds> for_reach = rank(of).begin(1);
    EXPECT_TRUE(for_reach.is_ok());
    if (is_reached) rank(of).note_use(kind, use_if(*is_reached));
    rank(of).launched();
    return for_reach.is_ok() && (for_reach.value() & kind) != 0;
  }
  void run_all(int collectives, std::optional<bool> is_reached) {
    for (int i = 0; i < collectives; ++i)
      for (int of = 0; of < size(); ++of) run(of, is_reached);
  }
  /// Collectives until the plans of rank 0 are such; a great many if they never are.
  int count_until(bool is_for_reach) {
    int count = 0;
    while (count < 100'000) {
      ++count;
      bool is_it = false;
      for (int of = 0; of < size(); ++of) {
        const bool is_now = run(of);
        if (of == 0) is_it = is_now == is_for_reach;
        EXPECT_EQ(is_now == is_for_reach, is_it) << "rank " << of << ", collective " << count;
      }
      if (is_it) break;
    }
    return count;
  }
};

constexpr int kSoon = 200;

TEST(PlanAgreement, ChangesWhenTheBuffersOfAllRanksAreReached) {
  World world(3);
  world.run_all(20, true);
  world.deliver_all();
  EXPECT_LE(world.count_until(true), kSoon);
}

TEST(PlanAgreement, StaysWhileOneRanksBuffersAreNotReached) {
  World world(3);
  for (int i = 0; i < 500; ++i) {
    for (int of = 0; of < 3; ++of) EXPECT_FALSE(world.run(of, of != 2));
    world.deliver_all();
  }
}

TEST(PlanAgreement, OfOneProcessIsForReachUntilABufferIsNotReached) {
  World world(2, /*reached=*/true);
  for (int i = 0; i < 50; ++i)
    for (int of = 0; of < 2; ++of) EXPECT_TRUE(world.run(of, i > 10));
  for (int i = 0; i < 20; ++i)
    for (int of = 0; of < 2; ++of) world.run(of, of == 0);
  world.deliver_all();
  EXPECT_LE(world.count_until(false), kSoon);
  for (int of = 0; of < 2; ++of) EXPECT_TRUE(world.run(of, std::nullopt, kOther));
}

TEST(PlanAgreement, IsOfEachKindByItself) {
  World world(2);
  for (int i = 0; i < 20; ++i) {
    for (int of = 0; of < 2; ++of) world.run(of, true);
    for (int of = 0; of < 2; ++of) world.run(of, of == 0, kOther);
  }
  world.deliver_all();
  EXPECT_LE(world.count_until(true), kSoon);
  for (int of = 0; of < 2; ++of) EXPECT_FALSE(world.run(of, std::nullopt, kOther));
  for (int i = 0; i < 300; ++i) {  // what one kind loses, the other keeps
    for (int of = 0; of < 2; ++of) world.run(of, false, kOther);
    world.deliver_all();
  }
  for (int of = 0; of < 2; ++of) EXPECT_TRUE(world.run(of));
}

TEST(PlanAgreement, ChangesBackWhenBuffersAreNotReachedAnyMore) {
  World world(2);
  world.run_all(20, true);
  world.deliver_all();
  EXPECT_LE(world.count_until(true), kSoon);
  for (int i = 0; i < 20; ++i) {
    world.run(0, true);
    world.run(1, false);
  }
  world.deliver_all();
  EXPECT_LE(world.count_until(false), kSoon);
}

TEST(PlanAgreement, IsSurerBeforeItChangesAgain) {
  World world(1);
  int last = 0;
  for (int round = 0; round < 3; ++round) {
    int needed = 0;
    while (!world.run(0, true)) ++needed;
    EXPECT_GT(needed, last);
    last = needed;
    while (world.run(0, false)) {
    }
  }
}

TEST(PlanAgreement, MissesNowAndThenChangeNothing) {
  World world(1);
  while (!world.run(0, true)) {
  }
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(world.run(0, i % 8 != 0));
}

TEST(PlanAgreement, CountsNoCollectiveTwiceThatWasNotLaunched) {
  World world(2);
  world.run_all(20, true);
  world.deliver_all();
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(world.rank(1).begin(1).is_ok());
  EXPECT_LE(world.count_until(true), kSoon);
}

// Rank 1 is far ahead of what rank 0 proposes, as where messages wait for a core.
TEST(PlanAgreement, DecidesAtOnceAlsoWhereAProposalComesTooLate) {
  World world(2);
  for (int i = 0; i < 5'000; ++i) world.run(1, true);
  for (int i = 0; i < 20; ++i) world.run(0, true);
  world.deliver_all();
  for (int i = 20; i < 5'000; ++i) EXPECT_FALSE(world.run(0, true)) << i;
  EXPECT_EQ(world.count_until(true), 1);
}

// Whoever is told too late goes no further until it is decided.
TEST(PlanAgreement, HoldsARankThatIsFarAheadUntilItIsDecided) {
  World world(2);
  for (int i = 0; i < 1'000; ++i) world.run(1, true);
  for (int i = 0; i < 20; ++i) world.run(0, true);
  std::mt19937 random(7);
  world.deliver_one(random);  // rank 1's wish
  world.deliver_one(random);  // the proposal, which leaves rank 1's answer
  std::atomic<bool> has_begun = false;
  std::thread ahead([&] {
    EXPECT_TRUE(world.run(1, true));
    has_begun = true;
  });
  for (int i = 20; i < 84; ++i) EXPECT_FALSE(world.run(0, true)) << i;
  EXPECT_FALSE(has_begun);
  world.deliver_all();
  ahead.join();
  for (int i = 84; i < 1'000; ++i) EXPECT_FALSE(world.run(0, true)) << i;
  EXPECT_TRUE(world.run(0, true));
}

TEST(PlanAgreement, AnAbortEndsTheWaitForADecision) {
  World world(2);
  world.run_all(20, true);
  std::mt19937 random(7);
  // All but the decision, which needs the answers of both.
  world.deliver_one(random);
  world.deliver_one(random);
  std::thread waits([&] {
    for (int i = 0; i < 1000; ++i) {
      const Result<Kinds> begun = world.rank(0).begin(1);
      if (!begun.is_ok()) {
        EXPECT_NE(begun.status().message().find("enough"), std::string::npos);
        return;
      }
      world.rank(0).launched();
    }
    ADD_FAILURE() << "nothing was decided, and nobody waited";
  });
  world.abort().raise(Status::internal("enough"));
  waits.join();
}

TEST(PlanAgreement, RefusesWhatARankMustNotSay) {
  World world(2);
  world.run_all(20, true);  // of rank 1: a wish
  EXPECT_FALSE(world.rank(0).note(1, {}).is_ok());
  const Bytes unknown(21, std::byte{9});
  EXPECT_FALSE(world.rank(0).note(1, unknown).is_ok());
  Bytes answer(21);
  answer[0] = std::byte{2};
  EXPECT_FALSE(world.rank(0).note(1, answer).is_ok()) << "to a proposal that there was not";
  EXPECT_FALSE(world.rank(1).note(0, answer).is_ok()) << "rank 1 proposes nothing";
  Bytes proposal(21);
  proposal[0] = std::byte{1};
  EXPECT_FALSE(world.rank(0).note(1, proposal).is_ok()) << "rank 1 is not rank 0";
  Bytes decision(21);
  decision[0] = std::byte{3};
  EXPECT_FALSE(world.rank(1).note(0, decision).is_ok()) << "on a proposal that there was not";
}

// Ranks that run ahead of each other by their own threads, groups, wishes that come and go, letters
// that overtake each other: whatever happens, every collective is planned alike.
TEST(PlanAgreement, OfManyThreadsIsOneForEveryCollective) {
  constexpr int kRanks = 4;
  constexpr uint64_t kCollectives = 60'000;
  World world(kRanks);
  constexpr uint64_t kMostAhead = 300;  // of the slowest rank, as streams allow
  std::atomic<int> running{kRanks};
  std::array<std::atomic<uint64_t>, kRanks> progress{};
  std::vector<std::map<uint64_t, Kinds>> plans(kRanks);  // by rank: changes
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      std::mt19937 sizes(5);  // groups are the same on all ranks
      std::mt19937 luck(static_cast<uint32_t>(100 + rank));
      Kinds last = 0;
      for (uint64_t at = 0; at < kCollectives;) {
        const uint64_t size = 1 + sizes() % 5;
        const Result<Kinds> begun = world.rank(rank).begin(size);
        ASSERT_TRUE(begun.is_ok());
        if (begun.value() != last) plans[static_cast<size_t>(rank)].emplace(at, begun.value());
        last = begun.value();
        const bool is_bad_time = at / 2'000 % 3 == 2;
        const Kinds kind = size % 2 == 0 ? kOther : kUsual;
        world.rank(rank).note_use(kind, use_if(!is_bad_time || luck() % 4 != 0));
        world.rank(rank).launched();
        if (luck() % 4 == 0) world.deliver_one(luck);  // also where the post gets no core
        at += size;
        progress[static_cast<size_t>(rank)] = at;
        const auto is_too_far = [&](const std::atomic<uint64_t>& of) {
          return of.load() + kMostAhead < at;
        };
        while (std::ranges::any_of(progress, is_too_far)) std::this_thread::yield();
      }
      --running;
    });
  for (int post = 0; post < 2; ++post)
    threads.emplace_back([&, post] {
      std::mt19937 random(static_cast<uint32_t>(post));
      while (running > 0)
        if (!world.deliver_one(random)) std::this_thread::yield();
    });
  for (std::thread& thread : threads) thread.join();
  for (int rank = 1; rank < kRanks; ++rank) EXPECT_EQ(plans[0], plans[static_cast<size_t>(rank)]);
  EXPECT_FALSE(plans[0].empty()) << "nothing was ever agreed upon";
}

}  // namespace
}  // namespace niccolite::operations
