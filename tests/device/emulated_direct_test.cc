// The kernels for operations of one step (executor/cuda/patterns/direct.cuh) on the emulated GPU:
// which programs they take, and that they leave behind what the interpreter does: data, counters,
// flags.
#include <gtest/gtest.h>

#include <cstring>
#include <deque>

#include "algorithms/point_to_point.h"
#include "algorithms/registry.h"
#include "executor/report.h"
#include "tests/device/emulated_specialised.h"

namespace niccolite::device_test {
namespace {

using algorithms::Envelope;
using executor::DataType;
using executor::Launch;
using executor::Protocol;
using executor::Reduction;
using executor::ReportKind;
using executor::cuda::KernelLaunch;
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
  KernelVariant variant;  // of the rank that does most: of any rank, or of the root
};
const Case kCases[] = {
    {Collective::AllReduce, "one_shot", KernelVariant::Direct},
    {Collective::ReduceScatter, "direct_workers", KernelVariant::DirectEach},
    {Collective::Reduce, "direct", KernelVariant::Direct},
    {Collective::AllGather, "direct_workers", KernelVariant::Direct},
    {Collective::AllToAll, "direct_workers", KernelVariant::DirectEach},
    {Collective::Broadcast, "direct", KernelVariant::Direct},
    {Collective::Gather, "direct_workers", KernelVariant::Direct},
    {Collective::Scatter, "direct_workers", KernelVariant::DirectEach},
};

constexpr uint64_t kSlotData = data_bytes(Protocol::LL, kSlotBytes);

Schedule build(const Case& c, int nranks, int root = 0) {
  return device_test::build(c.collective, c.algorithm, nranks, root);
}

TEST(EmulatedDirect, TakesEveryOperationOfOneStepOfUpToEightRanks) {
  for (const Case& c : kCases) {
    for (const int nranks : {2, 3, 4, 5, 8}) {
      SCOPED_TRACE(testing::Message() << name_of(c.collective) << " of " << nranks);
      const int root = nranks - 1;
      Cluster cluster(build(c, nranks, root), Protocol::LL, shape_of(1));
      const Operands operands(cluster.schedule(), DataType::Float32, {64}, {});
      const auto launches = cluster.launches({.count = 64}, operands.addresses());
      for (int rank = 0; rank < nranks; ++rank) {
        const KernelLaunch kernel = prepare(cluster, launches[static_cast<size_t>(rank)],
                                            /*threads=*/0, Specialisation::Allowed);
        if (!schedule::has_root(c.collective) || rank == root) {
          EXPECT_EQ(kernel.kernel.variant, c.variant) << rank;
        }
        EXPECT_NE(kernel.kernel.variant, KernelVariant::Program) << rank;
        EXPECT_EQ(kernel.header().shared_bytes, 0u);
        EXPECT_EQ(kernel.threads, 32u) << "64 elements are 32 vec8s";
      }
    }
  }
}

TEST(EmulatedDirect, LeavesOtherProgramsToTheInterpreter) {
  const auto form_of = [](const Case& c, int nranks, Protocol protocol) {
    Cluster cluster(build(c, nranks), protocol, shape_of(2));
    const Operands operands(cluster.schedule(), DataType::Float32, {64}, {});
    return prepare(cluster, cluster.launches({.count = 64}, operands.addresses())[0],
                   /*threads=*/0, Specialisation::Allowed)
        .kernel.variant;
  };
  for (const Case& c : kCases) {
    const KernelVariant by_ll128 =
        schedule::reduces(c.collective) ? KernelVariant::DirectLines : KernelVariant::Program;
    EXPECT_EQ(form_of(c, 4, Protocol::LL128), by_ll128) << name_of(c.collective);
    EXPECT_EQ(form_of(c, 4, Protocol::Simple), KernelVariant::Program) << name_of(c.collective);
  }
  EXPECT_EQ(form_of({Collective::AllReduce, "one_shot", {}}, 9, Protocol::LL),
            KernelVariant::Program);
  EXPECT_EQ(form_of({Collective::Broadcast, "direct", {}}, 9, Protocol::LL),
            KernelVariant::Program);
  for (const char* sends_what_it_receives : {"ring", "two_shot", "two_shot_workers"}) {
    EXPECT_EQ(form_of({Collective::AllReduce, sends_what_it_receives, {}}, 4, Protocol::LL),
              KernelVariant::Program);
  }
  EXPECT_EQ(form_of({Collective::ReduceScatter, "ring", {}}, 4, Protocol::LL),
            KernelVariant::Program);
  EXPECT_EQ(form_of({Collective::Broadcast, "ring", {}}, 4, Protocol::LL), KernelVariant::Direct)
      << "the root only sends";
}

TEST(EmulatedDirect, TakesTurnsWithTheInterpreterOnTheSameConnections) {
  uint32_t turn = 0;
  for (const Case& c : kCases) {
    const bool reduces = schedule::reduces(c.collective);
    for (const int nranks : {2, 4, 5, 8}) {
      Cluster cluster(build(c, nranks, nranks / 2), Protocol::LL, shape_of(2));
      // Nothing, less than a word, less than a vec8, two channels, five rounds of each.
      for (const uint64_t count :
           {uint64_t{0}, uint64_t{1}, uint64_t{7}, kSlotData / 4 + 1, 2 * kSlotData + 9}) {
        ++turn;
        SCOPED_TRACE(testing::Message() << name_of(c.collective) << " of " << nranks << ", count "
                                        << count << ", turn " << turn);
        const DataType type = reduces ? DataType::Float32 : DataType::Uint8;
        ASSERT_NO_FATAL_FAILURE(run_turn(cluster, count, type, turn));
      }
    }
  }
}

TEST(EmulatedDirect, ReducesEveryTypeAsTheInterpreterDoes) {
  uint32_t turn = 0;
  for (const Case& c : kCases) {
    if (!schedule::reduces(c.collective)) continue;
    for (int type = 0; type < executor::kDataTypes; ++type) {
      for (int op = 0; op < executor::kReduceOps; ++op) {
        ++turn;
        const int nranks = (type + op) % 2 == 0 ? 3 : 5;
        const bool is_in_place = type / 2 % 2 == 0;
        Cluster cluster(build(c, nranks, 1), Protocol::LL, shape_of(1));
        Reduction reduction{.op = static_cast<executor::ReduceOp>(op)};
        if (op == 0 && turn % 3 == 0) reduction.input_scale = 0.5;
        if (op == 0 && turn % 3 == 1) reduction.finish_scale = 0.25;
        if (op == 0 && turn % 3 == 1) reduction.finish_divisor = 2;
        const auto element = static_cast<DataType>(type);
        SCOPED_TRACE(testing::Message() << name_of(c.collective) << " " << name_of(element)
                                        << " reduce " << op << ", turn " << turn);
        const Operands operands(
            cluster.schedule(), element, {131},
            {.is_in_place = is_in_place, .is_misaligned = turn % 5 == 0, .reduction = reduction});
        const Part part{.counts = {131}, .buffers = operands.addresses()};
        ASSERT_NO_FATAL_FAILURE(run_turn(cluster, operands, part, element, reduction, 0));
        if (is_in_place) continue;  // the input is gone
        ASSERT_NO_FATAL_FAILURE(run_turn(cluster, operands, part, element, reduction, 1));
      }
    }
  }
}

TEST(EmulatedDirect, GoesOnWhereStepsWrap) {
  for (const uint64_t wrap :
       {uint64_t{1} << 15, uint64_t{1} << 16, uint64_t{1} << 31, uint64_t{1} << 32}) {
    for (const Case& c : kCases) {
      SCOPED_TRACE(testing::Message() << name_of(c.collective) << " at " << wrap);
      Cluster cluster(build(c, 3), Protocol::LL, shape_of(1));
      cluster.start_at(wrap - 3);
      for (uint32_t turn = 0; turn < 5; ++turn) {
        const Operands operands(cluster.schedule(), DataType::Float32, {50}, {});
        const Part part{.counts = {50}, .buffers = operands.addresses()};
        ASSERT_NO_FATAL_FAILURE(run_turn(cluster, operands, part, DataType::Float32, {}, turn));
      }
    }
  }
}

/// All connections of the launches have their counters in the host's memory.
std::vector<Launch> in_host(std::vector<Launch> launches) {
  for (Launch& launch : launches)
    for (executor::PortAddress& port : launch.ports) port.in_host = true;
  return launches;
}

TEST(EmulatedDirect, HasKernelsForCountersInTheHostOfFewPeers) {
  for (const Case& c : kCases) {
    for (const int nranks : {2, 4, 5}) {
      Cluster cluster(build(c, nranks, /*root=*/0), Protocol::LL, shape_of(1));
      const Operands operands(cluster.schedule(), DataType::Float32, {64}, {});
      const auto launches = in_host(cluster.launches({.count = 64}, operands.addresses()));
      const KernelLaunch kernel =
          prepare(cluster, launches[0], /*threads=*/0, Specialisation::Allowed);
      EXPECT_EQ(kernel.kernel.counters == executor::cuda::Counters::InHost, nranks <= 4)
          << name_of(c.collective);
      EXPECT_EQ(kernel.kernel.variant, nranks <= 4 ? c.variant : KernelVariant::Program);
    }
  }
}

// Of one word of the host's memory a multiprocessor has one warp's load under way at a time.
TEST(EmulatedDirect, LooksAtCountersOfTheHostByOneWarp) {
  uint32_t turn = 0;
  for (const Case& c : kCases) {
    for (const int nranks : {2, 4, 8}) {
      Cluster cluster(build(c, nranks, nranks / 2), Protocol::LL, shape_of(2));
      // A word, two channels, rounds enough to wait for credit.
      for (const uint64_t count : {uint64_t{1}, kSlotData / 4 + 1, 4 * kSlotData + 9}) {
        for (const uint32_t specialised : {0u, 0x55u, 0xffu}) {
          ++turn;
          SCOPED_TRACE(testing::Message() << name_of(c.collective) << " of " << nranks << ", count "
                                          << count << ", kernels of their own " << specialised);
          const Operands operands(cluster.schedule(), DataType::Float32, {count}, {});
          const Part part{.counts = {count},
                          .buffers = operands.addresses(),
                          .tag = static_cast<uint16_t>(turn)};
          emulation::most_warps_at_a_counter();
          ASSERT_TRUE(run(cluster, in_host(cluster.launches({part}, DataType::Float32, {})), turn,
                          specialised, 20'000'000, /*threads=*/256));
          // One as the kernel starts, and the first of the worker that has the connection.
          EXPECT_LE(emulation::most_warps_at_a_counter(), 2u);
          ASSERT_NO_FATAL_FAILURE(operands.check());
          ASSERT_TRUE(cluster.guards_intact());
          ASSERT_TRUE(cluster.counters_consistent());
        }
      }
    }
  }
}

TEST(EmulatedDirect, EndsWhenAbortedWhereCountersAreInTheHost) {
  for (const Case& c : kCases) {
    for (const uint32_t specialised : {0u, 3u}) {
      Cluster cluster(build(c, 3, 1), Protocol::LL, shape_of(1));
      const uint64_t count = 4 * kSlotData;
      const Operands operands(cluster.schedule(), DataType::Uint8, {count}, {});
      auto launches = in_host(
          cluster.launches({.count = count, .type = DataType::Uint8}, operands.addresses()));
      launches.erase(launches.begin() + 1);
      cluster.control.abort = 1;
      EXPECT_TRUE(run(cluster, launches, 1, specialised)) << name_of(c.collective);
    }
  }
}

TEST(EmulatedDirect, EndsWhenAborted) {
  for (const Case& c : kCases) {
    Cluster cluster(build(c, 3, 1), Protocol::LL, shape_of(1));
    const uint64_t count = 4 * kSlotData;  // rounds enough to wait for credit
    const Operands operands(cluster.schedule(), DataType::Uint8, {count}, {});
    auto launches =
        cluster.launches({.count = count, .type = DataType::Uint8}, operands.addresses());
    launches.erase(launches.begin() + 1);
    cluster.control.abort = 1;
    EXPECT_TRUE(run(cluster, launches, 1, /*specialised=*/3)) << name_of(c.collective);
  }
}

TEST(EmulatedDirect, TellsTheHostOfAnotherCall) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(name_of(c.collective));
    Cluster cluster(build(c, 2), Protocol::LL, shape_of(1));
    const Operands operands(cluster.schedule(), DataType::Uint8, {4}, {});
    auto launches = cluster.launches({.count = 4, .type = DataType::Uint8, .tag = 0x1111},
                                     operands.addresses());
    launches[1].works[0].tag = 0x2222;
    EXPECT_FALSE(run(cluster, launches, 1, /*specialised=*/3, /*limit=*/1'500'000));
    const auto report = executor::decode_report(cluster.control.report);
    EXPECT_EQ(report.kind, ReportKind::Mismatch);
    EXPECT_EQ(report.own_tag, report.peer == 1 ? 0x1111 : 0x2222);
    EXPECT_EQ(report.peer_tag, report.peer == 1 ? 0x2222 : 0x1111);
  }
}

