#include "tests/device/wiring.h"

#include <algorithm>

namespace niccolite::device_test {
namespace {

std::tuple<int, int, int> ends_of(int rank, const executor::Port& port) {
  return port.is_send ? std::tuple(rank, port.peer, port.tag)
                      : std::tuple(port.peer, rank, port.tag);
}

}  // namespace

Wiring::Wiring(const std::vector<executor::Program>& programs, const executor::FifoShape& shape)
    : bytes_(programs.size(), 0) {
  const auto take = [&](int rank, size_t bytes) {
    const size_t at = bytes_[static_cast<size_t>(rank)];
    bytes_[static_cast<size_t>(rank)] += bytes;
    return at;
  };
  for (const executor::Program& program : programs) {
    ports_.push_back(program.ports);
    for (const executor::Port& port : program.ports) {
      const auto ends = ends_of(program.rank, port);
      if (connections_.contains(ends)) continue;
      const auto [sender, receiver, tag] = ends;
      const size_t sender_control = take(sender, shape.control_bytes());
      const size_t receiver_control = take(receiver, shape.control_bytes());
      connections_[ends] = {sender_control, receiver_control, take(receiver, shape.slots_bytes())};
    }
  }
}

std::vector<executor::PortAddress> Wiring::ports(int rank,
                                                 std::span<std::byte* const> memories) const {
  std::vector<executor::PortAddress> addresses;
  for (const executor::Port& port : ports_[static_cast<size_t>(rank)]) {
    const auto ends = ends_of(rank, port);
    const Connection& connection = connections_.at(ends);
    std::byte* sender = memories[static_cast<size_t>(std::get<0>(ends))];
    std::byte* receiver = memories[static_cast<size_t>(std::get<1>(ends))];
    auto* control = reinterpret_cast<executor::ControlBlock*>(sender + connection.sender_control);
    auto* remote =
        reinterpret_cast<executor::ControlBlock*>(receiver + connection.receiver_control);
    if (!port.is_send) std::swap(control, remote);
    addresses.push_back({.slots = receiver + connection.slots,
                         .control = control,
                         .remote_control = remote,
                         .can_put = true,
                         .can_get = true,
                         .opens_buffers = true});
  }
  return addresses;
}

}  // namespace niccolite::device_test
