// Lists over buffers that all ranks reach (executor::Launch::list_access) on the emulated GPU: that
// every operation is right, wherever its buffers begin and whoever sees them, that only what some
// rank does not see goes through slots, and that who is aborted keeps its buffers until others are
// done with them.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>

#include "algorithms/registry.h"
#include "executor/list_access.h"
#include "executor/protocol/advertisement.h"
#include "tests/device/emulated_gpu.h"
#include "tests/executor/host/cluster.h"
#include "tests/executor/host/operands.h"

namespace niccolite::device_test {
namespace {

using executor::DataType;
using executor::Launch;
using executor::ListAccess;
using executor::ListForm;
using executor::Protocol;
using executor::Reduction;
using executor::cuda::KernelLaunch;
using executor::cuda::KernelVariant;
using executor::host::Cluster;
using executor::host::OperandOptions;
using executor::host::Operands;
using executor::host::Part;
using schedule::Collective;

constexpr uint32_t kSlotBytes = 640;  // addresses of 20 operations
constexpr uint32_t kChannels = 3;

struct Case {
  Collective collective;
  const char* algorithm;  // of the schedule that results are held against
  ListForm form;
};
constexpr Case kCases[] = {{Collective::AllReduce, "one_shot", ListForm::Whole},
                           {Collective::Reduce, "direct", ListForm::Whole},
                           {Collective::Broadcast, "direct", ListForm::Whole},
                           {Collective::ReduceScatter, "direct", ListForm::Scatter},
                           {Collective::AllGather, "direct", ListForm::Gather}};

ListAccess access_of(const Case& c, int nranks, int root) {
  const auto all = static_cast<uint8_t>((1u << nranks) - 1);
  const auto only_root = static_cast<uint8_t>(1u << root);
  return {.form = c.form,
          .inputs = c.collective == Collective::Broadcast ? only_root : all,
          .outputs = c.collective == Collective::Reduce ? only_root : all};
}

/// Where ranks see buffers: of each rank a table for the peers.
enum class Sight : uint8_t {
  Open,      // at their own addresses
  Tables,    // by tables, whose distances are 0 here
  Sometimes  // some buffers of some ranks are seen by some peers only
};

class Lists {
 public:
  Lists(const Case& c, int nranks, uint32_t depth = 4)
      : case_(c),
        root_(nranks / 2),
        connections_(algorithms::find(Collective::AllReduce, "one_shot")->build(nranks, {}).take(),
                     Protocol::LL,
                     {.channels = kChannels, .depth = depth, .slot_bytes = kSlotBytes}),
        results_(schedule_of(c, nranks, root_), Protocol::LL,
                 {.channels = 1, .depth = 1, .slot_bytes = kSlotBytes}) {
    tables_.assign(static_cast<size_t>(nranks) + 1, std::vector<uint64_t>(8, 0));
    for (size_t unseen = 0; unseen + 1 < tables_.size(); ++unseen)
      tables_[unseen][unseen] = executor::advertisement::kUnseen;
  }

  Cluster& connections() { return connections_; }

  /// Each rank's, of operations of one element up to several tiles.
  std::vector<Launch> draw(DataType type, const Reduction& reduction, size_t works,
                           uint32_t channels, Sight sight, uint32_t seed, uint64_t most_bytes) {
    std::mt19937 random(seed);
    operands_.clear();
    std::vector<Part> parts;
    for (size_t w = 0; w < works; ++w) {
      const uint64_t most = most_bytes / size_of(type);
      const uint64_t count = 1 + random() % (random() % 2 == 0 ? 8 : most);
      OperandOptions options{.is_in_place = random() % 2 == 0,
                             .is_misaligned = random() % 3 == 0,
                             .reduction = reduction};
      // Each buffer begins somewhere else in its vec16.
      if (!options.is_misaligned && random() % 2 == 0)
        for (int i = 0; i < 7; ++i) options.starts.push_back(random() % 16);
      operands_.emplace_back(results_.schedule(), type, std::vector{count}, options);
      parts.push_back({.counts = {count},
                       .buffers = operands_.back().addresses(),
                       .tag = static_cast<uint16_t>(64 * seed + w)});
    }
    connections_.open_ranks = sight == Sight::Open ? ~0u : 0;
    auto launches = connections_.launches_in_a_list(parts, type, reduction, channels);
    for (Launch& launch : launches) {
      launch.list_access = access_of(case_, connections_.nranks(), root_);
      if (sight == Sight::Open) continue;
      for (executor::Work& work : launch.works) {
        work.buffers.input_shifts = table(sight, random);
        work.buffers.output_shifts = table(sight, random);
      }
    }
    return launches;
  }

