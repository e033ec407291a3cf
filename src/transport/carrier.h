// Carrier: a communicator's choice of the way by which data go to other machines.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace niccolite::transport {

namespace net {
class Network;
}

struct Carrier {
  std::shared_ptr<net::Network> network{};  // a plug-in's, or verbs; null: sockets do
  // The rail of the sockets (net/rails.h) that is nearest to the GPU, by name. If no rail has that
  // name: the rail with the index `number`, modulo the number of rails.
  std::string nearest_interface{};
  size_t number = 0;
  int ranks_of_machine = 1;  // that share its cores, this one included
};

}  // namespace niccolite::transport
