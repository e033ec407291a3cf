// Whole collectives through the host executor, bit for bit against a reference: every algorithm of
// the registry, protocol, type and reduction, over ranks, roots, sizes, depths, channels,
// alignments, in and out of place.
#include <gtest/gtest.h>

#include <ostream>

#include "executor/report.h"
#include "planner/form.h"
#include "tests/executor/host/cluster.h"
#include "tests/executor/host/operands.h"
#include "tests/executor/host/sanitizers.h"
#include "tests/executor/host/scratch_schedule.h"

namespace niccolite::executor::host {
namespace {

using schedule::Collective;

struct Case {
  Protocol protocol = Protocol::Simple;
  DataType type = DataType::Uint8;
  Reduction reduction{};
  uint64_t count = 0;
  uint32_t depth = 2;
  uint32_t channels = 1;
  bool is_in_place = false;
  bool is_misaligned = false;
  int threads = 0;  // 0: one thread, random order
  uint32_t seed = 1;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << name_of(c.protocol) << ", " << name_of(c.type) << " reduce "
             << static_cast<int>(c.reduction.op) << " scale " << c.reduction.input_scale
             << " finish " << c.reduction.finish_scale << ", " << c.count << " elements, depth "
             << c.depth << ", " << c.channels << " channels" << (c.is_in_place ? ", in place" : "")
             << (c.is_misaligned ? ", misaligned" : "") << ", " << c.threads << " threads, seed "
             << c.seed;
}

void run(Cluster& cluster, const Case& c) {
  SCOPED_TRACE(testing::Message() << c);
  // Data through slots, or wherever that is possible not.
  cluster.open_ranks = c.seed % 3 == 0 ? 0 : c.seed % 3 == 1 ? ~0u : c.seed;
  const Operands operands(
      cluster.schedule(), c.type, {c.count},
      {.is_in_place = c.is_in_place, .is_misaligned = c.is_misaligned, .reduction = c.reduction});
  auto tasks = cluster.tasks(cluster.launches({.count = c.count,
                                               .type = c.type,
                                               .reduction = c.reduction,
                                               .tag = static_cast<uint16_t>(c.seed * 40503)},
                                              operands.addresses()));
  if (c.threads > 0) {
    Cluster::run_threaded(std::move(tasks), c.threads);
  } else {
    ASSERT_TRUE(Cluster::run(std::move(tasks), c.seed)) << "all ranks wait for each other";
  }
  ASSERT_NO_FATAL_FAILURE(operands.check());
  ASSERT_TRUE(cluster.guards_intact());
  ASSERT_TRUE(cluster.counters_consistent(/*has_advertisements=*/c.protocol == Protocol::Simple));
  // On a busy machine threads may have waited for so long that they say so.
  ASSERT_NE(decode_report(cluster.control.report).kind, ReportKind::Mismatch);
}

// Slots of 128 bytes of data, but for LL128: of 240, two lines and a part of none.
FifoShape shape_of(const Case& c) {
  return {.channels = c.channels,
          .depth = c.depth,
          .slot_bytes = c.protocol == Protocol::Simple ? 128u : 256u};
}

// Exact for the numbers of Operands.
std::vector<Reduction> reductions(int nranks) {
  return {{.op = ReduceOp::Sum},
          {.op = ReduceOp::Product},
          {.op = ReduceOp::Max},
          {.op = ReduceOp::Min},
          {.op = ReduceOp::Sum, .finish_scale = 1.0 / nranks, .finish_divisor = nranks},
          {.op = ReduceOp::Sum, .input_scale = 0.5, .input_factor = 3}};
}

struct Group {
  const planner::Form* algorithm;
  int nranks;
  Protocol protocol;
};

std::vector<Group> groups() {
  std::vector<Group> groups;
  for (const planner::Form& algorithm : planner::forms()) {
    for (const int nranks : {1, 2, 3, 4, 5, 8}) {
      if (nranks < algorithm.min_ranks || nranks > algorithm.max_ranks) continue;
      for (const Protocol protocol : kAllProtocols)
        groups.push_back({&algorithm, nranks, protocol});
    }
  }
  return groups;
}

std::string name_of_group(const testing::TestParamInfo<Group>& info) {
  const Group& group = info.param;
  return std::string(schedule::name_of(group.algorithm->collective)) + "_" + group.algorithm->name +
         "_" + std::to_string(group.nranks) + "_" + name_of(group.protocol);
}

class Collectives : public testing::TestWithParam<Group> {
 protected:
  schedule::Schedule build(uint32_t turn) const {
    const int root = static_cast<int>(turn % static_cast<uint32_t>(GetParam().nranks));
    algorithms::Options options;
    if (schedule::has_root(GetParam().algorithm->collective)) options.root = root;
    auto schedule = GetParam().algorithm->build(GetParam().nranks, options);
    if (!schedule.is_ok()) ADD_FAILURE() << schedule.status().message();
    return std::move(schedule).take();
  }
  bool reduces() const { return schedule::reduces(GetParam().algorithm->collective); }
};

// All types and reductions where there are any, else bytes; sizes and the other dimensions take
// turns, so that their pairs meet many times over the sweep.
TEST_P(Collectives, EveryRankHoldsTheResultBitForBit) {
  const auto& [algorithm, nranks, protocol] = GetParam();
  std::vector<std::pair<DataType, Reduction>> numbers;
  for (int type = 0; type < kDataTypes && reduces(); ++type) {
    for (const Reduction& reduction : reductions(nranks))
      numbers.emplace_back(static_cast<DataType>(type), reduction);
  }
  if (!reduces()) numbers.assign(6, {DataType::Uint8, {}});

  auto turn = static_cast<uint32_t>(nranks);
  int cases = 0;
  for (const auto& [type, reduction] : numbers) {
    const schedule::Schedule schedule = build(turn);
    const uint64_t chunk = (protocol == Protocol::LL128 ? 240 : 128) / size_of(type);
    const uint64_t full = schedule::cuts_one_buffer(schedule.collective)
                              ? chunk * static_cast<uint64_t>(schedule.nblocks)
                              : chunk;
    const uint64_t counts[] = {0, 1, 7, full - 1, full, full + 1, 9 * full + 5};
    for (const uint64_t count : counts) {
      ++turn;
      // A type and reduction gets some of the sizes; all the sizes go round.
      if (turn % (kIsSanitized ? 13 : reduces() ? 3 : 1) != 0) continue;
      const Case c{.protocol = protocol,
                   .type = type,
                   .reduction = reduction,
                   .count = count,
                   .depth = turn % 4 == 0 ? 4u : 2u,
                   .channels = turn % 5 < 3 ? 1u : 3u,
                   .is_in_place = turn / 3 % 2 == 0,
                   .is_misaligned = turn / 2 % 2 == 0,
                   .threads = 0,
                   .seed = turn};
      Cluster cluster(schedule, protocol, shape_of(c));
      ASSERT_NO_FATAL_FAILURE(run(cluster, c));
      ++cases;
    }
  }
  ASSERT_GT(cases, 0);
}

// The same connections, many operations of other sizes and types, with the tasks on several
// threads.
TEST_P(Collectives, ConnectionsServeOneOperationAfterAnother) {
  Case c{.protocol = GetParam().protocol, .channels = 2};
  Cluster cluster(build(1), c.protocol, shape_of(c));
  for (uint32_t i = 0; i < (kIsSanitized ? 12u : 30u); ++i) {
    c.count = 1 + i * 37 % 701;
    if (reduces())
      c.type = i % 3 == 0 ? DataType::Bfloat16 : i % 3 == 1 ? DataType::Float64 : DataType::Int8;
    c.is_in_place = i % 4 == 1;
    c.threads = i % 5 == 0 ? 2 : 0;
    c.seed = i;
    ASSERT_NO_FATAL_FAILURE(run(cluster, c));
  }
}

// Counters near the places where 15, 16, 32 and 48 bits of them wrap, and where all of them do.
TEST_P(Collectives, StepsMayWrap) {
  for (const uint64_t start :
       {(uint64_t{1} << 15) - 9, (uint64_t{1} << 16) - 9, (uint64_t{3} << 15) - 9,
        (uint64_t{1} << 32) - 9, (uint64_t{1} << 48) - 9, uint64_t{0} - 9}) {
    SCOPED_TRACE(start);
    Case c{.protocol = GetParam().protocol, .depth = 4, .is_misaligned = true};
    if (reduces()) c.type = DataType::Float16;
    Cluster cluster(build(static_cast<uint32_t>(start)), c.protocol, shape_of(c));
    cluster.start_at(start);
    for (const uint64_t count : {5u, 300u, 1u, 70u, 900u}) {
      c.count = count;
      ++c.seed;
      ASSERT_NO_FATAL_FAILURE(run(cluster, c));
    }
  }
}

TEST(CollectivesByWayOfScratch, HoldTheResultBitForBit) {
  for (const Protocol protocol : kAllProtocols) {
    Case c{.protocol = protocol, .channels = 2};
    Cluster cluster(by_way_of_scratch(4), protocol, shape_of(c));
    for (const uint64_t count : {1u, 7u, 500u, 3001u}) {
      c.count = count;
      c.is_in_place = count % 2 == 0;
      c.threads = count == 7 ? 2 : 0;
      ++c.seed;
      ASSERT_NO_FATAL_FAILURE(run(cluster, c));
    }
  }
}

// Of one number of ranks: large data take their time.
class LargeCollectives : public Collectives {};

std::vector<Group> groups_of_three_ranks() {
  std::vector<Group> result = groups();
  std::erase_if(result, [](const Group& group) { return group.nranks != 3; });
  return result;
}

// Chunks of many strips, and more bytes than a step may move.
TEST_P(LargeCollectives, TakeManySteps) {
  Case c{.protocol = GetParam().protocol,
         .count = kIsSanitized ? 200'001u : 500'001u,
         .is_in_place = true,
         .is_misaligned = true,
         .threads = 2};
  if (reduces()) c.type = DataType::Float16;
  Cluster cluster(build(1), c.protocol, {.channels = 1, .depth = 2, .slot_bytes = 512 << 10});
  ASSERT_NO_FATAL_FAILURE(run(cluster, c));
}

INSTANTIATE_TEST_SUITE_P(Registry, Collectives, testing::ValuesIn(groups()), name_of_group);
INSTANTIATE_TEST_SUITE_P(Registry, LargeCollectives, testing::ValuesIn(groups_of_three_ranks()),
                         name_of_group);

}  // namespace
}  // namespace niccolite::executor::host
