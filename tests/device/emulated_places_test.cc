// Chunks that need no slots at connections to other machines (protocol/user_memory.h), by the
// kernels' own source on the CPU, between whose proxies the test plays the network.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <utility>
#include <vector>

#include "executor/cuda/launch/places.h"
#include "executor/report.h"
#include "planner/form.h"
#include "tests/device/emulated_advertisements.h"
#include "tests/executor/host/operands.h"
#include "tests/executor/host/scratch_schedule.h"
#include "tests/transport/carried_operations.h"
#include "tests/transport/loose_network.h"

namespace niccolite::device_test {
namespace {

using executor::DataType;
using transport::net::Gathering;
using transport::net::LooseNetwork;
using transport::net::RingInPlace;

constexpr uint32_t kSlotBytes = 128;
constexpr uint32_t kThreads = 96;  // two warps, and the service warp

/// Launches of all ranks, or of those whose bits are set. Kernels that have ended have their users'
/// memory for themselves.
class Execution {
 public:
  Execution(Cluster& cluster, std::vector<Launch> launches, LooseNetwork& network,
            uint32_t ranks = ~0u)
      : control_(cluster.control), network_(network) {
    for (size_t rank = 0; rank < launches.size(); ++rank) {
      Launch& launch = launches[rank];
      launch.control_device = &cluster.control;
      launch.threads = kThreads;
      const auto places = executor::cuda::find_places(launch);
      places_ += places ? 1 : 0;
      prepared_.push_back(
          places ? executor::cuda::prepare_with_places(launch, *places).take()
                 : executor::cuda::prepare(launch, executor::cuda::Specialisation::Allowed).take());
      set_advertisements(prepared_.back(), executor::cuda::buffers_of(launch),
                         [](const void*, uint64_t) { return true; });
      if ((ranks >> rank & 1) != 0) pointers_.push_back(&prepared_.back());
    }
    ranks_ = ranks;
  }

  /// Ranks whose launches have places.
  int places() const { return places_; }

  /// `is_dead`: the network carries nothing.
  bool operator()(uint64_t seed, bool is_dead = false, uint64_t limit = 40'000'000) {
    std::mt19937 random(static_cast<uint32_t>(seed));
    const uint32_t share = is_dead ? 0 : 1 + random() % 8;
    // Kernels look at the word seldom. At odd seeds, messages on their way then stay there.
    const bool stalls = seed % 2 == 1;
    emulation::set_bystander([this, random, share, stalls]() mutable {
      const bool is_stalled = stalls && control_.abort != 0;
      if (!is_stalled && random() % 8 < share) network_.carry();
      network_.let_go_for_kernels();
    });
    emulation::set_end_hook([this](size_t number) {
      int rank = 0;
      for (size_t left = number;; ++rank)
        if ((ranks_ >> rank & 1) != 0 && left-- == 0) break;
      EXPECT_FALSE(network_.uses_memory_of(rank))
          << "rank " << rank << " has ended, and its memory is in use";
    });
    return emulation::run(pointers_, seed, limit);
  }

