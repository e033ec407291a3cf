// Which collectives may be in a list over buffers that all ranks reach. (What such a list does is
// proved in tests/executor/list_schedule_test.cc.)
#include <gtest/gtest.h>

#include <cstdlib>

#include "planner/choice/list_choice.h"
#include "planner/settings.h"

namespace niccolite::planner {
namespace {

TEST(ListAccess, IsForBuffersThatAllRanksReach) {
  const auto find = [](gpu::Kind machine, int nranks, bool reaches, const char* protocols) {
    if (protocols != nullptr) setenv("NCCL_PROTO", protocols, 1);
    Settings settings = make_settings(machine, nranks, {}).take();
    unsetenv("NCCL_PROTO");
    if (!reaches) set_reach(settings, false);
    return find_list_access(settings, {.collective = Collective::AllReduce, .nranks = nranks})
        .has_value();
  };
  EXPECT_TRUE(find(gpu::Kind::Cuda, 2, true, nullptr));
  EXPECT_FALSE(find(gpu::Kind::Cuda, 2, false, nullptr));
  EXPECT_TRUE(find(gpu::Kind::Virtual, 2, true, nullptr));
  EXPECT_FALSE(find(gpu::Kind::Virtual, 2, false, nullptr));
  EXPECT_FALSE(find(gpu::Kind::Cuda, 9, true, nullptr));
  EXPECT_FALSE(find(gpu::Kind::Cuda, 2, true, "Simple")) << "the user has asked for something else";
}

TEST(ListAccess, IsInvariantSinceListsReduceInOneOrder) {
  for (const gpu::Kind machine : {gpu::Kind::Cuda, gpu::Kind::Virtual})
    for (int nranks = 2; nranks <= 8; ++nranks) {
      Settings settings = make_settings(machine, nranks, {}).take();
      settings.is_invariant = true;
      for (const Collective collective :
           {Collective::AllReduce, Collective::Reduce, Collective::Broadcast,
            Collective::ReduceScatter, Collective::AllGather})
        EXPECT_TRUE(find_list_access(settings, {.collective = collective,
                                                .nranks = nranks,
                                                .root = schedule::has_root(collective) ? 1 : 0}))
            << function_name(collective) << " of " << nranks;
      EXPECT_FALSE(
          find_list_access(settings, {.collective = Collective::AllToAll, .nranks = nranks}));
    }
}

}  // namespace
}  // namespace niccolite::planner
