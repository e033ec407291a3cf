// User memory at connections to other machines (executor/protocol/user_memory.h): whole collectives
// of virtual GPUs, between whose ends the test plays the proxies' and the network's part.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "planner/form.h"
#include "tests/executor/host/cluster.h"
#include "tests/executor/host/operands.h"
#include "tests/executor/host/scratch_schedule.h"
#include "tests/transport/carried_operations.h"
#include "tests/transport/loose_network.h"

namespace niccolite::transport::net {
namespace {

using executor::DataType;
using executor::FifoShape;
using executor::Launch;
using executor::Protocol;
using executor::host::Cluster;
using gpu::virtual_::Progress;

constexpr uint32_t kSlotBytes = 128;

/// Steps the kernels of all ranks, and the network, in any order. A kernel that has ended has its
/// user's memory for itself. `abort_after` so many steps all are told to end; then the network
/// has what was published.
testing::AssertionResult run(Cluster& cluster, const std::vector<Launch>& launches,
                             LooseNetwork& network, uint32_t seed,
                             uint64_t abort_after = UINT64_MAX) {
  std::mt19937 random(seed);
  Cluster::Tasks tasks = cluster.tasks(launches);
  size_t left = tasks.size();
  int blocked = 0;  // attempts in a row
  const auto network_share = 1 + random() % 8;
  while (left > 0) {
    if (abort_after-- == 0) cluster.control.abort = static_cast<uint32_t>(executor::Command::End);
    if (random() % 8 < network_share && network.carry()) {
      blocked = 0;
      continue;
    }
    const size_t rank = random() % tasks.size();
    if (tasks[rank] == nullptr) continue;
    const Progress progress = tasks[rank]->step();
    if (progress == Progress::Done) {
      tasks[rank].reset();
      --left;
      if (network.uses_memory_of(static_cast<int>(rank)))
        return testing::AssertionFailure()
               << "rank " << rank << " has ended, and its memory is in use";
    }
    blocked = progress == Progress::WouldBlock ? blocked + 1 : 0;
    if (blocked > 200 && !network.carry())
      return testing::AssertionFailure() << "all ranks wait for each other";
  }
  return testing::AssertionSuccess();
}

struct Case {
  const planner::Form* algorithm;
  int nranks;
};
std::vector<Case> cases() {
  std::vector<Case> cases;
  for (const planner::Form& algorithm : planner::forms())
    for (const int nranks : {2, 3, 5, 8})
      if (nranks >= algorithm.min_ranks && nranks <= algorithm.max_ranks)
        cases.push_back({&algorithm, nranks});
  return cases;
}
std::string name_of_case(const testing::TestParamInfo<Case>& info) {
  return std::string(schedule::name_of(info.param.algorithm->collective)) + "_" +
         info.param.algorithm->name + "_" + std::to_string(info.param.nranks);
}

class UserMemoryOfNetworks : public testing::TestWithParam<Case> {
 protected:
  schedule::Schedule build() const {
    algorithms::Options options;
    if (schedule::has_root(GetParam().algorithm->collective)) options.root = GetParam().nranks - 1;
    return GetParam().algorithm->build(GetParam().nranks, options).take();
  }
};

void carry_out_by_virtual_gpus(const schedule::Schedule& schedule, uint32_t seeds) {
  carry_out(schedule, {.seeds = seeds, .slot_bytes = kSlotBytes, .chunks = 5},
            [](Cluster& cluster, const std::vector<Launch>& launches, LooseNetwork& network,
               uint32_t seed) { return run(cluster, launches, network, seed); });
}

TEST_P(UserMemoryOfNetworks, ResultsAreRightAndNothingIsUsedAfterKernels) {
  carry_out_by_virtual_gpus(build(), /*seeds=*/5);
}

// The input of a block is replaced by the sum, which comes from who has had it.
TEST(UserMemoryOfNetworks, IsWhereRingsInPlaceSendAllFrom) {
  for (const int nranks : {2, 3}) {
    RingInPlace ring(nranks, kSlotBytes);
    ASSERT_TRUE(run(ring.cluster, ring.launches, ring.network, /*seed=*/1));
    ASSERT_NO_FATAL_FAILURE(ring.check());
  }
}

// What comes next must not overtake who still reads the memory that it goes to.
TEST(UserMemoryOfNetworks, IsGivenToTheNextChunkWhenItIsFree) {
  for (const int nranks : {2, 3})
    carry_out_by_virtual_gpus(executor::host::by_way_of_one_scratch_block(nranks), /*seeds=*/40);
}

// Aborted at any moment, kernels end, and from then on buffers are their users': nothing more is
// stored there, and peers get what was published before.
TEST(UserMemoryOfNetworks, IsLetGoByKernelsThatAreAborted) {
  uint64_t used = 0;
  for (const char* name : {"ring", "direct_workers"})
    for (uint32_t seed = 1; seed <= 300; ++seed) {
      SCOPED_TRACE(testing::Message() << name << ", seed " << seed);
      const auto* const algorithm = planner::find_form(schedule::Collective::AllGather, name);
      ASSERT_NE(algorithm, nullptr);
      const schedule::Schedule schedule = algorithm->build(3, {}).take();
      const FifoShape shape{.channels = 2, .depth = 4, .slot_bytes = kSlotBytes};
      Cluster cluster(schedule, Protocol::Simple, shape);
      LooseNetwork network(shape, /*least_bytes=*/1, seed);
      constexpr size_t kBytes = 9 * kSlotBytes + 12;
      Gathering gathering(kBytes);
      std::vector<Launch> launches =
          cluster.launches({.count = kBytes, .type = DataType::Uint8}, gathering.buffers);
      network.replace_ports(launches, [](int rank) { return rank; });
      ASSERT_TRUE(run(cluster, launches, network, seed, /*abort_after=*/seed));
      used += network.from_users + network.to_users;
      ASSERT_NO_FATAL_FAILURE(gathering.expect_let_go(network));
    }
  EXPECT_GT(used, 0u) << "all of it went through slots";
}

INSTANTIATE_TEST_SUITE_P(All, UserMemoryOfNetworks, testing::ValuesIn(cases()), name_of_case);

}  // namespace
}  // namespace niccolite::transport::net