  /// Runs the launches of the ranks whose bits are set.
  bool run(std::vector<Launch> launches, uint64_t seed, uint32_t ranks = ~0u) {
    std::deque<KernelLaunch> kernels;
    std::vector<KernelLaunch*> pointers;
    for (size_t rank = 0; rank < launches.size(); ++rank) {
      Launch& launch = launches[rank];
      launch.control_device = &connections_.control;
      launch.threads = 64;
      auto kernel = executor::cuda::prepare(launch);
      EXPECT_TRUE(kernel.is_ok()) << kernel.status().message();
      if (!kernel.is_ok()) return false;
      EXPECT_EQ(kernel.value().kernel.variant, KernelVariant::DirectList);
      EXPECT_EQ(kernel.value().grid_x, launch.list_channels);
      kernels.push_back(std::move(kernel).take());
      set_advertisements(kernels.back(), [](const void*) { return true; });
      if ((ranks >> rank & 1) != 0) pointers.push_back(&kernels.back());
    }
    return emulation::run(pointers, seed, 40'000'000);
  }

  void check() {
    for (const Operands& operands : operands_) ASSERT_NO_FATAL_FAILURE(operands.check());
    ASSERT_TRUE(connections_.guards_intact());
    ASSERT_TRUE(connections_.counters_consistent(/*has_advertisements=*/true));
    ASSERT_EQ(connections_.control.report, 0u);
  }

  /// Steps of a channel so far.
  uint64_t steps(uint32_t channel) {
    return connections_.connections().front()->sender(channel).step;
  }

 private:
  static schedule::Schedule schedule_of(const Case& c, int nranks, int root) {
    algorithms::Options options;
    if (schedule::has_root(c.collective)) options.root = root;
    return algorithms::find(c.collective, c.algorithm)->build(nranks, options).take();
  }
  const uint64_t* table(Sight sight, std::mt19937& random) const {
    const bool all_see = sight == Sight::Tables || random() % 4 != 0;
    return all_see ? tables_.back().data() : tables_[random() % (tables_.size() - 1)].data();
  }

  const Case case_;
  const int root_;
  Cluster connections_;
  const Cluster results_;
  std::deque<Operands> operands_;
  std::vector<std::vector<uint64_t>> tables_;  // by the rank that does not see; the last: all do
};

constexpr uint64_t kFewTiles = 5000;  // bytes

TEST(EmulatedDirectList, CarriesOutAllItsOperations) {
  for (const Case& c : kCases) {
    const DataType type = schedule::reduces(c.collective) ? DataType::Float32 : DataType::Uint8;
    for (const int nranks : {2, 3, 4, 5, 8}) {
      Lists lists(c, nranks);
      lists.connections().start_at((uint64_t{1} << 15) - 4);  // flags begin anew on the way
      uint32_t seed = 0;
      for (const size_t works : {1u, 3u, 11u}) {
        for (const Sight sight : {Sight::Open, Sight::Tables, Sight::Sometimes}) {
          SCOPED_TRACE(testing::Message() << name_of(c.collective) << " of " << nranks << ", "
                                          << works << " works, sight " << static_cast<int>(sight));
          ++seed;
          const uint64_t most = sight == Sight::Sometimes ? 600 : kFewTiles;
          const uint32_t channels = std::min<uint32_t>(kChannels, static_cast<uint32_t>(works));
          const auto launches = lists.draw(type, {}, works, channels, sight, seed, most);
          const uint64_t before = lists.steps(0);
          ASSERT_TRUE(lists.run(launches, seed));
          ASSERT_NO_FATAL_FAILURE(lists.check());
          if (sight != Sight::Sometimes) {
            ASSERT_EQ(lists.steps(0), before + 1) << "data went through slots";
          }
        }
      }
    }
  }
}

TEST(EmulatedDirectList, ReducesEveryType) {
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
      Lists lists(kCases[seed % 2 == 0 ? 0 : 3], seed % 3 == 0 ? 5 : 2);
      SCOPED_TRACE(testing::Message() << name_of(static_cast<DataType>(type)) << " reduce " << op);
      const Sight sight = seed % 4 == 0 ? Sight::Sometimes : Sight::Open;
      const auto launches =
          lists.draw(static_cast<DataType>(type), reduction, 4, 2, sight, seed, 2700);
      ASSERT_TRUE(lists.run(launches, seed));
      ASSERT_NO_FATAL_FAILURE(lists.check());
    }
  }
}

