// Carrier: what carries data to other machines, as a communicator has chosen it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace niccolite::transport {

namespace net {
class Network;
}

struct Carrier {
  std::shared_ptr<net::Network> network{};  // a plug-in's; null: sockets do
  // Of the sockets' rails (net/rails.h) the one that is nearest to the GPU, by name; where there is
  // none of that name: the one of this number, modulo how many there are.
  std::string nearest_interface{};
  size_t number = 0;
  int ranks_of_machine = 1;  // that share its cores, this one included
};

}  // namespace niccolite::transport
