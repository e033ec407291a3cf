#include "gpu/virtual/arena.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

namespace niccolite::gpu::virtual_ {
namespace {

struct Block {
  std::byte* data;
  size_t bytes;
};

bool all_zero(const Block& block) {
  return std::all_of(block.data, block.data + block.bytes,
                     [](std::byte b) { return b == std::byte{0}; });
}

Block make(Arena& arena, size_t bytes) {
  Result<std::byte*> data = arena.allocate(bytes);
  EXPECT_TRUE(data.is_ok()) << data.status().message();
  return {data.value(), bytes};
}

int open_descriptors() {
  int count = 0;
  for (int fd = 0; fd < 4096; ++fd)
    if (lseek(fd, 0, SEEK_CUR) >= 0) ++count;
  return count;
}

TEST(Arena, ThousandsOfBlocksCostOneDescriptor) {
  Arena arena;
  const int before = open_descriptors();
  for (size_t i = 0; i < 5000; ++i) make(arena, 256 + i);
  EXPECT_EQ(open_descriptors(), before + 1);
  EXPECT_EQ(arena.segments(), 1u);
}

TEST(Arena, BlocksAreZeroAlignedAndApartUnderRandomUse) {
  constexpr unsigned kSeed = 20240;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  Arena arena;
  std::vector<Block> blocks;
  const size_t sizes[] = {1, 255, 256, 257, 4095, 4096, 4097, 65535, 65536, 300000};
  for (int step = 0; step < 3000; ++step) {
    if (blocks.size() > 60 || (!blocks.empty() && random() % 3 == 0)) {
      const size_t victim = random() % blocks.size();
      const Block block = blocks[victim];
      const auto mark = static_cast<std::byte>(block.bytes % 251 + 1);
      for (size_t i = 0; i < block.bytes; ++i) ASSERT_EQ(block.data[i], mark) << block.bytes;
      arena.free(block.data, block.bytes);
      blocks.erase(blocks.begin() + static_cast<ptrdiff_t>(victim));
    } else {
      const Block block = make(arena, sizes[random() % std::size(sizes)]);
      ASSERT_EQ(reinterpret_cast<uintptr_t>(block.data) % 256, 0u);
      ASSERT_TRUE(all_zero(block)) << block.bytes;
      std::memset(block.data, static_cast<int>(block.bytes % 251 + 1), block.bytes);
      blocks.push_back(block);
    }
  }
}

TEST(Arena, FreedNeighboursBecomeOneBlockAgain) {
  Arena arena;
  std::vector<Block> blocks;
  // Keeps the segment from going back as a whole.
  const Block keeper = make(arena, 256);
  const size_t piece = Arena::kSegmentBytes / 8 - 4096;
  for (int i = 0; i < 8; ++i) blocks.push_back(make(arena, piece));
  EXPECT_EQ(arena.segments(), 1u);
  for (const int i : {3, 5, 4, 1, 7, 0, 6, 2})
    arena.free(blocks[static_cast<size_t>(i)].data, piece);
  make(arena, Arena::kSegmentBytes - 8192);
  EXPECT_EQ(arena.segments(), 1u);
  arena.free(keeper.data, keeper.bytes);
}

TEST(Arena, AnEmptySegmentGoesBackAndItsAddressesAreRemembered) {
  Arena arena;
  const Block small = make(arena, 100);
  const Block large = make(arena, Arena::kSegmentBytes + 1);
  EXPECT_EQ(arena.segments(), 2u);
  arena.free(large.data, large.bytes);
  EXPECT_EQ(arena.segments(), 1u);
  EXPECT_TRUE(arena.owns(large.data));
  arena.free(small.data, small.bytes);
  EXPECT_EQ(arena.segments(), 0u);
  EXPECT_TRUE(arena.owns(small.data + 50));
  int local = 0;
  EXPECT_FALSE(arena.owns(&local));
}

TEST(Arena, KnowsWhereABlockLiesInItsFile) {
  Arena arena;
  make(arena, 1000);
  const Block block = make(arena, 5000);
  std::memset(block.data, 0x77, block.bytes);
  const Arena::Extent place = arena.place_of(block.data);
  std::vector<unsigned char> seen(block.bytes);
  ASSERT_EQ(pread(place.fd, seen.data(), seen.size(), static_cast<off_t>(place.offset)),
            static_cast<ssize_t>(seen.size()));
  EXPECT_EQ(seen, std::vector<unsigned char>(block.bytes, 0x77));
}

}  // namespace
}  // namespace niccolite::gpu::virtual_
