// Carrier: a communicator's choice of the way by which data go to other machines.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace niccolite::transport {

namespace net {
class Network;
class UserBuffers;
}  // namespace net

struct Carrier {
  std::shared_ptr<net::Network> network{};           // a plug-in's, or verbs; null: sockets do
  std::shared_ptr<net::UserBuffers> user_buffers{};  // of the network; null: there are none
  // The interfaces, or ports, that are nearest to the GPU, by name, this rank's own first
  // (topology/rails.h). If there is none of such a name: the one with the index `number`, modulo
  // how many there are.
  std::vector<std::string> nearest{};
  size_t number = 0;
  int ranks_of_machine = 1;  // that share its cores, this one included
};

}  // namespace niccolite::transport