TEST(EmulatedDirectList, TakesAsManyOperationsAsItSays) {
  Lists lists(kCases[0], 2);
  const auto launches =
      lists.draw(DataType::Int8, {}, 20 * kChannels, kChannels, Sight::Open, 7, 9);
  ASSERT_TRUE(lists.run(launches, 1));
  ASSERT_NO_FATAL_FAILURE(lists.check());
}

TEST(EmulatedDirectList, RefusesWhatItCannotCarryOut) {
  const auto refusal = [](Lists& lists, size_t works, uint32_t channels) {
    auto launches = lists.draw(DataType::Int8, {}, works, channels, Sight::Open, 1, 9);
    launches[0].control_device = &lists.connections().control;
    return executor::cuda::prepare(launches[0]).status().message();
  };
  Lists two(kCases[0], 2);
  EXPECT_NE(refusal(two, executor::kMostDirectListWorks + 1, 3), "");
  EXPECT_NE(refusal(two, 21, 1), "") << "more addresses than a slot holds";
  EXPECT_NE(refusal(two, 9, kChannels + 1), "");
  EXPECT_NE(refusal(two, 2, 3), "") << "a channel without a tile";
  EXPECT_EQ(refusal(two, 20, 1), "");
}

// Rank 1 is not there: the others take back what it could use, and end.
TEST(EmulatedDirectList, EndsWhenAborted) {
  for (const Case& c : kCases) {
    Lists lists(c, 3);
    const auto launches = lists.draw(DataType::Int8, {}, 6, 2, Sight::Open, 3, 100);
    lists.connections().control.abort = 1;
    EXPECT_TRUE(lists.run(launches, 1, 0b101)) << name_of(c.collective);
    for (const auto& connection : lists.connections().connections())
      for (uint32_t channel = 0; channel < 2; ++channel)
        EXPECT_EQ(connection->receiver(channel).advertisement, 0u) << "an advertisement stands";
  }
}

// Told to let go (Command::Leave), they wait for the end, which comes later.
TEST(EmulatedDirectList, LetsGoAndWaitsForTheEnd) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    Lists lists(kCases[0], 3);
    const auto launches = lists.draw(DataType::Int8, {}, 6, 2, Sight::Open, seed, 100);
    uint32_t* const command = &lists.connections().control.abort;
    emulation::set_after(2'000 * seed, command, static_cast<uint32_t>(executor::Command::Leave));
    emulation::abort_after(2'000'000, command);
    EXPECT_TRUE(lists.run(launches, seed, 0b101));
  }
}

// Whenever the abort comes: all end, and no advertisement stands that nobody took.
TEST(EmulatedDirectList, EndsWheneverItIsAborted) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    Lists lists(kCases[seed % std::size(kCases)], 3);
    const auto launches = lists.draw(DataType::Int8, {}, 6, 2, Sight::Open, seed, 100);
    emulation::abort_after(500 * seed, &lists.connections().control.abort);
    EXPECT_TRUE(lists.run(launches, seed));
  }
}

}  // namespace
}  // namespace niccolite::device_test
