// Way: how the bytes of one connection go in one launch, and the facts that decide it.
//
// Included by host and device code: plain C++. Thread safety: values.
#pragma once

#include <cstdint>

namespace niccolite::lowering {

enum class Way : uint8_t {
  Slot,
  DirectPut,
  DirectGet,
  Pull,
  TeamStore,
  TeamLoad
};  // routes.h;
    // Pull: plan.h

const char* name_of(Way way);

/// Does the connection use the memory of a team (gpu/multicast.h), whose addresses are of all ranks
/// of a machine?
constexpr bool uses_team(Way way) { return way == Way::TeamStore || way == Way::TeamLoad; }
/// Do chunks go through slots, with credit and announcements, wherever the slots lie?
constexpr bool uses_slots(Way way) { return way == Way::Slot || uses_team(way); }

/// How bytes may go over a connection, as the form of the schedule says (routes.h).
struct Route {
  Way way = Way::Slot;
  /// A put, and no receiver of any put of the schedule passes on the data. Nobody then reads them
  /// before the operation ends, whoever stored them, and in whatever order.
  bool is_final = false;

  friend bool operator==(const Route&, const Route&) = default;
};

/// The capabilities of the link under a connection, known to both of its ends.
struct Link {
  bool can_put = true;    // the sender reaches buffers of the receiver's user
  bool can_get = true;    // the receiver reaches buffers of the sender's user
  bool has_team = false;  // both are in a team with all ranks of their machine
};

/// How the bytes go in a launch: by the route, if the link can do it and the protocol publishes
/// chunks, which advertisements need; else through slots. The one place where this is decided.
constexpr Way way_over(const Route& route, const Link& link, bool publishes_chunks) {
  const bool can = route.way == Way::DirectPut   ? link.can_put
                   : route.way == Way::DirectGet ? link.can_get
                                                 : uses_team(route.way) && link.has_team;
  return can && publishes_chunks ? route.way : Way::Slot;
}

}  // namespace niccolite::lowering
