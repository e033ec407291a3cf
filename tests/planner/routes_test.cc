// A rank that builds its own part alone finds the routes of the whole schedule.
#include "planner/routes.h"

#include <gtest/gtest.h>

namespace niccolite::planner {
namespace {

TEST(FindRoutes, GivesEachRankThoseOfTheWhole) {
  for (const Form& algorithm : forms()) {
    for (const int nranks : {1, 2, 3, 4, 8, 33}) {
      if (nranks < algorithm.min_ranks || nranks > algorithm.max_ranks) continue;
      const int root = nranks / 2;
      const auto whole = lowering::routes_of(algorithm.build(nranks, {.root = root}).take());
      for (int rank = 0; rank < nranks; ++rank) {
        const auto part = algorithm.build(nranks, {.only_rank = rank, .root = root}).take();
        const lowering::Routes routes =
            find_routes(algorithm, nranks, {.only_rank = rank, .root = root}, part).take();
        for (const schedule::Connection& connection : part.connections) {
          EXPECT_EQ(routes.of(connection.tag), whole.of(connection.tag))
              << algorithm.name << ", rank " << rank << " of " << nranks;
        }
      }
    }
  }
}

}  // namespace
}  // namespace niccolite::planner
