// A network between the ends of connections to other machines (executor/protocol/user_memory.h)
// that the test plays: bytes are read as late, and written as early, as proxies may. Parts of
// chunks travel in any order and in pieces, between any steps of the kernels, and are acknowledged
// later still.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <tuple>
#include <vector>

#include "executor/launch.h"
#include "gpu/virtual/driver.h"
#include "transport/net/incoming.h"
#include "transport/net/outgoing.h"

namespace niccolite::transport::net {

/// Both ends of all connections that leave a machine, for one kernel after the other.
class LooseNetwork {
 public:
  static constexpr uint32_t kPieceBytes = 48;  // a chunk comes in several

  LooseNetwork(const executor::FifoShape& shape, uint64_t least_bytes, uint32_t seed)
      : shape_(shape), least_bytes_(least_bytes), random_(seed) {}

  /// Ranks are on one machine where `machine_of` gives the same.
  template <typename MachineOf>
  void replace_ports(std::vector<executor::Launch>& launches, MachineOf machine_of) {
    for (size_t rank = 0; rank < launches.size(); ++rank) {
      const auto self = static_cast<int>(rank);
      for (size_t p = 0; p < launches[rank].ports.size(); ++p) {
        const executor::Port& port = launches[rank].program->ports[p];
        if (machine_of(self) == machine_of(port.peer)) continue;
        Wire& wire = port.is_send ? wire_of({self, port.peer, port.tag})
                                  : wire_of({port.peer, self, port.tag});
        launches[rank].ports[p] = port.is_send ? wire.from->port() : wire.to->port();
      }
    }
  }

  /// Moves something on. False: there is nothing.
  bool carry() {
    for (auto& [ends, wire] : wires_) collect(wire);
    let_go_for_kernels();
    if (on_the_way_.empty()) return false;
    std::swap(on_the_way_[random_() % on_the_way_.size()], on_the_way_.back());
    if (!move(on_the_way_.back())) on_the_way_.pop_back();
    return true;
  }

  void carry_all() {
    while (carry()) {
    }
  }

  /// The proxies' answers to kernels of GPUs.
  void let_go_for_kernels() {
    for (auto& [ends, wire] : wires_) {
      wire.from->let_go_for_kernels();
      wire.to->let_go_for_kernels();
    }
  }
  /// The receivers take no more.
  void abandon() {
    for (auto& [ends, wire] : wires_) wire.from->abandon();
  }

  /// Is anything of that rank's user under way, or awaited?
  bool uses_memory_of(int rank) const {
    for (const Piece& piece : on_the_way_) {
      const auto& [sender, receiver, tag] = piece.ends;
      if (piece.part.from == nullptr) continue;
      if (sender == rank && !is_slot(piece.wire->from->port().slots, piece.part.payload()))
        return true;
      if (receiver == rank && piece.is_accepted && piece.moved < piece.part.frame.length &&
          !is_slot(piece.wire->to->port().slots, piece.wire->to->place_of(piece.part.frame)))
        return true;
    }
    for (const auto& [ends, wire] : wires_) {
      if (std::get<1>(ends) != rank) continue;
      const auto* const places = wire.to->places();
      for (size_t i = 0; i < size_t{shape_.channels} * shape_.depth; ++i)
        if (places[i].address != 0) return true;
    }
    return false;
  }

  uint64_t from_users = 0, to_users = 0, bytes = 0;  // that were carried

 private:
  struct Wire {
    std::unique_ptr<Outgoing> from;
    std::unique_ptr<Incoming> to;
  };
  using Ends = std::tuple<int, int, int>;  // sender, receiver, tag
  struct Piece {
    Ends ends;
    Wire* wire;
    Part part;                              // or credit
    std::vector<std::byte> published = {};  // its bytes
    bool is_accepted = false;
    bool has_arrived = false;
    uint32_t moved = 0;
  };

  Wire& wire_of(const Ends& ends) {
    Wire& wire = wires_[ends];
    if (wire.from != nullptr) return wire;
    gpu::Machine& machine = *gpu::virtual_::open(gpu::virtual_::kInterfaceVersion);
    const Key key{.tag = std::get<2>(ends)};
    const UserMemoryOptions options{.loop = loop_.get(), .least_bytes = least_bytes_};
    wire.from = Outgoing::create(machine, key, shape_, bell_, options).take();
    wire.to = Incoming::create(machine, key, shape_, bell_, options).take();
    return wire;
  }

  void collect(Wire& wire) {
    const Ends ends = std::ranges::find_if(wires_, [&](const auto& entry) {
                        return &entry.second == &wire;
                      })->first;
    wire.from->collect({.bytes = kPieceBytes}, [&](const Part& part) {
      on_the_way_.push_back({.ends = ends, .wire = &wire, .part = part});
      on_the_way_.back().published.assign(part.payload(), part.payload() + part.frame.length);
    });
    wire.to->collect(Incoming::Credit::All, [&](const Frame& credit) {
      on_the_way_.push_back({.ends = ends, .wire = &wire, .part = {.frame = credit}});
    });
  }

  bool is_slot(const std::byte* slots, const std::byte* at) const {
    return at >= slots && at < slots + shape_.slots_bytes();
  }

  /// One of: the header comes, some bytes do, the last have, they are acknowledged. False: done.
  bool move(Piece& piece) {
    const Frame& frame = piece.part.frame;
    if (frame.kind == FrameKind::Credit) {
      piece.wire->from->grant(frame.channel, frame.step);
      return false;
    }
    if (!piece.is_accepted) {
      const Status status = piece.wire->to->accept(frame);
      EXPECT_TRUE(status.is_ok()) << status.message();
      piece.is_accepted = true;
    } else if (piece.moved < frame.length) {
      const auto some =
          std::min(frame.length - piece.moved, static_cast<uint32_t>(1 + random_() % frame.length));
      const std::byte* const source = piece.part.payload();
      std::byte* const target = piece.wire->to->place_of(frame);
      EXPECT_EQ(std::memcmp(source, piece.published.data(), frame.length), 0)
          << "what was published has changed before it arrived";
      std::memcpy(target + piece.moved, source + piece.moved, some);
      piece.moved += some;
      bytes += some;
      if (!is_slot(piece.wire->from->port().slots, source)) from_users += some;
      if (!is_slot(piece.wire->to->port().slots, target)) to_users += some;
    } else if (!piece.has_arrived) {
      piece.wire->to->arrived(frame);
      piece.has_arrived = true;
    } else {
      piece.part.from->sent(frame);
      return false;
    }
    return true;
  }

  const executor::FifoShape shape_;
  const uint64_t least_bytes_;
  std::mt19937 random_;
  executor::relay::Bell bell_{[](void*, uint64_t) {}, nullptr};
  std::unique_ptr<wire::EventLoop> loop_ = wire::EventLoop::create().take();
  std::map<Ends, Wire> wires_;
  std::vector<Piece> on_the_way_;
};

}  // namespace niccolite::transport::net
