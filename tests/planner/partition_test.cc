#include "executor/partition.h"

#include <gtest/gtest.h>

#include <vector>

namespace niccolite::executor {
namespace {

TEST(Partition, CoversEveryElementOnceWithAlignedChunksThatFitASlot) {
  for (uint32_t element : {1u, 2u, 4u, 8u})
    for (uint32_t nblocks : {1u, 2u, 3u, 8u, 33u})
      for (uint32_t channels : {1u, 2u, 7u, 64u})
        for (uint64_t slot : {512u, 8192u, 65536u})
          for (uint64_t count : {1u, 2u, 15u, 16u, 17u, 1000u, 65535u, 200003u}) {
            SCOPED_TRACE(testing::Message()
                         << "element " << element << " nblocks " << nblocks << " channels "
                         << channels << " slot " << slot << " count " << count);
            const Partition p = make_partition(count, element, nblocks, channels, slot, 16);
            ASSERT_GE(p.channels, 1u);
            ASSERT_LE(p.channels, channels);
            ASSERT_GE(p.rounds, 1u);
            ASSERT_LE(uint64_t{p.chunk} * element, slot);
            std::vector<uint8_t> seen(count, 0);
            for (uint32_t block = 0; block < nblocks; ++block)
              for (uint32_t channel = 0; channel < p.channels; ++channel)
                for (uint32_t round = 0; round < p.rounds; ++round) {
                  const Range range = p.range(block, channel, round);
                  ASSERT_LE(range.count, p.chunk);
                  if (range.count == 0) continue;
                  ASSERT_EQ(range.offset * element % 16, 0u);
                  for (uint64_t i = 0; i < range.count; ++i)
                    ASSERT_EQ(seen.at(range.offset + i)++, 0);
                }
            for (uint64_t i = 0; i < count; ++i) ASSERT_EQ(seen[i], 1) << i;
          }
}

TEST(Partition, GivesSmallDataToFewChannels) {
  EXPECT_EQ(make_partition(64, 4, 1, 32, 8192, 1024).channels, 1u);
  EXPECT_EQ(make_partition(1024, 4, 1, 32, 8192, 1024).channels, 4u);
  EXPECT_EQ(make_partition(1 << 20, 4, 4, 32, 8192, 1024).channels, 32u);
}

}  // namespace
}  // namespace niccolite::executor
