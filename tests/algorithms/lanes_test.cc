// Algorithms with a lane for each instruction do what those with a lane for each phase do.
#include "algorithms/lanes.h"

#include <gtest/gtest.h>

#include <string_view>
#include <tuple>

#include "algorithms/registry.h"

namespace niccolite::algorithms {
namespace {

using schedule::Collective;
using schedule::Connection;
using schedule::Instruction;
using schedule::Schedule;

constexpr std::string_view kSuffix = "_lanes";

std::vector<const Algorithm*> with_lanes() {
  std::vector<const Algorithm*> result;
  for (const Algorithm& algorithm : all())
    if (std::string_view(algorithm.name).ends_with(kSuffix)) result.push_back(&algorithm);
  return result;
}

const Algorithm* by_phase(const Algorithm& algorithm) {
  std::string_view name = algorithm.name;
  name.remove_suffix(kSuffix.size());
  return find(algorithm.collective, name);
}

auto fields_of(const Instruction& i) {
  return std::tie(i.receive_from, i.source, i.source_position, i.reduce, i.target, i.send_to,
                  i.finish, i.chunk_of);
}
auto fields_of(const Connection& c) { return std::tie(c.sender, c.receiver, c.channel, c.tag); }

template <typename T>
void expect_same(const std::vector<T>& a, const std::vector<T>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(fields_of(a[i]) == fields_of(b[i])) << i;
}

std::vector<Instruction> instructions_of(const std::vector<schedule::Channel>& channels) {
  std::vector<Instruction> all;
  for (const schedule::Lane& lane : channels.at(0).lanes)
    all.insert(all.end(), lane.instructions.begin(), lane.instructions.end());
  return all;
}

TEST(Lanes, EachHoldOneInstructionOfTheAlgorithmByPhase) {
  for (const Algorithm* algorithm : with_lanes()) {
    for (const int nranks : {2, 3, kMaxLanesRanks}) {
      SCOPED_TRACE(fmt::format("{} {} of {}", schedule::name_of(algorithm->collective),
                               algorithm->name, nranks));
      const Options options{.root = nranks / 2};
      const Schedule lanes = algorithm->build(nranks, options).take();
      const Schedule phases = by_phase(*algorithm)->build(nranks, options).take();
      expect_same(lanes.connections, phases.connections);
      for (size_t rank = 0; rank < lanes.ranks.size(); ++rank) {
        for (const schedule::Lane& lane : lanes.ranks[rank].at(0).lanes)
          EXPECT_EQ(lane.instructions.size(), 1u);
        expect_same(instructions_of(lanes.ranks[rank]), instructions_of(phases.ranks[rank]));
      }
    }
  }
}

/// A lane has a warp at least (executor/cuda/launch_args.h).
TEST(Lanes, AreNoMoreThanACtaHasWarps) {
  constexpr size_t kWarps = 16;
  for (const Algorithm* algorithm : with_lanes()) {
    const Schedule schedule = algorithm->build(algorithm->max_ranks, {}).take();
    for (const auto& channels : schedule.ranks) EXPECT_LE(channels[0].lanes.size(), kWarps);
  }
}

TEST(Lanes, OfAFoldWeighAsMuchAsThoseOfAllItsOperands) {
  for (const Algorithm* algorithm : with_lanes()) {
    const Schedule schedule = algorithm->build(5, {.weights = {7, 8, 9}}).take();
    for (const auto& channels : schedule.ranks) {
      for (const schedule::Lane& lane : channels[0].lanes)
        EXPECT_EQ(lane.weight, lane.instructions[0].reduce ? 4 : 1) << algorithm->name;
    }
  }
}

TEST(Lanes, AreForEveryCollective) {
  std::vector<Collective> collectives;
  for (const Algorithm* algorithm : with_lanes()) {
    EXPECT_NE(by_phase(*algorithm), nullptr) << algorithm->name;
    EXPECT_EQ(algorithm->max_ranks, kMaxLanesRanks) << algorithm->name;
    collectives.push_back(algorithm->collective);
  }
  EXPECT_EQ(collectives, (std::vector<Collective>{Collective::AllReduce, Collective::Reduce,
                                                  Collective::Broadcast, Collective::AllGather,
                                                  Collective::ReduceScatter, Collective::AllToAll,
                                                  Collective::Gather, Collective::Scatter}));
}

}  // namespace
}  // namespace niccolite::algorithms
