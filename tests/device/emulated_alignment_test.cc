// Buffers that begin at every byte of 16, and end at every one: what a warp accesses as rows
// (executor/cuda/interpreter/rows.cuh), by the protocols that do, against the reference of the host
// executor's tests, which sees every byte beside what is written.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/device/emulated_advertisements.h"
#include "tests/executor/host/operands.h"

namespace niccolite::device_test {
namespace {

using executor::DataType;
using executor::host::Operands;

struct AlignmentCase {
  Collective collective;
  const char* algorithm;
};
// Reductions and copies, from buffers, slots and both, to buffers, slots and both.
constexpr AlignmentCase kCases[] = {{Collective::AllReduce, "ring"},
                                    {Collective::AllGather, "direct"},
                                    {Collective::ReduceScatter, "direct"},
                                    {Collective::Reduce, "ring"}};

constexpr DataType kTypes[] = {DataType::Uint8, DataType::Bfloat16, DataType::Float32,
                               DataType::Float64};

/// Every start of the first rank's buffers, by every end; what others have is as far off, or not,
/// or in between. `slot_bytes`: several tiles of a worker's warps.
void check_all(Protocol protocol, uint32_t slot_bytes) {
  std::vector<std::unique_ptr<Cluster>> clusters;
  for (const AlignmentCase& c : kCases) {
    clusters.push_back(std::make_unique<Cluster>(
        planner::find_form(c.collective, c.algorithm)->build(2, {}).take(), protocol,
        FifoShape{.channels = 1, .depth = 2, .slot_bytes = slot_bytes}));
    clusters.back()->links_reach_users = false;
  }
  uint32_t turn = 0;
  for (const DataType type : kTypes) {
    const uint64_t in_vec16 = 16 / executor::size_of(type);
    for (uint64_t start = 0; start < in_vec16; ++start) {
      for (uint64_t more = 0; more < in_vec16; ++more) {
        for (size_t way = 0; way < std::size(kCases); way += type == DataType::Uint8 ? 2 : 1) {
          const size_t which = (way + turn) % std::size(kCases);
          ++turn;
          // Whole tiles and what is left of one; less than a tile; hardly anything.
          const uint64_t vec16s = turn % 29 == 0 ? 2560 : turn % 5 == 0 ? 0 : 94;
          const uint64_t count = vec16s * in_vec16 + more;
          const std::vector<uint64_t> starts[] = {
              {start},
              {start, 0},
              {0, start, 0},
              {start, in_vec16 / 2, in_vec16 - 1, 1 % in_vec16}};
          Cluster& cluster = *clusters[which];
          SCOPED_TRACE(testing::Message()
                       << schedule::name_of(kCases[which].collective) << " "
                       << kCases[which].algorithm << ", " << count << " of "
                       << executor::size_of(type) << " bytes from " << start << ", turn " << turn);
          const Operands operands(
              cluster.schedule(), type, {count},
              {.is_in_place = turn % 3 == 0, .starts = starts[turn / 2 % std::size(starts)]});
          std::vector<Launch> launches =
              cluster.launches({.count = count, .type = type}, operands.addresses());
          for (Launch& launch : launches) launch.threads = 96;
          ASSERT_TRUE(run(cluster, std::move(launches), ~0u, 80'000'000, Staging::None));
          ASSERT_NO_FATAL_FAILURE(operands.check());
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
  for (const auto& cluster : clusters) {
    EXPECT_TRUE(cluster->guards_intact());
    EXPECT_TRUE(cluster->counters_consistent());
  }
}

TEST(EmulatedAlignment, SimpleTakesEveryStartAndEnd) { check_all(Protocol::Simple, 16384); }
TEST(EmulatedAlignment, Ll128TakesEveryStartAndEnd) { check_all(Protocol::LL128, 4096); }

}  // namespace
}  // namespace niccolite::device_test
