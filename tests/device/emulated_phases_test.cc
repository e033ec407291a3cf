// The phase kernels (executor/cuda/patterns/phase_kernel.cuh) on the emulated GPU: which programs
// they take, and that they leave behind what the interpreter does.
#include <gtest/gtest.h>

#include "planner/form.h"
#include "tests/device/emulated_specialised.h"

namespace niccolite::device_test {
namespace {

using executor::DataType;
using executor::Protocol;
using executor::Reduction;
using executor::cuda::KernelVariant;
using executor::cuda::Specialisation;
using executor::host::Cluster;
using executor::host::Operands;
using executor::host::Part;
using schedule::Collective;
using schedule::Schedule;

struct Case {
  Collective collective;
  const char* algorithm;
  bool of_root;  // also the root's program
};
const Case kCases[] = {
    {Collective::AllReduce, "one_shot", true},
    {Collective::AllReduce, "two_shot", true},
    {Collective::AllReduce, "two_shot_workers", true},
    {Collective::ReduceScatter, "direct", true},
    {Collective::ReduceScatter, "direct_workers", true},
    {Collective::Reduce, "direct", true},
    {Collective::Reduce, "two_shot", false},
    {Collective::Reduce, "two_shot_workers", false},
};

constexpr uint64_t kSlotData = data_bytes(Protocol::LL128, kSlotBytes);

Schedule build(const Case& c, int nranks, int root) {
  return device_test::build(c.collective, c.algorithm, nranks, root);
}
std::string name_of(const Case& c) {
  return fmt::format("{} {}", schedule::name_of(c.collective), c.algorithm);
}

TEST(EmulatedPhases, AreOfEveryProgramThatHasThemAndReduces) {
  for (const Case& c : kCases) {
    const bool sends_result = std::string_view(c.algorithm).starts_with("two_shot");
    for (const int nranks : {3, 4, 5, 8, 9}) {
      if (nranks > planner::find_form(c.collective, c.algorithm)->max_ranks) continue;
      SCOPED_TRACE(testing::Message() << name_of(c) << " of " << nranks);
      const int root = nranks - 1;
      Cluster cluster(build(c, nranks, root), Protocol::LL128, shape_of(1));
      const Operands operands(cluster.schedule(), DataType::Float32, {64}, {});
      const auto launches = cluster.launches({.count = 64}, operands.addresses());
      const auto form_of = [&](int rank) {
        return prepare(cluster, launches[static_cast<size_t>(rank)], /*threads=*/0,
                       Specialisation::Allowed)
            .kernel.variant;
      };
      const bool has_few_peers = nranks <= 8;
      const bool reduces_at_all =
          c.collective != Collective::Reduce || std::string_view(c.algorithm) != "direct";
      for (int rank = 0; rank < nranks; ++rank) {
        const KernelVariant by_hand =
            !sends_result && nranks <= 4 ? KernelVariant::DirectLines : KernelVariant::Phases;
        const bool is_by_hand = has_few_peers && (rank == root ? c.of_root : reduces_at_all);
        EXPECT_EQ(form_of(rank), is_by_hand ? by_hand : KernelVariant::Program) << rank;
      }
    }
  }
}

TEST(EmulatedPhases, TakeTurnsWithTheInterpreterOnTheSameConnections) {
  uint32_t turn = 0;
  for (const Case& c : kCases) {
    for (const int nranks : {2, 4, 5, 8}) {
      Cluster cluster(build(c, nranks, nranks / 2), Protocol::LL128, shape_of(2));
      // Nothing, less than a vec8, less than a line, two channels, rounds that overlap.
      for (const uint64_t count :
           {uint64_t{0}, uint64_t{1}, uint64_t{27}, kSlotData / 4 + 1, 3 * kSlotData + 9}) {
        ++turn;
        SCOPED_TRACE(testing::Message()
                     << name_of(c) << " of " << nranks << ", count " << count << ", turn " << turn);
        const auto type = turn % 4 == 0 ? DataType::Bfloat16 : DataType::Float32;
        ASSERT_NO_FATAL_FAILURE(run_turn(cluster, count, type, turn));
      }
    }
  }
}

TEST(EmulatedPhases, ScaleResultsAsTheInterpreterDoes) {
  uint32_t turn = 0;
  for (const Case& c : kCases) {
    Cluster cluster(build(c, 3, 1), Protocol::LL128, shape_of(1));
    for (const DataType type : {DataType::Float16, DataType::Int32, DataType::Uint8}) {
      ++turn;
      SCOPED_TRACE(testing::Message() << name_of(c) << " " << executor::name_of(type));
      const Reduction reduction{.finish_scale = 0.25, .finish_divisor = 2};
      const Operands operands(cluster.schedule(), type, {131}, {.reduction = reduction});
      const Part part{.counts = {131}, .buffers = operands.addresses()};
      ASSERT_NO_FATAL_FAILURE(run_turn(cluster, operands, part, type, reduction, turn));
    }
  }
}

TEST(EmulatedPhases, EndWhenAborted) {
  for (const Case& c : kCases) {
    Cluster cluster(build(c, 3, 1), Protocol::LL128, shape_of(1));
    const uint64_t count = 4 * kSlotData;  // rounds enough to wait for credit
    const Operands operands(cluster.schedule(), DataType::Uint8, {count}, {});
    auto launches =
        cluster.launches({.count = count, .type = DataType::Uint8}, operands.addresses());
    launches.erase(launches.begin() + 1);
    cluster.control.abort = 1;
    EXPECT_TRUE(run(cluster, launches, 1, /*specialised=*/3)) << name_of(c);
  }
}

}  // namespace
}  // namespace niccolite::device_test
