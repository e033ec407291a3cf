// Data that are put in the receiver's output, and inputs that are exposed to the receiver
// (protocol/advertisement.h), by the kernels' own source on the CPU: everything that is right is
// right with them (emulated_collectives_test.cc has the matrix); here is what they alone must keep.
#include <gtest/gtest.h>

#include <algorithm>

#include "algorithms/point_to_point.h"
#include "executor/protocol/advertisement.h"
#include "executor/report.h"
#include "tests/device/emulated_advertisements.h"
#include "tests/executor/host/operands.h"

namespace niccolite::device_test {
namespace {

class EmulatedDirectPut : public OnArchitectures {};
class EmulatedDirectGet : public OnArchitectures {};
INSTANTIATE_TEST_SUITE_P(Architectures, EmulatedDirectPut, testing::Bool(), name_of_architecture);
INSTANTIATE_TEST_SUITE_P(Architectures, EmulatedDirectGet, testing::Bool(), name_of_architecture);

using executor::DataType;
using executor::ReportKind;
using executor::host::Operands;
using executor::host::Part;

// Bytes, of several rounds. Blocks side by side are aligned; the parts of one buffer end anyhow.
constexpr uint64_t kElements = 1616;
constexpr uint64_t kElementsOfOneBuffer = 1503;
uint64_t elements_of(Collective collective) {
  return schedule::cuts_one_buffer(collective) ? kElementsOfOneBuffer : kElements;
}

// What every one of their connections carries may be put; in the last of them it is passed on.
constexpr Case kCases[] = {
    {Collective::AllGather, "direct_workers"}, {Collective::AllToAll, "direct_workers"},
    {Collective::Broadcast, "direct"},         {Collective::Gather, "direct_workers"},
    {Collective::Scatter, "direct_workers"},   {Collective::Broadcast, "ring", /*passes_on=*/true}};

TEST_P(EmulatedDirectPut, TakesNoSlots) {
  for (const Case& c : kCases) {
    for (const Staging staging : {Staging::All, Staging::None}) {
      SCOPED_TRACE(testing::Message() << schedule::name_of(c.collective) << " " << c.algorithm);
      Cluster cluster = cluster_of(c.collective, c.algorithm, 3);
      const uint64_t count = elements_of(c.collective);
      for (int turn = 0; turn < 3; ++turn) {
        const Operands operands(cluster.schedule(), DataType::Uint8, {count}, {});
        auto launches =
            cluster.launches({.count = count, .type = DataType::Uint8}, operands.addresses());
        ASSERT_TRUE(run(cluster, std::move(launches), ~0u, 20'000'000, staging));
        ASSERT_NO_FATAL_FAILURE(operands.check());
      }
      // Threads pass on from slots.
      EXPECT_EQ(used_slots(cluster), c.passes_on && staging == Staging::None);
      EXPECT_TRUE(cluster.guards_intact());
      EXPECT_TRUE(cluster.counters_consistent(/*has_advertisements=*/true));
    }
  }
}

// Enough for the CTAs to share (executor/cuda/pipeline/tiles.cuh).
constexpr FifoShape kLarge{.channels = 3, .depth = 2, .slot_bytes = 32768};

// The end is not a whole vec16, and units are those of a channel, or are not.
TEST_P(EmulatedDirectPut, SharesDirectPuts) {
  constexpr uint64_t kWhole = 3 * 3 * 32768;  // bytes: whole chunks, of which units are a part
  constexpr uint64_t kUneven = 3 * 81920 + 117;
  for (const Case& c : kCases) {
    for (const uint64_t count : {kWhole - 5, kUneven, kWhole / 3}) {
      SCOPED_TRACE(testing::Message()
                   << schedule::name_of(c.collective) << " " << c.algorithm << ", " << count);
      Cluster cluster = cluster_of(c.collective, c.algorithm, 3, kLarge);
      // Blocks side by side are aligned.
      const uint64_t elements =
          schedule::cuts_one_buffer(c.collective) ? count : executor::round_up(count, 16);
      for (const bool is_in_place : {false, true, false}) {
        const Operands operands(cluster.schedule(), DataType::Uint8, {elements},
                                {.is_in_place = is_in_place});
        auto launches =
            cluster.launches({.count = elements, .type = DataType::Uint8}, operands.addresses());
        const uint64_t before = emulation::fetch_adds();
        ASSERT_TRUE(run(cluster, std::move(launches), ~0u, 80'000'000));
        ASSERT_NO_FATAL_FAILURE(operands.check());
        if (count != kWhole / 3) {
          EXPECT_EQ(emulation::fetch_adds() != before, !c.passes_on);
        }
        for (const auto& connection : cluster.connections()) {
          EXPECT_EQ(connection->sender(0).tile_counters[0], 0u);
          EXPECT_EQ(connection->sender(0).tile_counters[1], 0u);
          EXPECT_EQ(connection->receiver(0).tile_counters[1], 0u);
        }
      }
      EXPECT_TRUE(cluster.guards_intact());
      EXPECT_TRUE(cluster.counters_consistent(/*has_advertisements=*/true));
    }
  }
}

// Elements from an aligned address to where buffers begin, of one after the other: all alike, and
// each in its own way.
const std::vector<uint64_t> kStarts[] = {{1}, {8}, {3, 0, 0, 5, 1, 2, 4}, {0, 1, 9, 0, 14, 3, 7}};

// Where vec16s begin, but not lines of 128 bytes.
const std::vector<uint64_t> kStartsInLines[] = {{16}, {112, 48, 0}};

/// Do all buffers begin as far into a vec16? Where they do not, several warps of a worker have
/// tiles of their own instead of those that CTAs share.
bool are_aligned_alike(const std::vector<uint64_t>& starts, uint64_t element_bytes = 1) {
  return std::ranges::all_of(
      starts, [&](uint64_t start) { return (start - starts[0]) * element_bytes % 16 == 0; });
}

// CTAs that have no part in any message draw tiles like the others. A rank's buffers are aligned
// alike here; without bulk copies threads copy what is not aligned.
TEST_P(EmulatedDirectPut, SharesACopyBesideMessages) {
  const std::vector<algorithms::Envelope> messages{{0, 1}, {1, 0}, {0, 0}, {1, 1}};
  const std::vector<uint64_t> counts{20, 33, 3 * 81920 + 117, 3 * 3 * 32768 - 5};
  Cluster cluster(algorithms::point_to_point(2, messages).take(), Protocol::Simple, kLarge);
  std::vector<std::vector<uint64_t>> starts(std::begin(kStarts), std::end(kStarts));
  starts.push_back({0});
  for (const std::vector<uint64_t>& start : starts) {
    const bool is_aligned = start == starts.back();
    const Operands operands(cluster.schedule(), DataType::Uint8, counts, {.starts = start});
    const Part part{.schedule = 0, .counts = counts, .buffers = operands.addresses(), .tag = 1};
    auto launches = cluster.launches({part}, DataType::Uint8, {});
    for (Launch& launch : launches) launch.threads = 256;
    const uint64_t before = emulation::fetch_adds();
    ASSERT_TRUE(run(cluster, std::move(launches), ~0u, 80'000'000));
    ASSERT_NO_FATAL_FAILURE(operands.check());
    if (is_aligned || GetParam()) {
      EXPECT_NE(emulation::fetch_adds(), before);
    }
    expect_tile_counters_reset(cluster);
    EXPECT_TRUE(cluster.guards_intact());
    EXPECT_TRUE(cluster.counters_consistent(/*has_advertisements=*/true));
  }
}

// The CTAs share it as ever.
TEST_P(EmulatedDirectPut, TakesNoSlotsWhereverBuffersBegin) {
  std::vector<std::vector<uint64_t>> all_starts(std::begin(kStarts), std::end(kStarts));
  all_starts.insert(all_starts.end(), std::begin(kStartsInLines), std::end(kStartsInLines));
  for (const Case& c : kCases) {
    for (const bool is_large : {false, true}) {
      Cluster cluster = is_large ? cluster_of(c.collective, c.algorithm, 3, kLarge)
                                 : cluster_of(c.collective, c.algorithm, 3);
      for (const std::vector<uint64_t>& starts : all_starts) {
        for (const uint64_t count : {uint64_t{1616}, uint64_t{3 * 81920 + 117}}) {
          if (is_large != (count > 5000)) continue;
          for (const bool is_in_place : {false, true}) {
            SCOPED_TRACE(testing::Message()
                         << schedule::name_of(c.collective) << " " << c.algorithm << ", " << count
                         << " from " << starts[0] << (is_in_place ? ", in place" : ""));
            const Operands operands(cluster.schedule(), DataType::Uint8, {count},
                                    {.is_in_place = is_in_place, .starts = starts});
            const uint64_t before = emulation::fetch_adds();
            ASSERT_TRUE(run(
                cluster,
                cluster.launches({.count = count, .type = DataType::Uint8}, operands.addresses()),
                ~0u, 80'000'000));
            ASSERT_NO_FATAL_FAILURE(operands.check());
            // In place blocks lie where those before them end.
            if (is_large && !is_in_place && are_aligned_alike(starts)) {
              EXPECT_EQ(emulation::fetch_adds() != before, !c.passes_on);
            }
            EXPECT_FALSE(used_slots(cluster));
          }
        }
      }
      EXPECT_TRUE(cluster.guards_intact());
      EXPECT_TRUE(cluster.counters_consistent(/*has_advertisements=*/true));
    }
  }
}

// Where a worker has several warps, those that do not drive bulk copies shift what these move, to
// peers' buffers and to slots, or take over together where destinations are aligned differently.
// What is shifted goes by tiles that CTAs share; what threads move does not.
TEST_P(EmulatedDirectPut, WarpsTakeOverWhereEndsAreNotAlignedAlike) {
  for (const Case& c : kCases) {
    for (const bool is_large : {false, true}) {
      Cluster cluster = is_large ? cluster_of(c.collective, c.algorithm, 2, kLarge)
                                 : cluster_of(c.collective, c.algorithm, 2);
      const uint64_t count = is_large ? 3 * 81920 + 117 : 1503;
      for (const std::vector<uint64_t>& starts : kStarts) {
        for (const uint32_t reachable : {~0u, 0u}) {
          SCOPED_TRACE(testing::Message()
                       << schedule::name_of(c.collective) << " " << c.algorithm << ", " << count
                       << " from " << starts[0] << ", " << reachable);
          const Operands operands(cluster.schedule(), DataType::Uint8, {count}, {.starts = starts});
          auto launches =
              cluster.launches({.count = count, .type = DataType::Uint8}, operands.addresses());
          for (Launch& launch : launches) launch.threads = 512;
          const uint64_t before = emulation::fetch_adds();
          ASSERT_TRUE(run(cluster, std::move(launches), ~0u, 80'000'000, Staging::All, reachable));
          ASSERT_NO_FATAL_FAILURE(operands.check());
          const bool has_one_destination = c.collective == Collective::AllToAll ||
                                           c.collective == Collective::Gather ||
                                           c.collective == Collective::Scatter;
          if (GetParam() && is_large && reachable != 0 && has_one_destination) {
            EXPECT_NE(emulation::fetch_adds(), before);
          }
        }
      }
      expect_tile_counters_reset(cluster);
      EXPECT_TRUE(cluster.guards_intact());
      EXPECT_TRUE(cluster.counters_consistent(/*has_advertisements=*/true));
    }
  }
}

// Of blocks of odd strides those that are long, and that nobody passes on.
TEST(StagedCopies, SuitOddStridesOfLongBlocks) {
  const auto suits = [](const char* algorithm, uint64_t count) {
    Cluster cluster = cluster_of(Collective::AllGather, algorithm, 2, kLarge);
    const Operands operands(cluster.schedule(), DataType::Uint8, {count}, {});
    auto launches =
        cluster.launches({.count = count, .type = DataType::Uint8}, operands.addresses());
    launches[0].control_device = &cluster.control;
    launches[0].threads = 512;
    return executor::cuda::suits_staged_copies(
        executor::cuda::prepare(launches[0], executor::cuda::Specialisation::Off).take());
  };
  constexpr uint64_t kLong = 3 * (2 << 20);  // a channel's part, three times
  EXPECT_TRUE(suits("direct_workers", 3 * 81920));
  EXPECT_FALSE(suits("direct_workers", 3 * 81920 + 1));
  EXPECT_TRUE(suits("direct_workers", kLong + 1));
  EXPECT_TRUE(suits("ring", kLong));
  EXPECT_FALSE(suits("ring", kLong + 1));
}

// Through slots, by stages and by threads, also what is passed on.
TEST_P(EmulatedDirectPut, MovesThroughSlotsWhereverBuffersBegin) {
  for (const Case& c : kCases) {
    for (const Staging staging : {Staging::All, Staging::None}) {
      Cluster cluster = cluster_of(c.collective, c.algorithm, 3);
      for (const std::vector<uint64_t>& starts : kStarts) {
        for (const uint32_t reachable : {0u, 5u}) {
          SCOPED_TRACE(testing::Message() << schedule::name_of(c.collective) << " " << c.algorithm
                                          << " from " << starts[0] << ", " << reachable);
          const Operands operands(cluster.schedule(), DataType::Uint8, {1503}, {.starts = starts});
          ASSERT_TRUE(
              run(cluster,
                  cluster.launches({.count = 1503, .type = DataType::Uint8}, operands.addresses()),
                  ~0u, 80'000'000, staging, reachable));
          ASSERT_NO_FATAL_FAILURE(operands.check());
        }
      }
      EXPECT_TRUE(cluster.guards_intact());
      EXPECT_TRUE(cluster.counters_consistent(/*has_advertisements=*/true));
    }
  }
}

// Blocks side by side, of a length that is no multiple of 16 bytes: all ranks know it.
TEST_P(EmulatedDirectPut, TakesNoSlotsForBlocksThatAreNotAligned) {
  constexpr Case kSideBySide[] = {kCases[0], kCases[1], kCases[3], kCases[4]};
  for (const Case& c : kSideBySide) {
    for (const auto& [type, count] : {std::pair(DataType::Uint8, 1503u),
                                      {DataType::Bfloat16, 801u},
                                      {DataType::Float32, 405u},
                                      {DataType::Float32, 402u},
                                      {DataType::Float32, 3u}}) {
      SCOPED_TRACE(testing::Message() << schedule::name_of(c.collective) << " of " << count << " "
                                      << executor::name_of(type));
      Cluster cluster = cluster_of(c.collective, c.algorithm, 3);
      for (const bool is_in_place : {false, true}) {
        if (is_in_place && c.collective == Collective::AllToAll) continue;
        const Operands operands(cluster.schedule(), type, {count}, {.is_in_place = is_in_place});
        ASSERT_TRUE(run(cluster,
                        cluster.launches({.count = count, .type = type}, operands.addresses()), ~0u,
                        20'000'000, Staging::Reductions));
        ASSERT_NO_FATAL_FAILURE(operands.check());
      }
      EXPECT_FALSE(used_slots(cluster));
      EXPECT_TRUE(cluster.guards_intact());
      EXPECT_TRUE(cluster.counters_consistent(/*has_advertisements=*/true));
    }
  }
}

// Advertisements change from operation to operation, as buffers do.
TEST_P(EmulatedDirectPut, FollowsTheBuffersOfEveryOperation) {
  Cluster cluster = cluster_of(Collective::AllGather, "direct_workers", 3);
  for (const bool is_misaligned : {false, true, false, true}) {
    const Operands operands(cluster.schedule(), DataType::Uint8, {kElements},
                            {.is_misaligned = is_misaligned});
    auto launches =
        cluster.launches({.count = kElements, .type = DataType::Uint8}, operands.addresses());
    ASSERT_TRUE(run(cluster, std::move(launches)));
    ASSERT_NO_FATAL_FAILURE(operands.check());
    EXPECT_FALSE(used_slots(cluster));
    for (const auto& connection : cluster.connections()) {
      std::fill_n(connection->slots.data(), kShape.slots_bytes(), std::byte{0});
    }
  }
}

TEST_P(EmulatedDirectPut, StoresNothingOfAnotherCall) {
  Cluster cluster = cluster_of(Collective::AllGather, "direct_workers", 2);
  const Operands operands(cluster.schedule(), DataType::Uint8, {kElements}, {});
  auto launches =
      cluster.launches({.count = kElements, .type = DataType::Uint8}, operands.addresses());
  std::vector<std::byte> untouched(2 * kElements + 16, std::byte{0x5a});
  auto* output = untouched.data() + (16 - reinterpret_cast<uintptr_t>(untouched.data()) % 16) % 16;
  launches[1].works[0].tag = static_cast<uint16_t>(launches[0].works[0].tag + 1);
  launches[1].works[0].buffers.output = output;
  EXPECT_FALSE(run(cluster, std::move(launches), ~0u, 3'000'000));
  // The rank's own part alone.
  EXPECT_TRUE(std::all_of(output, output + kElements,
                          [](std::byte value) { return value == std::byte{0x5a}; }));
  EXPECT_EQ(executor::decode_report(cluster.control.report).kind, ReportKind::Mismatch);
  cluster.control.abort = 1;
}

// Buffers in windows: the peer sees them elsewhere, be they open or not, until the window ends.
TEST(EmulatedAdvertisements, NameTheAddressesThatThePeerSees) {
  constexpr uint64_t kBytes = 3 * 4096;
  for (const bool is_direct_get : {false, true}) {
    SCOPED_TRACE(is_direct_get ? "exposes" : "is put");
    Cluster cluster =
        cluster_of(is_direct_get ? Collective::Reduce : Collective::Broadcast, "direct", 2);
    const auto aligned = [](std::vector<std::byte>& memory) {
      return memory.data() + (4096 - reinterpret_cast<uintptr_t>(memory.data()) % 4096) % 4096;
    };
    std::vector<std::byte> memories[4];
    std::byte* at[4];
    for (int i = 0; i < 4; ++i) {
      memories[i].assign(kBytes + 4096, std::byte{0});
      at[i] = aligned(memories[i]);
    }
    const auto& [input, output, own, seen] = at;
    std::fill_n(input, kBytes, std::byte{3});
    std::fill_n(is_direct_get ? seen : own, kBytes, std::byte{4});
    // Direct put: rank 0 sends `input`, which rank 1 gets in `own`. Direct get: rank 1's `own` is
    // added to rank 0's `input`.
    auto launches = cluster.launches(
        {.count = kBytes, .type = is_direct_get ? DataType::Int8 : DataType::Uint8},
        {.inputs = {input, is_direct_get ? own : nullptr},
         .outputs = {output, is_direct_get ? nullptr : own}});
    uint64_t shifts[2] = {reinterpret_cast<uint64_t>(seen) - reinterpret_cast<uint64_t>(own),
                          executor::advertisement::kUnseen};
    executor::Buffers& buffers = launches[1].works[0].buffers;
    (is_direct_get ? buffers.input_shifts : buffers.output_shifts) = shifts;
    ASSERT_TRUE(run(cluster, launches, ~0u, 20'000'000, Staging::All, /*reachable=*/0));
    const std::byte* result = is_direct_get ? output : seen;
    const std::byte expected = is_direct_get ? std::byte{7} : std::byte{3};
    EXPECT_EQ(std::count(result, result + kBytes, expected), std::ptrdiff_t{kBytes});
    EXPECT_FALSE(used_slots(cluster));

    shifts[0] = executor::advertisement::kUnseen;
    std::fill_n(own, kBytes, std::byte{5});
    ASSERT_TRUE(run(cluster, launches, ~0u, 20'000'000, Staging::All, /*reachable=*/0));
    result = is_direct_get ? output : own;
    EXPECT_EQ(std::count(result, result + kBytes, is_direct_get ? std::byte{8} : std::byte{3}),
              std::ptrdiff_t{kBytes});
    EXPECT_TRUE(used_slots(cluster));
  }
}

// Few elements go round by round, since not every channel has some; of many the warps take turns.
TEST_P(EmulatedDirectGet, TakesNoSlots) {
  for (const Case& c : kLoans) {
    for (const int nranks : {2, 3, 8}) {
      for (const DataType type : {DataType::Float32, DataType::Bfloat16, DataType::Int8}) {
        for (const uint64_t count : {5u, 1503u, 20'011u}) {
          // The sizes that matter, by two ranks, of all types; the rest of one.
          if (type != DataType::Float32 && (nranks != 2 || count != 20'011)) continue;
          SCOPED_TRACE(testing::Message()
                       << schedule::name_of(c.collective) << " of " << count << " by " << nranks);
          Cluster cluster = cluster_of(c.collective, c.algorithm, nranks);
          // Blocks side by side are aligned.
          const uint64_t elements =
              schedule::cuts_one_buffer(c.collective) ? count : executor::round_up(count, 16);
          for (const bool is_in_place : {false, true}) {
            executor::Reduction average{};
            if (schedule::reduces(c.collective)) {
              average = {.op = executor::ReduceOp::Sum, .finish_scale = 0.5, .finish_divisor = 2};
            }
            const Operands operands(cluster.schedule(), type, {elements},
                                    {.is_in_place = is_in_place, .reduction = average});
            const uint64_t before = emulation::fetch_adds();
            ASSERT_TRUE(run(
                cluster, cluster.launches({.count = elements, .type = type, .reduction = average},
                                          operands.addresses())));
            ASSERT_NO_FATAL_FAILURE(operands.check());
            if (count == 20'011) {
              EXPECT_NE(emulation::fetch_adds(), before);
            }
            expect_tile_counters_reset(cluster);
          }
          EXPECT_FALSE(used_slots(cluster));
          EXPECT_TRUE(cluster.guards_intact());
          EXPECT_TRUE(cluster.counters_consistent(/*has_advertisements=*/true));
        }
      }
    }
  }
}

// An input that its rank scales first cannot be read by others as it is. The next operation may
// expose again.
TEST_P(EmulatedDirectGet, GetsOnlyWhatCanBeReadAsItIs) {
  for (const Case& c : kLoans) {
    Cluster cluster = cluster_of(c.collective, c.algorithm, 3);
    for (const bool scales : {false, true, false, true}) {
      if (scales && !schedule::reduces(c.collective)) continue;
      for (const bool is_misaligned : {false, true}) {
        executor::Reduction reduction{};
        if (schedule::reduces(c.collective)) reduction.op = executor::ReduceOp::Sum;
        if (scales) reduction.input_scale = 2;
        const Operands operands(cluster.schedule(), DataType::Float32, {1616},
                                {.is_misaligned = is_misaligned, .reduction = reduction});
        ASSERT_TRUE(
            run(cluster,
                cluster.launches({.count = 1616, .type = DataType::Float32, .reduction = reduction},
                                 operands.addresses())));
        ASSERT_NO_FATAL_FAILURE(operands.check());
        EXPECT_EQ(used_slots(cluster), scales);
        for (const auto& connection : cluster.connections()) {
          std::fill_n(connection->slots.data(), kShape.slots_bytes(), std::byte{0});
        }
      }
    }
  }
}

// Whole lines around what is exposed are read, and reduced from where they begin.
TEST_P(EmulatedDirectGet, ReducesBlocksThatAreNotAligned) {
  for (const auto& [type, count] : {std::pair(DataType::Uint8, 20'011u),
                                    {DataType::Bfloat16, 10'005u},
                                    {DataType::Float32, 5'002u},
                                    {DataType::Float32, 5'001u},
                                    {DataType::Float64, 2'501u},
                                    {DataType::Float32, 3u}}) {
    for (const int nranks : {2, 3, 5}) {
      SCOPED_TRACE(testing::Message() << count << " " << executor::name_of(type));
      Cluster cluster = cluster_of(Collective::ReduceScatter, "direct_workers", nranks);
      for (const bool is_in_place : {false, true}) {
        const executor::Reduction sum{.op = executor::ReduceOp::Sum};
        const Operands operands(cluster.schedule(), type, {count},
                                {.is_in_place = is_in_place, .reduction = sum});
        const uint64_t before = emulation::fetch_adds();
        ASSERT_TRUE(run(cluster,
                        cluster.launches({.count = count, .type = type, .reduction = sum},
                                         operands.addresses()),
                        ~0u, 20'000'000, Staging::Reductions));
        ASSERT_NO_FATAL_FAILURE(operands.check());
        // In place the result of some rank is not aligned.
        if (count > 1000 && !is_in_place) {
          EXPECT_NE(emulation::fetch_adds(), before);
        }
        expect_tile_counters_reset(cluster);
      }
      EXPECT_FALSE(used_slots(cluster));
      EXPECT_TRUE(cluster.guards_intact());
      EXPECT_TRUE(cluster.counters_consistent(/*has_advertisements=*/true));
    }
  }
}

// Inputs and results wherever they begin; the ends of what is reduced are nobody's unit.
TEST_P(EmulatedDirectGet, TakesNoSlotsWhereverBuffersBegin) {
  for (const Case& c : kLoans) {
    for (const int nranks : {2, 3}) {
      for (const auto& [type, count] : {std::pair(DataType::Uint8, 20'011u),
                                        {DataType::Bfloat16, 10'005u},
                                        {DataType::Float32, 5'002u},
                                        {DataType::Float64, 2'501u},
                                        {DataType::Uint8, 40u},
                                        {DataType::Uint8, 7u}}) {
        Cluster cluster = cluster_of(c.collective, c.algorithm, nranks);
        for (const std::vector<uint64_t>& starts : kStarts) {
          for (const bool is_in_place : {false, true}) {
            SCOPED_TRACE(testing::Message()
                         << schedule::name_of(c.collective) << " of " << count << " "
                         << executor::name_of(type) << " by " << nranks << " from " << starts[0]
                         << (is_in_place ? ", in place" : ""));
            const executor::Reduction sum{.op = executor::ReduceOp::Sum};
            const Operands operands(
                cluster.schedule(), type, {count},
                {.is_in_place = is_in_place, .starts = starts, .reduction = sum});
            const uint64_t before = emulation::fetch_adds();
            ASSERT_TRUE(
                run(cluster, cluster.launches({.count = count, .type = type, .reduction = sum},
                                              operands.addresses())));
            ASSERT_NO_FATAL_FAILURE(operands.check());
            if (count > 1000 && (schedule::reduces(c.collective) ||
                                 are_aligned_alike(starts, executor::size_of(type)))) {
              EXPECT_NE(emulation::fetch_adds(), before);
            }
            expect_tile_counters_reset(cluster);
          }
        }
        EXPECT_FALSE(used_slots(cluster));
        EXPECT_TRUE(cluster.guards_intact());
        EXPECT_TRUE(cluster.counters_consistent(/*has_advertisements=*/true));
      }
    }
  }
}

// Some ranks expose, and others send through slots: each reduction follows each of its peers,
// whatever its rank expected of them.
TEST_P(EmulatedDirectGet, ReducesDirectGetsBesideWhatOthersSend) {
  for (const Case& c : kLoans) {
    for (uint32_t exposing = 0; exposing < 8; ++exposing) {
      for (uint32_t expects_slots = 0; expects_slots < 8; ++expects_slots) {
        SCOPED_TRACE(testing::Message() << schedule::name_of(c.collective) << ": " << exposing
                                        << " expose, " << expects_slots << " expect slots");
        Cluster cluster = cluster_of(c.collective, c.algorithm, 3);
        const Operands operands(cluster.schedule(), DataType::Float32, {1616}, {});
        ASSERT_TRUE(
            run(cluster,
                cluster.launches({.count = 1616, .type = DataType::Float32}, operands.addresses()),
                ~0u, 20'000'000, Staging::All, exposing, expects_slots));
        ASSERT_NO_FATAL_FAILURE(operands.check());
        expect_tile_counters_reset(cluster);
        EXPECT_TRUE(cluster.counters_consistent(/*has_advertisements=*/true));
      }
    }
  }
}

// Its next advertisement would take the place of this one. (The reduction's rank does not come.)
TEST_P(EmulatedDirectGet, TheSenderWaitsUntilItsAdvertisementIsTaken) {
  for (const uint32_t reachable : {0u, ~0u}) {
    Cluster cluster = cluster_of(Collective::Reduce, "direct", 2);
    const Operands operands(cluster.schedule(), DataType::Float32, {8}, {});
    constexpr uint32_t kSender = 2;  // rank 1 alone; rank 0 is the root
    EXPECT_FALSE(run(
        cluster, cluster.launches({.count = 8, .type = DataType::Float32}, operands.addresses()),
        kSender, 1'000'000, Staging::All, reachable));
    cluster.control.abort = 1;
  }
}

// One connection exposes, is put and has slots by turns.
TEST(EmulatedAdvertisements, TakeTurns) {
  std::vector<schedule::Schedule> schedules;
  schedules.push_back(
      planner::find_form(Collective::ReduceScatter, "direct_workers")->build(3, {}).take());
  schedules.push_back(
      planner::find_form(Collective::AllGather, "direct_workers")->build(3, {}).take());
  Cluster cluster(std::move(schedules), Protocol::Simple, kShape);
  for (const size_t which : {0, 1, 0, 0, 1, 1, 0}) {
    for (const uint32_t reachable : {~0u, 0u, 5u, ~0u}) {
      const Operands operands(cluster.schedule(which), DataType::Float32, {1616}, {});
      const executor::host::Part part{
          .schedule = which, .counts = {1616}, .buffers = operands.addresses()};
      ASSERT_TRUE(run(cluster, cluster.launches({part}, DataType::Float32, {}), ~0u, 20'000'000,
                      Staging::All, reachable));
      ASSERT_NO_FATAL_FAILURE(operands.check());
    }
  }
  EXPECT_TRUE(cluster.guards_intact());
}

TEST_P(EmulatedDirectGet, ReadsNothingOfAnotherCall) {
  Cluster cluster = cluster_of(Collective::ReduceScatter, "direct_workers", 2);
  const Operands operands(cluster.schedule(), DataType::Float32, {512}, {});
  auto launches = cluster.launches({.count = 512, .type = DataType::Float32}, operands.addresses());
  alignas(16) std::byte untouched[512 * 4];
  std::fill(untouched, std::end(untouched), std::byte{0x5a});
  launches[1].works[0].tag = static_cast<uint16_t>(launches[0].works[0].tag + 1);
  launches[1].works[0].buffers.output = untouched;
  EXPECT_FALSE(run(cluster, std::move(launches), ~0u, 3'000'000));
  EXPECT_TRUE(std::all_of(untouched, std::end(untouched),
                          [](std::byte value) { return value == std::byte{0x5a}; }));
  EXPECT_EQ(executor::decode_report(cluster.control.report).kind, ReportKind::Mismatch);
  cluster.control.abort = 1;
}

// A kernel that has let go of its peers' buffers has not done its work: it ends when told to alone.
TEST(EmulatedAdvertisements, WaitsForTheEndWhenToldToLeave) {
  for (const Case& c : {kCases[0], kCases[5], kLoans[0], kLoans[2], kLoans[3], kLoans[4]}) {
    for (const bool is_ended : {false, true}) {
      SCOPED_TRACE(testing::Message() << schedule::name_of(c.collective) << " " << c.algorithm);
      Cluster cluster = cluster_of(c.collective, c.algorithm, 3);
      const uint64_t count = elements_of(c.collective);
      const Operands operands(cluster.schedule(), DataType::Uint8, {count}, {});
      cluster.control.abort = static_cast<uint32_t>(executor::Command::Leave);
      if (is_ended)
        emulation::set_after(1'000'000, &cluster.control.abort,
                             static_cast<uint32_t>(executor::Command::End));
      constexpr uint32_t kAllButOne = 3;
      EXPECT_EQ(is_ended, run(cluster,
                              cluster.launches({.count = count, .type = DataType::Uint8},
                                               operands.addresses()),
                              kAllButOne, is_ended ? 80'000'000 : 2'000'000));
      if (!is_ended) continue;
      for (const auto& connection : cluster.connections()) {
        EXPECT_EQ(executor::advertisement::address_in(connection->sender(0).advertisement), 0u);
        EXPECT_EQ(executor::advertisement::address_in(connection->receiver(0).advertisement), 0u);
      }
    }
  }
}

// Whoever of the ranks has come.
TEST(EmulatedAdvertisements, LeavesNoAdvertisementBehindWhenAborted) {
  for (const FifoShape& shape : {kShape, kLarge}) {
    for (const Case& c : {kCases[0], kCases[5], kLoans[0], kLoans[2], kLoans[3], kLoans[4]}) {
      if (schedule::reduces(c.collective) && shape == kLarge) continue;  // they share small ones
      for (const uint32_t ranks : {1, 2, 3}) {
        SCOPED_TRACE(testing::Message() << schedule::name_of(c.collective) << " " << c.algorithm
                                        << ", ranks " << ranks << ", slots " << shape.slot_bytes);
        Cluster cluster = cluster_of(c.collective, c.algorithm, 3, shape);
        const uint64_t count = elements_of(c.collective) * shape.slot_bytes / kShape.slot_bytes;
        const Operands operands(cluster.schedule(), DataType::Uint8, {count}, {});
        auto launches =
            cluster.launches({.count = count, .type = DataType::Uint8}, operands.addresses());
        cluster.control.abort = 1;
        EXPECT_TRUE(run(cluster, std::move(launches), ranks, 80'000'000));
        for (const auto& connection : cluster.connections()) {
          for (uint32_t channel = 0; channel < shape.channels; ++channel) {
            EXPECT_EQ(
                executor::advertisement::address_in(connection->sender(channel).advertisement), 0u);
            EXPECT_EQ(
                executor::advertisement::address_in(connection->receiver(channel).advertisement),
                0u);
          }
        }
      }
    }
  }
}

// What is queued behind an aborted operation may find an advertisement that was meant for that one,
// of a buffer that is free by now.
TEST(EmulatedAdvertisements, TakesNoAdvertisementBehindAnAbortedOperation) {
  Cluster cluster = cluster_of(Collective::Broadcast, "direct", 2);
  const uint64_t count = elements_of(Collective::Broadcast);
  const Operands operands(cluster.schedule(), DataType::Uint8, {count}, {});
  const auto launches = [&] {
    return cluster.launches({.count = count, .type = DataType::Uint8}, operands.addresses());
  };
  constexpr uint32_t kRoot = 1;  // rank 0 alone
  cluster.control.abort = 1;
  ASSERT_TRUE(run(cluster, launches(), kRoot));
  alignas(16) std::byte freed[16] = {};
  for (const auto& connection : cluster.connections()) {
    connection->sender(0).advertisement =
        executor::advertisement::of(reinterpret_cast<uint64_t>(freed), launches()[0].works[0].tag);
  }
  ASSERT_TRUE(run(cluster, launches(), kRoot));
  for (const auto& connection : cluster.connections()) {
    EXPECT_EQ(executor::advertisement::address_in(connection->sender(0).advertisement),
              reinterpret_cast<uint64_t>(freed));
    EXPECT_EQ(connection->receiver(0).remote, 0u);
  }
}

// Nor is anything of it taken for what was sent, or credit given.
TEST(EmulatedAdvertisements, MakesNoAdvertisementBehindAnAbortedOperation) {
  Cluster cluster = cluster_of(Collective::Broadcast, "direct", 2);
  const uint64_t count = elements_of(Collective::Broadcast);
  const Operands operands(cluster.schedule(), DataType::Uint8, {count}, {});
  constexpr uint32_t kReceiver = 2;  // rank 1 alone
  cluster.control.abort = 1;
  for (int turn = 0; turn < 2; ++turn) {
    ASSERT_TRUE(run(
        cluster, cluster.launches({.count = count, .type = DataType::Uint8}, operands.addresses()),
        kReceiver));
    for (const auto& connection : cluster.connections()) {
      EXPECT_GE(connection->receiver(0).step, executor::kAbortedStep);
      EXPECT_EQ(connection->sender(0).advertisement, executor::advertisement::kNone);
      EXPECT_LT(connection->sender(0).remote, executor::kAbortedStep);
      connection->receiver(0).remote = 3;  // as if steps of the aborted operation had come
    }
  }
}

}  // namespace
}  // namespace niccolite::device_test
