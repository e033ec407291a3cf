// What an all-reduce computes, beyond sums that are exact: scaled inputs, the order of the
// reduction.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "planner/form.h"
#include "tests/executor/host/cluster.h"
#include "tests/executor/host/operands.h"
#include "tests/executor/host/reference.h"

namespace niccolite::executor::host {
namespace {

std::vector<planner::Form> all_reduces() {
  std::vector<planner::Form> result;
  for (const planner::Form& algorithm : planner::forms())
    if (algorithm.collective == schedule::Collective::AllReduce) result.push_back(algorithm);
  return result;
}

// A pre-multiplied sum in a type that rounds: the scaled inputs that travel equal those that are
// reduced at home.
TEST(AllReduceScaled, InputIsScaledTheSameWhereverItIsReduced) {
  for (const planner::Form& algorithm : all_reduces()) {
    for (const Protocol protocol : kAllProtocols) {
      for (const DataType type :
           {DataType::Bfloat16, DataType::Float64, DataType::Int32, DataType::Uint8}) {
        SCOPED_TRACE(testing::Message()
                     << algorithm.name << " " << name_of(protocol) << " " << name_of(type));
        constexpr int kRanks = 2;  // two operands: the order does not matter to the sum
        constexpr uint64_t kCount = 333;
        const size_t size = size_of(type);
        Cluster cluster(algorithm.build(kRanks, {}).take(), protocol,
                        {.channels = 2, .depth = 2, .slot_bytes = 256});
        std::vector<GuardedMemory> inputs, outputs;
        for (int rank = 0; rank < kRanks; ++rank) {
          inputs.emplace_back(kCount * size);
          outputs.emplace_back(kCount * size);
          for (uint64_t i = 0; i < kCount; ++i) {
            store_number(type, static_cast<double>((i * 7 + static_cast<uint64_t>(rank) * 3) % 100),
                         inputs.back().data() + i * size);
          }
        }
        const OperationBuffers buffers{.inputs = {inputs[0].data(), inputs[1].data()},
                                       .outputs = {outputs[0].data(), outputs[1].data()}};
        std::vector<Launch> launches = cluster.launches({.count = kCount, .type = type}, buffers);
        // Every rank has its own scalar.
        launches[0].reduction = {.input_scale = 0.3, .input_factor = 3};
        launches[1].reduction = {.input_scale = 1.7, .input_factor = -2};
        ASSERT_TRUE(Cluster::run(cluster.tasks(launches), 5));
        for (uint64_t i = 0; i < kCount; ++i) {
          std::byte scaled[2][8], expected[8];
          for (size_t rank = 0; rank < 2; ++rank) {
            reference_scale_input(type, launches[rank].reduction, inputs[rank].data() + i * size,
                                  scaled[rank]);
          }
          const std::byte* operands[] = {scaled[0], scaled[1]};
          reference_reduction(type, {}, operands, false, expected);
          ASSERT_EQ(std::memcmp(outputs[0].data() + i * size, expected, size), 0) << i;
          ASSERT_EQ(std::memcmp(outputs[1].data() + i * size, expected, size), 0) << i;
        }
      }
    }
  }
}

// A strip with Simple is as long for many operands as for two, and the scaled one of the last rank
// comes behind those of all others.
TEST(AllReduceScaled, ManyOperandsOfLongChunksAreScaled) {
  constexpr int kRanks = 16;
  constexpr uint64_t kCount = kRanks * 2048 + 5;  // 8 KiB of each rank's block
  const Reduction scaled{.op = ReduceOp::Sum, .input_scale = 0.5, .input_factor = 3};
  for (const planner::Form& algorithm : all_reduces()) {
    if (kRanks > algorithm.max_ranks) continue;
    SCOPED_TRACE(algorithm.name);
    Cluster cluster(algorithm.build(kRanks, {}).take(), Protocol::Simple,
                    {.channels = 1, .depth = 2, .slot_bytes = 16 << 10});
    const Operands operands(cluster.schedule(), DataType::Float32, {kCount}, {.reduction = scaled});
    ASSERT_TRUE(Cluster::run(cluster.tasks(cluster.launches(
                                 {.count = kCount, .type = DataType::Float32, .reduction = scaled},
                                 operands.addresses())),
                             7));
    ASSERT_NO_FATAL_FAILURE(operands.check());
    ASSERT_TRUE(cluster.guards_intact());
  }
}

// The scale lies in memory that a kernel before this one on the stream may write.
TEST(AllReduceScaled, ScaleInMemoryIsReadWhenTheOperationRuns) {
  for (const planner::Form& algorithm : all_reduces()) {
    for (int i = 0; i < kDataTypes; ++i) {
      const auto type = static_cast<DataType>(i);
      SCOPED_TRACE(testing::Message() << algorithm.name << " " << name_of(type));
      Cluster cluster(algorithm.build(3, {}).take(), kAllProtocols[i % kProtocols],
                      {.channels = 2, .depth = 2, .slot_bytes = 256});
      constexpr uint64_t kCount = 100;
      std::byte scale[8] = {};
      const Operands first(cluster.schedule(), type, {kCount},
                           {.reduction = {.input_scale = 2, .input_factor = 2}});
      const Operands second(cluster.schedule(), type, {kCount},
                            {.reduction = {.input_scale = 1, .input_factor = 1}});
      const OperationArguments arguments{
          .count = kCount, .type = type, .reduction = {.device_scale = scale}};
      auto first_tasks = cluster.tasks(cluster.launches(arguments, first.addresses()));
      auto second_tasks = cluster.tasks(cluster.launches(arguments, second.addresses()));
      store_number(type, 2, scale);
      ASSERT_TRUE(Cluster::run(std::move(first_tasks), 1));
      ASSERT_NO_FATAL_FAILURE(first.check());
      store_number(type, 1, scale);
      ASSERT_TRUE(Cluster::run(std::move(second_tasks), 2));
      ASSERT_NO_FATAL_FAILURE(second.check());
    }
  }
}

// Sums that depend on the order: schedules without partial sums reduce in ascending rank, once, and
// so does the reference. The others need only give all ranks the same.
TEST(AllReduceOrder, AllRanksReductionInTheSameOrder) {
  for (const planner::Form& algorithm : all_reduces()) {
    for (const Protocol protocol : kAllProtocols) {
      for (const DataType type : {DataType::Float32, DataType::Float16}) {
        SCOPED_TRACE(testing::Message()
                     << algorithm.name << " " << name_of(protocol) << " " << name_of(type));
        constexpr size_t kRanks = 5;
        constexpr uint64_t kCount = 777;
        const size_t size = size_of(type);
        const schedule::Schedule schedule = algorithm.build(kRanks, {}).take();
        std::vector<GuardedMemory> inputs, outputs;
        OperationBuffers buffers;
        for (size_t rank = 0; rank < kRanks; ++rank) {
          inputs.emplace_back(kCount * size);
          outputs.emplace_back(kCount * size);
          for (uint64_t i = 0; i < kCount; ++i) {
            const auto mixed = static_cast<double>((i * 7919 + rank * 104729) % 1009);
            store_number(type, (mixed - 504) / 7 * (rank % 2 == 0 ? 1 : 30),
                         inputs.back().data() + i * size);
          }
          buffers.inputs.push_back(inputs.back().data());
          buffers.outputs.push_back(outputs.back().data());
        }
        Cluster cluster(schedule, protocol, {.channels = 1, .depth = 2, .slot_bytes = 256});
        ASSERT_TRUE(Cluster::run(
            cluster.tasks(cluster.launches({.count = kCount, .type = type}, buffers)), 3));
        uint64_t unlike_descending = 0;
        for (uint64_t i = 0; i < kCount; ++i) {
          std::vector<const std::byte*> operands;
          for (const GuardedMemory& input : inputs) operands.push_back(input.data() + i * size);
          std::byte ascending[8], descending[8];
          reference_reduction(type, {}, operands, true, ascending);
          std::reverse(operands.begin(), operands.end());
          reference_reduction(type, {}, operands, true, descending);
          if (std::memcmp(ascending, descending, size) != 0) ++unlike_descending;
          const std::byte* expected =
              schedule.partial_sums ? outputs[0].data() + i * size : ascending;
          for (const GuardedMemory& output : outputs) {
            ASSERT_EQ(std::memcmp(output.data() + i * size, expected, size), 0) << i;
          }
        }
        // Half is summed in float, mostly without a rounding that the order could change.
        ASSERT_TRUE(type == DataType::Float16 || unlike_descending > 0)
            << "the data does not show the order";
      }
    }
  }
}

// With one rank an all-reduce is a copy, which is scaled like any operand and any result.
TEST(AllReduceScaled, OneRankScalesItsCopy) {
  for (const planner::Form& algorithm : all_reduces()) {
    for (const bool is_in_place : {false, true}) {
      Cluster cluster(algorithm.build(1, {}).take(), Protocol::Simple,
                      {.channels = 2, .depth = 2, .slot_bytes = 128});
      std::vector<float> input(1000, 6);
      std::vector<float> output(1000, 0);
      float* target = is_in_place ? input.data() : output.data();
      const OperationArguments arguments{.count = 1000,
                                         .type = DataType::Float32,
                                         .reduction = {.input_scale = 0.5, .finish_scale = 0.25}};
      const auto launches =
          cluster.launches(arguments, {.inputs = {input.data()}, .outputs = {target}});
      ASSERT_TRUE(Cluster::run(cluster.tasks(launches), 1));
      for (int i = 0; i < 1000; ++i) ASSERT_EQ(target[i], 0.75f) << algorithm.name << " " << i;
    }
  }
}

}  // namespace
}  // namespace niccolite::executor::host
