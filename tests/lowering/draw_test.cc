#include "lowering/draw.h"

#include <gtest/gtest.h>

#include "planner/form.h"

namespace niccolite::lowering {
namespace {

using schedule::Collective;

TEST(Draw, SaysHowTheBytesOfEachWorkerGo) {
  const schedule::Schedule schedule =
      planner::find_form(Collective::Reduce, "two_shot_workers")->build(2, {}).take();
  EXPECT_EQ(draw_text(lower(schedule, {.pulls = false}).take()),
            R"(connections of tag 0: get
connections of tag 1: put, final
rank 0, channel 0, worker 0: bulk copies, fixed tiles
  advertise           rank 1: input 0
  move                input 0 -> rank 1 (get)
  await release       rank 1
rank 0, channel 0, worker 1: bulk copies, fixed tiles
  advertise           rank 1/1: output 0
  await arrival       rank 1/1
  move                rank 1 (put) -> output 0
rank 1, channel 0, worker 0: threads, dynamic tiles
  take advertisement  rank 0/1
  take advertisement  rank 0
  move                finish(rank 0 (get) + input 0) -> rank 0 (put)
  release             rank 0
  announce            rank 0/1)");
}

}  // namespace
}  // namespace niccolite::lowering
