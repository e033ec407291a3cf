// Rings of a machine graph, in what the planner makes of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "executor/program.h"
#include "planner/choice/choice.h"
#include "planner/prices/price.h"
#include "planner/settings.h"
#include "schedule/check.h"
#include "schedule/load.h"

namespace niccolite::planner {
namespace {

/// Ranks dealt to machines at random, and rings that keep machines together: one for each rail,
/// which a machine is left by.
Settings placed_at_random(int machines, int ranks_of_machine, int nrings, std::mt19937& random) {
  const int nranks = machines * ranks_of_machine;
  std::vector<int> machine_of(static_cast<size_t>(nranks));
  for (int rank = 0; rank < nranks; ++rank) machine_of[static_cast<size_t>(rank)] = rank % machines;
  std::ranges::shuffle(machine_of, random);
  Settings settings = make_settings(gpu::Kind::Cuda, nranks, {}).value();
  std::vector<std::vector<int>> rings;
  for (int number = 0; number < nrings; ++number) {
    std::vector<int>& ring = rings.emplace_back();
    for (int machine = 0; machine < machines; ++machine) {
      std::vector<int> members;
      for (int rank = 0; rank < nranks; ++rank)
        if (machine_of[static_cast<size_t>(rank)] == machine) members.push_back(rank);
      std::ranges::rotate(members, members.begin() + number % ranks_of_machine);
      ring.insert(ring.end(), members.begin(), members.end());
    }
  }
  span_machines(settings, machine_of);
  set_rings(settings, rings);
  return settings;
}

bool is_ring(const Form& form) { return form.family() == "ring"; }

TEST(RingsOfMachines, AreProvedAndCrossEachWireOnceWhereverRanksAre) {
  std::mt19937 random(20261124);
  int seen = 0;
  for (const int machines : {2, 3, 4})
    for (const int ranks_of_machine : {1, 2, 4})
      for (const int nrings : {1, ranks_of_machine}) {
        const Settings settings = placed_at_random(machines, ranks_of_machine, nrings, random);
        for (const Form& algorithm : forms()) {
          if (!is_ring(algorithm)) continue;
          SCOPED_TRACE(fmt::format("{} {} over {} x {}, {} rings",
                                   schedule::name_of(algorithm.collective), algorithm.name,
                                   machines, ranks_of_machine, nrings));
          algorithms::Options options = options_of(settings);
          options.root = settings.nranks - 1;
          const schedule::Schedule built = algorithm.build(settings.nranks, options).take();
          EXPECT_TRUE(check(built).is_ok()) << check(built).message();
          ++seen;
          if (algorithm.collective != Collective::AllReduce) continue;
          // Each ring would carry all, so that all together do so once for each.
          const double n = settings.nranks;
          EXPECT_NEAR(load_of(built, settings.machines).wire / nrings, 2 * (n - 1) / n, 1e-9);
          const auto demand = demand_of(settings, algorithm, executor::Protocol::Simple);
          EXPECT_NEAR(demand->load.wire, 2 * (n - 1) / n, 1e-9);
        }
      }
  EXPECT_GT(seen, 50);
}

TEST(RingsOfMachines, ArePricedApartFromThoseInRankOrder) {
  Settings settings = make_settings(gpu::Kind::Cuda, 8, {}).value();
  span_machines(settings, {0, 1, 0, 1, 0, 1, 0, 1});
  const Form& ring = *find_form(Collective::AllReduce, "ring");
  const double scattered = demand_of(settings, ring, executor::Protocol::Simple)->load.wire;
  set_rings(settings, {{0, 2, 4, 6, 1, 3, 5, 7}});
  const double together = demand_of(settings, ring, executor::Protocol::Simple)->load.wire;
  EXPECT_NEAR(scattered, 4 * together, 1e-9);
}

TEST(RingsOfMachines, OneInRankOrderIsNone) {
  Settings settings = make_settings(gpu::Kind::Virtual, 3, {}).value();
  set_rings(settings, {{0, 1, 2}});
  EXPECT_TRUE(settings.rings.empty());
  set_rings(settings, {{0, 2, 1}});
  EXPECT_EQ(settings.rings.size(), 1u);
}

// Two machines of thousands of GPUs, eight rails.
TEST(RingsOfMachines, AreNoMoreThanAProgramHasRoomFor) {
  for (const int nranks : {4096, 4682, 10'000}) {
    Settings settings = make_settings(gpu::Kind::Cuda, nranks, {}).value();
    std::vector<std::vector<int>> rings(8, std::vector<int>(static_cast<size_t>(nranks)));
    for (size_t number = 0; number < rings.size(); ++number) {
      std::iota(rings[number].begin(), rings[number].end(), 0);
      std::ranges::rotate(rings[number], rings[number].begin() + static_cast<ptrdiff_t>(number));
    }
    set_rings(settings, std::move(rings));
    EXPECT_GT(settings.rings.size(), 1u);
    algorithms::Options options = options_of(settings);
    options.only_rank = nranks - 1;
    for (const Form& algorithm : forms()) {
      if (!is_ring(algorithm)) continue;
      const schedule::Schedule built = algorithm.build(nranks, options).take();
      EXPECT_EQ(executor::compile(built, nranks - 1).status().message(), "")
          << schedule::name_of(algorithm.collective) << " " << algorithm.name << " of " << nranks;
    }
  }
}

}  // namespace
}  // namespace niccolite::planner
