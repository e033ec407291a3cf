// What the form of a schedule says about its connections.
#include "lowering/routes.h"

#include <gtest/gtest.h>

#include "algorithms/registry.h"

namespace niccolite::lowering {
namespace {

using schedule::Schedule;

TEST(Routes, AreWhatAlgorithmsDeclare) {
  for (const algorithms::Algorithm& algorithm : algorithms::all()) {
    for (int nranks = algorithm.min_ranks; nranks <= std::min(algorithm.max_ranks, 33); ++nranks) {
      const bool has_root = schedule::has_root(algorithm.collective);
      for (int root = 0; root < (has_root ? nranks : 1); ++root) {
        SCOPED_TRACE(fmt::format("{} {}, {} ranks, root {}",
                                 schedule::name_of(algorithm.collective), algorithm.name, nranks,
                                 root));
        const Schedule schedule = algorithm.build(nranks, {.root = root}).take();
        const Routes routes = routes_of(schedule);
        for (const schedule::Connection& connection : schedule.connections) {
          const Route route = routes.of(connection.tag);
          ASSERT_EQ(route.way == Way::DirectGet, connection.lends);
          ASSERT_EQ(route.way == Way::DirectPut, connection.lands);
          ASSERT_EQ(route.is_final, connection.stays);
        }
      }
    }
  }
}

}  // namespace
}  // namespace niccolite::lowering
