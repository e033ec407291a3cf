// What the comment at the top of each algorithm claims: instructions and bytes per rank, smallest
// FIFO depth, reduction order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "algorithms/registry.h"
#include "schedule/check.h"
#include "schedule/timeline.h"

namespace niccolite::algorithms {
namespace {

using schedule::check;
using schedule::Collective;
using schedule::Instruction;
using schedule::Schedule;
using testing::HasSubstr;

constexpr int kRoot = 1;  // of those that have one

/// Numbers of `n` ranks, for each rank; where ranks differ, the root comes first.
struct Claim {
  Collective collective;
  const char* algorithm;
  int blocks;
  int instructions;
  int sent;     // chunks of one block
  int workers;  // that every rank has
  int smallest_depth;
  bool partial_sums = false;
  /// The root's, where they are different.
  std::optional<int> root_instructions{};
  std::optional<int> root_sent{};
  std::optional<int> root_workers{};
};

/// Bits that are set in the numbers below `n`.
int bits_below(int n) {
  int bits = 0;
  for (int i = 1; i < n; ++i) bits += std::popcount(static_cast<unsigned>(i));
  return bits;
}

struct Row {
  Claim (*of)(int n);
};
Claim claim_of(const Row& row, int n) { return row.of(n); }
std::string name_of(const Row& row) {
  return fmt::format("{}_{}", schedule::name_of(row.of(2).collective), row.of(2).algorithm);
}
void PrintTo(const Row& row, std::ostream* out) { *out << name_of(row); }

// clang-format off: a table
const Row kRows[] = {
    {[](int n) {
      return Claim{Collective::AllReduce, "ring", n, 2 * n - 1, 2 * (n - 1), 1, 2, true};
    }},
    {[](int n) { return Claim{Collective::AllReduce, "one_shot", 1, 2, n - 1, 1, 1}; }},
    {[](int n) {
      return Claim{Collective::AllReduce, "two_shot", n, 2 * n - 1, 2 * (n - 1), 3, 1};
    }},
    {[](int) { return Claim{Collective::Reduce, "ring", 1, 1, 1, 1, 1, true, 1, 0}; }},
    {[](int) { return Claim{Collective::Reduce, "direct", 1, 1, 1, 1, 1, false, 1, 0}; }},
    {[](int n) {
      return Claim{Collective::Reduce, "two_shot", n - 1, n - 1, n - 1, n > 2 ? 2 : 1, 1, false,
                   2 * (n - 1),        n - 1,      2};
    }},
    {[](int n) { return Claim{Collective::AllGather, "ring", n, n, n - 1, 1, n > 2 ? 2 : 1}; }},
    {[](int n) { return Claim{Collective::AllGather, "direct", n, n, n - 1, 2, 1}; }},
    {[](int n) { return Claim{Collective::AllGather, "pat", n, n, n - 1, 1, n > 3 ? 2 : 1}; }},
    {[](int n) {
      return Claim{Collective::ReduceScatter, "ring", n, n, n - 1, 1, n > 2 ? 2 : 1, true};
    }},
    {[](int n) { return Claim{Collective::ReduceScatter, "direct", n, n, n - 1, 2, 1}; }},
    {[](int n) {
      return Claim{Collective::ReduceScatter, "pat", n, n, n - 1, 1, n > 3 ? 2 : 1, true};
    }},
    {[](int n) { return Claim{Collective::AllToAll, "direct", n, 2 * n - 1, n - 1, 2, 1}; }},
    // As often as the distances have bits set; as many instructions, the last one of each block and
    // the own block's.
    {[](int n) {
      return Claim{Collective::AllToAll, "pat", n, bits_below(n) + n, bits_below(n), 1,
                   n > 3 ? 2 : 1};
    }},
    {[](int n) { return Claim{Collective::Broadcast, "direct", 1, 1, 0, 1, 1, false, 1, n - 1}; }},
    {[](int n) {
      return Claim{Collective::Broadcast,
                   "scatter_gather",
                   n - 1,
                   n - 1,
                   n - 2,
                   n > 2 ? 2 : 1,
                   1,
                   false,
                   2 * (n - 1),
                   n - 1,
                   2};
    }},
    {[](int n) { return Claim{Collective::Gather, "direct", n, 1, 1, 1, 1, false, n, 0}; }},
    {[](int n) { return Claim{Collective::Scatter, "direct", n, 1, 0, 1, 1, false, n, n - 1}; }},
};
// clang-format on

class Claims : public testing::TestWithParam<Row> {
 protected:
  static const Algorithm& algorithm() {
    const Claim claim = claim_of(GetParam(), 2);
    return *find(claim.collective, claim.algorithm);
  }
  static Schedule build(int nranks) {
    const int root = nranks > kRoot ? kRoot : 0;
    return algorithm().build(nranks, {.root = root}).take();
  }
};

struct Counts {
  int instructions = 0;
  int sent = 0;
  int workers = 0;
};

Counts count(const Schedule& schedule, int rank) {
  Counts counts;
  for (const schedule::Channel& channel : schedule.ranks.at(static_cast<size_t>(rank))) {
    counts.workers += static_cast<int>(channel.workers.size());
    for (const schedule::Worker& worker : channel.workers) {
      counts.instructions += static_cast<int>(worker.instructions.size());
      for (const Instruction& i : worker.instructions)
        counts.sent += static_cast<int>(i.send_to.size());
    }
  }
  return counts;
}

TEST_P(Claims, InstructionsAndBlocksSentPerRank) {
  for (const int n : {2, 3, 4, 7, 8, 16}) {
    if (n > algorithm().max_ranks) continue;
    const Claim claim = claim_of(GetParam(), n);
    const Schedule schedule = build(n);
    EXPECT_EQ(schedule.nblocks, claim.blocks) << n;
    EXPECT_EQ(schedule.partial_sums, claim.partial_sums);
    for (int rank = 0; rank < n; ++rank) {
      SCOPED_TRACE(fmt::format("rank {} of {}", rank, n));
      ASSERT_EQ(schedule.ranks[static_cast<size_t>(rank)].size(), 1u);
      const bool is_root = schedule::has_root(claim.collective) && rank == kRoot;
      const auto at_rank = [&](int everywhere, std::optional<int> at_root) {
        return is_root ? at_root.value_or(everywhere) : everywhere;
      };
      const Counts counts = count(schedule, rank);
      EXPECT_EQ(counts.instructions, at_rank(claim.instructions, claim.root_instructions));
      EXPECT_EQ(counts.sent, at_rank(claim.sent, claim.root_sent));
      EXPECT_EQ(counts.workers, at_rank(claim.workers, claim.root_workers));
    }
  }
}

TEST_P(Claims, SmallestDepthRunsAndOneLessDeadlocks) {
  for (const int n : {2, 3, 4, 8, 9, 32}) {
    if (n > algorithm().max_ranks) continue;
    const Claim claim = claim_of(GetParam(), n);
    const Schedule schedule = build(n);
    for (int depth = claim.smallest_depth; depth <= 8; ++depth) {
      const Status status = check(schedule, {.depth = depth});
      EXPECT_TRUE(status.is_ok()) << n << " ranks, depth " << depth << ": " << status.message();
    }
    if (claim.smallest_depth == 1) continue;  // there is nothing less
    const Status status = check(schedule, {.depth = claim.smallest_depth - 1});
    ASSERT_FALSE(status.is_ok()) << n;
    EXPECT_THAT(status.message(),
                HasSubstr(fmt::format("deadlock with FIFOs of {} slot", claim.smallest_depth - 1)));
  }
}

TEST_P(Claims, OneRankCopiesItsInputAndFinishesWhatIsReduced) {
  const Schedule schedule = build(1);
  EXPECT_TRUE(check(schedule, {.depth = 1}).is_ok());
  ASSERT_EQ(schedule.ranks[0][0].workers.size(), 1u);
  ASSERT_EQ(schedule.ranks[0][0].workers[0].instructions.size(), 1u);
  EXPECT_EQ(schedule.ranks[0][0].workers[0].instructions[0].finish,
            schedule::reduces(schedule.collective));
  EXPECT_TRUE(schedule.connections.empty());
}

INSTANTIATE_TEST_SUITE_P(Registry, Claims, testing::ValuesIn(kRows),
                         [](const testing::TestParamInfo<Row>& test) {
                           return name_of(test.param);
                         });

/// A ring broadcast's last rank sends nothing, and ranks of a tree differ: these have tests of
/// their own below, and those that look at machines in machines_test.cc.
TEST(ClaimTable, HasARowForEachAlgorithm) {
  std::set<std::string> rows{"broadcast_ring",
                             "gather_pat",
                             "scatter_pat",
                             "all_reduce_tree",
                             "broadcast_tree",
                             "reduce_tree",
                             "all_reduce_recursive_doubling",
                             "all_reduce_hierarchical",
                             "all_reduce_rail_trees",
                             "all_gather_hierarchical",
                             "reduce_scatter_hierarchical",
                             "all_to_all_hierarchical",
                             "broadcast_hierarchical",
                             "reduce_hierarchical",
                             "all_reduce_collnetdirect",
                             "all_reduce_collnetchain",
                             "all_gather_collnetdirect",
                             "reduce_scatter_collnetdirect"},
      algorithms;
  for (const Row& row : kRows) EXPECT_TRUE(rows.insert(name_of(row)).second);
  for (const Algorithm& algorithm : all())
    algorithms.insert(
        fmt::format("{}_{}", schedule::name_of(algorithm.collective), algorithm.name));
  EXPECT_EQ(rows, algorithms);
}

TEST(BroadcastRing, AllButTheLastSendTheDataOnceAndDepthOneSuffices) {
  for (const int n : {2, 3, 4, 9}) {
    SCOPED_TRACE(n);
    const Schedule schedule = find(Collective::Broadcast, "ring")->build(n, {.root = kRoot}).take();
    EXPECT_EQ(schedule.nblocks, 1);
    for (int rank = 0; rank < n; ++rank) {
      const Counts counts = count(schedule, rank);
      EXPECT_EQ(counts.instructions, 1);
      EXPECT_EQ(counts.workers, 1);
      EXPECT_EQ(counts.sent, rank == (kRoot + n - 1) % n ? 0 : 1);
    }
    EXPECT_TRUE(check(schedule, {.depth = 1}).is_ok());
  }
}

/// Every rank hands on what is below it, and has few connections.
TEST(RootedPat, EachRankHasOneInstructionForEachRankBelowAndLog2Connections) {
  for (const Collective collective : {Collective::Gather, Collective::Scatter}) {
    for (const int n : {2, 3, 6, 8, 33, 1024}) {
      SCOPED_TRACE(fmt::format("{} of {}", schedule::name_of(collective), n));
      const Schedule schedule = find(collective, "pat")->build(n, {.root = kRoot}).take();
      std::vector<int> ends(static_cast<size_t>(n));
      for (const schedule::Connection& connection : schedule.connections) {
        ++ends[static_cast<size_t>(connection.sender)];
        ++ends[static_cast<size_t>(connection.receiver)];
      }
      const int most = std::bit_width(static_cast<unsigned>(n - 1)) + 1;
      EXPECT_LE(*std::max_element(ends.begin(), ends.end()), most);
      EXPECT_EQ(schedule.connections.size(), static_cast<size_t>(n - 1));
      EXPECT_EQ(count(schedule, kRoot).instructions, n);
      int below = 0;  // the root: of all others
      for (int distance = 1; distance < n; ++distance) {
        const int rank = (kRoot + distance) % n;
        const int step = 2 << (std::bit_width(static_cast<unsigned>(distance)) - 1);
        EXPECT_EQ(count(schedule, rank).instructions, (n - 1 - distance) / step + 1) << distance;
        below += count(schedule, rank).instructions;
      }
      EXPECT_TRUE(check(schedule, {.depth = 1}).is_ok());
      EXPECT_GE(below, n - 1);
    }
  }
}

/// No rank has more than three neighbours in a tree, sends more than twice the data (in a broadcast
/// or reduce: than the data), or needs more than one slot.
TEST(DoubleTree, SpreadsTheDataOverItsRanks) {
  for (const Collective collective :
       {Collective::AllReduce, Collective::Broadcast, Collective::Reduce}) {
    for (const int n : {2, 3, 4, 5, 6, 7, 8, 9, 16, 33, 100}) {
      SCOPED_TRACE(fmt::format("{} of {}", schedule::name_of(collective), n));
      const Schedule schedule = find(collective, "tree")->build(n, {.root = kRoot}).take();
      EXPECT_EQ(schedule.nblocks, 2);
      const bool is_all_reduce = collective == Collective::AllReduce;
      for (int rank = 0; rank < n; ++rank) {
        const Counts counts = count(schedule, rank);
        EXPECT_LE(counts.instructions, is_all_reduce ? 4 : 2);
        EXPECT_LE(counts.sent, is_all_reduce ? 4 : 2) << "of two blocks";
        for (const auto& worker : schedule.ranks[static_cast<size_t>(rank)][0].workers)
          EXPECT_LE(worker.instructions[0].receive_from.size(), 2u);
      }
      EXPECT_TRUE(check(schedule, {.depth = 1}).is_ok());
    }
  }
}

TEST(RecursiveDoubling, TakesAnExchangeForEachBit) {
  for (const int n : {2, 3, 4, 7, 8, 9, 16, 33}) {
    const Schedule schedule =
        find(Collective::AllReduce, "recursive_doubling")->build(n, {}).take();
    const int power = static_cast<int>(std::bit_floor(static_cast<unsigned>(n)));
    for (int rank = 0; rank < n; ++rank) {
      const int bits = std::countr_zero(static_cast<unsigned>(power));
      const int beyond = rank + power < n ? 1 : 0;
      const Counts counts = count(schedule, rank);
      EXPECT_EQ(counts.instructions, rank >= power ? 2 : 2 * (bits + beyond)) << rank;
      EXPECT_EQ(counts.sent, rank >= power ? 1 : bits + beyond) << rank;
    }
    EXPECT_TRUE(check(schedule, {.depth = 1}).is_ok());
  }
}

/// The connections of the PAT all-gather, and no others.
TEST(AllToAllPat, HasTheConnectionsOfTheAllGather) {
  for (const int n : {2, 3, 12, 33, 257}) {
    const auto ends = [n](Collective collective) {
      std::set<std::pair<int, int>> pairs;
      for (const schedule::Connection& c : find(collective, "pat")->build(n, {}).take().connections)
        EXPECT_TRUE(pairs.emplace(c.sender, c.receiver).second);
      return pairs;
    };
    EXPECT_EQ(ends(Collective::AllToAll), ends(Collective::AllGather)) << n;
  }
}

/// Chunks that travel one after another in one round, which is what a small message takes.
TEST(Latencies, AreThoseClaimed) {
  const auto one = [](int) { return 1; };
  const auto two = [](int) { return 2; };
  const auto chain = [](int n) { return n - 1; };
  const auto tree = [](int n) { return static_cast<int>(std::floor(std::log2(n))); };
  const auto depth = [](int vertices) {
    return vertices < 2 ? 0 : static_cast<int>(std::floor(std::log2(vertices - 1))) + 1;
  };
  const auto below_root = [depth](int n) { return 1 + depth(n - 1); };
  const auto bits = [](int n) {
    const int power = static_cast<int>(std::bit_floor(static_cast<unsigned>(n)));
    return std::countr_zero(static_cast<unsigned>(power)) + std::min(2, n - power);
  };
  const std::map<std::string, std::function<int(int)>> claims{
      {"all_reduce tree", [depth](int n) { return 2 * depth(n); }},
      {"broadcast tree", below_root},
      {"reduce tree", below_root},
      {"all_reduce recursive_doubling", bits},
      // On one machine.
      {"all_reduce hierarchical", two},
      {"all_reduce rail_trees", two},
      {"all_gather hierarchical", one},
      {"reduce_scatter hierarchical", one},
      {"all_to_all hierarchical", one},
      {"broadcast hierarchical", [](int n) { return n > 2 ? 2 : 1; }},
      {"reduce hierarchical", two},
      {"all_reduce collnetdirect", two},
      {"all_reduce collnetchain", two},
      {"all_gather collnetdirect", one},
      {"reduce_scatter collnetdirect", one},
      {"all_reduce ring", [](int n) { return 2 * (n - 1); }},
      {"all_reduce one_shot", one},
      {"all_reduce two_shot", two},
      {"reduce ring", chain},
      {"reduce direct", one},
      {"reduce two_shot", two},
      {"broadcast ring", chain},
      {"broadcast direct", one},
      {"broadcast scatter_gather", [](int n) { return n > 2 ? 2 : 1; }},
      {"all_gather ring", chain},
      {"all_gather direct", one},
      {"all_gather pat", tree},
      {"reduce_scatter ring", chain},
      {"reduce_scatter direct", one},
      {"reduce_scatter pat", tree},
      {"all_to_all direct", one},
      {"all_to_all pat", tree},
      {"gather pat", tree},
      {"scatter pat", tree},
      {"gather direct", one},
      {"scatter direct", one}};
  EXPECT_EQ(claims.size(), all().size());
  for (const Algorithm& algorithm : all()) {
    const std::string name =
        fmt::format("{} {}", schedule::name_of(algorithm.collective), algorithm.name);
    for (const int n : {2, 3, 4, 7, 8, 16, 33}) {
      if (n > algorithm.max_ranks) continue;
      const Schedule schedule = algorithm.build(n, {.root = kRoot, .window = n}).take();
      EXPECT_EQ(schedule::timeline(schedule).take().latencies, claims.at(name)(n))
          << name << " " << n;
    }
  }
}

/// A small window delays PAT by no more than its busiest dimension needs.
TEST(Pat, TakesHalfTheRanksOverItsWindowMoreLatencies) {
  for (const Collective collective : {Collective::AllGather, Collective::ReduceScatter}) {
    for (const int n : {2, 8, 16, 33, 64, 128}) {
      for (const int window : {1, 2, 4, 8}) {
        const Schedule schedule = find(collective, "pat")->build(n, {.window = window}).take();
        const int tree = static_cast<int>(std::floor(std::log2(n)));
        EXPECT_LE(schedule::timeline(schedule).take().latencies, n / 2 / window + tree)
            << n << " ranks, window " << window;
      }
    }
  }
}

/// What a window allows is used: no more chunks are in flight, and no fewer where it matters.
TEST(Pat, TakesTheDepthOfItsWindow) {
  for (const Collective collective : {Collective::AllGather, Collective::ReduceScatter}) {
    for (const int window : {1, 2, 4, 8}) {
      const Schedule schedule = find(collective, "pat")->build(33, {.window = window}).take();
      EXPECT_TRUE(check(schedule, {.depth = window}).is_ok());
      if (window > 1) {
        EXPECT_FALSE(check(schedule, {.depth = window - 1}).is_ok());
      }
    }
  }
}

TEST(Ring, AtDepthOneEveryRankWaitsForCreditOfTheNext) {
  const Schedule schedule = find(Collective::AllReduce, "ring")->build(3, {}).take();
  EXPECT_EQ(check(schedule, {.depth = 1}).message(),
            "deadlock with FIFOs of 1 slot: "
            "rank 0 channel 0 worker 0 instruction 1 waits for credit from rank 1; "
            "rank 1 channel 0 worker 0 instruction 1 waits for credit from rank 2; "
            "rank 2 channel 0 worker 0 instruction 1 waits for credit from rank 0; "
            "and so round to the first");
}

/// Peers are addressed in turns: at no place of their lists do two ranks send to the same peer.
TEST(OneShot, SpreadsItsSendsOverTheReceivers) {
  const Schedule schedule = find(Collective::AllReduce, "one_shot")->build(8, {}).take();
  for (size_t place = 0; place < 7; ++place) {
    std::vector<int> receivers;
    for (const auto& channels : schedule.ranks) {
      const int connection = channels[0].workers[0].instructions[0].send_to.at(place);
      receivers.push_back(schedule.connections[static_cast<size_t>(connection)].receiver);
    }
    EXPECT_THAT(receivers, testing::UnorderedElementsAre(0, 1, 2, 3, 4, 5, 6, 7)) << place;
  }
}

TEST(TwoShot, GivesItsWorkersTheWeightsAskedFor) {
  const Schedule schedule =
      find(Collective::AllReduce, "two_shot")->build(4, {.weights = {1, 5, 2}}).take();
  for (const auto& channels : schedule.ranks) {
    EXPECT_EQ(channels[0].workers[0].weight, 1);
    EXPECT_EQ(channels[0].workers[1].weight, 5);
    EXPECT_EQ(channels[0].workers[2].weight, 2);
  }
}

}  // namespace
}  // namespace niccolite::algorithms
