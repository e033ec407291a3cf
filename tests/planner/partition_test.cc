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
            const Partition p = make_partition(count, element, nblocks,
                                               {.max_channels = channels, .slot_data_bytes = slot});
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

TEST(Partition, OfBlocksSideBySideGivesEachItsOwnCount) {
  for (uint32_t element : {1u, 2u, 8u})
    for (uint32_t nblocks : {1u, 3u, 16u})
      for (uint32_t channels : {1u, 5u, 64u})
        for (uint64_t slot : {512u, 65536u})
          for (uint64_t count : {0u, 1u, 15u, 16u, 17u, 1001u, 200003u}) {
            SCOPED_TRACE(testing::Message()
                         << "element " << element << " nblocks " << nblocks << " channels "
                         << channels << " slot " << slot << " count " << count);
            const Partition p = make_block_partition(
                count, element, nblocks, {.max_channels = channels, .slot_data_bytes = slot});
            ASSERT_EQ(p.block_stride, count);
            ASSERT_GE(p.channels, 1u);
            ASSERT_LE(p.channels, channels);
            ASSERT_GE(p.rounds, 1u);
            ASSERT_LE(uint64_t{p.chunk} * element, slot);
            std::vector<uint8_t> seen(count * nblocks, 0);
            for (uint32_t channel = 0; channel < p.channels; ++channel)
              for (uint32_t round = 0; round < p.rounds; ++round) {
                const Range first = p.range(0, channel, round);
                ASSERT_EQ(first.offset * element % 16, 0u);
                for (uint32_t block = 0; block < nblocks; ++block) {
                  // The same part of every block.
                  const Range range = p.range(block, channel, round);
                  ASSERT_EQ(range.count, first.count);
                  for (uint64_t i = 0; i < range.count; ++i)
                    ASSERT_EQ(seen.at(range.offset + i)++, 0);
                }
              }
            for (const uint8_t times : seen) ASSERT_EQ(times, 1);
          }
}

TEST(Partition, BeginsLargePartsAtLines) {
  for (uint32_t element : {1u, 2u, 4u, 8u})
    for (uint32_t nblocks : {1u, 2u, 3u})
      for (uint32_t channels : {1u, 7u, 12u, 24u})
        for (uint64_t count : {1'000'003u, 4'000'001u}) {
          const Partition p = make_partition(count, element, nblocks,
                                             {.max_channels = channels, .slot_data_bytes = 15'360});
          for (uint32_t block = 0; block < nblocks; ++block)
            for (uint32_t channel = 0; channel < p.channels; ++channel)
              for (uint32_t round = 0; round < p.rounds; ++round) {
                const Range range = p.range(block, channel, round);
                ASSERT_EQ(range.count == 0 ? 0 : range.offset * element % 128, 0u);
              }
        }
}

TEST(Partition, GivesSmallDataToFewChannels) {
  const auto channels_of = [](uint64_t count, uint32_t nblocks) {
    const Cut cut{.max_channels = 32, .slot_data_bytes = 8192, .min_channel_bytes = 1024};
    return make_partition(count, 4, nblocks, cut).channels;
  };
  EXPECT_EQ(channels_of(64, 1), 1u);
  EXPECT_EQ(channels_of(1024, 1), 4u);
  EXPECT_EQ(channels_of(1 << 20, 4), 32u);
}

}  // namespace
}  // namespace niccolite::executor
