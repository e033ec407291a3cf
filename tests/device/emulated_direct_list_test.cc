// Lists over buffers that all ranks reach (executor::Launch::list_access) on the emulated GPU: that
// every operation is right, wherever its buffers begin and whoever sees them, that only what some
// rank does not see goes through slots, and that who is aborted keeps its buffers until others are
// done with them.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include "tests/device/emulated_gpu.h"
#include "tests/executor/host/lists.h"

namespace niccolite::device_test {
namespace {

using executor::DataType;
using executor::Launch;
using executor::Reduction;
using executor::cuda::KernelLaunch;
using executor::cuda::KernelVariant;
using executor::host::kListCases;
using executor::host::kListChannels;
using executor::host::ListCase;
using executor::host::Lists;
using executor::host::Sight;

/// Runs the launches of the ranks whose bits are set.
bool run(Lists& lists, std::vector<Launch> launches, uint64_t seed, uint32_t ranks = ~0u) {
  std::deque<KernelLaunch> kernels;
  std::vector<KernelLaunch*> pointers;
  for (size_t rank = 0; rank < launches.size(); ++rank) {
    Launch& launch = launches[rank];
    launch.control_device = &lists.connections().control;
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

constexpr uint64_t kFewTiles = 5000;  // bytes

TEST(EmulatedDirectList, CarriesOutAllItsOperations) {
  for (const ListCase& c : kListCases) {
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
          const uint32_t channels = std::min<uint32_t>(kListChannels, static_cast<uint32_t>(works));
          const auto launches = lists.draw(type, {}, works, channels, sight, seed, most);
          const uint64_t before = lists.steps(0);
          ASSERT_TRUE(run(lists, launches, seed));
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
      Lists lists(kListCases[seed % 2 == 0 ? 0 : 3], seed % 3 == 0 ? 5 : 2);
      SCOPED_TRACE(testing::Message() << name_of(static_cast<DataType>(type)) << " reduce " << op);
      const Sight sight = seed % 4 == 0 ? Sight::Sometimes : Sight::Open;
      const auto launches =
          lists.draw(static_cast<DataType>(type), reduction, 4, 2, sight, seed, 2700);
      ASSERT_TRUE(run(lists, launches, seed));
      ASSERT_NO_FATAL_FAILURE(lists.check());
    }
  }
}

TEST(EmulatedDirectList, TakesAsManyOperationsAsItSays) {
  Lists lists(kListCases[0], 2);
  const auto launches =
      lists.draw(DataType::Int8, {}, 20 * kListChannels, kListChannels, Sight::Open, 7, 9);
  ASSERT_TRUE(run(lists, launches, 1));
  ASSERT_NO_FATAL_FAILURE(lists.check());
}

TEST(EmulatedDirectList, RefusesWhatItCannotCarryOut) {
  const auto refusal = [](Lists& lists, size_t works, uint32_t channels) {
    auto launches = lists.draw(DataType::Int8, {}, works, channels, Sight::Open, 1, 9);
    launches[0].control_device = &lists.connections().control;
    return executor::cuda::prepare(launches[0]).status().message();
  };
  Lists two(kListCases[0], 2);
  EXPECT_NE(refusal(two, executor::kMostDirectListWorks + 1, 3), "");
  EXPECT_NE(refusal(two, 21, 1), "") << "more addresses than a slot holds";
  EXPECT_NE(refusal(two, 9, kListChannels + 1), "");
  EXPECT_NE(refusal(two, 2, 3), "") << "a channel without a tile";
  EXPECT_EQ(refusal(two, 20, 1), "");
}

// Rank 1 is not there: the others take back what it could use, and end.
TEST(EmulatedDirectList, EndsWhenAborted) {
  for (const ListCase& c : kListCases) {
    Lists lists(c, 3);
    const auto launches = lists.draw(DataType::Int8, {}, 6, 2, Sight::Open, 3, 100);
    lists.connections().control.abort = 1;
    EXPECT_TRUE(run(lists, launches, 1, 0b101)) << name_of(c.collective);
    for (const auto& connection : lists.connections().connections())
      for (uint32_t channel = 0; channel < 2; ++channel)
        EXPECT_EQ(connection->receiver(channel).advertisement, 0u) << "an advertisement stands";
  }
}

// Told to let go (Command::Leave), they wait for the end, which comes later.
TEST(EmulatedDirectList, LetsGoAndWaitsForTheEnd) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    Lists lists(kListCases[0], 3);
    const auto launches = lists.draw(DataType::Int8, {}, 6, 2, Sight::Open, seed, 100);
    uint32_t* const command = &lists.connections().control.abort;
    emulation::set_after(2'000 * seed, command, static_cast<uint32_t>(executor::Command::Leave));
    emulation::abort_after(2'000'000, command);
    EXPECT_TRUE(run(lists, launches, seed, 0b101));
  }
}

// Whenever the abort comes: all end, and no advertisement stands that nobody took.
TEST(EmulatedDirectList, EndsWheneverItIsAborted) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    Lists lists(kListCases[seed % std::size(kListCases)], 3);
    const auto launches = lists.draw(DataType::Int8, {}, 6, 2, Sight::Open, seed, 100);
    emulation::abort_after(500 * seed, &lists.connections().control.abort);
    EXPECT_TRUE(run(lists, launches, seed));
  }
}

}  // namespace
}  // namespace niccolite::device_test
