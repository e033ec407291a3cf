// The kernel for reductions of one step and one round by LL128 (executor/cuda/patterns/
// direct_lines.cuh) on the emulated GPU: which programs it takes, and that it leaves behind what
// the interpreter does.
#include <gtest/gtest.h>

#include "planner/form.h"
#include "tests/device/emulated_specialised.h"

namespace niccolite::device_test {
namespace {

using executor::DataType;
using executor::Protocol;
using executor::Reduction;
using executor::cuda::KernelVariant;
using executor::cuda::Specialisation;
using executor::host::Cluster;
using executor::host::Operands;
using executor::host::Part;
using schedule::Collective;
using schedule::Schedule;

struct Case {
  Collective collective;
  const char* algorithm;
};
const Case kCases[] = {
    {Collective::AllReduce, "one_shot"},
    {Collective::ReduceScatter, "direct_workers"},
    {Collective::Reduce, "direct"},
};

constexpr uint64_t kSlotData = data_bytes(Protocol::LL128, kSlotBytes);

Schedule build(const Case& c, int nranks, int root) {
  return device_test::build(c.collective, c.algorithm, nranks, root);
}

TEST(EmulatedLines, AreOfEveryReductionOfOneStepAndOneRoundOfUpToFourRanks) {
  for (const Case& c : kCases) {
    for (const int nranks : {2, 3, 4, 5}) {
      for (const uint64_t count : {uint64_t{64}, 2 * kSlotData}) {
        SCOPED_TRACE(testing::Message()
                     << name_of(c.collective) << " of " << nranks << ", count " << count);
        Cluster cluster(build(c, nranks, /*root=*/0), Protocol::LL128, shape_of(1));
        const Operands operands(cluster.schedule(), DataType::Float32, {count}, {});
        const auto launches = cluster.launches({.count = count}, operands.addresses());
        const bool is_long = launches[0].works[0].partition.rounds > 1;
        for (const executor::Launch& launch : launches) {
          const auto kernel = prepare(cluster, launch, /*threads=*/0, Specialisation::Allowed);
          const bool reduces = kernel.kernel.reduces;  // a rank of a reduce may only send
          EXPECT_EQ(kernel.kernel.variant == KernelVariant::DirectLines,
                    reduces && nranks <= 4 && !is_long);
        }
      }
    }
  }
}

TEST(EmulatedLines, TakeTurnsWithTheInterpreterOnTheSameConnections) {
  uint32_t turn = 0;
  for (const Case& c : kCases) {
    for (const int nranks : {2, 3, 4}) {
      Cluster cluster(build(c, nranks, nranks / 2), Protocol::LL128, shape_of(2));
      // Nothing, less than a vec8, less than a line, two groups, a full slot.
      for (const uint64_t count :
           {uint64_t{0}, uint64_t{1}, uint64_t{27}, uint64_t{125}, kSlotData / 4}) {
        for (int repeat = 0; repeat < 3; ++repeat) {  // more operations than a FIFO has slots
          ++turn;
          SCOPED_TRACE(testing::Message() << name_of(c.collective) << " of " << nranks << ", count "
                                          << count << ", turn " << turn);
          const DataType type = turn % 4 == 0 ? DataType::Bfloat16 : DataType::Float32;
          ASSERT_NO_FATAL_FAILURE(run_turn(cluster, count, type, turn));
        }
      }
    }
  }
}

TEST(EmulatedLines, ReduceEveryTypeAsTheInterpreterDoes) {
  uint32_t turn = 0;
  for (const Case& c : kCases) {
    Cluster cluster(build(c, 3, 1), Protocol::LL128, shape_of(1));
    for (int type = 0; type < executor::kDataTypes; ++type) {
      for (int op = 0; op < executor::kReduceOps; ++op) {
        ++turn;
        Reduction reduction{.op = static_cast<executor::ReduceOp>(op)};
        if (op == 0 && turn % 3 == 0) reduction.finish_scale = 0.25;
        if (op == 0 && turn % 3 == 0) reduction.finish_divisor = 2;
        const auto element = static_cast<DataType>(type);
        SCOPED_TRACE(testing::Message() << name_of(c.collective) << " " << name_of(element)
                                        << " reduce " << op << ", turn " << turn);
        const Operands operands(cluster.schedule(), element, {61}, {.reduction = reduction});
        const Part part{.counts = {61}, .buffers = operands.addresses()};
        ASSERT_NO_FATAL_FAILURE(run_turn(cluster, operands, part, element, reduction, turn));
      }
    }
  }
}

TEST(EmulatedLines, EndWhenAborted) {
  for (const Case& c : kCases) {
    Cluster cluster(build(c, 3, 1), Protocol::LL128, shape_of(1));
    const Operands operands(cluster.schedule(), DataType::Uint8, {100}, {});
    auto launches = cluster.launches({.count = 100, .type = DataType::Uint8}, operands.addresses());
    launches.erase(launches.begin() + 1);
    cluster.control.abort = 1;
    EXPECT_TRUE(run(cluster, launches, 1, /*specialised=*/3)) << name_of(c.collective);
  }
}

}  // namespace
}  // namespace niccolite::device_test
