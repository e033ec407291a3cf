// Algorithms with a worker for each instruction do what those with a worker for each phase do.
#include "algorithms/workers.h"

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

constexpr std::string_view kSuffix = "_workers";

std::vector<const Algorithm*> with_workers() {
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
  for (const schedule::Worker& worker : channels.at(0).workers)
    all.insert(all.end(), worker.instructions.begin(), worker.instructions.end());
  return all;
}

TEST(Workers, EachHoldOneInstructionOfTheAlgorithmByPhase) {
  for (const Algorithm* algorithm : with_workers()) {
    for (const int nranks : {2, 3, kMaxWorkersRanks}) {
      SCOPED_TRACE(fmt::format("{} {} of {}", schedule::name_of(algorithm->collective),
                               algorithm->name, nranks));
      const Options options{.root = nranks / 2};
      const Schedule workers = algorithm->build(nranks, options).take();
      const Schedule phases = by_phase(*algorithm)->build(nranks, options).take();
      expect_same(workers.connections, phases.connections);
      for (size_t rank = 0; rank < workers.ranks.size(); ++rank) {
        for (const schedule::Worker& worker : workers.ranks[rank].at(0).workers)
          EXPECT_EQ(worker.instructions.size(), 1u);
        expect_same(instructions_of(workers.ranks[rank]), instructions_of(phases.ranks[rank]));
      }
    }
  }
}

/// A worker has a warp at least (executor/cuda/launch/launch_args.h).
TEST(Workers, AreNoMoreThanACtaHasWarps) {
  constexpr size_t kWarps = 16;
  for (const Algorithm* algorithm : with_workers()) {
    const Schedule schedule = algorithm->build(algorithm->max_ranks, {}).take();
    for (const auto& channels : schedule.ranks) EXPECT_LE(channels[0].workers.size(), kWarps);
  }
}

TEST(Workers, OfAReductionWeighAsMuchAsThoseOfAllItsOperands) {
  for (const Algorithm* algorithm : with_workers()) {
    const Schedule schedule = algorithm->build(5, {.weights = {7, 8, 9}}).take();
    for (const auto& channels : schedule.ranks) {
      for (const schedule::Worker& worker : channels[0].workers)
        EXPECT_EQ(worker.weight, worker.instructions[0].reduce ? 4 : 1) << algorithm->name;
    }
  }
}

TEST(Workers, AreForEveryCollective) {
  std::vector<Collective> collectives;
  for (const Algorithm* algorithm : with_workers()) {
    EXPECT_NE(by_phase(*algorithm), nullptr) << algorithm->name;
    EXPECT_EQ(algorithm->max_ranks, kMaxWorkersRanks) << algorithm->name;
    collectives.push_back(algorithm->collective);
  }
  EXPECT_EQ(collectives, (std::vector<Collective>{Collective::AllReduce, Collective::Reduce,
                                                  Collective::Broadcast, Collective::AllGather,
                                                  Collective::ReduceScatter, Collective::AllToAll,
                                                  Collective::Gather, Collective::Scatter}));
}

}  // namespace
}  // namespace niccolite::algorithms
