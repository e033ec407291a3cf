// What plans ask of machines, counted by hand.
#include "lowering/demand.h"

#include <gtest/gtest.h>

#include "planner/form.h"

namespace niccolite::lowering {
namespace {

using schedule::Collective;
using schedule::Schedule;

Schedule schedule_of(Collective collective, const char* algorithm, int nranks,
                     std::vector<int> machines = {}) {
  algorithms::Options options;
  options.machines = std::move(machines);
  return planner::find_form(collective, algorithm)->build(nranks, options).value();
}

Demand direct_demand(const Schedule& schedule) {
  const Capabilities capabilities{.facilities = {.has_bulk_copies = true,
                                                 .has_stages = true,
                                                 .reduces = reduces(schedule.collective)}};
  return demand_of(lower(schedule, capabilities).value(), {}).value();
}

TEST(Demand, OfSlotsCountsBothSidesOfEach) {
  const Schedule schedule = schedule_of(Collective::AllReduce, "two_shot", 4);
  const Demand demand = demand_of(schedule, {}).value();
  EXPECT_EQ(demand.load.blocks, 4);
  EXPECT_EQ(demand.load.link, 6 / 4.0);  // 3 blocks pushed, 3 sums
  EXPECT_EQ(demand.chain.slots, 2);
  EXPECT_EQ(demand.chain.hops(), 2);
  const Work& work = demand.work;
  EXPECT_EQ(work.moved.slot_copies, 12 / 4.0);     // 3 pushes, 3 gathers, each read and written
  EXPECT_EQ(work.moved.slot_reductions, 8 / 4.0);  // 4 operands, 4 destinations
  EXPECT_EQ(work.moved.direct_copies + work.moved.direct_reductions, 0);
  EXPECT_EQ(work.instructions, 7);
  EXPECT_EQ(work.workers, 3);
  EXPECT_EQ(work.slot_instructions, 3);
  EXPECT_EQ(work.dynamic, 0);
}

// N ranks reduce S bytes: each link carries (1 + 1/N) S each way by a switch, and 2 (N - 1)/N S by
// a ring, or directly.
TEST(Demand, OfATeamCountsWhatTheSwitchCarriesOnce) {
  for (const int nranks : {3, 4, 8}) {
    const Schedule two_shot = schedule_of(Collective::AllReduce, "two_shot", nranks);
    const Demand demand = demand_of(lower(two_shot, {.has_team = true}).value(), {}).value();
    EXPECT_DOUBLE_EQ(demand.load.team, 1 + 1.0 / nranks);
    EXPECT_EQ(demand.load.link, 0);
    EXPECT_DOUBLE_EQ(direct_demand(two_shot).load.link, 2.0 * (nranks - 1) / nranks);
    EXPECT_EQ(demand.chain.slots, 2);
    const Schedule gather = schedule_of(Collective::AllGather, "direct", nranks);
    const Demand of_gather = demand_of(lower(gather, {.has_team = true}).value(), {}).value();
    EXPECT_DOUBLE_EQ(of_gather.load.team, nranks);  // blocks that come, the own one among them
    const Schedule scatter = schedule_of(Collective::ReduceScatter, "direct", nranks);
    const Demand of_scatter = demand_of(lower(scatter, {.has_team = true}).value(), {}).value();
    EXPECT_DOUBLE_EQ(of_scatter.load.team, nranks);
  }
}

// A word leaves a rank once, and comes to every rank, the storing one included.
TEST(Demand, OfWordsByATeamCountsOneStoreForAll) {
  for (const int nranks : {2, 3, 8, 16}) {
    const Schedule one_shot = schedule_of(Collective::AllReduce, "one_shot", nranks);
    const Capabilities words{.facilities = {.publishes_chunks = false}, .has_team = true};
    const Demand demand = demand_of(lower(one_shot, words).value(), {}).value();
    EXPECT_DOUBLE_EQ(demand.load.team, nranks);
    EXPECT_EQ(demand.load.link, 0);
    const Demand direct = demand_of(one_shot, {}).value();
    EXPECT_DOUBLE_EQ(direct.load.link, nranks - 1);
    // The others' stores: one access less for each.
    EXPECT_DOUBLE_EQ(direct.work.moved.slot_copies - demand.work.moved.slot_copies, nranks - 2);
    EXPECT_DOUBLE_EQ(demand.work.moved.slot_reductions, direct.work.moved.slot_reductions);
  }
}

// S bytes of an all-reduce: through slots a GPU's threads read its input and the results in slots,
// and write its operands to slots and the output. In windows they write nothing but one result for
// all, and read nothing but one reduction of all.
TEST(Demand, OfATeamOnWindowsHasNoCopies) {
  for (const int nranks : {3, 8}) {
    const Schedule two_shot = schedule_of(Collective::AllReduce, "two_shot_workers", nranks);
    const AccessPlan plan = lower(two_shot, {.has_team = true, .has_windows = true}).value();
    const Demand demand = demand_of(plan, {}).value();
    EXPECT_DOUBLE_EQ(demand.load.team, 1 + 1.0 / nranks);
    EXPECT_EQ(demand.work.moved.slot_copies, 0);
    EXPECT_EQ(demand.work.moved.slot_reductions, 0);
    EXPECT_EQ(demand.work.moved.direct_copies, 0);
    EXPECT_NEAR(demand.work.moved.direct_reductions, 3.0 / nranks, 1e-9);
  }
}

// Who reduces has more to do than who sends, with as many threads; who does both has all.
TEST(Demand, OfWorkersSaysWhichShareOfTheThreadsMovesWhat) {
  const Demand two =
      demand_of(schedule_of(Collective::ReduceScatter, "direct_workers", 2), {}).value();
  ASSERT_EQ(two.work.by_worker.size(), 2u);
  const WorkerMoved& sends = two.work.by_worker[0];
  const WorkerMoved& reduces = two.work.by_worker[1];
  EXPECT_EQ(sends.share, 0.5);
  EXPECT_EQ(reduces.share, 0.5);
  EXPECT_EQ(sends.channel, reduces.channel);
  EXPECT_EQ(sends.moved.slot_copies, 2);
  EXPECT_EQ(reduces.moved.slot_reductions, 3);
  const Demand one = demand_of(schedule_of(Collective::ReduceScatter, "ring", 2), {}).value();
  ASSERT_EQ(one.work.by_worker.size(), 1u);
  EXPECT_EQ(one.work.by_worker[0].share, 1);
  EXPECT_EQ(one.work.moved.bytes(), two.work.moved.bytes());
}

TEST(Demand, OfDirectAccessesIsWhatOneSideMoves) {
  // Each rank puts its block to 3 others and copies it to its own output; nobody reads a slot.
  const Demand gather = direct_demand(schedule_of(Collective::AllGather, "direct_workers", 4));
  EXPECT_EQ(gather.work.moved.slot_copies, 0);
  EXPECT_GT(gather.work.moved.direct_copies, 0);
  EXPECT_LT(gather.work.moved.direct_copies,
            demand_of(schedule_of(Collective::AllGather, "direct_workers", 4), {})
                .value()
                .work.moved.slot_copies);
  EXPECT_EQ(gather.chain.puts, 1);
  EXPECT_EQ(gather.chain.slots, 0);
  EXPECT_EQ(gather.work.slot_instructions, 0);

  // An owner gets what it reduces, and puts the sums.
  const Demand reduce = direct_demand(schedule_of(Collective::AllReduce, "two_shot_workers", 4));
  EXPECT_EQ(reduce.work.moved.slot_copies + reduce.work.moved.slot_reductions, 0);
  EXPECT_EQ(reduce.work.moved.direct_copies, 0);
  EXPECT_EQ(reduce.work.moved.direct_reductions, 8 / 4.0);
  EXPECT_EQ(reduce.work.workers, 1);
  EXPECT_EQ(reduce.work.dynamic, 1);
  EXPECT_EQ(reduce.chain.gets, 1);
  EXPECT_EQ(reduce.chain.puts, 1);
}

TEST(Demand, TellsHopsBetweenMachinesFromThoseInside) {
  const std::vector<int> machines{0, 0, 1, 1};
  const Demand demand =
      demand_of(schedule_of(Collective::AllGather, "ring", 4, machines), machines).value();
  EXPECT_EQ(demand.chain.hops(), 3);
  EXPECT_EQ(demand.chain.between, 2);  // the longest chain crosses both wires
  EXPECT_EQ(demand.load.wire, 3);
}

TEST(Demand, GrowsWithTheRanksAsAlgorithmsSay) {
  for (const int nranks : {2, 5, 8}) {
    EXPECT_EQ(demand_of(schedule_of(Collective::AllReduce, "ring", nranks), {}).value().chain.slots,
              2 * (nranks - 1));
    EXPECT_EQ(
        demand_of(schedule_of(Collective::Broadcast, "direct", nranks), {}).value().chain.slots, 1);
  }
}

}  // namespace
}  // namespace niccolite::lowering
