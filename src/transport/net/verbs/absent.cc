// In the place of verbs.cc in a build without rdma-core's headers.
#include "transport/net/verbs/verbs.h"

namespace niccolite::transport::net::verbs {

Result<std::shared_ptr<Network>> open(const Network::Wish& /*wish*/) {
  return Status::invalid_usage(
      "this build of the library has no InfiniBand and RoCE: build it where infiniband/verbs.h is "
      "(package libibverbs-dev)");
}

std::vector<PortState> port_states() { return {}; }

}  // namespace niccolite::transport::net::verbs
