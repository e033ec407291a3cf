// The library's way to the virtual driver: nothing of it is linked in here.
#include "gpu/machine.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace niccolite::gpu {
namespace {

// Before anything reads it: the choice is made once per process.
const bool chosen = setenv("NICCOLITE_DEVICES", "virtual:3", 1) == 0;

TEST(MachineChoice, FindsTheVirtualDriverOfTheBuildTree) {
  ASSERT_TRUE(chosen);
  const Result<Machine*> first = machine();
  ASSERT_TRUE(first.is_ok()) << first.status().message();
  EXPECT_EQ(first.value()->kind(), Kind::Virtual);
  EXPECT_EQ(first.value()->device_count(), 3);
  EXPECT_EQ(machine().value(), first.value());
}

TEST(MachineChoice, OwnersWorkAcrossTheTwoLibraries) {
  Machine* found = machine().value();
  Result<Memory> memory = found->allocate(2, 100, true);
  ASSERT_TRUE(memory.is_ok()) << memory.status().message();
  Memory moved = std::move(memory).take();
  Memory target;
  target = std::move(moved);
  EXPECT_FALSE(moved.valid());  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(target.device(), 2);
  target.reset();
  EXPECT_FALSE(target.valid());
  Stream stream = std::move(found->create_stream(1)).take();
  EXPECT_TRUE(found->synchronize_stream(1, stream.handle()).is_ok());
}

}  // namespace
}  // namespace niccolite::gpu
