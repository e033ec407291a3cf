// What a process tells of its ranks in a group.
#include "bootstrap/group.h"

#include <gtest/gtest.h>

namespace niccolite::bootstrap {
namespace {

// Ranks come to a group that was made from another one after the other. A link that opens meanwhile
// brings the peer what this process says of them.
TEST(Group, SaysOfNobodyWhoIsStillToComeThatItHasLeft) {
  std::mutex mutex;
  Service service;
  Absences absences({.is_visible = [](uint32_t) { return true; },
                     .run_state = [](uint32_t) { return RunState::Runs; },
                     .describe = [](uint32_t) { return std::string(); }});
  const auto group = std::make_shared<Group>(
      1, std::vector<uint32_t>{0, 1},
      Group::Outside{.mutex = mutex,
                     .service = service,
                     .transmit = [](uint32_t, std::shared_ptr<const Bytes>) {},
                     .probe = [](uint32_t) {},
                     .absences = absences});
  Roster& roster = group->roster();
  roster.set_place(0, 2, 3);
  std::vector<messages::ProcessEntry> table(2);
  table[0].ranks = {0, 1};
  table[1].ranks = {2};
  ASSERT_TRUE(roster.set_table(std::move(table)).is_ok());
  const auto first = std::make_shared<Local>(0, 3, nullptr);
  roster.add(first);
  EXPECT_TRUE(group->what_left().ranks.empty()) << "rank 1 is still to come";
  roster.add(std::make_shared<Local>(1, 3, nullptr));
  roster.remove(*first);
  roster.mark_left(0);
  EXPECT_EQ(group->what_left().ranks, std::vector<int32_t>{0});
}

}  // namespace
}  // namespace niccolite::bootstrap
