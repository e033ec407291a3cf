#include "gpu/virtual/path_fault.h"

#include "base/parameters.h"

namespace niccolite::gpu::virtual_ {

PathFault path_fault() {
  const std::string& text = parameters::virtual_fault();
  if (text == "lost") return PathFault::Lost;
  if (text == "late") return PathFault::Late;
  return text == "zeros" ? PathFault::Zeros : PathFault::None;
}

MulticastFault multicast_fault() {
  const std::string& text = parameters::virtual_fault();
  if (text == "unbound") return MulticastFault::Unbound;
  if (text == "unbound_later") return MulticastFault::UnboundLater;
  if (text == "hung") return MulticastFault::Hung;
  return text == "deaf" ? MulticastFault::Deaf : MulticastFault::None;
}

}  // namespace niccolite::gpu::virtual_
