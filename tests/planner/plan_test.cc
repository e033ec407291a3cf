#include "planner/plan.h"

#include <gmock/gmock.h>

#include <cstdlib>

namespace niccolite::planner {
namespace {

using executor::DataType;
using executor::Protocol;
using testing::HasSubstr;

Settings settings_for(gpu::Kind machine, int nranks, const Limits& limits = {}) {
  return make_settings(machine, nranks, limits).value();
}

TEST(Plan, EveryRankChoosesAlike) {
  for (gpu::Kind machine : {gpu::Kind::Cuda, gpu::Kind::Virtual})
    for (int nranks : {2, 3, 4, 8, 16, 33, 200})
      for (size_t count = 1; count < (size_t{1} << 28); count = count * 3 + 1) {
        const Settings settings = settings_for(machine, nranks);
        Planner first(settings, 0), last(settings, nranks - 1);
        const Plan a = first.all_reduce(count, DataType::Float32, Operation::Sum).value();
        const Plan b = last.all_reduce(count, DataType::Float32, Operation::Sum).value();
        ASSERT_EQ(a.choice.algorithm, b.choice.algorithm);
        ASSERT_EQ(a.choice.protocol, b.choice.protocol);
        ASSERT_EQ(a.partition.channels, b.partition.channels);
        ASSERT_EQ(a.partition.chunk, b.partition.chunk);
        ASSERT_LE(a.partition.channels,
                  settings.shapes[static_cast<size_t>(a.choice.protocol)].channels);
      }
}

TEST(Plan, LargeCommunicatorsDoNotConnectEveryoneToEveryone) {
  Planner planner(settings_for(gpu::Kind::Virtual, 256), 7);
  for (size_t count : {1u, 1u << 20}) {
    const Plan plan = planner.all_reduce(count, DataType::Float32, Operation::Sum).value();
    EXPECT_EQ(plan.choice.algorithm, AlgorithmId::Ring);
    EXPECT_EQ(plan.program->ports.size(), 2u);
  }
}

TEST(Plan, ScalesAveragesWhereNothingCanOverflow) {
  Settings settings = settings_for(gpu::Kind::Virtual, 4);
  settings.algorithms = {true, false, false};
  Planner ring(settings, 0);
  const auto in_ring =
      ring.all_reduce(100, DataType::Float16, Operation::Average).value().reduction;
  EXPECT_EQ(in_ring.input_scale, 0.25);
  EXPECT_EQ(in_ring.finish_scale, 1);
  settings.algorithms = {false, false, true};
  Planner direct(settings, 0);
  const auto direct_scale =
      direct.all_reduce(100, DataType::Float16, Operation::Average).value().reduction;
  EXPECT_EQ(direct_scale.input_scale, 1);
  EXPECT_EQ(direct_scale.finish_scale, 0.25);
  EXPECT_EQ(
      direct.all_reduce(100, DataType::Int32, Operation::Average).value().reduction.finish_divisor,
      4);
}

TEST(Plan, SaysWhatAnEmptySelectionLeavesOut) {
  Settings settings = settings_for(gpu::Kind::Virtual, 4);
  settings.algorithms = {false, false, false};
  const auto plan = Planner(settings, 0).all_reduce(100, DataType::Float32, Operation::Sum);
  ASSERT_FALSE(plan.is_ok());
  EXPECT_EQ(plan.status().code(), Code::InvalidUsage);
  EXPECT_THAT(plan.status().message(), HasSubstr("NCCL_ALGO"));
}

TEST(Settings, ObeysTheLimitsOfTheConfiguration) {
  const Settings settings = settings_for(gpu::Kind::Cuda, 4, {.min_ctas = 2, .max_ctas = 5});
  EXPECT_EQ(settings.min_channels, 2);
  EXPECT_EQ(settings.max_channels, 5);
  for (const executor::FifoShape& shape : settings.shapes) EXPECT_LE(shape.channels, 5u);
  const Settings wide = settings_for(gpu::Kind::Virtual, 4, {.min_ctas = 3});
  EXPECT_EQ(wide.max_channels, 3);
  for (const executor::FifoShape& shape : wide.shapes) EXPECT_EQ(shape.channels, 3u);
}

}  // namespace
}  // namespace niccolite::planner
