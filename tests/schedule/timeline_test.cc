#include "schedule/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schedule/builder.h"

namespace niccolite::schedule {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Rank 0 sends blocks 1 and 2; rank 1 passes block 1 on; rank 2 takes both.
Schedule relay() {
  Builder builder({.collective = Collective::Scatter,
                   .algorithm = "sketch",
                   .nranks = 3,
                   .nblocks = 3,
                   .scratch_blocks = 1});
  WorkerBuilder root = builder.add_worker(0), middle = builder.add_worker(1),
                last = builder.add_worker(2);
  root.add({.source = input(2), .send_to = root.to(1)});
  root.add({.source = input(1), .send_to = root.to(1)});
  middle.add({.receive_from = middle.from(0), .target = scratch(0)});
  middle.add({.receive_from = middle.from(0), .target = output(0)});
  middle.add({.source = scratch(0), .send_to = middle.to(2)});
  last.add({.receive_from = last.from(1), .target = output(0)});
  return std::move(builder).take();
}

const Event& event_at(const Timeline& timeline, int rank, int instruction) {
  for (const Event& event : timeline.events)
    if (event.position.rank == rank && event.position.instruction == instruction) return event;
  ADD_FAILURE() << "no event for rank " << rank << " instruction " << instruction;
  return timeline.events.front();
}

TEST(Timeline, AnInstructionRunsAfterItsWorkerAndItsChunks) {
  const Timeline t = timeline(relay()).take();
  ASSERT_EQ(t.events.size(), 6u);
  EXPECT_EQ(event_at(t, 0, 0).step, 0);
  EXPECT_EQ(event_at(t, 0, 1).step, 1);
  EXPECT_EQ(event_at(t, 1, 0).step, 1);
  EXPECT_EQ(event_at(t, 1, 1).step, 2);
  EXPECT_EQ(event_at(t, 1, 2).step, 3);
  EXPECT_EQ(event_at(t, 2, 0).step, 4);
  EXPECT_EQ(t.steps, 5);
}

TEST(Timeline, LatenciesCountChunksOnly) {
  const Timeline t = timeline(relay()).take();
  EXPECT_EQ(event_at(t, 0, 1).latency, 0);
  EXPECT_EQ(event_at(t, 1, 1).latency, 1);
  EXPECT_EQ(event_at(t, 2, 0).latency, 2);
  EXPECT_EQ(t.latencies, 2);
}

TEST(Timeline, DataKeepTheirOriginThroughScratch) {
  const Timeline t = timeline(relay()).take();
  EXPECT_EQ(event_at(t, 1, 1).data, (Data{0, 1}));
  EXPECT_EQ(event_at(t, 1, 2).data, (Data{0, 2}));
  EXPECT_EQ(event_at(t, 2, 0).data, (Data{0, 2}));
}

TEST(Timeline, CausesAreTheEventsThatSent) {
  const Timeline t = timeline(relay()).take();
  const Event& last = event_at(t, 2, 0);
  ASSERT_EQ(last.causes.size(), 1u);
  EXPECT_EQ(t.events[static_cast<size_t>(last.causes[0])].position.rank, 1);
  EXPECT_THAT(event_at(t, 0, 0).causes, ElementsAre());
}

TEST(Timeline, OfAScheduleThatWaitsForItselfThereIsNone) {
  Builder builder(
      {.collective = Collective::AllToAll, .algorithm = "sketch", .nranks = 2, .nblocks = 2});
  for (int rank = 0; rank < 2; ++rank) {
    WorkerBuilder worker = builder.add_worker(rank);
    worker.add({.receive_from = worker.from(1 - rank), .target = output(1 - rank)});
    worker.add({.source = input(1 - rank), .send_to = worker.to(1 - rank)});
  }
  const Result<Timeline> circle = timeline(std::move(builder).take());
  ASSERT_FALSE(circle.is_ok());
  EXPECT_EQ(circle.status().message(),
            "rank 0 channel 0 worker 0 instruction 0 never has all the chunks that it waits for");
  Schedule schedule = relay();
  schedule.ranks[1][0].workers[0].instructions.pop_back();
  const Result<Timeline> unbalanced = timeline(schedule);
  ASSERT_FALSE(unbalanced.is_ok());
  EXPECT_THAT(unbalanced.status().message(), HasSubstr("that is never sent"));
}

TEST(BlocksSent, CountsEachDestination) {
  EXPECT_EQ(blocks_sent(relay(), 0), 2);
  EXPECT_EQ(blocks_sent(relay(), 1), 1);
  EXPECT_EQ(blocks_sent(relay(), 2), 0);
}

}  // namespace
}  // namespace niccolite::schedule
