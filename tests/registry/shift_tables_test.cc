#include "registry/shift_tables.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "executor/protocol/advertisement.h"
#include "gpu/machine.h"

namespace niccolite::registry {
namespace {

class ShiftTablesTest : public testing::Test {
 protected:
  // The device memory of virtual GPUs can be read by the host.
  ShiftTablesTest() : tables_(*gpu::machine().take(), 0, 3) {}
  const uint64_t* add(std::vector<uint64_t> shifts) { return tables_.add(shifts).take(); }
  ShiftTables tables_;
};

TEST_F(ShiftTablesTest, HoldWhatWasAddedUntilTheyEnd) {
  EXPECT_EQ(tables_.bytes(), 0u);
  std::vector<const uint64_t*> made;
  for (uint64_t i = 0; i < 2000; ++i) made.push_back(add({i, ~i, 5}));
  EXPECT_EQ(std::set(made.begin(), made.end()).size(), made.size());
  for (uint64_t i = 0; i < made.size(); ++i)
    EXPECT_EQ(std::vector(made[i], made[i] + 3), std::vector<uint64_t>({i, ~i, 5}));
  ASSERT_TRUE(tables_.end(made[1]).is_ok());
  EXPECT_EQ(std::vector(made[1], made[1] + 3),
            std::vector<uint64_t>(3, executor::advertisement::kUnseen));
  EXPECT_EQ(made[2][0], 2u);
}

TEST_F(ShiftTablesTest, ComeBackLastOfAllPlaces) {
  const uint64_t* const first = add({1, 2, 3});
  tables_.give_back(first);
  const size_t bytes = tables_.bytes();
  std::set<const uint64_t*> others;
  for (const uint64_t* next = add({0, 0, 0}); next != first; next = add({0, 0, 0}))
    ASSERT_TRUE(others.insert(next).second);
  EXPECT_GT(others.size(), 100u);
  EXPECT_EQ(tables_.bytes(), bytes);
}

}  // namespace
}  // namespace niccolite::registry
