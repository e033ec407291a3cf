// Connections to other machines (protocol/relay.h) by Simple, by the kernels' own source on the
// CPU.
#include <gtest/gtest.h>

#include "tests/device/emulated_advertisements.h"
#include "tests/device/emulated_relays.h"
#include "tests/executor/host/operands.h"

namespace niccolite::device_test {
namespace {

using executor::DataType;
using executor::PortAddress;
using executor::host::Operands;

struct RelayCase {
  Collective collective;
  const char* algorithm;
  uint64_t blocks;  // that travel, of `count` elements each, among three ranks
};

// Workers of threads, workers of bulk copies, reduces, and messages that are passed on.
constexpr RelayCase kRelayCases[] = {
    {Collective::AllGather, "direct_workers", 6}, {Collective::AllGather, "ring", 6},
    {Collective::AllToAll, "direct_workers", 6},  {Collective::Broadcast, "ring", 2},
    {Collective::ReduceScatter, "ring", 6},       {Collective::AllReduce, "one_shot", 6},
    {Collective::AllReduce, "ring", 4},           {Collective::AllReduce, "two_shot_workers", 4}};

TEST(EmulatedRelays, CarryWhatTheNotesSayAndNoByteMore) {
  for (const RelayCase& c : kRelayCases)
    for (const Staging staging : {Staging::All, Staging::None})
      for (const uint64_t count : {uint64_t{1503}, uint64_t{48}}) {
        SCOPED_TRACE(testing::Message()
                     << schedule::name_of(c.collective) << " " << c.algorithm << ", " << count);
        Cluster cluster = cluster_of(c.collective, c.algorithm, 3);
        Relays relays(kShape);
        const uint64_t adds = emulation::fetch_adds();
        for (uint16_t turn = 1; turn <= 3; ++turn) {
          const Operands operands(cluster.schedule(), DataType::Uint8, {count}, {});
          relays.tag = static_cast<uint16_t>(16 * turn);
          relays.bytes = 0;
          std::vector<Launch> launches = cluster.launches(
              {.count = count, .type = DataType::Uint8, .tag = relays.tag}, operands.addresses());
          relays.replace_ports(launches);
          emulation::set_bystander([&] { relays.carry(); });
          ASSERT_TRUE(run(cluster, std::move(launches), ~0u, 40'000'000, staging));
          ASSERT_NO_FATAL_FAILURE(operands.check());
          EXPECT_EQ(relays.bytes, c.blocks * count);
          EXPECT_EQ(relays.foreign, 0);
        }
        EXPECT_FALSE(used_slots(cluster));
        EXPECT_EQ(emulation::fetch_adds(), adds) << "counters in host memory were added to";
      }
}

// Credit for all slots is given in the operation: its sender, a round trip away, cannot wait for
// the next one to begin (relay.h).
TEST(EmulatedRelays, GiveAllCreditInTheOperation) {
  Cluster cluster = cluster_of(Collective::Broadcast, "ring", 2);
  Relays relays(kShape);
  const uint64_t count = 2 * kShape.depth * kShape.slot_bytes;
  const Operands operands(cluster.schedule(), DataType::Uint8, {count}, {});
  std::vector<Launch> launches =
      cluster.launches({.count = count, .type = DataType::Uint8}, operands.addresses());
  relays.replace_ports(launches);
  const PortAddress receiver = launches[1].ports[0];
  emulation::set_bystander([&] { relays.carry(); });
  ASSERT_TRUE(run(cluster, std::move(launches)));
  uint64_t credit = 0;
  for (uint32_t channel = 0; channel < kShape.channels; ++channel)
    credit += receiver.remote_control[channel].remote;
  EXPECT_EQ(credit, count / kShape.slot_bytes);
}

}  // namespace
}  // namespace niccolite::device_test
