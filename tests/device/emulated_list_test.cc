// Lists of operations (executor::Launch::is_list()) on the emulated GPU: that every operation is
// right, wherever its buffers begin, and that the connections are left as others leave them.
#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "planner/form.h"
#include "tests/device/emulated_gpu.h"
#include "tests/executor/host/cluster.h"
#include "tests/executor/host/operands.h"

namespace niccolite::device_test {
namespace {

using executor::DataType;
using executor::Launch;
using executor::Protocol;
using executor::Reduction;
using executor::cuda::KernelLaunch;
using executor::cuda::KernelVariant;
using executor::host::Cluster;
using executor::host::OperandOptions;
using executor::host::Operands;
using executor::host::Part;
using schedule::Collective;

constexpr uint32_t kSlotBytes = 640;
constexpr uint64_t kSlotData = data_bytes(Protocol::LL, kSlotBytes);
constexpr uint32_t kChannels = 6;

struct Case {
  Collective collective;
  const char* algorithm;
  KernelVariant variant;  // of the ranks that send most
};
constexpr Case kCases[] = {
    {Collective::AllReduce, "one_shot", KernelVariant::List},
    {Collective::AllGather, "direct_workers", KernelVariant::List},
    {Collective::Broadcast, "direct", KernelVariant::List},
    {Collective::Reduce, "direct", KernelVariant::List},
    {Collective::Gather, "direct_workers", KernelVariant::List},
    {Collective::ReduceScatter, "direct_workers", KernelVariant::ListEach},
    {Collective::AllToAll, "direct_workers", KernelVariant::ListEach},
    {Collective::Scatter, "direct_workers", KernelVariant::ListEach},
};

Cluster cluster_of(const Case& c, int nranks, uint32_t depth = 2) {
  algorithms::Options options;
  if (schedule::has_root(c.collective)) options.root = nranks / 2;
  return {planner::find_form(c.collective, c.algorithm)->build(nranks, options).take(),
          Protocol::LL,
          {.channels = kChannels, .depth = depth, .slot_bytes = kSlotBytes}};
}

struct List {
  std::deque<Operands> operands;
  std::vector<Part> parts;
};

/// So many operations of one element up to a few slots, in place or not, aligned or not.
List draw_list(const Cluster& cluster, DataType type, const Reduction& reduction, size_t works,
               uint32_t seed) {
  std::mt19937 random(seed);
  List list;
  const uint64_t most = 3 * kSlotData / size_of(type);
  for (size_t w = 0; w < works; ++w) {
    const uint64_t count = 1 + random() % (random() % 2 == 0 ? 8 : most);
    const OperandOptions options{.is_in_place = random() % 2 == 0,
                                 .is_misaligned = random() % 3 == 0,
                                 .reduction = reduction};
    list.operands.emplace_back(cluster.schedule(), type, std::vector{count}, options);
    list.parts.push_back({.counts = {count},
                          .buffers = list.operands.back().addresses(),
                          .tag = static_cast<uint16_t>(64 * seed + w)});
  }
  return list;
}

bool run(Cluster& cluster, std::vector<Launch> launches, uint64_t seed,
         uint64_t limit = 20'000'000) {
  std::deque<KernelLaunch> kernels;
  std::vector<KernelLaunch*> pointers;
  for (Launch& launch : launches) {
    launch.control_device = &cluster.control;
    launch.threads = seed % 3 == 0 ? 128 : 64;  // up to four teams, or two
    // Every other time the counters are in the host's memory.
    for (executor::PortAddress& port : launch.ports) port.in_host = seed % 2 == 1;
    auto kernel = executor::cuda::prepare(launch);
    EXPECT_TRUE(kernel.is_ok()) << kernel.status().message();
    if (launch.is_list()) {
      EXPECT_TRUE(is_list(kernel.value().kernel.variant));
      EXPECT_EQ(kernel.value().grid_x, launch.list_channels);
    }
    kernels.push_back(std::move(kernel).take());
    pointers.push_back(&kernels.back());
  }
  return emulation::run(pointers, seed, limit);
}

void run_once(Cluster& cluster, DataType type, const Reduction& reduction, size_t works,
              uint32_t channels, uint32_t seed, uint32_t parts = 1) {
  const List list = draw_list(cluster, type, reduction, works, seed);
  ASSERT_TRUE(
      run(cluster, cluster.launches_in_a_list(list.parts, type, reduction, channels, parts), seed));
  for (const Operands& operands : list.operands) ASSERT_NO_FATAL_FAILURE(operands.check());
  ASSERT_TRUE(cluster.guards_intact());
  ASSERT_TRUE(cluster.counters_consistent());
  ASSERT_EQ(cluster.control.report, 0u);
}

// Fewer works than channels, as many, and so many that slots are used again and again; between them
// operations by themselves on the same connections.
TEST(EmulatedList, CarriesOutAllItsOperations) {
  for (const Case& c : kCases) {
    const DataType type = schedule::reduces(c.collective) ? DataType::Float32 : DataType::Uint8;
    for (const int nranks : {2, 4, 5, 8}) {
      for (const uint32_t depth : {2u, 4u}) {
        Cluster cluster = cluster_of(c, nranks, depth);
        cluster.start_at((uint64_t{1} << 15) - 4);  // flags begin anew on the way
        uint32_t seed = 0;
        for (const auto& [works, parts] :
             {std::pair{1u, 1u}, {1u, 6u}, {2u, 3u}, {3u, 1u}, {11u, 1u}, {11u, 2u}, {5u, 3u}}) {
          SCOPED_TRACE(testing::Message()
                       << name_of(c.collective) << " of " << nranks << ", depth " << depth << ", "
                       << works << " works of " << parts << " parts");
          const uint32_t channels = std::min(kChannels / parts, works) * parts;
          ASSERT_NO_FATAL_FAILURE(run_once(cluster, type, {}, works, channels, ++seed, parts));
          const Operands alone(cluster.schedule(), type, {100}, {});
          ASSERT_TRUE(run(cluster,
                          cluster.launches({.count = 100, .type = type}, alone.addresses()), seed));
          ASSERT_NO_FATAL_FAILURE(alone.check());
        }
      }
    }
  }
}

// The kernel for one block has less to do.
TEST(EmulatedList, HasAKernelForOneBlockAndOneForSeveral) {
  for (const Case& c : kCases) {
    Cluster cluster = cluster_of(c, 2);
    const List list = draw_list(cluster, DataType::Int8, {}, 2, 1);
    bool has_some = false;
    for (Launch& launch : cluster.launches_in_a_list(list.parts, DataType::Int8, {}, 1)) {
      launch.control_device = &cluster.control;
      const KernelVariant variant = executor::cuda::prepare(launch).value().kernel.variant;
      EXPECT_TRUE(variant == KernelVariant::List || variant == c.variant);
      has_some |= variant == c.variant;
    }
    EXPECT_TRUE(has_some) << name_of(c.collective);
  }
}

TEST(EmulatedList, ReducesEveryType) {
  uint32_t seed = 100;
  for (int type = 0; type < executor::kDataTypes; ++type) {
    for (int op = 0; op < executor::kReduceOps; ++op) {
      ++seed;
      Reduction reduction{.op = static_cast<executor::ReduceOp>(op)};
      if (op == 0 && seed % 2 == 0) reduction.input_scale = 0.5;
      if (op == 0 && seed % 2 == 1) {
        reduction.finish_scale = 0.25;
        reduction.finish_divisor = 2;
      }
      SCOPED_TRACE(testing::Message() << name_of(static_cast<DataType>(type)) << " reduce " << op);
      for (const Case& c : kCases) {
        if (c.collective != Collective::AllReduce && c.collective != Collective::ReduceScatter)
          continue;
        Cluster cluster = cluster_of(c, seed % 2 == 0 ? 3 : 5);
        ASSERT_NO_FATAL_FAILURE(
            run_once(cluster, static_cast<DataType>(type), reduction, 4, 2, seed));
      }
    }
  }
}

TEST(EmulatedList, TakesAsManyOperationsAsItSays) {
  for (const int nranks : {2, 8}) {
    Cluster cluster = cluster_of(kCases[0], nranks);
    ASSERT_NO_FATAL_FAILURE(
        run_once(cluster, DataType::Int8, {}, executor::kMostListWorks, kChannels, 7));
  }
}

TEST(EmulatedList, RefusesWhatItCannotCarryOut) {
  const auto refusal = [](Cluster cluster, size_t works, uint32_t channels) {
    const List list = draw_list(cluster, DataType::Float32, {}, works, 1);
    Launch launch = cluster.launches_in_a_list(list.parts, DataType::Float32, {}, channels)[0];
    launch.control_device = &cluster.control;
    return executor::cuda::prepare(launch).status().message();
  };
  EXPECT_NE(refusal(cluster_of({Collective::AllReduce, "two_shot", {}}, 3), 2, 1), "");
  EXPECT_NE(refusal(cluster_of(kCases[0], 9), 2, 1), "");
  EXPECT_NE(refusal(cluster_of(kCases[0], 2), executor::kMostListWorks + 1, 1), "");
  EXPECT_NE(refusal(cluster_of(kCases[0], 2), 2, kChannels + 1), "");
}

// Rank 1 is not there; ranks 0 and 2 have rounds enough to wait for credit and for data.
TEST(EmulatedList, EndsWhenAborted) {
  for (const Case& c : kCases) {
    Cluster cluster = cluster_of(c, 3);
    const List list = draw_list(cluster, DataType::Int8, {}, 20, 3);
    auto launches = cluster.launches_in_a_list(list.parts, DataType::Int8, {}, 2);
    launches.erase(launches.begin() + 1);
    cluster.control.abort = 1;
    EXPECT_TRUE(run(cluster, launches, 1)) << name_of(c.collective);
  }
}

}  // namespace
}  // namespace niccolite::device_test
