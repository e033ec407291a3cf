// What the comment at the top of each algorithm claims: instructions and bytes per rank, smallest
// FIFO depth, fold order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "algorithms/registry.h"
#include "schedule/check.h"

namespace niccolite::algorithms {
namespace {

using schedule::check;
using schedule::Collective;
using schedule::Instruction;
using schedule::Schedule;
using testing::HasSubstr;

struct Claim {
  const char* algorithm;
  int (*instructions)(int n);  // per rank
  int (*blocks)(int n);
  int (*blocks_sent)(int n);  // per rank; a block is 1/blocks of the data
  int lanes;
  int smallest_depth;
  bool partial_sums;
};
void PrintTo(const Claim& claim, std::ostream* out) { *out << claim.algorithm; }

const Claim kClaims[] = {
    {.algorithm = "ring",
     .instructions = [](int n) { return 2 * n - 1; },
     .blocks = [](int n) { return n; },
     .blocks_sent = [](int n) { return 2 * (n - 1); },
     .lanes = 1,
     .smallest_depth = 2,
     .partial_sums = true},
    {.algorithm = "one_shot",
     .instructions = [](int) { return 2; },
     .blocks = [](int) { return 1; },
     .blocks_sent = [](int n) { return n - 1; },
     .lanes = 1,
     .smallest_depth = 1,
     .partial_sums = false},
    {.algorithm = "two_shot",
     .instructions = [](int n) { return 2 * n - 1; },
     .blocks = [](int n) { return n; },
     .blocks_sent = [](int n) { return 2 * (n - 1); },
     .lanes = 3,
     .smallest_depth = 1,
     .partial_sums = false},
    {.algorithm = "two_shot_lane",
     .instructions = [](int n) { return 2 * n - 1; },
     .blocks = [](int n) { return n; },
     .blocks_sent = [](int n) { return 2 * (n - 1); },
     .lanes = 1,
     .smallest_depth = 1,
     .partial_sums = false},
};

class Claims : public testing::TestWithParam<Claim> {
 protected:
  static Schedule build(int nranks) {
    return find(Collective::AllReduce, GetParam().algorithm)->build(nranks, {}).take();
  }
};

TEST_P(Claims, InstructionsAndBlocksSentPerRank) {
  for (const int n : {2, 3, 4, 7, 16}) {
    const Schedule schedule = build(n);
    EXPECT_EQ(schedule.nblocks, GetParam().blocks(n)) << n;
    EXPECT_EQ(schedule.partial_sums, GetParam().partial_sums);
    for (int rank = 0; rank < n; ++rank) {
      SCOPED_TRACE(fmt::format("rank {} of {}", rank, n));
      const auto& channels = schedule.ranks.at(static_cast<size_t>(rank));
      ASSERT_EQ(channels.size(), 1u);
      EXPECT_EQ(channels[0].lanes.size(), static_cast<size_t>(GetParam().lanes));
      size_t instructions = 0, sent = 0;
      for (const schedule::Lane& lane : channels[0].lanes) {
        instructions += lane.instructions.size();
        for (const Instruction& instruction : lane.instructions) sent += instruction.send_to.size();
      }
      EXPECT_EQ(instructions, static_cast<size_t>(GetParam().instructions(n)));
      EXPECT_EQ(sent, static_cast<size_t>(GetParam().blocks_sent(n)));
    }
  }
}

TEST_P(Claims, SmallestDepthRunsAndOneLessDeadlocks) {
  for (const int n : {2, 3, 4, 9, 32}) {
    const Schedule schedule = build(n);
    for (int depth = GetParam().smallest_depth; depth <= 8; ++depth) {
      const Status status = check(schedule, {.depth = depth});
      EXPECT_TRUE(status.is_ok()) << n << " ranks, depth " << depth << ": " << status.message();
    }
    if (GetParam().smallest_depth == 1) continue;  // there is nothing less
    const Status status = check(schedule, {.depth = GetParam().smallest_depth - 1});
    ASSERT_FALSE(status.is_ok()) << n;
    EXPECT_THAT(status.message(), HasSubstr(fmt::format("deadlock with FIFOs of {} slot",
                                                        GetParam().smallest_depth - 1)));
  }
}

TEST_P(Claims, OneRankCopiesItsInputAndFinishes) {
  const Schedule schedule = build(1);
  EXPECT_TRUE(check(schedule, {.depth = 1}).is_ok());
  ASSERT_EQ(schedule.ranks[0][0].lanes.size(), 1u);
  ASSERT_EQ(schedule.ranks[0][0].lanes[0].instructions.size(), 1u);
  EXPECT_TRUE(schedule.ranks[0][0].lanes[0].instructions[0].finish);
  EXPECT_TRUE(schedule.connections.empty());
}

TEST(ClaimTable, HasARowForEachAlgorithm) {
  ASSERT_EQ(std::size(kClaims), all().size());
  for (size_t i = 0; i < all().size(); ++i) EXPECT_STREQ(kClaims[i].algorithm, all()[i].name);
}

TEST(Ring, AtDepthOneEveryRankWaitsForCreditOfTheNext) {
  const Schedule schedule = find(Collective::AllReduce, "ring")->build(3, {}).take();
  EXPECT_EQ(check(schedule, {.depth = 1}).message(),
            "deadlock with FIFOs of 1 slot: "
            "rank 0 channel 0 lane 0 instruction 1 waits for credit from rank 1; "
            "rank 1 channel 0 lane 0 instruction 1 waits for credit from rank 2; "
            "rank 2 channel 0 lane 0 instruction 1 waits for credit from rank 0; "
            "and so round to the first");
}

/// Peers are addressed in turns: at no place of their lists do two ranks send to the same peer.
TEST(OneShot, SpreadsItsSendsOverTheReceivers) {
  const Schedule schedule = find(Collective::AllReduce, "one_shot")->build(8, {}).take();
  for (size_t place = 0; place < 7; ++place) {
    std::vector<int> receivers;
    for (const auto& channels : schedule.ranks) {
      const int connection = channels[0].lanes[0].instructions[0].send_to.at(place);
      receivers.push_back(schedule.connections[static_cast<size_t>(connection)].receiver);
    }
    EXPECT_THAT(receivers, testing::UnorderedElementsAre(0, 1, 2, 3, 4, 5, 6, 7)) << place;
  }
}

TEST(TwoShot, GivesItsLanesTheWeightsAskedFor) {
  const Schedule schedule =
      find(Collective::AllReduce, "two_shot")->build(4, {.weights = {1, 5, 2}}).take();
  for (const auto& channels : schedule.ranks) {
    EXPECT_EQ(channels[0].lanes[0].weight, 1);
    EXPECT_EQ(channels[0].lanes[1].weight, 5);
    EXPECT_EQ(channels[0].lanes[2].weight, 2);
  }
}

INSTANTIATE_TEST_SUITE_P(Registry, Claims, testing::ValuesIn(kClaims),
                         [](const testing::TestParamInfo<Claim>& test) {
                           return std::string(test.param.algorithm);
                         });

}  // namespace
}  // namespace niccolite::algorithms
