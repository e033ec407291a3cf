// Lists over buffers that all ranks reach (executor::Launch::list_access) on the emulated GPU: that
// every operation is right, wherever its buffers begin and whoever sees them, that only what some
// rank does not see goes through slots, and that who is aborted keeps its buffers until others are
// done with them.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include "executor/cuda/launch/launch_header.h"
#include "tests/device/emulated_gpu.h"
#include "tests/executor/host/lists.h"

namespace niccolite::device_test {
namespace {

using executor::DataType;
using executor::Launch;
using executor::cuda::KernelLaunch;
using executor::cuda::KernelVariant;
using executor::host::kListCases;
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
    launch.threads = seed % 3 == 0 ? 128 : 64;  // up to four warps share a tile
    auto kernel = executor::cuda::prepare(launch);
    EXPECT_TRUE(kernel.is_ok()) << kernel.status().message();
    if (!kernel.is_ok()) return false;
    EXPECT_EQ(kernel.value().kernel.variant, KernelVariant::DirectList);
    EXPECT_EQ(kernel.value().grid_x, launch.list_channels);
    kernels.push_back(std::move(kernel).take());
    set_advertisements(kernels.back(), executor::cuda::buffers_of(launch),
                       [](const void*, uint64_t) { return true; });
    if ((ranks >> rank & 1) != 0) pointers.push_back(&kernels.back());
  }
  return emulation::run(pointers, seed, 40'000'000);
}

bool run_all(Lists& lists, std::vector<Launch> launches, uint32_t seed) {
  return run(lists, std::move(launches), seed);
}

TEST(EmulatedDirectList, CarriesOutAllItsOperations) {
  ASSERT_NO_FATAL_FAILURE(executor::host::expect_all_operations(run_all, 600));
}

TEST(EmulatedDirectList, ReducesEveryType) {
  ASSERT_NO_FATAL_FAILURE(executor::host::expect_every_type(run_all, 2700));
}

TEST(EmulatedDirectList, TakesAsManyOperationsAsItSays) {
  ASSERT_NO_FATAL_FAILURE(executor::host::expect_as_many_operations(run_all));
}

TEST(EmulatedDirectList, RefusesWhatItCannotCarryOut) {
  executor::host::expect_refusals(
      [](const Launch& launch) { return executor::cuda::prepare(launch).status().copy(); });
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
