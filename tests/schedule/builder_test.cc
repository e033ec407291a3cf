#include "schedule/builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace niccolite::schedule {
namespace {

using testing::ElementsAre;

Builder builder_of(int nranks) {
  return Builder({.collective = Collective::AllReduce,
                  .algorithm = "sketch",
                  .nranks = nranks,
                  .nblocks = nranks});
}

TEST(Builder, BothEndsNameTheSameConnection) {
  Builder builder = builder_of(2);
  LaneBuilder sender = builder.add_lane(0), receiver = builder.add_lane(1);
  EXPECT_EQ(sender.to(1), receiver.from(0));
  EXPECT_EQ(std::move(builder).take().connections.size(), 1u);
}

TEST(Builder, DirectionTagAndChannelTellConnectionsApart) {
  Builder builder = builder_of(2);
  LaneBuilder lane = builder.add_lane(0), other_channel = builder.add_lane(0, 1);
  EXPECT_THAT(lane.to(1), ElementsAre(0));
  EXPECT_THAT(lane.from(1), ElementsAre(1));
  EXPECT_THAT(lane.to(1, 5), ElementsAre(2));
  EXPECT_THAT(other_channel.to(1), ElementsAre(3));
  const Schedule schedule = std::move(builder).take();
  ASSERT_EQ(schedule.connections.size(), 4u);
  EXPECT_EQ(schedule.connections[1].sender, 1);
  EXPECT_EQ(schedule.connections[1].receiver, 0);
  EXPECT_EQ(schedule.connections[2].tag, 5);
  EXPECT_EQ(schedule.connections[3].channel, 1);
}

TEST(Builder, ListsOfPeersKeepTheirOrder) {
  Builder builder = builder_of(4);
  LaneBuilder lane = builder.add_lane(0);
  const std::vector<int> peers{3, 1, 2};
  EXPECT_THAT(lane.to(peers), ElementsAre(0, 1, 2));
  EXPECT_THAT(lane.to(1), ElementsAre(1));
  EXPECT_THAT(lane.to(3), ElementsAre(0));
}

TEST(Builder, LanesAndInstructionsStandInOrderOfAddition) {
  Builder builder = builder_of(2);
  LaneBuilder first = builder.add_lane(1), second = builder.add_lane(1, 0, 7);
  second.add({.source = input(1), .target = output(1)});
  first.add({.source = input(0), .target = output(0)});
  first.add({.source = scratch(0), .target = output(0)});
  const Schedule schedule = std::move(builder).take();
  ASSERT_EQ(schedule.ranks.size(), 2u);
  EXPECT_TRUE(schedule.ranks[0].empty());
  const std::vector<Lane>& lanes = schedule.ranks[1][0].lanes;
  ASSERT_EQ(lanes.size(), 2u);
  EXPECT_EQ(lanes[1].weight, 7);
  ASSERT_EQ(lanes[0].instructions.size(), 2u);
  EXPECT_EQ(lanes[0].instructions[0].source, input(0));
  EXPECT_EQ(lanes[0].instructions[1].source, scratch(0));
  EXPECT_EQ(lanes[1].instructions[0].source, input(1));
}

TEST(ChunkBlock, IsNamedOrThatOfTheSourceOrThatOfTheTarget) {
  EXPECT_EQ(chunk_block({.source = input(1), .target = output(2), .chunk_of = 3}), 3);
  EXPECT_EQ(chunk_block({.source = input(1), .target = output(2)}), 1);
  EXPECT_EQ(chunk_block({.target = output(2)}), 2);
  EXPECT_EQ(chunk_block({}), -1);
}

TEST(Names, AreThoseOfMessages) {
  EXPECT_STREQ(name_of(Buffer::Scratch), "scratch");
  EXPECT_STREQ(name_of(Collective::AllReduce), "all_reduce");
  EXPECT_EQ(describe({.rank = 2, .channel = 0, .lane = 1, .instruction = 3}),
            "rank 2 channel 0 lane 1 instruction 3");
}

}  // namespace
}  // namespace niccolite::schedule
