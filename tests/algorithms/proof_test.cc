// The checker accepts every algorithm of the registry, for every number of ranks of interest and
// every root.
#include <gtest/gtest.h>

#include <algorithm>

#include "algorithms/registry.h"
#include "schedule/check.h"

namespace niccolite::algorithms {
namespace {

using schedule::check;
using schedule::Schedule;

/// The most ranks whose schedule is proved in less than a second or two.
int most_proved(const Algorithm& algorithm) {
  const std::string_view name = algorithm.name;
  const bool is_tree = name == "pat" || name == "tree";
  const bool is_ring = name == "ring";
  if (schedule::has_root(algorithm.collective)) return is_tree || is_ring ? 1024 : 128;
  return is_tree ? 257 : 128;
}

/// All up to 64 ranks, and beyond that those where something could go wrong.
std::vector<int> rank_counts() {
  std::vector<int> counts{65, 96, 127, 128, 257, 1000, 1024};
  for (int n = 1; n <= 64; ++n) counts.push_back(n);
  return counts;
}

/// All roots up to 16 ranks, beyond that those where an index could go wrong.
std::vector<int> roots(const Algorithm& algorithm, int nranks) {
  if (!schedule::has_root(algorithm.collective)) return {0};
  if (nranks > 16) return {0, nranks / 3, nranks - 1};
  std::vector<int> all(static_cast<size_t>(nranks));
  for (int root = 0; root < nranks; ++root) all[static_cast<size_t>(root)] = root;
  return all;
}

struct Case {
  const Algorithm* algorithm;
  int nranks;
};
std::string name_of(const Case& c) {
  return fmt::format("{}_{}_{}", schedule::name_of(c.algorithm->collective), c.algorithm->name,
                     c.nranks);
}
void PrintTo(const Case& c, std::ostream* out) { *out << name_of(c); }

std::vector<Case> cases() {
  std::vector<Case> result;
  for (const Algorithm& algorithm : all())
    for (const int nranks : rank_counts())
      if (nranks >= algorithm.min_ranks &&
          nranks <= std::min(algorithm.max_ranks, most_proved(algorithm)))
        result.push_back({&algorithm, nranks});
  return result;
}

class EveryAlgorithm : public testing::TestWithParam<Case> {};

TEST_P(EveryAlgorithm, IsRightFreeOfDeadlockAndOfRacesAtDepthTwo) {
  const auto& [algorithm, nranks] = GetParam();
  for (const int root : roots(*algorithm, nranks)) {
    const Result<Schedule> built = algorithm->build(nranks, {.root = root});
    ASSERT_TRUE(built.is_ok()) << built.status().message();
    const Status status = check(built.value(), {.depth = 2});
    EXPECT_TRUE(status.is_ok()) << "root " << root << ": " << status.message();
  }
}

INSTANTIATE_TEST_SUITE_P(Registry, EveryAlgorithm, testing::ValuesIn(cases()),
                         [](const testing::TestParamInfo<Case>& test) {
                           return name_of(test.param);
                         });

TEST(Registry, FindsEachAlgorithmByCollectiveAndNameAndNoOther) {
  for (const Algorithm& algorithm : all())
    EXPECT_EQ(find(algorithm.collective, algorithm.name), &algorithm);
  EXPECT_EQ(find(schedule::Collective::AllReduce, "rings"), nullptr);
  EXPECT_EQ(find(schedule::Collective::AllReduce, "pat"), nullptr);
  EXPECT_EQ(find(schedule::Collective::Scatter, ""), nullptr);
}

TEST(Registry, HasAnAlgorithmForEachCollectiveButMessages) {
  for (int i = 0; i < schedule::kCollectives; ++i) {
    const auto collective = static_cast<schedule::Collective>(i);
    const bool has_one = std::any_of(all().begin(), all().end(), [&](const Algorithm& algorithm) {
      return algorithm.collective == collective;
    });
    EXPECT_EQ(has_one, collective != schedule::Collective::PointToPoint)
        << schedule::name_of(collective);
  }
}

TEST(Registry, SchedulesCarryCollectiveNameAndRoot) {
  for (const Algorithm& algorithm : all()) {
    for (const int nranks : {1, 2, 5}) {
      const Schedule schedule = algorithm.build(nranks, {.root = nranks - 1}).take();
      EXPECT_EQ(schedule.algorithm, algorithm.name);
      EXPECT_EQ(schedule.collective, algorithm.collective);
      EXPECT_EQ(schedule.root, schedule::has_root(algorithm.collective) ? nranks - 1 : 0);
    }
  }
}

TEST(Registry, RefusesRanksAndRootsOutsideTheRange) {
  for (const Algorithm& algorithm : all()) {
    SCOPED_TRACE(fmt::format("{} {}", schedule::name_of(algorithm.collective), algorithm.name));
    for (const int nranks : {-1, algorithm.min_ranks - 1, algorithm.max_ranks + 1}) {
      const Result<Schedule> built = algorithm.build(nranks, {});
      ASSERT_FALSE(built.is_ok()) << nranks;
      EXPECT_EQ(built.status().code(), Code::InvalidArgument);
    }
    for (const int rank : {-1, 4}) {
      EXPECT_FALSE(algorithm.build(4, {.only_rank = rank}).is_ok());
      EXPECT_FALSE(algorithm.build(4, {.root = rank}).is_ok());
    }
    EXPECT_FALSE(algorithm.build(4, {.window = 0}).is_ok());
  }
}

/// The connections of `rank`'s instructions, and all else of them, as they would be in any
/// schedule.
std::vector<std::string> workers_of(const Schedule& schedule, int rank) {
  std::vector<std::string> lines;
  const auto& channels = schedule.ranks.at(static_cast<size_t>(rank));
  for (size_t channel = 0; channel < channels.size(); ++channel) {
    for (const schedule::Worker& worker : channels[channel].workers) {
      lines.push_back(fmt::format("channel {} weight {}", channel, worker.weight));
      for (const schedule::Instruction& i : worker.instructions) {
        std::string line;
        for (const int c : i.receive_from) {
          const auto& [sender, receiver, on, tag] = schedule.connections.at(static_cast<size_t>(c));
          line += fmt::format("{}>{}/{}.{} ", sender, receiver, on, tag);
        }
        const auto block = [](const auto& reference) {
          return reference ? fmt::format("{} {}", name_of(reference->buffer), reference->block)
                           : std::string("none");
        };
        line += fmt::format("| {} at {} {} {} of {} | {} |", block(i.source), i.source_position,
                            i.reduce, i.finish, i.chunk_of, block(i.target));
        for (const int c : i.send_to) {
          const auto& [sender, receiver, on, tag] = schedule.connections.at(static_cast<size_t>(c));
          line += fmt::format(" {}>{}/{}.{}", sender, receiver, on, tag);
        }
        lines.push_back(std::move(line));
      }
    }
  }
  return lines;
}

TEST(OnlyRank, BuildsThatRanksPartOfTheWhole) {
  for (const Algorithm& algorithm : all()) {
    SCOPED_TRACE(fmt::format("{} {}", schedule::name_of(algorithm.collective), algorithm.name));
    for (const int nranks : {1, 2, 3, 7, 8, 12}) {
      if (nranks > algorithm.max_ranks) continue;
      const int root = nranks / 2;
      const Schedule whole = algorithm.build(nranks, {.root = root}).take();
      for (int rank = 0; rank < nranks; ++rank) {
        const Schedule part = algorithm.build(nranks, {.only_rank = rank, .root = root}).take();
        EXPECT_EQ(workers_of(part, rank), workers_of(whole, rank)) << rank << " of " << nranks;
        EXPECT_EQ(part.nblocks, whole.nblocks);
        EXPECT_EQ(part.root, whole.root);
      }
    }
  }
}

}  // namespace
}  // namespace niccolite::algorithms
