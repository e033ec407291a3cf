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
  TeamLoad,
  TeamPut,
  TeamGet
};  // routes.h;
    // Pull, TeamPut, TeamGet: plan.h

const char* name_of(Way way);

/// Does the connection use the memory of a team (gpu/multicast.h), whose addresses are of all ranks
/// of a machine?
constexpr bool uses_team(Way way) { return way >= Way::TeamStore; }
/// Do chunks go through slots, with credit and announcements, wherever the slots lie?
constexpr bool uses_slots(Way way) {
  return way == Way::Slot || way == Way::TeamStore || way == Way::TeamLoad;
}
/// Does the sender store to the receiver's output, once, or for all ranks of a team at once?
constexpr bool is_put(Way way) { return way == Way::DirectPut || way == Way::TeamPut; }
/// Does the receiver read the sender's input, or the reduction of the inputs of a team?
constexpr bool is_get(Way way) { return way == Way::DirectGet || way == Way::TeamGet; }
/// Does one store reach the whole team, in slots or in windows?
constexpr bool is_store_to_team(Way way) { return way == Way::TeamStore || way == Way::TeamPut; }
/// Does one load reduce what the whole team has, in slots or in windows?
constexpr bool is_load_of_team(Way way) { return way == Way::TeamLoad || way == Way::TeamGet; }
/// Returns the way that takes the place of `way` where buffers cannot be reached.
constexpr Way through_slots(Way way) {
  return is_store_to_team(way) ? Way::TeamStore : is_load_of_team(way) ? Way::TeamLoad : Way::Slot;
}

/// How bytes may go over a connection, as the form of the schedule says (routes.h).
struct Route {
  Way way = Way::Slot;
  /// A put, and no receiver of any put of the schedule passes on the data. Nobody then reads them
  /// before the operation ends, whoever stored them, and in whatever order.
  bool is_final = false;
  /// A team's way: where buffers lie in windows, the form also allows the way without slots. All
  /// blocks of one store, or of one load, are then at one place of the ranks' buffers.
  bool allows_windows = false;

  friend bool operator==(const Route&, const Route&) = default;
};

/// The capabilities of the link under a connection, known to both of its ends.
struct Link {
  bool can_put = true;       // the sender reaches buffers of the receiver's user
  bool can_get = true;       // the receiver reaches buffers of the sender's user
  bool has_team = false;     // both are in a team with all ranks of their machine
  bool has_windows = false;  // which reaches windows, too
};

/// How the bytes go in a launch: by the route, if the link can do it and the protocol publishes
/// chunks, which advertisements and loads of a team need; else through slots. A store to a team's
/// slots needs nothing: words bring their flags to all members. The one place where this is
/// decided.
constexpr Way way_over(const Route& route, const Link& link, bool publishes_chunks) {
  if (!publishes_chunks)
    return route.way == Way::TeamStore && link.has_team ? Way::TeamStore : Way::Slot;
  const bool can = route.way == Way::DirectPut   ? link.can_put
                   : route.way == Way::DirectGet ? link.can_get
                                                 : uses_team(route.way) && link.has_team;
  if (!can) return Way::Slot;
  if (!route.allows_windows || !link.has_windows) return route.way;
  return route.way == Way::TeamStore ? Way::TeamPut : Way::TeamGet;
}

}  // namespace niccolite::lowering