// ---- messages

TEST(EmulatedDirect, SharesItsWarpsOutAmongMessages) {
  std::vector<Envelope> messages;
  for (int peer = 0; peer < 8; ++peer) {
    messages.push_back({0, peer});
    if (peer != 0) messages.push_back({peer, 0});
  }
  Cluster cluster(algorithms::point_to_point(8, messages).take(), Protocol::LL, shape_of(2));
  uint32_t turn = 0;
  for (; turn < 8; ++turn) {
    SCOPED_TRACE(turn);
    Part part;
    for (size_t m = 0; m < messages.size(); ++m) {
      part.counts.push_back((m + turn) % 4 * 500 + (m * turn) % 3);
    }
    const Operands operands(cluster.schedule(), DataType::Uint8, part.counts,
                            {.is_misaligned = turn % 2 == 1});
    part.buffers = operands.addresses();
    const auto launches = cluster.launches({part}, DataType::Uint8, {});
    const KernelLaunch kernel = prepare(cluster, launches[0], 0, Specialisation::Allowed);
    EXPECT_EQ(kernel.kernel.variant, KernelVariant::Messages);
    EXPECT_LE(kernel.threads, executor::cuda::kMaxThreads);
    ASSERT_NO_FATAL_FAILURE(run_turn(cluster, operands, part, DataType::Uint8, {}, turn));
  }
}