 private:
  const executor::ControlWords& control_;
  LooseNetwork& network_;
  uint32_t ranks_ = ~0u;
  int places_ = 0;
  std::deque<KernelLaunch> prepared_;
  std::vector<KernelLaunch*> pointers_;
};

struct PlacesCase {
  Collective collective;
  const char* algorithm;
  int nranks;
};
// Messages that are passed on, and such as are not; workers of one instruction and of many; sums.
constexpr PlacesCase kPlacesCases[] = {{Collective::Broadcast, "ring", 3},
                                       {Collective::AllGather, "ring", 3},
                                       {Collective::AllGather, "direct_workers", 3},
                                       {Collective::AllToAll, "direct_workers", 3},
                                       {Collective::AllReduce, "ring", 2},
                                       {Collective::AllReduce, "ring", 3},
                                       {Collective::AllReduce, "one_shot", 3},
                                       {Collective::ReduceScatter, "ring", 3},
                                       {Collective::AllReduce, "two_shot_workers", 4}};

/// With buffers that begin anywhere.
void carry_out_by_kernels(const schedule::Schedule& schedule, DataType type, uint32_t seeds) {
  transport::net::carry_out(
      schedule,
      {.seeds = seeds, .slot_bytes = kSlotBytes, .chunks = 3, .type = type, .begin_anywhere = true},
      [](Cluster& cluster, std::vector<Launch> launches, LooseNetwork& network, uint32_t seed) {
        return Execution(cluster, std::move(launches), network)(seed);
      });
}

TEST(EmulatedPlaces, ResultsAreRightAndNothingIsUsedAfterKernels) {
  for (const PlacesCase& c : kPlacesCases)
    for (const DataType type : {DataType::Int8, DataType::Float32}) {
      SCOPED_TRACE(testing::Message() << schedule::name_of(c.collective) << " " << c.algorithm
                                      << ", " << c.nranks << " ranks of " << name_of(type));
      carry_out_by_kernels(
          planner::find_form(c.collective, c.algorithm)->build(c.nranks, {}).take(), type,
          /*seeds=*/5);
    }
}

// The next chunk must not overtake kernels that still read the memory that it goes to.
TEST(EmulatedPlaces, AreTheNextChunksWhenTheirMemoryIsFree) {
  for (const int nranks : {2, 3})
    carry_out_by_kernels(executor::host::by_way_of_one_scratch_block(nranks), DataType::Float32,
                         /*seeds=*/10);
}

// All of an all-reduce in place is sent from the buffer but for partial sums, and what does not
// come before its kernel begins goes there.
TEST(EmulatedPlaces, AreWhereRingsInPlaceSendAllFrom) {
  for (const int nranks : {2, 3}) {
    RingInPlace ring(nranks, kSlotBytes);
    Execution run(ring.cluster, std::move(ring.launches), ring.network);
    EXPECT_EQ(run.places(), nranks);
    ASSERT_TRUE(run(/*seed=*/1));
    ASSERT_NO_FATAL_FAILURE(ring.check());
    EXPECT_GT(ring.network.to_users, 0u);
  }
}

// Aborted at any moment, kernels end, and from then on buffers are their users': nothing more is
// stored there, and peers get all published chunks. So do kernels that were queued behind.
TEST(EmulatedPlaces, AreLetGoByKernelsThatAreAborted) {
  uint64_t used = 0;
  for (const char* name : {"ring", "direct_workers"})
    for (uint32_t seed = 1; seed <= 60; ++seed) {
      SCOPED_TRACE(testing::Message() << name << ", seed " << seed);
      const schedule::Schedule schedule =
          planner::find_form(Collective::AllGather, name)->build(3, {}).take();
      const FifoShape shape{.channels = 2, .depth = 4, .slot_bytes = kSlotBytes};
      Cluster cluster(schedule, Protocol::Simple, shape);
      LooseNetwork network(shape, /*least_bytes=*/1, seed);
      constexpr size_t kBytes = 9 * kSlotBytes + 12;
      Gathering gathering(kBytes);
      for (const bool is_behind : {false, true}) {
        std::vector<Launch> launches =
            cluster.launches({.count = kBytes, .type = DataType::Uint8}, gathering.buffers);
        network.replace_ports(launches, [](int rank) { return rank; });
        Execution run(cluster, std::move(launches), network);
        if (!is_behind) {
          const uint64_t after = uint64_t{seed} * seed * 60;
          if (seed % 3 == 0) {
            constexpr auto kLeave = static_cast<uint32_t>(executor::Command::Leave);
            emulation::set_after(after / 2, &cluster.control.abort, kLeave);
          }
          emulation::abort_after(after, &cluster.control.abort);
        }
        ASSERT_TRUE(run(seed));
      }
      used += network.from_users + network.to_users;
      ASSERT_NO_FATAL_FAILURE(gathering.expect_let_go(network));
    }
  EXPECT_GT(used, 0u) << "all of it went through slots";
}

/// One broadcast from rank 0 to a rank that runs no kernel, of as many chunks as there are slots.
struct Sending {
  Sending() {
    for (std::vector<std::byte>* bytes : {&input, &output}) bytes->resize(2 * kSlotBytes);
    launches = cluster.launches(
        {.count = input.size(), .type = DataType::Uint8},
        {.inputs = {input.data(), input.data()}, .outputs = {input.data(), output.data()}});
    network.replace_ports(launches, [](int rank) { return rank; });
  }
  const FifoShape shape{.channels = 1, .depth = 2, .slot_bytes = kSlotBytes};
  Cluster cluster{planner::find_form(Collective::Broadcast, "ring")->build(2, {}).take(),
                  Protocol::Simple, shape};
  LooseNetwork network{shape, /*least_bytes=*/1, /*seed=*/1};
  std::vector<std::byte> input, output;
  std::vector<Launch> launches;
};

// It could have ended with slots, into which all fits.
TEST(EmulatedPlaces, AreLetGoWhereNobodyTakesTheirChunksAnyMore) {
  Sending sending;
  sending.network.abandon();
  Execution run(sending.cluster, std::move(sending.launches), sending.network, /*ranks=*/1);
  ASSERT_EQ(run.places(), 2);
  EXPECT_TRUE(run(/*seed=*/1, /*is_dead=*/true));
}

TEST(EmulatedPlaces, ReportWhoDoesNotAcknowledge) {
  Sending sending;
  Execution run(sending.cluster, std::move(sending.launches), sending.network, /*ranks=*/1);
  EXPECT_FALSE(run(/*seed=*/1, /*is_dead=*/true, /*limit=*/3'000'000));
  const executor::Report report = executor::decode_report(sending.cluster.control.report);
  EXPECT_EQ(report.kind, executor::ReportKind::WaitingForAcknowledgement);
  EXPECT_EQ(report.peer, 1u);
}

// Kernels without places know nothing of them.
TEST(EmulatedPlaces, AreForBuffersThatTheNetworkReachesAlone) {
  Sending sending;
  for (Launch& launch : sending.launches) {
    launch.control_device = &sending.cluster.control;
    EXPECT_TRUE(executor::cuda::may_have_places(launch));
    EXPECT_TRUE(executor::cuda::find_places(launch));
    const KernelLaunch slots = executor::cuda::prepare(launch).take();
    EXPECT_EQ(slots.kernel.variant, executor::cuda::KernelVariant::Program);
    launch.team_ranks = 2;
    EXPECT_FALSE(executor::cuda::find_places(launch));
    launch.team_ranks = 0;
    launch.ports[0].user_memory = nullptr;
    EXPECT_FALSE(executor::cuda::may_have_places(launch));
    EXPECT_FALSE(executor::cuda::find_places(launch));
  }
}

}  // namespace
}  // namespace niccolite::device_test
