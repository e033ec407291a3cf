// Random right schedules through the lowering and the host executor, bit for bit against a
// reference. A failure prints its seed: NICCOLITE_RANDOM_SEED=<seed> replays it alone,
// NICCOLITE_RANDOM_PROGRAMS=<n> runs more or fewer.
#include <gtest/gtest.h>

#include <bit>
#include <random>

#include "executor/report.h"
#include "lowering/check.h"
#include "schedule/file.h"
#include "schedule/index.h"
#include "tests/executor/host/cluster.h"
#include "tests/executor/host/operands.h"
#include "tests/schedule/random_schedule.h"

namespace niccolite::executor::host {
namespace {

constexpr uint32_t kUsual = 1000;

void run(const schedule::RandomSchedule& drawn, std::mt19937& random) {
  const auto below = [&](uint32_t bound) { return static_cast<uint32_t>(random() % bound); };
  const schedule::Schedule& schedule = drawn.schedule;
  const int n = schedule.nranks;
  const Reduction reductions[] = {
      {.op = ReduceOp::Sum},
      {.op = ReduceOp::Product},
      {.op = ReduceOp::Max},
      {.op = ReduceOp::Min},
      {.op = ReduceOp::Sum, .finish_scale = 1.0 / n, .finish_divisor = n},
      {.op = ReduceOp::Sum, .input_scale = 0.5, .input_factor = 3}};
  const Protocol protocol = kAllProtocols[below(3)];
  DataType type = DataType::Uint8;
  Reduction reduction;
  if (schedule::reduces(schedule.collective)) {
    type = static_cast<DataType>(below(kDataTypes));
    reduction = reductions[below(std::size(reductions))];
  }
  const auto pattern_channels = static_cast<uint32_t>(schedule.ranks[0].size());
  Cluster cluster(schedule, protocol,
                  {.channels = pattern_channels * (1 + below(2)),
                   .depth = std::bit_ceil(static_cast<uint32_t>(std::max(drawn.least_depth, 2))),
                   .slot_bytes = protocol == Protocol::Simple ? 128u : 256u});
  cluster.open_ranks = below(3) == 0 ? 0 : below(2) == 0 ? ~0u : below(64);
  // Two operations, since the second one finds the connections as the first one left them.
  for (int operation = 0; operation < 2; ++operation) {
    const uint64_t count = below(4) == 0 ? below(8) : below(1500);
    const Operands operands(
        schedule, type, {count},
        {.is_in_place = below(2) == 0, .is_misaligned = below(2) == 0, .reduction = reduction});
    auto tasks = cluster.tasks(cluster.launches({.count = count,
                                                 .type = type,
                                                 .reduction = reduction,
                                                 .tag = static_cast<uint16_t>(random())},
                                                operands.addresses()));
    SCOPED_TRACE(testing::Message() << name_of(protocol) << ", " << name_of(type) << ", " << count
                                    << " elements, operation " << operation);
    if (below(8) == 0)
      Cluster::run_threaded(std::move(tasks), 2);
    else
      ASSERT_TRUE(Cluster::run(std::move(tasks), below(1 << 20))) << "all ranks wait";
    ASSERT_NO_FATAL_FAILURE(operands.check());
    ASSERT_TRUE(cluster.guards_intact());
    ASSERT_TRUE(cluster.counters_consistent(/*has_advertisements=*/protocol == Protocol::Simple));
    ASSERT_NE(decode_report(cluster.control.report).kind, ReportKind::Mismatch);
  }
}

TEST(RandomSchedules, GiveEveryRankTheResultBitForBit) {
  for (uint32_t i = 0; i < schedule::random_programs(kUsual); ++i) {
    const uint32_t seed = schedule::first_random_seed() + i;
    std::mt19937 random(seed);
    const schedule::RandomSchedule drawn = schedule::random_schedule(random);
    SCOPED_TRACE(testing::Message() << "seed " << seed << "\n" << to_file(drawn.schedule));
    const Status lowered = lowering::check_all(
        drawn.schedule, {.depth = drawn.least_depth, .with_aborts = i % 16 == 0}, seed);
    ASSERT_TRUE(lowered.is_ok()) << lowered.message();
    ASSERT_NO_FATAL_FAILURE(run(drawn, random));
  }
}

}  // namespace
}  // namespace niccolite::executor::host
