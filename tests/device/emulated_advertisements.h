// Runs programs of the Simple protocol whose ranks make advertisements (protocol/advertisement.h)
// on the emulated GPU: what the tests of direct put and direct get, and of pulls, share.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "executor/cuda/launch/launch_header.h"
#include "planner/form.h"
#include "tests/device/emulated_gpu.h"
#include "tests/executor/host/cluster.h"

namespace niccolite::device_test {

using executor::FifoShape;
using executor::Launch;
using executor::Protocol;
using executor::cuda::KernelLaunch;
using executor::cuda::Staging;
using executor::host::Cluster;
using schedule::Collective;

/// Tests that run as kernels of an architecture with bulk copies do, and as those of one where the
/// threads of a warp fill stages.
class OnArchitectures : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override { emulation::set_bulk_copies(GetParam()); }
  void TearDown() override { emulation::set_bulk_copies(true); }
};
inline std::string name_of_architecture(const testing::TestParamInfo<bool>& info) {
  return info.param ? "BulkCopies" : "AsyncLoads";
}

inline constexpr FifoShape kShape{.channels = 2, .depth = 2, .slot_bytes = 512};

/// Runs the launches of the ranks whose bits are set. The buffers can be reached of those in
/// `reachable`; those in `expects_slots` have the layout for data that go through slots.
inline bool run(Cluster& cluster, std::vector<Launch> launches, uint32_t ranks = ~0u,
                uint64_t limit = 20'000'000, Staging staging = Staging::All,
                uint32_t reachable = ~0u, uint32_t expects_slots = 0) {
  using executor::cuda::Expected;
  std::deque<KernelLaunch> prepared;
  std::vector<KernelLaunch*> pointers;
  for (size_t rank = 0; rank < launches.size(); ++rank) {
    Launch& launch = launches[rank];
    launch.control_device = &cluster.control;
    if (launch.threads == 0) launch.threads = 128;
    const bool is_for_slots = (expects_slots >> rank & 1) != 0;
    prepared.push_back(executor::cuda::prepare(launch, executor::cuda::Specialisation::Allowed,
                                               staging, executor::cuda::kMaxSharedBytesWithStages,
                                               is_for_slots ? Expected::Slots : Expected::Direct)
                           .take());
    set_advertisements(prepared.back(), executor::cuda::buffers_of(launch),
                       [&](const void*, uint64_t) { return (reachable >> rank & 1) != 0; });
    if ((ranks >> rank & 1) != 0) pointers.push_back(&prepared.back());
  }
  return emulation::run(pointers, 1, limit);
}

inline Cluster cluster_of(Collective collective, const char* algorithm, int nranks,
                          const FifoShape& shape = kShape) {
  return Cluster(planner::find_form(collective, algorithm)->build(nranks, {}).take(),
                 Protocol::Simple, shape);
}

/// Has any slot of any connection been written to?
inline bool used_slots(Cluster& cluster) {
  for (const auto& connection : cluster.connections()) {
    const std::byte* slots = connection->slots.data();
    for (size_t i = 0; i < kShape.slots_bytes(); ++i) {
      if (slots[i] != std::byte{0}) return true;
    }
  }
  return false;
}

struct Case {
  Collective collective;
  const char* algorithm;
  bool passes_on = false;
};
// What every one of their connections carries may be exposed; in the last three, owners' results
// are put, too.
inline constexpr Case kLoans[] = {{Collective::Reduce, "direct"},
                                  {Collective::ReduceScatter, "direct_workers"},
                                  {Collective::AllReduce, "two_shot_workers"},
                                  {Collective::Reduce, "two_shot_workers"},
                                  {Collective::Broadcast, "scatter_gather_workers"}};

inline void expect_tile_counters_reset(Cluster& cluster) {
  for (const auto& connection : cluster.connections()) {
    for (const int counter : {0, 1}) {
      EXPECT_EQ(connection->receiver(0).tile_counters[counter], 0u);
      EXPECT_EQ(connection->sender(0).tile_counters[counter], 0u);
    }
  }
}

}  // namespace niccolite::device_test
