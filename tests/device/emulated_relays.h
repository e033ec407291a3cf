// Connections to other machines between emulated GPUs: the ends are those of the proxies
// (transport/net/{outgoing,incoming}.h), between which the test carries what the notes say, no byte
// more, in any order.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "executor/launch.h"
#include "gpu/virtual/driver.h"
#include "transport/net/incoming.h"
#include "transport/net/outgoing.h"

namespace niccolite::device_test {

inline constexpr uint32_t kPartBytes = 192;  // less than a slot: chunks come in several

/// Both ends of every connection of a cluster's launches, and what is on its way between them.
class Relays {
 public:
  explicit Relays(const executor::FifoShape& shape,
                  executor::Protocol protocol = executor::Protocol::Simple)
      : shape_(shape), protocol_(protocol) {}

  /// Has the launches use the relays in the place of common memory.
  void replace_ports(std::vector<executor::Launch>& launches) {
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
      relay.from->collect({.bytes = kPartBytes}, [&](const transport::net::Part& part) {
        on_the_way_.push_back({&relay, part});
      });
      relay.to->collect(transport::net::Incoming::Credit::All,
                        [&](const transport::net::Frame& credit) {
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
    std::unique_ptr<transport::net::Outgoing> from;
    std::unique_ptr<transport::net::Incoming> to;
  };
  Relay& relay_of(const std::tuple<int, int, int>& ends) {
    Relay& relay = relays_[ends];
    if (relay.from != nullptr) return relay;
    gpu::Machine& machine = *gpu::virtual_::open(gpu::virtual_::kInterfaceVersion);
    const transport::net::Key key{.tag = std::get<2>(ends), .protocol = protocol_};
    relay.from = transport::net::Outgoing::create(machine, key, shape_, bell_).take();
    relay.to = transport::net::Incoming::create(machine, key, shape_, bell_).take();
    return relay;
  }

  const executor::FifoShape shape_;
  const executor::Protocol protocol_;
  executor::relay::Bell bell_{[](void*, uint64_t) {}, nullptr};
  std::map<std::tuple<int, int, int>, Relay> relays_;
  std::vector<std::pair<Relay*, transport::net::Part>> on_the_way_;
  std::mt19937 random_{1};
};

}  // namespace niccolite::device_test
