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
  WorkerBuilder sender = builder.add_worker(0), receiver = builder.add_worker(1);
  EXPECT_EQ(sender.to(1), receiver.from(0));
  EXPECT_EQ(std::move(builder).take().connections.size(), 1u);
}

TEST(Builder, DirectionTagAndChannelTellConnectionsApart) {
  Builder builder = builder_of(2);
  WorkerBuilder worker = builder.add_worker(0), other_channel = builder.add_worker(0, 1);
  EXPECT_THAT(worker.to(1), ElementsAre(0));
  EXPECT_THAT(worker.from(1), ElementsAre(1));
  EXPECT_THAT(worker.to(1, 5), ElementsAre(2));
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
  WorkerBuilder worker = builder.add_worker(0);
  const std::vector<int> peers{3, 1, 2};
  EXPECT_THAT(worker.to(peers), ElementsAre(0, 1, 2));
  EXPECT_THAT(worker.to(1), ElementsAre(1));
  EXPECT_THAT(worker.to(3), ElementsAre(0));
}

TEST(Builder, WorkersAndInstructionsStandInOrderOfAddition) {
  Builder builder = builder_of(2);
  WorkerBuilder first = builder.add_worker(1), second = builder.add_worker(1, 0, 7);
  second.add({.source = input(1), .target = output(1)});
  first.add({.source = input(0), .target = output(0)});
  first.add({.source = scratch(0), .target = output(0)});
  const Schedule schedule = std::move(builder).take();
  ASSERT_EQ(schedule.ranks.size(), 2u);
  EXPECT_TRUE(schedule.ranks[0].empty());
  const std::vector<Worker>& workers = schedule.ranks[1][0].workers;
  ASSERT_EQ(workers.size(), 2u);
  EXPECT_EQ(workers[1].weight, 7);
  ASSERT_EQ(workers[0].instructions.size(), 2u);
  EXPECT_EQ(workers[0].instructions[0].source, input(0));
  EXPECT_EQ(workers[0].instructions[1].source, scratch(0));
  EXPECT_EQ(workers[1].instructions[0].source, input(1));
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
  EXPECT_EQ(describe({.rank = 2, .channel = 0, .worker = 1, .instruction = 3}),
            "rank 2 channel 0 worker 1 instruction 3");
}

}  // namespace
}  // namespace niccolite::schedule
