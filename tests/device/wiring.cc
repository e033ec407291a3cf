#include "tests/device/wiring.h"

#include <cstdlib>

namespace niccolite::device_test {
namespace {

size_t port_at_peer(const executor::Program& peer, int rank, const executor::Port& port) {
  for (size_t p = 0; p < peer.ports.size(); ++p) {
    const executor::Port& other = peer.ports[p];
    if (other.peer == rank && other.tag == port.tag && other.channel == port.channel &&
        other.is_send != port.is_send) {
      return p;
    }
  }
  std::abort();  // a program without its other half: a bug of the compiler
}

}  // namespace

Wiring::Wiring(const std::vector<executor::Program>& programs, const executor::FifoShape& shape) {
  for (const executor::Program& program : programs) {
    Rank rank;
    for (const executor::Port& port : program.ports) {
      End end{};
      end.control = rank.bytes;
      rank.bytes += shape.control_bytes();
      end.slots = rank.bytes;
      if (!port.is_send) rank.bytes += shape.slots_bytes();
      end.is_send = port.is_send;
      end.peer = port.peer;
      end.peer_port = port_at_peer(programs[static_cast<size_t>(port.peer)], program.rank, port);
      rank.ends.push_back(end);
    }
    ranks_.push_back(std::move(rank));
  }
}

std::vector<executor::PortAddress> Wiring::ports(int rank,
                                                 std::span<std::byte* const> memories) const {
  const auto control = [&](size_t r, const End& end) {
    return reinterpret_cast<executor::ControlBlock*>(memories[r] + end.control);
  };
  std::vector<executor::PortAddress> ports;
  for (const End& end : ranks_[static_cast<size_t>(rank)].ends) {
    const auto peer = static_cast<size_t>(end.peer);
    const End& other = ranks_[peer].ends[end.peer_port];
    ports.push_back({end.is_send ? memories[peer] + other.slots
                                 : memories[static_cast<size_t>(rank)] + end.slots,
                     control(static_cast<size_t>(rank), end), control(peer, other)});
  }
  return ports;
}

}  // namespace niccolite::device_test