TEST(EmulatedDirect, MovesMessagesWhoseCountersAreInTheHost) {
  std::vector<Envelope> messages;
  for (int peer = 1; peer < 6; ++peer) {
    messages.push_back({0, peer});
    messages.push_back({peer, 0});
  }
  Cluster cluster(algorithms::point_to_point(6, messages).take(), Protocol::LL, shape_of(2));
  for (uint32_t turn = 0; turn < 6; ++turn) {
    SCOPED_TRACE(turn);
    Part part{.counts = {}, .buffers = {}, .tag = static_cast<uint16_t>(turn)};
    for (size_t m = 0; m < messages.size(); ++m)
      part.counts.push_back((m + turn) % 4 * 2 * kSlotData + m);
    const Operands operands(cluster.schedule(), DataType::Uint8, part.counts, {});
    part.buffers = operands.addresses();
    ASSERT_TRUE(run(cluster, in_host(cluster.launches({part}, DataType::Uint8, {})), turn,
                    turn % 2 == 0 ? 0xff : 0x15));
    ASSERT_NO_FATAL_FAILURE(operands.check());
    ASSERT_TRUE(cluster.guards_intact());
    ASSERT_TRUE(cluster.counters_consistent());
  }
}

// Rank 1, which rank 0 sends more than the connection holds, is not there yet.
TEST(EmulatedDirect, LetsNoMessageWaitForAnother) {
  const std::vector<Envelope> messages{{0, 1}, {0, 2}, {2, 0}};
  Cluster cluster(algorithms::point_to_point(3, messages).take(), Protocol::LL, shape_of(1));
  const std::vector<uint64_t> counts{9 * kSlotData, 7 * kSlotData, 5 * kSlotData};
  const Operands operands(cluster.schedule(), DataType::Uint8, counts, {});
  const Part part{.counts = counts, .buffers = operands.addresses()};
  auto launches = cluster.launches({part}, DataType::Uint8, {});
  launches.erase(launches.begin() + 1);
  EXPECT_FALSE(run(cluster, launches, 1, /*specialised=*/3, /*limit=*/1'000'000));
  for (const size_t message : {1u, 2u}) {
    EXPECT_EQ(
        std::memcmp(part.buffers.inputs[message], part.buffers.outputs[message], counts[message]),
        0)
        << "message " << message;
  }
}

}  // namespace
}  // namespace niccolite::device_test
