// Routes: how bytes may go over each connection of a schedule, as its form says, whatever the links
// can do.
//
//   Slot        the sender stores a chunk in a slot of the connection, the receiver reads it there
//   DirectPut   the sender stores to the receiver's output; the receiver only waits for it
//   DirectGet   the receiver reads the sender's input; the sender only waits until it has
//   TeamStore   the sender stores a chunk once, to a slot of all ranks of its machine
//   TeamLoad    each sender stores a chunk in a slot of its own, and the receiver loads, once, the
//               reduction of these slots and of its own
//
// Nothing is declared by algorithms. A connection may be a
//   put   where the receiving worker is one instruction that stores what comes to its output as it
//         is, and perhaps passes it on;
//   get   where the sending worker is one instruction that does nothing but send its input there,
//         and the receiver reduces it or passes it on. (If it would only store, it is a put.)
//   team store  where each instruction that sends there sends the same to all other ranks of its
//         machine;
//   team load   where each instruction that receives there reduces a local operand with what comes
//         from all other ranks of its machine. The order in which the ranks are reduced is nobody's.
// A team store whose receivers only store what comes, and a team load whose senders only send their
// input, may do without slots, where the team reaches the buffers (Route::allows_windows).
// All connections of one tag go one way: a way that every one of them may go, a get before a put.
// Where there is a team, its ways come first, a store before a load that allows no windows; a
// schedule has kMostTeamTags of either. Where partial sums travel there are no gets: a chain would
// have one at its first hop alone. (On several machines, chains go between machines.) Between
// machines all bytes go through slots, whatever the form; only connections inside machines decide
// on the route. Each message (PointToPoint) is moved by a worker of one instruction at either end,
// so that all are puts.
//
// Who may use it: planner, executors, tools. Thread safety: values.
#pragma once

#include <map>
#include <span>
#include <utility>

#include "lowering/way.h"
#include "schedule/schedule.h"

namespace niccolite::lowering {

/// The routes of a schedule's connections, by tag.
class Routes {
 public:
  Routes() = default;
  explicit Routes(std::map<int, Route> of_tags) : of_tags_(std::move(of_tags)) {}

  /// Returns the route of a connection with this tag; Slot where the schedule has none.
  Route of(int tag) const {
    const auto found = of_tags_.find(tag);
    return found == of_tags_.end() ? Route{} : found->second;
  }
  bool are_all_slots() const;
  /// Does any go by a team?
  bool use_team() const;
  /// May any do without slots, where the team reaches windows?
  bool allow_windows() const;
  /// The tag in programs of the connections that have `tag` in the schedule. Teams have connections
  /// of their own: all slots of one store, or of one load, are at one step, which other uses would
  /// undo.
  int tag_in_program(int tag) const;
  const std::map<int, Route>& of_tags() const { return of_tags_; }

  friend bool operator==(const Routes&, const Routes&) = default;

 private:
  std::map<int, Route> of_tags_;
};

/// Tags of a schedule that go by team stores, or by team loads.
inline constexpr int kMostTeamTags = 2;
/// The first tag of programs for connections of teams: of stores, then of loads, kMostTeamTags
/// each.
inline constexpr int kFirstTeamTag = 16;
/// The most ranks that a machine's team may have.
inline constexpr int kMostTeamRanks = 16;
/// Slots of a team that each of its ranks stores to all, or loads of all.
inline constexpr int kTeamPlaces = 2 * kMostTeamTags;
constexpr bool is_team_tag(int tag) {
  return tag >= kFirstTeamTag && tag < kFirstTeamTag + 2 * kMostTeamTags;
}

/// The routes of `schedule`, whose form is right (schedule/check.h). `machines`: the machine of
/// each rank; empty: all are on one. `has_team`: all ranks of each machine are in one.
/// `publishes_chunks`: as the protocol does (way_over()); of words that bring flags, a team carries
/// stores to slots alone. Without a team all protocols have the same routes. Of a part of a
/// schedule (algorithms::Options::only_rank), the routes as far as the part does not exclude
/// them: what the part excludes, the whole does, too, so that Slot is certain, and all else is not.
Routes routes_of(const schedule::Schedule& schedule, std::span<const int> machines = {},
                 bool has_team = false, bool publishes_chunks = true);

/// Are the connections with this tag, among `connections` of an instruction of `rank`, to or from
/// all other ranks of its machine, and no others?
bool reaches_team(const schedule::Schedule& schedule, std::span<const int> machines, int rank,
                  std::span<const int> connections, int tag);

/// Is the worker one instruction that stores what comes to its output as it is, and perhaps passes
/// it on? All that it receives may be put.
bool only_stores(const schedule::Worker& worker);
/// Is the worker one instruction that does nothing but send a block of its input? It may be got.
bool only_sends_input(const schedule::Worker& worker);

/// Is the connection one between two machines?
bool leaves_machine(const schedule::Connection& connection, std::span<const int> machines);

}  // namespace niccolite::lowering
