#include "gpu/cuda/pages.h"

#include <gtest/gtest.h>

namespace niccolite::gpu::cuda {
namespace {

constexpr size_t kPage = 4096;

TEST(Pages, ReachToTheEndsOfPages) {
  const struct {
    uintptr_t memory;
    size_t bytes;
    uintptr_t begin;
    size_t rounded;
  } cases[] = {
      {0x10000, 0x4000, 0x10000, 0x4000},  // all of the allocation
      {0x10000, 1, 0x10000, kPage},       {0x10064, 1000, 0x10000, kPage},
      {0x10fff, 2, 0x10000, 2 * kPage},   {0x11000, kPage, 0x11000, kPage},
      {0x13fff, 1, 0x13000, kPage},
  };
  for (const auto& each : cases) {
    const auto pages = pages_around(each.memory, each.bytes, 0x10000, 0x4000, kPage);
    ASSERT_TRUE(pages) << each.memory << " " << each.bytes;
    EXPECT_EQ(pages->begin, each.begin);
    EXPECT_EQ(pages->bytes, each.rounded);
  }
}

TEST(Pages, AreOfTheAllocationAlone) {
  EXPECT_FALSE(pages_around(0x10000, 0x4001, 0x10000, 0x4000, kPage));
  EXPECT_FALSE(pages_around(0xfff0, 0x20, 0x10000, 0x4000, kPage));
  EXPECT_FALSE(pages_around(0x15000, 1, 0x10000, 0x4000, kPage));
  EXPECT_FALSE(pages_around(0x10000, SIZE_MAX, 0x10000, 0x4000, kPage));
  // Small allocations of cuMemAlloc share pages.
  EXPECT_FALSE(pages_around(0x10200, 0x200, 0x10200, 0x200, kPage));
  EXPECT_FALSE(pages_around(0x10000, 0x200, 0x10000, 0x200, kPage));
}

}  // namespace
}  // namespace niccolite::gpu::cuda
