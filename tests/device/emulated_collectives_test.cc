// Every collective of the registry, batches of messages and joined programs by the kernels' own
// source on the CPU (emulated_gpu.h), against the reference of the host executor's tests; calls
// that do not match, and waits that take long.
#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "algorithms/all_reduce.h"
#include "algorithms/broadcast.h"
#include "algorithms/point_to_point.h"
#include "executor/cuda/launch/launch_header.h"
#include "executor/report.h"
#include "planner/form.h"
#include "tests/device/emulated_gpu.h"
#include "tests/executor/host/cluster.h"
#include "tests/executor/host/operands.h"
#include "tests/executor/host/scratch_schedule.h"

namespace niccolite::device_test {
namespace {

using algorithms::Envelope;
using executor::DataType;
using executor::FifoShape;
using executor::Launch;
using executor::Protocol;
using executor::Reduction;
using executor::Report;
using executor::ReportKind;
using executor::cuda::KernelLaunch;
using executor::cuda::Staging;
using executor::host::Cluster;
using executor::host::kAllProtocols;
using executor::host::Operands;
using executor::host::Part;
using schedule::Schedule;

constexpr int kThreads =
    96;  // of a CTA with few workers: three warps, which share workers unevenly

/// Runs the launches of all ranks, or of some; false: they do not end, or tear a line.
bool run_emulated(Cluster& cluster, std::vector<Launch> launches, uint64_t seed,
                  uint64_t limit = 20'000'000, Staging staging = Staging::All) {
  std::deque<KernelLaunch> prepared;
  std::vector<KernelLaunch*> pointers;
  for (Launch& launch : launches) {
    launch.control_device = &cluster.control;
    if (launch.threads == 0) launch.threads = kThreads;
    auto kernel = executor::cuda::prepare(launch, executor::cuda::Specialisation::Allowed, staging);
    if (!kernel.is_ok()) {
      ADD_FAILURE() << kernel.status().message();
      return false;
    }
    prepared.push_back(std::move(kernel).take());
    pointers.push_back(&prepared.back());
    // Some ranks' buffers can be reached by others, some cannot.
    set_advertisements(prepared.back(), executor::cuda::buffers_of(launch),
                       [&](const void*, uint64_t) { return (seed + prepared.size()) % 3 != 0; });
  }
  return emulation::run(pointers, seed, limit);
}

struct Mix {
  std::vector<std::vector<uint64_t>> counts;  // by part
  DataType type = DataType::Uint8;
  Reduction reduction{};
  bool is_in_place = false;
  bool is_misaligned = false;
  uint32_t seed = 1;
  Staging staging = Staging::All;
};

/// All the cluster's schedules in one launch.
void run(Cluster& cluster, const Mix& mix) {
  std::deque<Operands> operands;
  std::vector<Part> parts;
  for (size_t i = 0; i < mix.counts.size(); ++i) {
    operands.emplace_back(cluster.schedule(i), mix.type, mix.counts[i],
                          executor::host::OperandOptions{.is_in_place = mix.is_in_place,
                                                         .is_misaligned = mix.is_misaligned,
                                                         .reduction = mix.reduction});
    parts.push_back({.schedule = i,
                     .counts = mix.counts[i],
                     .buffers = operands.back().addresses(),
                     .tag = static_cast<uint16_t>(mix.seed * 31 + i)});
  }
  ASSERT_TRUE(run_emulated(cluster, cluster.launches(parts, mix.type, mix.reduction), mix.seed,
                           20'000'000, mix.staging));
  for (const Operands& part : operands) ASSERT_NO_FATAL_FAILURE(part.check());
  ASSERT_TRUE(cluster.guards_intact());
  ASSERT_TRUE(cluster.counters_consistent(/*has_advertisements=*/true));
  ASSERT_EQ(cluster.control.report, 0u);
}

class EmulatedProtocol : public testing::TestWithParam<Protocol> {};
INSTANTIATE_TEST_SUITE_P(Protocols, EmulatedProtocol, testing::ValuesIn(kAllProtocols),
                         [](const auto& c) { return std::string(name_of(c.param)); });

// Slots of several lines, which no size of data fills exactly.
FifoShape shape_of(Protocol protocol, uint32_t channels, uint32_t depth) {
  return {.channels = channels,
          .depth = depth,
          .slot_bytes = protocol == Protocol::Simple ? 512u : 640u};
}

TEST_P(EmulatedProtocol, RunsEveryAlgorithmOfEveryCollective) {
  uint32_t turn = 0;
  for (const planner::Form& algorithm : planner::forms()) {
    const bool reduces = schedule::reduces(algorithm.collective);
    for (const int nranks : {1, 2, 3, 4, 5}) {
      algorithms::Options options;
      if (schedule::has_root(algorithm.collective)) {
        options.root = static_cast<int>(++turn) % nranks;
      }
      Cluster cluster(algorithm.build(nranks, options).take(), GetParam(),
                      shape_of(GetParam(), 2, 2 + 2 * (turn % 2)));
      const uint64_t slot = data_bytes(GetParam(), 640);
      for (const uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{7}, slot / 4 + 1, 3 * slot}) {
        ++turn;
        const Mix mix{.counts = {{count}},
                      .type = reduces ? DataType::Float32 : DataType::Uint8,
                      .is_in_place = turn % 2 == 0,
                      .is_misaligned = turn % 3 == 0,
                      .seed = turn};
        SCOPED_TRACE(testing::Message()
                     << schedule::name_of(algorithm.collective) << " " << algorithm.name << " of "
                     << nranks << " ranks, root " << options.root << ", count " << count
                     << (mix.is_in_place ? ", in place" : "")
                     << (mix.is_misaligned ? ", misaligned" : "") << ", seed " << mix.seed);
        ASSERT_NO_FATAL_FAILURE(run(cluster, mix));
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(EmulatedProtocol, KeepsBlocksInScratch) {
  Cluster cluster(executor::host::by_way_of_scratch(3), GetParam(), shape_of(GetParam(), 2, 2));
  for (uint32_t turn = 0; turn < 4; ++turn) {
    SCOPED_TRACE(turn);
    ASSERT_NO_FATAL_FAILURE(run(cluster, {.counts = {{uint64_t{500} * turn + 1}},
                                          .is_in_place = turn % 2 == 0,
                                          .is_misaligned = turn == 3,
                                          .seed = turn + 1}));
  }
}

// As on GPUs without stages, and for buffers that are not aligned; and as on those where threads
// fill the stages.
TEST(EmulatedSimple, MovesTheSameWithoutBulkCopies) {
  struct Way {
    Staging staging;
    bool has_bulk_copies;
  };
  for (const planner::Form& algorithm : planner::forms()) {
    if (algorithm.workers != lowering::Spread::ByInstruction) continue;
    const bool reduces = schedule::reduces(algorithm.collective);
    Cluster cluster(algorithm.build(3, {}).take(), Protocol::Simple,
                    shape_of(Protocol::Simple, 2, 2));
    for (const uint64_t count : {uint64_t{5}, uint64_t{1500}}) {
      for (const Way& way :
           {Way{Staging::None, true}, {Staging::All, true}, {Staging::All, false}}) {
        SCOPED_TRACE(testing::Message()
                     << schedule::name_of(algorithm.collective) << " " << algorithm.name
                     << ", count " << count << ", bulk copies " << way.has_bulk_copies);
        emulation::set_bulk_copies(way.has_bulk_copies);
        ASSERT_NO_FATAL_FAILURE(run(cluster, {.counts = {{count}},
                                              .type = reduces ? DataType::Float32 : DataType::Uint8,
                                              .staging = way.staging}));
      }
    }
  }
  emulation::set_bulk_copies(true);
}

TEST_P(EmulatedProtocol, DeliversMessagesOfDifferentSizes) {
  const std::vector<std::pair<int, std::vector<Envelope>>> patterns{
      {1, {{0, 0}}},
      {2, {{0, 1}, {1, 0}, {1, 1}}},
      {4, {{3, 1}, {2, 1}, {0, 1}, {1, 1}}},
      {6, {{5, 0}, {0, 3}, {3, 3}}},
      {4,
       {{0, 1},
        {0, 2},
        {0, 3},
        {1, 0},
        {1, 2},
        {1, 3},
        {2, 0},
        {2, 1},
        {2, 3},
        {3, 0},
        {3, 1},
        {3, 2}}}};
  const uint64_t slot = data_bytes(GetParam(), 640);
  const uint64_t sizes[] = {0, 1, 33, slot - 1, slot, slot + 1, 2 * slot + 5, 9 * slot + 7};
  for (const auto& [nranks, messages] : patterns) {
    Cluster cluster(algorithms::point_to_point(nranks, messages).take(), GetParam(),
                    shape_of(GetParam(), 3, 2));
    for (uint32_t turn = 0; turn < std::size(sizes); ++turn) {
      SCOPED_TRACE(testing::Message() << nranks << " ranks, turn " << turn);
      Mix mix{.counts = {{}}, .is_misaligned = turn % 2 == 0, .seed = turn};
      for (size_t m = 0; m < messages.size(); ++m) {
        mix.counts[0].push_back(sizes[(turn + 3 * m) % std::size(sizes)]);
      }
      ASSERT_NO_FATAL_FAILURE(run(cluster, mix));
    }
  }
}

// A channel's workers are no more than a CTA has warps for, however many ranks there are.
TEST_P(EmulatedProtocol, HasWarpsForTheMessagesOfManyRanks) {
  for (const int nranks : {8, 9, 15, 16}) {
    std::vector<Envelope> messages;
    for (int sender = 0; sender < nranks; ++sender) {
      for (int receiver = 0; receiver < nranks; ++receiver) messages.push_back({sender, receiver});
    }
    Cluster cluster(algorithms::point_to_point(nranks, messages).take(), GetParam(),
                    shape_of(GetParam(), 1, 2));
    const std::vector<uint64_t> counts(messages.size(), 100);
    const Operands operands(cluster.schedule(0), DataType::Uint8, counts, {});
    const Part part{.schedule = 0, .counts = counts, .buffers = operands.addresses(), .tag = 1};
    for (Launch& launch : cluster.launches({part}, DataType::Uint8, {})) {
      launch.control_device = &cluster.control;
      const auto kernel = executor::cuda::prepare(launch);
      ASSERT_TRUE(kernel.is_ok()) << kernel.status().message();
    }
  }
}

// As many works as a program may have.
TEST_P(EmulatedProtocol, SendsFromEveryoneToEveryone) {
  constexpr int kRanks = 9;
  std::vector<Envelope> messages;
  for (int sender = 0; sender < kRanks; ++sender) {
    for (int receiver = 0; receiver < kRanks; ++receiver) messages.push_back({sender, receiver});
  }
  Cluster cluster(algorithms::point_to_point(kRanks, messages).take(), GetParam(),
                  shape_of(GetParam(), 1, 2));
  Mix mix{.counts = {{}}};
  for (size_t m = 0; m < messages.size(); ++m) mix.counts[0].push_back(m * 37 % 700);
  ASSERT_NO_FATAL_FAILURE(run(cluster, mix));
}

TEST_P(EmulatedProtocol, RunsJoinedOperationsSideBySide) {
  for (uint32_t seed = 0; seed < 12; ++seed) {
    std::mt19937 random(seed);
    const auto draw = [&random](size_t below) { return random() % below; };
    const int nranks = 2 + static_cast<int>(draw(3));
    Mix mix{.counts = {},
            .type = draw(2) == 0 ? DataType::Float32 : DataType::Uint8,
            .is_in_place = draw(2) == 0,
            .is_misaligned = draw(2) == 0,
            .seed = seed};
    std::vector<Schedule> schedules;
    testing::Message drawn;
    drawn << "seed " << seed << ", " << nranks << " ranks";
    for (size_t part = 0; part < 2 + seed % 2; ++part) {
      if (draw(4) == 0) {
        std::vector<Envelope> messages;
        for (int sender = 0; sender < nranks; ++sender) {
          for (int receiver = 0; receiver < nranks; ++receiver) {
            if (draw(3) == 0) messages.push_back({sender, receiver});
          }
        }
        schedules.push_back(algorithms::point_to_point(nranks, messages).take());
        mix.counts.emplace_back();
        for (size_t m = 0; m < messages.size(); ++m) mix.counts.back().push_back(draw(1500));
      } else {
        const planner::Form& algorithm = planner::forms()[draw(planner::forms().size())];
        schedules.push_back(algorithm.build(nranks, {}).take());
        mix.counts.push_back({draw(900)});
      }
      drawn << ", " << schedule::name_of(schedules.back().collective) << " "
            << schedules.back().algorithm;
    }
    SCOPED_TRACE(drawn);
    Cluster cluster(std::move(schedules), GetParam(), shape_of(GetParam(), 6, 2));
    for (int again = 0; again < 2; ++again) ASSERT_NO_FATAL_FAILURE(run(cluster, mix));
  }
}

// The kernel reduces, and a worker of it moves what a peer exposes: programs that comm/ does not
// join, but the executor could.
std::vector<Schedule> reduction_beside_a_loan(int nranks) {
  std::vector<Schedule> schedules;
  schedules.push_back(algorithms::all_reduce_ring(nranks).take());
  schedules.push_back(lowering::spread(algorithms::broadcast_scatter_gather(nranks).take(),
                                       lowering::Spread::ByInstruction)
                          .take());
  return schedules;
}

// Several rounds, and operations that begin at any slot.
TEST(EmulatedCollectives, GetDirectlyBesideAReduction) {
  for (const int nranks : {3, 4, 5}) {
    Cluster cluster(reduction_beside_a_loan(nranks), Protocol::Simple,
                    shape_of(Protocol::Simple, 4, 2));
    for (uint32_t seed = 0; seed < 6; ++seed) {
      SCOPED_TRACE(testing::Message() << nranks << " ranks, seed " << seed);
      ASSERT_NO_FATAL_FAILURE(run(cluster, {.counts = {{100}, {200 + seed * 999}},
                                            .type = DataType::Float32,
                                            .is_in_place = seed % 2 == 0,
                                            .seed = seed}));
    }
  }
}

TEST(EmulatedCollectives, EndWhenAbortedWithALoanBesideAReduction) {
  for (const uint64_t limit : {300u, 1'000u, 3'000u, 10'000u, 30'000u}) {
    for (uint32_t seed = 0; seed < 6; ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", after " << limit);
      Cluster cluster(reduction_beside_a_loan(4), Protocol::Simple,
                      shape_of(Protocol::Simple, 4, 2));
      std::deque<Operands> operands;
      std::vector<Part> parts;
      for (size_t i = 0; i < 2; ++i) {
        const std::vector<uint64_t> counts{i == 0 ? 100u : 9'000u};
        operands.emplace_back(cluster.schedule(i), DataType::Float32, counts,
                              executor::host::OperandOptions{});
        parts.push_back({.schedule = i,
                         .counts = counts,
                         .buffers = operands.back().addresses(),
                         .tag = static_cast<uint16_t>(i + 1)});
      }
      emulation::abort_after(limit, &cluster.control.abort);
      EXPECT_TRUE(run_emulated(cluster, cluster.launches(parts, DataType::Float32, {}), seed));
      EXPECT_TRUE(cluster.guards_intact());
    }
  }
}

TEST_P(EmulatedProtocol, DividesTheDataAmongRings) {
  const algorithms::Options options{.rings = {{0, 1, 2, 3}, {3, 1, 0, 2}, {0, 2, 1, 3}}};
  Cluster cluster(algorithms::all_reduce_ring(4, options).take(), GetParam(),
                  shape_of(GetParam(), 7, 2));
  for (const uint64_t count : {1u, 30u, 999u, 7000u}) {
    ASSERT_NO_FATAL_FAILURE(run(cluster, {.counts = {{count}}, .type = DataType::Float32}));
  }
}

TEST_P(EmulatedProtocol, KnowsEveryTypeAndReduceOp) {
  uint32_t turn = 0;
  for (int type = 0; type < executor::kDataTypes; ++type) {
    for (int op = 0; op < executor::kReduceOps; ++op) {
      const auto* algorithm = planner::find_form(schedule::Collective::ReduceScatter,
                                                 ++turn % 2 == 0 ? "direct" : "ring");
      Cluster cluster(algorithm->build(3, {}).take(), GetParam(), shape_of(GetParam(), 1, 2));
      Mix mix{.counts = {{333}},
              .type = static_cast<DataType>(type),
              .is_misaligned = turn % 3 == 0,
              .seed = turn};
      mix.reduction.op = static_cast<executor::ReduceOp>(op);
      SCOPED_TRACE(testing::Message() << name_of(mix.type) << " reduce " << op);
      ASSERT_NO_FATAL_FAILURE(run(cluster, mix));
      // Blocks that are aligned to 4 bytes, whatever their elements.
      mix.counts = {{std::max<uint64_t>(1332 / executor::size_of(mix.type), 333)}};
      mix.is_misaligned = false;
      ASSERT_NO_FATAL_FAILURE(run(cluster, mix));
    }
  }
}

// Sums whose highest bit is set: negative ones, and large ones of unsigned integers, which the
// kernels of signed ones reduce.
TEST_P(EmulatedProtocol, DividesIntegersWithTheirSign) {
  for (const DataType type : {DataType::Int8, DataType::Uint8, DataType::Int32, DataType::Uint32,
                              DataType::Int64, DataType::Uint64}) {
    for (const char* name : {"one_shot", "two_shot", "ring"}) {
      SCOPED_TRACE(testing::Message() << name_of(type) << " " << name);
      Cluster cluster(
          planner::find_form(schedule::Collective::AllReduce, name)->build(3, {}).take(),
          GetParam(), shape_of(GetParam(), 2, 2));
      for (const int64_t factor : {1, -5}) {
        ASSERT_NO_FATAL_FAILURE(
            run(cluster, {.counts = {{333}},
                          .type = type,
                          .reduction = {.finish_divisor = 3, .input_factor = factor}}));
      }
    }
  }
}

// The scale of a premultiplied sum that lies in memory, read when the operation runs.
TEST_P(EmulatedProtocol, ReadsAScaleFromMemory) {
  const float half = 0.5F;
  const int32_t three = 3;
  const uint16_t bfloat_half = 0x3f00;
  const std::tuple<DataType, const void*, double, int64_t> scales[] = {
      {DataType::Float32, &half, 0.5, 1},
      {DataType::Bfloat16, &bfloat_half, 0.5, 1},
      {DataType::Int32, &three, 1, 3}};
  for (const auto& [type, address, scale, factor] : scales) {
    for (const char* name : {"one_shot", "two_shot", "ring"}) {
      SCOPED_TRACE(testing::Message() << name_of(type) << " " << name);
      Cluster cluster(
          planner::find_form(schedule::Collective::AllReduce, name)->build(3, {}).take(),
          GetParam(), shape_of(GetParam(), 2, 2));
      const Reduction stated{.input_scale = scale, .input_factor = factor};
      const Operands operands(cluster.schedule(), type, {500}, {.reduction = stated});
      ASSERT_TRUE(run_emulated(
          cluster,
          cluster.launches({.count = 500, .type = type, .reduction = {.device_scale = address}},
                           operands.addresses()),
          1));
      ASSERT_NO_FATAL_FAILURE(operands.check());
    }
  }
}

TEST_P(EmulatedProtocol, GoesOnWhereStepsWrap) {
  for (const uint64_t wrap : {uint64_t{1} << 15, uint64_t{1} << 16, uint64_t{1} << 31,
                              uint64_t{1} << 32, uint64_t{1} << 48}) {
    SCOPED_TRACE(wrap);
    for (const char* name : {"one_shot", "two_shot"}) {
      Cluster cluster(
          planner::find_form(schedule::Collective::AllReduce, name)->build(2, {}).take(),
          GetParam(), shape_of(GetParam(), 1, 2));
      cluster.start_at(wrap - 3);
      for (uint32_t seed = 0; seed < 6; ++seed) {
        ASSERT_NO_FATAL_FAILURE(
            run(cluster, {.counts = {{300}}, .type = DataType::Float32, .seed = seed}));
      }
    }
  }
}

// ---- other calls

constexpr uint16_t kTag = 0x1111;
constexpr uint16_t kOther = 0x2222;

/// Both ranks of an all-reduce, of which the second makes another call; or the first alone. Few
/// elements, so that few threads wait: waits look up only now and then.
Report report_of(Protocol protocol, const char* algorithm, bool is_alone) {
  Cluster cluster(
      planner::find_form(schedule::Collective::AllReduce, algorithm)->build(2, {}).take(), protocol,
      shape_of(protocol, 1, 4));
  const Operands operands(cluster.schedule(), DataType::Float32, {4}, {});
  const auto launches_of = [&](uint16_t tag) {
    return cluster.launches({.count = 4, .tag = tag}, operands.addresses());
  };
  std::vector<Launch> launches{launches_of(kTag)[0]};
  if (!is_alone) launches.push_back(launches_of(kOther)[1]);
  for (Launch& launch : launches) launch.threads = 32;
  // They wait until they are aborted, which is not now. A mismatch is told at the first look, a
  // long wait after many; by then it could have replaced the mismatch.
  const uint64_t accesses = protocol == Protocol::LL128 ? 6 : 1;  // of one look, roughly
  const uint64_t limit = accesses * (is_alone ? 6'000'000 : 1'500'000);
  EXPECT_FALSE(run_emulated(cluster, launches, 1, limit));
  return executor::decode_report(cluster.control.report);
}

TEST_P(EmulatedProtocol, TellsTheHostOfAnotherCall) {
  for (const char* algorithm : {"one_shot", "two_shot_workers"}) {
    const Report report = report_of(GetParam(), algorithm, /*is_alone=*/false);
    EXPECT_EQ(report.kind, ReportKind::Mismatch) << algorithm;
    EXPECT_EQ(report.own_tag, report.peer == 1 ? kTag : kOther);
    EXPECT_EQ(report.peer_tag, report.peer == 1 ? kOther : kTag);
  }
}

TEST_P(EmulatedProtocol, TellsTheHostOfALongWait) {
  for (const char* algorithm : {"one_shot", "two_shot_workers"}) {
    const Report report = report_of(GetParam(), algorithm, /*is_alone=*/true);
    EXPECT_TRUE(executor::is_wait(report.kind)) << algorithm;
    EXPECT_EQ(report.peer, 1u);
    EXPECT_EQ(report.own_tag, kTag);
  }
}

TEST_P(EmulatedProtocol, TakesNoDataOfAnotherCall) {
  Cluster cluster(
      planner::find_form(schedule::Collective::AllReduce, "two_shot")->build(2, {}).take(),
      GetParam(), shape_of(GetParam(), 1, 4));
  const Operands operands(cluster.schedule(), DataType::Float32, {40}, {});
  std::vector<float> untouched(40, -1);
  auto launches = cluster.launches({.count = 40, .tag = kTag}, operands.addresses());
  launches[1].works[0].tag = kOther;
  for (Launch& launch : launches) launch.works[0].buffers.output = untouched.data();
  EXPECT_FALSE(run_emulated(cluster, launches, 1, 300'000));
  EXPECT_EQ(untouched, std::vector<float>(40, -1));
  cluster.control.abort = 1;
}

}  // namespace
}  // namespace niccolite::device_test
