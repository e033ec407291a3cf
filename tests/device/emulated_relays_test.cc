// Connections to other machines (protocol/relay.h) by the kernels' own source on the CPU: the ends
// are those of the proxies (transport/net/{outgoing,incoming}.h), between which the test carries
// what the notes say, no byte more, in any order.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <tuple>

#include "gpu/virtual/driver.h"
#include "tests/device/emulated_advertisements.h"
#include "tests/executor/host/operands.h"
#include "transport/net/incoming.h"
#include "transport/net/outgoing.h"

namespace niccolite::device_test {
namespace {

using executor::DataType;
using executor::PortAddress;
using executor::host::Operands;
using transport::net::Frame;
using transport::net::Incoming;
using transport::net::Key;
using transport::net::Outgoing;
using transport::net::Part;

constexpr uint32_t kPartBytes = 192;  // less than a slot: chunks come in several

/// Both ends of every connection of a cluster's launches, and what is on its way between them.
class Relays {
 public:
  explicit Relays(const FifoShape& shape) : shape_(shape) {}

  /// Has the launches use the relays in the place of common memory.
  void replace_ports(std::vector<Launch>& launches) {
    for (size_t rank = 0; rank < launches.size(); ++rank) {
      const auto self = static_cast<int>(rank);
      for (size_t p = 0; p < launches[rank].ports.size(); ++p) {
        const executor::Port& port = launches[rank].program->ports[p];
        const auto ends = port.is_send ? std::tuple(self, port.peer, port.tag)
                                       : std::tuple(port.peer, self, port.tag);
        Relay& relay = relay_of(ends);
        launches[rank].ports[p] = port.is_send ? relay.from->port() : relay.to->port();
      }
    }
  }

  /// Moves something on.
  void carry() {
    for (auto& [ends, relay] : relays_) {
      relay.from->collect(kPartBytes, [&](const Part& part) {
        on_the_way_.push_back({&relay, part});
      });
      relay.to->collect(/*all=*/true, [&](const Frame& credit) {
        relay.from->grant(credit.channel, credit.step);
      });
    }
    if (on_the_way_.empty()) return;
    std::swap(on_the_way_[random_() % on_the_way_.size()], on_the_way_.back());
    const auto [relay, part] = on_the_way_.back();
    on_the_way_.pop_back();
    const Status accepted = relay->to->accept(part.frame);
    ASSERT_TRUE(accepted.is_ok()) << accepted.message();
    std::memcpy(relay->to->place_of(part.frame), part.payload(), part.frame.length);
    relay->to->arrived(part.frame);
    part.from->sent(part.frame);
    bytes += part.frame.length;
    if (part.frame.call != tag) ++foreign;
  }

  uint64_t bytes = 0;  // carried
  uint16_t tag = 0;    // that all calls have
  int foreign = 0;     // parts of other calls

 private:
  struct Relay {
    std::unique_ptr<Outgoing> from;
    std::unique_ptr<Incoming> to;
  };
  Relay& relay_of(const std::tuple<int, int, int>& ends) {
    Relay& relay = relays_[ends];
    if (relay.from != nullptr) return relay;
    gpu::Machine& machine = *gpu::virtual_::open(gpu::virtual_::kInterfaceVersion);
    const Key key{.tag = std::get<2>(ends)};
    relay.from = Outgoing::create(machine, key, shape_, bell_).take();
    relay.to = Incoming::create(machine, key, shape_, bell_).take();
    return relay;
  }

  const FifoShape shape_;
  executor::relay::Bell bell_{[](void*, uint64_t) {}, nullptr};
  std::map<std::tuple<int, int, int>, Relay> relays_;
  std::vector<std::pair<Relay*, Part>> on_the_way_;
  std::mt19937 random_{1};
};

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
