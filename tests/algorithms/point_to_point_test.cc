// Point-to-point schedules of any pattern are right, and both ends of a message agree on its
// channel.
#include "algorithms/point_to_point.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "schedule/check.h"

namespace niccolite::algorithms {
namespace {

using schedule::check;
using schedule::Schedule;

using Pattern = std::vector<Envelope>;

std::string describe(const Pattern& pattern) {
  std::string text;
  for (const auto [sender, receiver] : pattern) text += fmt::format("{}>{} ", sender, receiver);
  return text;
}

void expect_right(int nranks, const Pattern& pattern) {
  SCOPED_TRACE(fmt::format("{} ranks: {}", nranks, describe(pattern)));
  const Result<Schedule> built = point_to_point(nranks, pattern);
  ASSERT_TRUE(built.is_ok()) << built.status().message();
  EXPECT_EQ(built.value().messages.size(), pattern.size());
  const Status status = check(built.value(), {.depth = 1});
  EXPECT_TRUE(status.is_ok()) << status.message();
}

TEST(PointToPoint, EveryPatternOfUpToThreeRanksIsRight) {
  for (int nranks = 1; nranks <= 3; ++nranks) {
    const int pairs = nranks * nranks;
    for (int subset = 0; subset < 1 << pairs; ++subset) {
      Pattern pattern;
      for (int pair = 0; pair < pairs; ++pair)
        if ((subset >> pair & 1) != 0) pattern.push_back({pair / nranks, pair % nranks});
      expect_right(nranks, pattern);
    }
  }
}

TEST(PointToPoint, RandomSparsePatternsAreRight) {
  std::mt19937 random(20240811);
  for (int i = 0; i < 200; ++i) {
    const int nranks = static_cast<int>(2 + random() % 40);
    Pattern pattern;
    for (int sender = 0; sender < nranks; ++sender)
      for (int receiver = 0; receiver < nranks; ++receiver)
        if (random() % 16 == 0) pattern.push_back({sender, receiver});
    std::shuffle(pattern.begin(), pattern.end(), random);
    expect_right(nranks, pattern);
  }
}

Pattern everyone_to_everyone(int nranks) {
  Pattern pattern;
  for (int sender = 0; sender < nranks; ++sender)
    for (int receiver = 0; receiver < nranks; ++receiver) pattern.push_back({sender, receiver});
  return pattern;
}

TEST(PointToPoint, EveryoneToEveryoneIsRight) {
  for (const int nranks : {4, 8, 9, 17, 33, 48, 64, 128})
    expect_right(nranks, everyone_to_everyone(nranks));
}

TEST(PointToPoint, SomeOnlySendAndOthersOnlyReceive) {
  Pattern fan_in, fan_out, halves;
  for (int rank = 1; rank < 16; ++rank) {
    fan_in.push_back({rank, 0});
    fan_out.push_back({0, rank});
    halves.push_back({rank / 2, 8 + rank / 2});
    if (halves.size() > 1 && halves.back().sender == halves[halves.size() - 2].sender)
      halves.pop_back();
  }
  expect_right(16, fan_in);
  expect_right(16, fan_out);
  expect_right(16, halves);
}

TEST(PointToPoint, AWorkerMovesOneMessageAndAChannelHasFifteenAtMost) {
  for (const int nranks : {8, 20, 33}) {
    const Schedule schedule = point_to_point(nranks, everyone_to_everyone(nranks)).take();
    for (const auto& channels : schedule.ranks) {
      EXPECT_EQ(channels.size(), static_cast<size_t>(nranks <= 8 ? 1 : 1 + (nranks - 8 + 6) / 7));
      for (const schedule::Channel& channel : channels) {
        EXPECT_LE(channel.workers.size(), 15u);
        for (const schedule::Worker& worker : channel.workers)
          EXPECT_EQ(worker.instructions.size(), 1u);
      }
    }
  }
}

/// What a rank builds from its own messages names the channels and blocks that the whole has.
TEST(PointToPoint, ARankNeedsItsOwnMessagesAlone) {
  std::mt19937 random(7);
  for (int i = 0; i < 50; ++i) {
    const int nranks = static_cast<int>(2 + random() % 30);
    Pattern pattern;
    for (int sender = 0; sender < nranks; ++sender)
      for (int receiver = 0; receiver < nranks; ++receiver)
        if (random() % 4 == 0) pattern.push_back({sender, receiver});
    const Schedule whole = point_to_point(nranks, pattern).take();
    for (int rank = 0; rank < nranks; ++rank) {
      Pattern own;
      for (const Envelope& e : pattern)
        if (e.sender == rank || e.receiver == rank) own.push_back(e);
      const Schedule part = point_to_point(nranks, own, {.only_rank = rank}).take();
      EXPECT_EQ(part.messages.size(), own.size());
      EXPECT_EQ(input_blocks(part, rank), input_blocks(whole, rank));
      EXPECT_EQ(output_blocks(part, rank), output_blocks(whole, rank));
      const auto& there = whole.ranks[static_cast<size_t>(rank)];
      const auto& here = part.ranks[static_cast<size_t>(rank)];
      for (size_t channel = 0; channel < there.size(); ++channel) {
        const size_t workers = channel < here.size() ? here[channel].workers.size() : 0;
        ASSERT_EQ(workers, there[channel].workers.size());
        for (size_t worker = 0; worker < workers; ++worker) {
          const schedule::Instruction& a = here[channel].workers[worker].instructions[0];
          const schedule::Instruction& b = there[channel].workers[worker].instructions[0];
          EXPECT_EQ(a.source, b.source);
          EXPECT_EQ(a.target, b.target);
        }
      }
    }
  }
}

TEST(PointToPoint, RefusesStrangersAndTwoMessagesOfOnePair) {
  for (const Pattern& pattern :
       std::vector<Pattern>{{{0, 4}}, {{-1, 0}}, {{1, 2}, {0, 3}, {1, 2}}, {{2, 2}, {2, 2}}}) {
    const Result<Schedule> built = point_to_point(4, pattern);
    ASSERT_FALSE(built.is_ok()) << describe(pattern);
    EXPECT_EQ(built.status().code(), Code::InvalidArgument);
  }
}

}  // namespace
}  // namespace niccolite::algorithms
