// The all-gather as a whole, over all processes, without wires.
#include "bootstrap/gathering.h"

#include <algorithm>
#include <bit>
#include <deque>
#include <random>
#include <set>

#include "bootstrap/root.h"
#include "ranks.h"

namespace niccolite::bootstrap {
namespace {

struct Flight {
  uint32_t from, to, part;
};

class Gatherings : public testing::TestWithParam<uint32_t> {};

TEST_P(Gatherings, BringEachPartToEachProcessOnceOverNeighbors) {
  const uint32_t n = GetParam();
  std::mt19937 random(n);
  std::vector<Gathering> processes;
  std::deque<Flight> flights;
  std::vector<std::set<uint32_t>> neighbors;
  for (uint32_t self = 0; self < n; ++self) {
    processes.emplace_back(self, n);
    const auto list = neighbors_of(self, n);
    neighbors.emplace_back(list.begin(), list.end());
  }
  const auto add = [&](uint32_t process, uint32_t part) {
    Gathering::Part content{.frame =
                                std::make_shared<const Bytes>(pattern(static_cast<int>(part), 8))};
    for (uint32_t next : processes[process].add(part, content)) {
      ASSERT_TRUE(neighbors[process].contains(next));
      flights.push_back({process, next, part});
    }
  };
  for (uint32_t self = 0; self < n; ++self) add(self, self);
  size_t arrivals = 0;
  while (!flights.empty()) {
    std::swap(flights.front(), flights[random() % flights.size()]);  // any order
    const Flight flight = flights.front();
    flights.pop_front();
    ASSERT_FALSE(processes[flight.to].has(flight.part)) << "twice";
    const auto through = processes[flight.to].missing_through(flight.from);
    ASSERT_TRUE(std::find(through.begin(), through.end(), flight.part) != through.end());
    add(flight.to, flight.part);
    ++arrivals;
  }
  EXPECT_EQ(arrivals, size_t{n} * (n - 1));
  for (const Gathering& process : processes) EXPECT_TRUE(process.complete());
}

TEST_P(Gatherings, MissOnlyThePartThatNeverComes) {
  const uint32_t n = GetParam();
  if (n < 2) GTEST_SKIP() << "one process misses nobody";
  const uint32_t silent = n / 2;
  std::vector<Gathering> processes;
  std::deque<Flight> flights;
  for (uint32_t self = 0; self < n; ++self) processes.emplace_back(self, n);
  const auto add = [&](uint32_t process, uint32_t part) {
    Gathering::Part content{.frame = std::make_shared<const Bytes>()};
    for (uint32_t next : processes[process].add(part, content))
      flights.push_back({process, next, part});
  };
  for (uint32_t self = 0; self < n; ++self)
    if (self != silent) add(self, self);
  for (; !flights.empty(); flights.pop_front()) add(flights.front().to, flights.front().part);
  for (const Gathering& process : processes)
    EXPECT_THAT(process.missing(), testing::ElementsAre(silent));
}

TEST_P(Gatherings, NeedLogarithmicallyManyNeighbors) {
  const uint32_t n = GetParam();
  for (uint32_t self = 0; self < n; ++self) {
    const auto neighbors = neighbors_of(self, n);
    EXPECT_LE(neighbors.size(), 2 * static_cast<size_t>(std::bit_width(n - 1)));
    for (uint32_t neighbor : neighbors) {
      const auto back = neighbors_of(neighbor, n);
      EXPECT_TRUE(std::find(back.begin(), back.end(), self) != back.end());
    }
  }
}

// In a round each process passes on what came in the round before. One part speaks for all: where a
// part goes depends on the distance from its process alone (the tests above have all parts of few
// processes). A Gathering for each visit, since those of 4,096 processes fill gigabytes.
TEST(Rounds, GrowAsTheLogarithmOfTheProcesses) {
  for (const uint32_t n : {2u, 3u, 5u, 64u, 100u, 1000u, 1024u, 4095u, 4096u}) {
    const uint32_t origin = n / 3;
    const Gathering::Part part{.frame = std::make_shared<const Bytes>()};
    std::vector<bool> has(n);
    std::vector<uint32_t> now = {origin};
    has[origin] = true;
    uint32_t reached = 1;
    int rounds = 0;
    while (!now.empty()) {
      std::vector<uint32_t> next;
      for (const uint32_t process : now)
        for (const uint32_t to : Gathering(process, n).add(origin, part)) {
          ASSERT_FALSE(has[to]) << "process " << to << " of " << n << " twice";
          has[to] = true;
          next.push_back(to);
        }
      reached += static_cast<uint32_t>(next.size());
      rounds += next.empty() ? 0 : 1;
      now = std::move(next);
    }
    EXPECT_EQ(reached, n);
    EXPECT_EQ(rounds, std::bit_width(n) - 1) << n << " processes";
  }
}

INSTANTIATE_TEST_SUITE_P(Bootstrap, Gatherings,
                         testing::Values(1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 31, 33, 100));

}  // namespace
}  // namespace niccolite::bootstrap
