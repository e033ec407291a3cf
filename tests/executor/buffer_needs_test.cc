#include "executor/buffer_needs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "schedule/builder.h"

namespace niccolite::executor {
namespace {

using schedule::Builder;
using schedule::WorkerBuilder;
using testing::HasSubstr;

/// One rank that copies its input to its output by way of a scratch block.
Launch launch_with_scratch(uint64_t count) {
  Builder builder({.collective = schedule::Collective::Broadcast,
                   .algorithm = "sketch",
                   .nranks = 1,
                   .nblocks = 1,
                   .scratch_blocks = 1});
  WorkerBuilder worker = builder.add_worker(0);
  worker.add({.source = schedule::input(0), .target = schedule::scratch(0)});
  worker.add({.source = schedule::scratch(0), .target = schedule::output(0)});
  Launch launch;
  launch.program = std::make_shared<const Program>(compile(std::move(builder).take(), 0).take());
  launch.works.push_back({.partition = {.count = count}, .buffers = {}});
  return launch;
}

TEST(BufferNeeds, RefuseALaunchThatLacksABuffer) {
  const BufferNeeds needs(launch_with_scratch(4));
  char memory[4];
  const struct {
    const char* missing;
    Buffers buffers;
  } cases[] = {
      {"no input buffer", {.input = nullptr, .output = memory, .scratch = memory}},
      {"no output buffer", {.input = memory, .output = nullptr, .scratch = memory}},
      {"no scratch buffer", {.input = memory, .output = memory, .scratch = nullptr}},
  };
  for (const auto& [missing, buffers] : cases) {
    const Status status = needs.check({&buffers, 1});
    EXPECT_EQ(status.code(), Code::InternalError);
    EXPECT_THAT(status.message(), HasSubstr(missing));
  }
  const Buffers all{.input = memory, .output = memory, .scratch = memory};
  EXPECT_TRUE(needs.check({&all, 1}).is_ok());
  EXPECT_THAT(needs.check({}).message(), HasSubstr("buffers of 0 works, for a launch of 1"));
}

TEST(BufferNeeds, AreNoneOfAnEmptyOperation) {
  const Buffers none{};
  EXPECT_TRUE(BufferNeeds(launch_with_scratch(0)).check({&none, 1}).is_ok());
}

// Its program is an all-reduce's, whatever the operations are: it only gives the connections.
TEST(BufferNeeds, AreThoseOfTheAccessInAListThatReachesBuffers) {
  Launch launch = launch_with_scratch(4);
  launch.list_channels = 1;
  launch.list_access = ListAccess{.inputs = 0b10, .outputs = 0b11};  // a broadcast from rank 1
  char memory[4];
  const Buffers output_alone{.output = memory};
  const Buffers input_alone{.input = memory};
  EXPECT_TRUE(BufferNeeds(launch).check({&output_alone, 1}).is_ok());
  EXPECT_THAT(BufferNeeds(launch).check({&input_alone, 1}).message(),
              HasSubstr("no output buffer"));
  launch.list_access = ListAccess{.inputs = 0b11, .outputs = 0b10};  // a reduction to rank 1
  EXPECT_TRUE(BufferNeeds(launch).check({&input_alone, 1}).is_ok());
  EXPECT_THAT(BufferNeeds(launch).check({&output_alone, 1}).message(),
              HasSubstr("no input buffer"));
}

}  // namespace
}  // namespace niccolite::executor
