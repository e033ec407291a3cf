// Algorithms that keep blocks in scratch memory: what they are given, and whole operations.
#include "operations/scratch.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "base/wait.h"
#include "gpu/virtual/driver.h"
#include "operations/operation_queue.h"
#include "operations/tuning.h"
#include "schedule/builder.h"

namespace niccolite::operations {
namespace {

using planner::Choice;
using schedule::input;
using schedule::output;
using schedule::scratch;

gpu::Machine& machine() { return *gpu::virtual_::open(gpu::virtual_::kInterfaceVersion); }

/// An all-reduce of one rank, by way of scratch blocks: scaled once, when the input is read.
Result<schedule::Schedule> build(int nranks, const algorithms::Options&) {
  schedule::Builder builder({.collective = schedule::Collective::AllReduce,
                             .algorithm = "by_way_of_scratch",
                             .nranks = nranks,
                             .nblocks = 2,
                             .scratch_blocks = 2});
  schedule::WorkerBuilder worker = builder.add_worker(0);
  for (const int block : {0, 1})
    worker.add({.source = input(block), .target = scratch(1 - block), .finish = true});
  for (const int block : {0, 1})
    worker.add({.source = scratch(1 - block), .target = output(block), .chunk_of = block});
  return std::move(builder).take();
}
constexpr algorithms::Algorithm kByWayOfScratch{
    .name = "by_way_of_scratch",
    .collective = schedule::Collective::AllReduce,
    .min_ranks = 1,
    .max_ranks = 1,
    .build = build,
};
const planner::Form kFormByWayOfScratch{.algorithm = &kByWayOfScratch,
                                        .workers = lowering::Spread::AsBuilt,
                                        .name = kByWayOfScratch.name,
                                        .collective = kByWayOfScratch.collective,
                                        .min_ranks = 1,
                                        .max_ranks = 1,
                                        .counts_ranks_of_machine = false};

executor::Launch launch_of(std::span<const uint64_t> counts) {
  executor::Launch launch;
  launch.type = executor::DataType::Float32;
  const executor::Program program = executor::compile(build(1, {}).take(), 0).take();
  const std::vector<const executor::Program*> programs(counts.size(), &program);
  launch.program = std::make_shared<const executor::Program>(executor::join(programs).take());
  for (const uint64_t count : counts)
    launch.works.emplace_back().partition =
        executor::make_partition(count, 4, 2, {.slot_data_bytes = 1024});
  return launch;
}

TEST(Scratch, IsOneMemoryForAllOperationsThatGrows) {
  Scratch of_communicator(machine(), 0);
  EXPECT_EQ(of_communicator.bytes(), 0u);
  const uint64_t kSmall[] = {100}, kTwo[] = {100, 5000}, kLarge[] = {10'000'000};
  const std::vector<void*> first = of_communicator.reserve(launch_of(kSmall)).take();
  ASSERT_EQ(first.size(), 1u);
  const size_t bytes = of_communicator.bytes();
  EXPECT_GE(bytes, 400u);
  EXPECT_EQ(of_communicator.reserve(launch_of(kSmall)).take(), first);
  EXPECT_EQ(of_communicator.bytes(), bytes);
  // Works of one launch run side by side.
  const std::vector<void*> two = of_communicator.reserve(launch_of(kTwo)).take();
  ASSERT_EQ(two.size(), 2u);
  EXPECT_GE(static_cast<std::byte*>(two[1]) - static_cast<std::byte*>(two[0]), 400);
  std::memset(two[1], 0x5a, 20'000);
  const std::vector<void*> large = of_communicator.reserve(launch_of(kLarge)).take();
  EXPECT_GE(of_communicator.bytes(), 40'000'000u);
  std::memset(large[0], 0, 40'000'000);
  // What a graph may still name is there, and nobody else's.
  EXPECT_EQ(static_cast<std::byte*>(two[1])[19'999], std::byte{0x5a});
}

TEST(Scratch, ComesBackWhereItWas) {
  Scratch of_communicator(machine(), 0);
  const uint64_t kCounts[] = {1000};
  const std::vector<void*> memory = of_communicator.reserve(launch_of(kCounts)).take();
  const size_t bytes = of_communicator.bytes();
  ASSERT_TRUE(of_communicator.suspend().is_ok());
  EXPECT_EQ(of_communicator.bytes(), bytes);
  ASSERT_TRUE(of_communicator.resume().is_ok());
  EXPECT_EQ(of_communicator.reserve(launch_of(kCounts)).take(), memory);
  std::memset(memory[0], 1, 4000);
}

TEST(Scratch, IsNothingForProgramsWithoutSuchBlocks) {
  Scratch of_communicator(machine(), 0);
  const uint64_t kCounts[] = {1000};
  executor::Launch launch = launch_of(kCounts);
  auto program = std::make_shared<executor::Program>(*launch.program);
  program->works[0].scratch_blocks = 0;
  launch.program = program;
  EXPECT_TRUE(of_communicator.reserve(launch).take().empty());
  EXPECT_EQ(of_communicator.bytes(), 0u);
}

/// Always decides for the algorithm above.
class ByWayOfScratch final : public planner::Tuner {
  Choice advise(const planner::Settings&, planner::Collective, size_t,
                std::span<const planner::Option>, const Choice& own) override {
    Choice choice = own;
    choice.form = &kFormByWayOfScratch;
    choice.protocol = executor::Protocol::Simple;
    return choice;
  }
};

TEST(ScratchOfCommunicators, ServesOperationsOfAllSizesOneAfterTheOther) {
  const planner::Settings settings =
      planner::make_settings(gpu::Kind::Virtual, /*nranks=*/1, {}).take();
  executor::ControlWords control{};
  Tuning tuning(settings, std::make_shared<ByWayOfScratch>(), nullptr);
  OperationQueue operations(OperationQueue::Parts{
      .machine = machine(), .settings = settings, .control = &control, .tuning = &tuning});
  const gpu::Stream stream = machine().create_stream(0).take();
  EXPECT_EQ(operations.scratch().bytes(), 0u);
  for (const size_t count : {10, 3000, 70, 1'000'001}) {
    std::vector<float> values(count), results(count);
    std::iota(values.begin(), values.end(), 1.0F);
    calls::Task task;
    task.call.request = {.collective = schedule::Collective::AllReduce,
                         .count = count,
                         .type = executor::DataType::Float32,
                         .op = {.operation = planner::Operation::PreMulSum, .scale = 3}};
    task.input = values.data();
    task.output = results.data();
    task.stream = stream.handle();
    const Status status = operations.carry_out({&task, 1}, std::chrono::seconds(10));
    ASSERT_TRUE(status.is_ok()) << status.message();
    ASSERT_TRUE(machine().synchronize_stream(0, stream.handle()).is_ok());
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(results[i], 3 * values[i]) << i << " of " << count;
    EXPECT_GE(operations.scratch().bytes(), 4 * count);
  }
}

}  // namespace
}  // namespace niccolite::operations
