// How much memory is kept for peers, and which of it is let go.
#include "registry/kept_memory.h"

#include <gtest/gtest.h>

#include <limits>

#include "gpu/machine.h"
#include "registry/housekeeper.h"

namespace niccolite::registry {
namespace {

constexpr size_t kNoBound = std::numeric_limits<size_t>::max();
constexpr uint64_t kLater = 1'000;  // rounds: long enough to be idle

class KeptMemoryTest : public testing::Test {
 protected:
  KeptMemoryTest() { kept_.measure(); }
  /// So many hundredths of the free memory.
  size_t part(size_t hundredths) { return free_ / 100 * hundredths; }
  /// A round of the housekeeper, in which the memory of `used` was used.
  void sweep(uint64_t round, std::initializer_list<uint64_t> used) {
    for (const uint64_t id : used) kept_.note_use(id, round);
    kept_.choose(round);
  }

  gpu::Machine& machine_ = *gpu::machine().take();
  const size_t free_ = machine_.device_memory(0).take().free_bytes;
  KeptMemory kept_{machine_, 0};
};

TEST_F(KeptMemoryTest, IsNoMoreThanIsFreeBesides) {
  EXPECT_TRUE(kept_.add(1, part(50), kNoBound));
  EXPECT_TRUE(kept_.add(2, part(40), kNoBound));
  EXPECT_FALSE(kept_.add(3, part(20), kNoBound));
  EXPECT_EQ(kept_.bytes(), part(50) + part(40));
}

TEST_F(KeptMemoryTest, IsNoMoreThanIsAllowed) {
  EXPECT_TRUE(kept_.add(1, 1000, 1500));
  EXPECT_FALSE(kept_.add(2, 501, 1500));
  EXPECT_FALSE(kept_.add(2, 1, 0));
}

TEST_F(KeptMemoryTest, CountsOnceWhatSeveralKeep) {
  for (int keeper = 0; keeper < 3; ++keeper) EXPECT_TRUE(kept_.add(1, part(60), kNoBound));
  EXPECT_EQ(kept_.bytes(), part(60));
  kept_.remove(1);
  kept_.remove(1);
  EXPECT_EQ(kept_.bytes(), part(60));
  kept_.remove(1);
  EXPECT_EQ(kept_.bytes(), 0u);
  kept_.remove(1);  // nobody keeps it
  EXPECT_EQ(kept_.bytes(), 0u);
}

TEST_F(KeptMemoryTest, LetsIdleMemoryGoForOtherMemory) {
  EXPECT_TRUE(kept_.add(1, part(50), kNoBound));
  EXPECT_TRUE(kept_.add(2, part(40), kNoBound));
  EXPECT_FALSE(kept_.add(3, part(30), kNoBound));
  sweep(kLater, {2});
  EXPECT_TRUE(kept_.has_to_go(1));
  EXPECT_FALSE(kept_.has_to_go(2));
  kept_.remove(1);
  EXPECT_TRUE(kept_.add(3, part(30), kNoBound));
}

TEST_F(KeptMemoryTest, ExchangesNoMemoryThatIsInUse) {
  EXPECT_TRUE(kept_.add(1, part(50), kNoBound));
  EXPECT_TRUE(kept_.add(2, part(40), kNoBound));
  EXPECT_FALSE(kept_.add(3, part(30), kNoBound));
  sweep(kLater, {1, 2});
  EXPECT_FALSE(kept_.has_to_go(1));
  EXPECT_FALSE(kept_.has_to_go(2));
}

// As when the program has allocated: then the longest unused goes, also if it is in use.
TEST_F(KeptMemoryTest, GoesWhenLittleIsFree) {
  EXPECT_TRUE(kept_.add(1, part(30), kNoBound));
  EXPECT_TRUE(kept_.add(2, part(30), kNoBound));
  EXPECT_TRUE(kept_.add(3, part(30), kNoBound));
  EXPECT_FALSE(kept_.is_scarce());
  const gpu::Memory taken = machine_.allocate(0, part(30), /*shareable=*/false).take();
  ASSERT_TRUE(taken.valid());
  kept_.measure();
  EXPECT_TRUE(kept_.is_scarce());
  kept_.note_use(2, kLater - 1);
  sweep(kLater, {1, 3});
  EXPECT_TRUE(kept_.has_to_go(2));
  EXPECT_FALSE(kept_.has_to_go(1));
  EXPECT_FALSE(kept_.has_to_go(3));
}

}  // namespace
}  // namespace niccolite::registry
