// The schedules of direct lists, which are made of the functions that the kernels call, do what
// each collective says: the checker proves them, lowered as they run, and refuses all others.
#include "executor/list_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lowering/check.h"
#include "schedule/check.h"
#include "schedule/order.h"

namespace niccolite::executor {
namespace {

using schedule::Collective;
using schedule::Schedule;
using testing::HasSubstr;

constexpr Collective kCollectives[] = {Collective::AllReduce, Collective::Reduce,
                                       Collective::Broadcast, Collective::ReduceScatter,
                                       Collective::AllGather};

std::vector<ListOperation> operations_of(int nranks) {
  std::vector<ListOperation> all;
  for (const Collective collective : kCollectives)
    for (int root = 0; root < (schedule::has_root(collective) ? nranks : 1); ++root)
      all.push_back({.collective = collective, .nranks = nranks, .root = root});
  return all;
}

TEST(ListSchedule, IsRightOfEveryOperationFromTheStartOfKernelsToTheirEnds) {
  for (int nranks = 2; nranks <= static_cast<int>(kMostRanksOfListAccess); ++nranks)
    for (const ListOperation& operation : operations_of(nranks))
      for (uint32_t work = 0; work < static_cast<uint32_t>(nranks); ++work) {
        SCOPED_TRACE(testing::Message() << name_of(operation.collective) << " of " << nranks
                                        << ", root " << operation.root << ", work " << work);
        const Schedule direct = list_schedule(*list_access_of(operation), operation, work);
        ASSERT_EQ(check(direct, {.depth = 1}).message(), "");
        const Result<lowering::AccessPlan> plan = lower_list(direct);
        ASSERT_TRUE(plan.is_ok()) << plan.status().message();
        ASSERT_EQ(lowering::check(plan.value(), {.with_aborts = nranks <= 3}).message(), "");
        EXPECT_TRUE(schedule::reduces_in_one_order(direct));
      }
}

TEST(ListSchedule, IsProvedBothWaysAndReducesInOneOrder) {
  for (int nranks = 2; nranks <= static_cast<int>(kMostRanksOfListAccess); ++nranks)
    for (const ListOperation& operation : operations_of(nranks)) {
      const ListAccess access = *list_access_of(operation);
      EXPECT_EQ(prove_list(access, operation).message(), "") << nranks;
      EXPECT_TRUE(reduces_in_one_order(access, operation)) << nranks;
    }
}

TEST(ListSchedule, OfAnotherAccessIsRefused) {
  const ListOperation reduce{.collective = Collective::Reduce, .nranks = 3, .root = 1};
  ListAccess access = *list_access_of(reduce);
  access.inputs = 0b011;
  const Status refused = prove_list(access, reduce);
  EXPECT_EQ(refused.code(), Code::InternalError);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("a list of reduce over 3 ranks is wrong"));
  EXPECT_FALSE(reduces_in_one_order(access, reduce));
  EXPECT_FALSE(list_access_of({.collective = Collective::AllToAll, .nranks = 3}));
}

}  // namespace
}  // namespace niccolite::executor
