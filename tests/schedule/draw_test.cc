#include "schedule/draw.h"

#include <gtest/gtest.h>

#include "schedule/builder.h"

namespace niccolite::schedule {
namespace {

/// The ring of algorithms/all_reduce_ring.cc, written out: this module's tests know nothing above
/// it.
Schedule ring_of_three() {
  Builder builder({.collective = Collective::AllReduce,
                   .algorithm = "ring",
                   .nranks = 3,
                   .nblocks = 3,
                   .partial_sums = true});
  for (int rank = 0; rank < 3; ++rank) {
    LaneBuilder lane = builder.add_lane(rank);
    const Connections next = lane.to((rank + 1) % 3), prev = lane.from((rank + 2) % 3);
    const int first = (rank + 2) % 3, second = (rank + 1) % 3;
    lane.add({.source = input(first), .send_to = next});
    lane.add({.receive_from = prev,
              .source = input(second),
              .source_position = 1,
              .reduce = true,
              .send_to = next});
    lane.add({.receive_from = prev,
              .source = input(rank),
              .source_position = 1,
              .reduce = true,
              .target = output(rank),
              .send_to = next,
              .finish = true});
    lane.add({.receive_from = prev, .target = output(first), .send_to = next});
    lane.add({.receive_from = prev, .target = output(second)});
  }
  return std::move(builder).take();
}

TEST(DrawText, ShowsARingAsPeopleWouldWriteIt) {
  EXPECT_EQ(draw_text(ring_of_three()),
            R"(all_reduce ring: 3 ranks, 3 blocks, 3 connections, partial sums travel
rank 0, channel 0, lane 0
  0  block 2  input                   -> rank 1
  1  block 1  rank 2 + input          -> rank 1
  2  block 0  finish(rank 2 + input)  -> output, rank 1
  3  block 2  rank 2                  -> output, rank 1
  4  block 1  rank 2                  -> output
rank 1, channel 0, lane 0
  0  block 0  input                   -> rank 2
  1  block 2  rank 0 + input          -> rank 2
  2  block 1  finish(rank 0 + input)  -> output, rank 2
  3  block 0  rank 0                  -> output, rank 2
  4  block 2  rank 0                  -> output
rank 2, channel 0, lane 0
  0  block 1  input                   -> rank 0
  1  block 0  rank 1 + input          -> rank 0
  2  block 2  finish(rank 1 + input)  -> output, rank 0
  3  block 1  rank 1                  -> output, rank 0
  4  block 0  rank 1                  -> output
)");
}

TEST(DrawText, ShowsTagsRunsOfRanksScratchAndWeights) {
  Builder builder({.collective = Collective::AllReduce,
                   .algorithm = "sketch",
                   .nranks = 6,
                   .nblocks = 1,
                   .scratch_blocks = 2});
  LaneBuilder lane = builder.add_lane(0, 0, 3);
  const std::vector<int> peers{1, 2, 3, 5};
  lane.add({.receive_from = lane.from(peers),
            .source = input(0),
            .source_position = 3,
            .reduce = true,
            .target = scratch(1)});
  lane.add({.source = scratch(1), .send_to = lane.to(4, 7), .chunk_of = 0});
  EXPECT_EQ(draw_text(std::move(builder).take()),
            R"(all_reduce sketch: 6 ranks, 1 block, 5 connections
rank 0, channel 0, lane 0, weight 3
  0  block 0  ranks 1..3 + input + rank 5  -> scratch 1
  1  block 0  scratch 1                    -> rank 4/7
)");
}

TEST(DrawText, ShowsBrokenInstructionsToo) {
  Builder builder(
      {.collective = Collective::AllReduce, .algorithm = "broken", .nranks = 1, .nblocks = 1});
  builder.add_lane(0).add({.receive_from = {9}, .source = input(3), .source_position = 8});
  EXPECT_EQ(draw_text(std::move(builder).take()),
            R"(all_reduce broken: 1 rank, 1 block, 0 connections
rank 0, channel 0, lane 0
  0  block 3  no connection 9 | input  -> nothing
)");
}

}  // namespace
}  // namespace niccolite::schedule
