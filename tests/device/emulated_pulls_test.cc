// Reductions that pull what their peers expose (protocol/pull.h), by the kernels' own source on the
// CPU.
#include <gtest/gtest.h>

#include "tests/device/emulated_advertisements.h"
#include "tests/executor/host/operands.h"

namespace niccolite::device_test {
namespace {

class EmulatedPulls : public OnArchitectures {};
INSTANTIATE_TEST_SUITE_P(Architectures, EmulatedPulls, testing::Bool(), name_of_architecture);

using executor::DataType;
using executor::host::Operands;

void expect_no_pulls(Cluster& cluster, const FifoShape& shape) {
  for (const auto& connection : cluster.connections()) {
    for (uint32_t channel = 0; channel < shape.channels; ++channel) {
      for (const uint32_t pull : connection->sender(channel).pulls) EXPECT_EQ(pull, 0u);
      EXPECT_EQ(connection->receiver(channel).delivered, 0u);
    }
  }
}

std::vector<Launch> pulling(std::vector<Launch> launches, uint32_t pull_bytes) {
  for (Launch& launch : launches) {
    launch.pull_bytes = pull_bytes;
    launch.threads = 256;  // reductions have two warps at least: one pulls, the others reduce
  }
  return launches;
}

// Units that fill the slots twice, or not; the last unit is shorter, and the block ends anyhow.
TEST_P(EmulatedPulls, ReductionWhatPeersSend) {
  constexpr FifoShape kDeep{.channels = 2, .depth = 4, .slot_bytes = 1024};
  for (const Case& c : kLoans) {
    if (!schedule::reduces(c.collective)) continue;
    for (const int nranks : {2, 3}) {
      for (const auto& [shape, bytes] : {std::pair(kShape, 512u), {kDeep, 1024u}}) {
        for (const DataType type : {DataType::Float32, DataType::Bfloat16}) {
          if (type != DataType::Float32 && (nranks != 3 || bytes != 1024)) continue;
          SCOPED_TRACE(testing::Message() << schedule::name_of(c.collective) << " " << c.algorithm
                                          << " by " << nranks << ", tiles of " << bytes);
          Cluster cluster = cluster_of(c.collective, c.algorithm, nranks, shape);
          constexpr uint64_t kCount = 9'011;
          const uint64_t elements =
              schedule::cuts_one_buffer(c.collective) ? kCount : executor::round_up(kCount, 16);
          for (const bool is_in_place : {false, true}) {
            const executor::Reduction average{
                .op = executor::ReduceOp::Sum, .finish_scale = 0.5, .finish_divisor = 2};
            const Operands operands(cluster.schedule(), type, {elements},
                                    {.is_in_place = is_in_place, .reduction = average});
            ASSERT_TRUE(run(
                cluster,
                pulling(cluster.launches({.count = elements, .type = type, .reduction = average},
                                         operands.addresses()),
                        bytes)));
            ASSERT_NO_FATAL_FAILURE(operands.check());
            expect_tile_counters_reset(cluster);
            expect_no_pulls(cluster, shape);
          }
          EXPECT_TRUE(used_slots(cluster));
          EXPECT_TRUE(cluster.guards_intact());
          EXPECT_TRUE(cluster.counters_consistent(/*has_advertisements=*/true));
        }
      }
    }
  }
}

// A rank whose input is not aligned cannot expose it; it reduces its own by words, with what its
// peers expose, or send on pull, and stores the result to them.
TEST_P(EmulatedPulls, ReductionTheOwnInputWhereverItBegins) {
  for (const DataType type :
       {DataType::Uint8, DataType::Bfloat16, DataType::Float32, DataType::Float64}) {
    for (const int nranks : {2, 3}) {
      for (const uint32_t pull_bytes : {0u, 512u}) {
        SCOPED_TRACE(testing::Message()
                     << executor::name_of(type) << " by " << nranks << ", tiles of " << pull_bytes);
        Cluster cluster = cluster_of(Collective::AllReduce, "two_shot_workers", nranks);
        const executor::Reduction sum{.op = executor::ReduceOp::Sum};
        const Operands operands(cluster.schedule(), type, {20'011},
                                {.misaligned_input_of = 0, .reduction = sum});
        const uint64_t before = emulation::fetch_adds();
        ASSERT_TRUE(run(cluster,
                        pulling(cluster.launches({.count = 20'011, .type = type, .reduction = sum},
                                                 operands.addresses()),
                                pull_bytes),
                        ~0u, 20'000'000, Staging::Reductions));
        ASSERT_NO_FATAL_FAILURE(operands.check());
        EXPECT_NE(emulation::fetch_adds(), before);  // its reduction is shared
        expect_tile_counters_reset(cluster);
        expect_no_pulls(cluster, kShape);
        EXPECT_TRUE(cluster.guards_intact());
        EXPECT_TRUE(cluster.counters_consistent(/*has_advertisements=*/true));
      }
    }
  }
}

// What cannot be pulled is read, or comes through slots as ever, and the next operation may
// pull again.
TEST_P(EmulatedPulls, AreNotMadeOfThoseThatCannotServeThem) {
  Cluster cluster = cluster_of(Collective::AllReduce, "two_shot_workers", 3);
  struct Turn {
    bool is_misaligned;
    bool scales;
    uint64_t count;  // 48: fewer than a tile for each channel
    uint32_t exposing = ~0u;
  };
  for (const Turn& turn : {Turn{false, false, 9'000},
                           {true, false, 9'000},
                           {false, true, 9'000},
                           {false, false, 48},
                           {false, false, 9'000, 5},
                           {false, false, 9'000}}) {
    executor::Reduction sum{.op = executor::ReduceOp::Sum};
    if (turn.scales) sum.input_scale = 2;
    const Operands operands(cluster.schedule(), DataType::Float32, {turn.count},
                            {.is_misaligned = turn.is_misaligned, .reduction = sum});
    ASSERT_TRUE(run(
        cluster,
        pulling(cluster.launches({.count = turn.count, .type = DataType::Float32, .reduction = sum},
                                 operands.addresses()),
                512),
        ~0u, 20'000'000, Staging::All, turn.exposing));
    ASSERT_NO_FATAL_FAILURE(operands.check());
    expect_tile_counters_reset(cluster);
    expect_no_pulls(cluster, kShape);
  }
  EXPECT_TRUE(cluster.guards_intact());
  EXPECT_TRUE(cluster.counters_consistent(/*has_advertisements=*/true));
}

// Whenever it is aborted, whoever of the ranks has come: every kernel ends.
TEST_P(EmulatedPulls, EndWhenAborted) {
  for (const uint32_t ranks : {1u, 3u, 7u}) {
    for (const uint64_t limit : {2'000u, 20'000u, 60'000u, 150'000u}) {
      SCOPED_TRACE(testing::Message() << "ranks " << ranks << ", after " << limit);
      Cluster cluster = cluster_of(Collective::AllReduce, "two_shot_workers", 3);
      const Operands operands(cluster.schedule(), DataType::Float32, {20'011}, {});
      emulation::abort_after(limit, &cluster.control.abort);
      EXPECT_TRUE(run(cluster,
                      pulling(cluster.launches({.count = 20'011, .type = DataType::Float32},
                                               operands.addresses()),
                              512),
                      ranks, 80'000'000));
    }
  }
}

}  // namespace
}  // namespace niccolite::device_test
