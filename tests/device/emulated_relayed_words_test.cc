// Connections to other machines (protocol/relay.h) by LL, by the kernels' own source on the CPU:
// the kernels of one step, and the interpreter that has relays.
#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "algorithms/point_to_point.h"
#include "executor/report.h"
#include "tests/device/emulated_relays.h"
#include "tests/device/emulated_specialised.h"

namespace niccolite::device_test {
namespace {

using algorithms::Envelope;
using executor::DataType;
using executor::Launch;
using executor::Protocol;
using executor::ReportKind;
using executor::cuda::KernelVariant;
using executor::cuda::Specialisation;
using executor::host::Cluster;
using executor::host::Operands;
using executor::host::Part;
using schedule::Collective;

constexpr uint64_t kSlotData = data_bytes(Protocol::LL, kSlotBytes);

struct RelayCase {
  Collective collective;
  const char* algorithm;
  int nranks;
  uint64_t blocks;  // that travel, of `count` elements each
};
// One step between two and four ranks; one step of more peers, and what is passed on, which is the
// interpreter's.
constexpr RelayCase kRelayCases[] = {{Collective::AllReduce, "one_shot", 2, 2},
                                     {Collective::AllReduce, "one_shot", 4, 12},
                                     {Collective::AllReduce, "one_shot", 6, 30},
                                     {Collective::AllReduce, "ring", 3, 4},
                                     {Collective::AllReduce, "two_shot_workers", 3, 4},
                                     {Collective::ReduceScatter, "direct_workers", 3, 6},
                                     {Collective::Reduce, "direct", 4, 3},
                                     {Collective::AllGather, "direct_workers", 4, 12},
                                     {Collective::AllGather, "ring", 3, 6},
                                     {Collective::AllToAll, "direct_workers", 3, 6},
                                     {Collective::Broadcast, "direct", 4, 3},
                                     {Collective::Broadcast, "ring", 3, 2},
                                     {Collective::Gather, "direct_workers", 3, 2},
                                     {Collective::Scatter, "direct_workers", 3, 2}};

void expect_carried(const RelayCase& c, uint64_t count, uint32_t specialised) {
  SCOPED_TRACE(testing::Message() << schedule::name_of(c.collective) << " " << c.algorithm << " of "
                                  << c.nranks << ", " << count << ", kernels of their own "
                                  << specialised);
  const int root = schedule::has_root(c.collective) ? c.nranks - 1 : 0;
  Cluster cluster(build(c.collective, c.algorithm, c.nranks, root), Protocol::LL, shape_of(2));
  Relays relays(shape_of(2), Protocol::LL);
  for (uint16_t turn = 1; turn <= 3; ++turn) {
    const Operands operands(cluster.schedule(), DataType::Uint8, {count},
                            {.is_misaligned = turn == 2});
    relays.tag = static_cast<uint16_t>(16 * turn);
    relays.bytes = 0;
    const Part part{.counts = {count}, .buffers = operands.addresses(), .tag = relays.tag};
    std::vector<Launch> launches = cluster.launches({part}, DataType::Uint8, {});
    relays.replace_ports(launches);
    emulation::set_bystander([&] { relays.carry(); });
    ASSERT_TRUE(run(cluster, launches, turn, specialised, 40'000'000));
    ASSERT_NO_FATAL_FAILURE(operands.check());
    EXPECT_EQ(relays.bytes, c.blocks * count);
    EXPECT_EQ(relays.foreign, 0);
    EXPECT_EQ(cluster.control.report, 0u);
  }
}

// A word, both channels, and rounds enough to wait for credit.
TEST(EmulatedRelayedWords, CarryWhatTheNotesSayAndNoByteMore) {
  for (const RelayCase& c : kRelayCases)
    for (const uint64_t count : {uint64_t{1}, 2 * kSlotData - 5, 5 * kSlotData + 9})
      for (const uint32_t specialised : {0xffu, 0u, 0x55u})
        ASSERT_NO_FATAL_FAILURE(expect_carried(c, count, specialised));
}

// As by Simple: the sender is a round trip away.
TEST(EmulatedRelayedWords, GiveAllCreditInTheOperation) {
  for (const uint64_t count : {uint64_t{1}, 5 * kSlotData})
    for (const uint32_t specialised : {0xffu, 0u}) {
      Cluster cluster(build(Collective::AllReduce, "one_shot", 3, 0), Protocol::LL, shape_of(1));
      Relays relays(shape_of(1), Protocol::LL);
      const Operands operands(cluster.schedule(), DataType::Uint8, {count}, {});
      std::vector<Launch> launches =
          cluster.launches({.count = count, .type = DataType::Uint8}, operands.addresses());
      relays.replace_ports(launches);
      emulation::set_bystander([&] { relays.carry(); });
      ASSERT_TRUE(run(cluster, launches, 1, specialised));
      for (const Launch& launch : launches)
        for (size_t p = 0; p < launch.ports.size(); ++p)
          if (!launch.program->ports[p].is_send) {
            EXPECT_EQ(launch.ports[p].remote_control->remote, launch.ports[p].control->step);
            EXPECT_EQ(launch.ports[p].control->step, launch.works[0].partition.rounds);
          }
    }
}

TEST(EmulatedRelayedWords, AreOfKernelsThatTellTheProxies) {
  for (const int nranks : {2, 4, 5}) {
    Cluster cluster(build(Collective::AllReduce, "one_shot", nranks, 0), Protocol::LL, shape_of(1));
    const Operands operands(cluster.schedule(), DataType::Float32, {64}, {});
    std::vector<Launch> launches = cluster.launches({.count = 64}, operands.addresses());
    Relays relays(shape_of(1), Protocol::LL);
    relays.replace_ports(launches);
    for (const Specialisation specialisation : {Specialisation::Allowed, Specialisation::Off}) {
      const auto kernel = prepare(cluster, launches[0], /*threads=*/0, specialisation);
      const bool is_special = specialisation == Specialisation::Allowed && nranks <= 4;
      EXPECT_EQ(kernel.kernel.variant, is_special ? KernelVariant::Direct : KernelVariant::Program);
      EXPECT_EQ(kernel.kernel.counters, executor::cuda::Counters::OfProxies);
    }
  }
}

TEST(EmulatedRelayedWords, CarryMessagesOfAllLengthsBesideEachOther) {
  std::vector<Envelope> messages;
  for (int peer = 1; peer < 5; ++peer) {
    messages.push_back({0, peer});
    messages.push_back({peer, 0});
  }
  Cluster cluster(algorithms::point_to_point(5, messages).take(), Protocol::LL, shape_of(2));
  Relays relays(shape_of(2), Protocol::LL);
  for (uint32_t turn = 1; turn <= 6; ++turn) {
    SCOPED_TRACE(turn);
    relays.tag = static_cast<uint16_t>(turn);
    Part part{.counts = {}, .buffers = {}, .tag = relays.tag};
    for (size_t m = 0; m < messages.size(); ++m)
      part.counts.push_back((m + turn) % 4 * 2 * kSlotData + m);
    const Operands operands(cluster.schedule(), DataType::Uint8, part.counts, {});
    part.buffers = operands.addresses();
    std::vector<Launch> launches = cluster.launches({part}, DataType::Uint8, {});
    relays.replace_ports(launches);
    emulation::set_bystander([&] { relays.carry(); });
    ASSERT_TRUE(run(cluster, launches, turn, turn % 3 == 0 ? 0 : turn % 3 == 1 ? 0xff : 0x15));
    ASSERT_NO_FATAL_FAILURE(operands.check());
    EXPECT_EQ(relays.foreign, 0);
  }
}

// Several messages of a pair are steps of its connection, which kernels write in any order.
TEST(EmulatedRelayedWords, CarryMessagesThatTakeTurns) {
  constexpr executor::FifoShape kDeep{.channels = 1, .depth = 4, .slot_bytes = kSlotBytes};
  const std::vector<Envelope> both_ways{{0, 1}, {1, 0}};
  std::vector<schedule::Schedule> layers;
  for (uint32_t layer = 0; layer < kDeep.depth; ++layer)
    layers.push_back(algorithms::point_to_point(2, both_ways).take());
  Cluster cluster(std::move(layers), Protocol::LL, kDeep);
  Relays relays(kDeep, Protocol::LL);
  for (uint32_t turn = 1; turn <= 8; ++turn) {
    SCOPED_TRACE(turn);
    std::mt19937 random(turn);
    std::deque<Operands> operands;
    std::vector<Part> parts;
    uint64_t bytes = 0;
    for (size_t layer = 0; layer < kDeep.depth; ++layer) {
      const std::vector<uint64_t> counts{random() % (kSlotData + 1), random() % (kSlotData + 1)};
      operands.emplace_back(cluster.schedule(layer), DataType::Uint8, counts,
                            executor::host::OperandOptions{});
      parts.push_back({.schedule = layer,
                       .counts = counts,
                       .buffers = operands.back().addresses(),
                       .tag = static_cast<uint16_t>(16 * turn + layer)});
      bytes += counts[0] + counts[1];
    }
    std::vector<Launch> launches = cluster.launches_in_turns(parts);
    relays.replace_ports(launches);
    relays.bytes = 0;
    emulation::set_bystander([&] { relays.carry(); });
    ASSERT_TRUE(run(cluster, launches, turn, turn % 2 == 0 ? 0xff : 0x1));
    for (const Operands& of_layer : operands) of_layer.check();
    EXPECT_EQ(relays.bytes, bytes);
  }
}

TEST(EmulatedRelayedWords, TellTheHostOfAnotherCall) {
  for (const uint32_t specialised : {3u, 0u}) {
    Cluster cluster(build(Collective::AllReduce, "one_shot", 2, 0), Protocol::LL, shape_of(1));
    Relays relays(shape_of(1), Protocol::LL);
    const Operands operands(cluster.schedule(), DataType::Uint8, {4}, {});
    std::vector<Launch> launches = cluster.launches(
        {.count = 4, .type = DataType::Uint8, .tag = 0x1111}, operands.addresses());
    launches[1].works[0].tag = 0x2222;
    relays.replace_ports(launches);
    emulation::set_bystander([&] { relays.carry(); });
    EXPECT_FALSE(run(cluster, launches, 1, specialised, /*limit=*/1'500'000));
    const auto report = executor::decode_report(cluster.control.report);
    EXPECT_EQ(report.kind, ReportKind::Mismatch);
    EXPECT_EQ(report.own_tag, report.peer == 1 ? 0x1111 : 0x2222);
    EXPECT_EQ(report.peer_tag, report.peer == 1 ? 0x2222 : 0x1111);
  }
}

TEST(EmulatedRelayedWords, EndWhenAborted) {
  for (const RelayCase& c : kRelayCases) {
    if (schedule::has_root(c.collective) || c.nranks < 3) continue;
    for (const uint32_t specialised : {0xffu, 0u}) {
      Cluster cluster(build(c.collective, c.algorithm, c.nranks, 0), Protocol::LL, shape_of(2));
      Relays relays(shape_of(2), Protocol::LL);
      const uint64_t count = 9 * kSlotData;
      const Operands operands(cluster.schedule(), DataType::Uint8, {count}, {});
      std::vector<Launch> launches =
          cluster.launches({.count = count, .type = DataType::Uint8}, operands.addresses());
      relays.replace_ports(launches);
      launches.erase(launches.begin() + 1);
      emulation::set_bystander([&] { relays.carry(); });
      emulation::abort_after(5'000, &cluster.control.abort);
      EXPECT_TRUE(run(cluster, launches, 1, specialised))
          << schedule::name_of(c.collective) << " " << c.algorithm;
    }
  }
}

}  // namespace
}  // namespace niccolite::device_test
