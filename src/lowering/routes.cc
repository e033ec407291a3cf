#include "lowering/routes.h"

#include <algorithm>
#include <functional>
#include <optional>

#include "schedule/index.h"

namespace niccolite::lowering {
namespace {

using schedule::at;
using schedule::Buffer;
using schedule::Collective;
using schedule::Connection;
using schedule::Instruction;
using schedule::length;
using schedule::Schedule;
using schedule::Worker;

/// The routes that the workers at the ends of a connection allow. An end that the schedule does not
/// have allows all.
struct Allowed {
  bool put = true;
  bool get_by_sender = true;
  bool get_by_receiver = false;  // some instruction reduces received data, or passes it on
  bool has_receiver = false;
  bool is_passed_on = false;
  bool team_store = true;
  bool team_load = true;
  // Blocks at both ends of a team's way: of outputs where the sender keeps the data that it stores
  // to all, of inputs where the receiver adds its own data. None: the end has no such block.
  std::optional<int> stored_by_sender, stored_by_receiver, loaded_of_sender, loaded_of_receiver;

  bool get() const { return get_by_sender && (get_by_receiver || !has_receiver); }
  // Ends that a part of a schedule leaves out are not known, and the whole schedule decides.
  bool put_by_team() const {
    return put && !is_passed_on && stored_by_sender.has_value() &&
           stored_by_sender == stored_by_receiver;
  }
  bool get_by_team() const {
    return get() && loaded_of_sender.has_value() && loaded_of_sender == loaded_of_receiver;
  }
};

/// The other end of a connection of `rank`.
int peer_over(const Connection& connection, int rank) {
  return connection.sender == rank ? connection.receiver : connection.sender;
}

/// The block, if it is one of `buffer`.
std::optional<int> block_in(const std::optional<schedule::BlockReference>& reference,
                            Buffer buffer) {
  return reference && reference->buffer == buffer ? std::optional(reference->block) : std::nullopt;
}

/// Returns the allowed routes, by connection. It skips connections that do not exist: the check of
/// the schedule names them.
std::vector<Allowed> look_at(const Schedule& schedule, std::span<const int> machines,
                             bool has_team) {
  std::vector<Allowed> allowed(schedule.connections.size());
  const auto exists = [&](int connection) {
    return connection >= 0 && connection < length(allowed);
  };
  for (int rank = 0; rank < length(schedule.ranks); ++rank) {
    for (const schedule::Channel& channel : at(schedule.ranks, rank)) {
      for (const Worker& worker : channel.workers) {
        const bool stores = only_stores(worker), sends_input = only_sends_input(worker);
        for (const Instruction& instruction : worker.instructions) {
          const bool passes_on = !instruction.send_to.empty();
          for (const int connection : instruction.receive_from) {
            if (!exists(connection)) continue;
            Allowed& of = at(allowed, connection);
            of.has_receiver = true;
            of.put &= stores;
            of.get_by_receiver |= instruction.reduce || passes_on;
            of.is_passed_on |= passes_on;
            of.stored_by_receiver = block_in(instruction.target, Buffer::Output);
            of.loaded_of_receiver = block_in(instruction.source, Buffer::Input);
            of.team_load &= has_team && instruction.reduce && instruction.source &&
                            reaches_team(schedule, machines, rank, instruction.receive_from,
                                         at(schedule.connections, connection).tag);
          }
          for (const int connection : instruction.send_to) {
            if (!exists(connection)) continue;
            at(allowed, connection).get_by_sender &= sends_input;
            at(allowed, connection).stored_by_sender = block_in(instruction.target, Buffer::Output);
            at(allowed, connection).loaded_of_sender = block_in(instruction.source, Buffer::Input);
            at(allowed, connection).team_store &=
                has_team && reaches_team(schedule, machines, rank, instruction.send_to,
                                         at(schedule.connections, connection).tag);
          }
        }
      }
    }
  }
  return allowed;
}

}  // namespace

const char* name_of(Way way) {
  switch (way) {
    case Way::Slot:
      return "slot";
    case Way::DirectPut:
      return "put";
    case Way::DirectGet:
      return "get";
    case Way::Pull:
      return "pull";
    case Way::TeamStore:
      return "team store";
    case Way::TeamLoad:
      return "team load";
    case Way::TeamPut:
      return "team put";
    case Way::TeamGet:
      return "team get";
  }
  return "unknown way";
}

bool Routes::are_all_slots() const {
  return std::ranges::all_of(of_tags_,
                             [](const auto& entry) { return entry.second.way == Way::Slot; });
}

bool Routes::use_team() const {
  return std::ranges::any_of(of_tags_,
                             [](const auto& entry) { return uses_team(entry.second.way); });
}

bool Routes::allow_windows() const {
  return std::ranges::any_of(of_tags_,
                             [](const auto& entry) { return entry.second.allows_windows; });
}

int Routes::tag_in_program(int tag) const {
  const Way way = of(tag).way;
  if (!uses_team(way)) return tag;
  int number = way == Way::TeamStore ? 0 : kMostTeamTags;
  for (const auto& [other, route] : of_tags_) number += other < tag && route.way == way;
  return kFirstTeamTag + number;
}

bool reaches_team(const Schedule& schedule, std::span<const int> machines, int rank,
                  std::span<const int> connections, int tag) {
  std::vector<char> is_reached(static_cast<size_t>(schedule.nranks));
  const auto machine_of = [&](int of) { return machines.empty() ? 0 : at(machines, of); };
  for (const int number : connections) {
    if (number < 0 || number >= length(schedule.connections)) return false;
    const Connection& connection = at(schedule.connections, number);
    if (connection.tag != tag) continue;
    const int peer = peer_over(connection, rank);
    if (peer == rank || machine_of(peer) != machine_of(rank) || at(is_reached, peer)) return false;
    at(is_reached, peer) = 1;
  }
  int others = 0;
  for (int peer = 0; peer < schedule.nranks; ++peer) {
    if (peer == rank || machine_of(peer) != machine_of(rank)) continue;
    if (!at(is_reached, peer)) return false;
    ++others;
  }
  return others > 0;
}

bool only_stores(const Worker& worker) {
  if (worker.instructions.size() != 1) return false;
  const Instruction& only = worker.instructions.front();
  return only.receive_from.size() == 1 && !only.source && !only.finish && only.target &&
         only.target->buffer == Buffer::Output;
}

bool only_sends_input(const Worker& worker) {
  if (worker.instructions.size() != 1) return false;
  const Instruction& only = worker.instructions.front();
  return only.receive_from.empty() && only.send_to.size() == 1 && !only.finish && !only.target &&
         only.source && only.source->buffer == Buffer::Input;
}

bool leaves_machine(const Connection& connection, std::span<const int> machines) {
  return !machines.empty() && at(machines, connection.sender) != at(machines, connection.receiver);
}

Routes routes_of(const Schedule& schedule, std::span<const int> machines, bool has_team,
                 bool publishes_chunks) {
  std::map<int, Route> routes;
  if (schedule.collective == Collective::PointToPoint) {
    for (const Connection& connection : schedule.connections)
      routes[connection.tag] = {.way = Way::DirectPut, .is_final = true};
    return Routes(std::move(routes));
  }
  const std::vector<Allowed> allowed = look_at(schedule, machines, has_team);
  // The network's reducer reads and writes slots, too.
  const auto leaves = [&](int connection) {
    const Connection& c = at(schedule.connections, connection);
    return leaves_machine(c, machines) || schedule::through_of(c.tag) != schedule::Through::Nothing;
  };
  const bool is_on_one =
      std::ranges::adjacent_find(machines, std::ranges::not_equal_to()) == machines.end();
  struct Can {
    bool get, put, team_store, team_load, put_by_team = true, get_by_team = true;
  };
  std::map<int, Can> of_tags;  // all connections of the tag
  for (int i = 0; i < length(allowed); ++i) {
    const int tag = at(schedule.connections, i).tag;
    Can& can = of_tags
                   .try_emplace(tag, Can{.get = !schedule.partial_sums || !is_on_one,
                                         .put = true,
                                         .team_store = has_team,
                                         .team_load = has_team && publishes_chunks})
                   .first->second;
    can.team_store &= !leaves(i) && at(allowed, i).team_store;
    can.team_load &= !leaves(i) && at(allowed, i).team_load;
    if (leaves(i)) continue;
    can.get &= at(allowed, i).get();
    can.put &= at(allowed, i).put;
    can.put_by_team &= at(allowed, i).put_by_team();
    can.get_by_team &= at(allowed, i).get_by_team();
    routes[tag];
  }
  int stores = 0, loads = 0;
  for (auto& [tag, route] : routes) {
    const Can& can = of_tags[tag];
    // One peer is all others, so that two ranks could store as well as load: then windows decide.
    const bool loads_windows = can.team_load && can.get_by_team && !can.put_by_team;
    if (can.team_store && !loads_windows && stores < kMostTeamTags) {
      ++stores;
      route = {.way = Way::TeamStore, .allows_windows = publishes_chunks && can.put_by_team};
    } else if (can.team_load && loads < kMostTeamTags) {
      ++loads;
      route = {.way = Way::TeamLoad, .allows_windows = can.get_by_team};
    } else {
      route.way = can.get ? Way::DirectGet : can.put ? Way::DirectPut : Way::Slot;
    }
  }
  bool is_passed_on = false;
  for (int i = 0; i < length(allowed); ++i) {
    is_passed_on |= !leaves(i) && at(allowed, i).is_passed_on &&
                    routes[at(schedule.connections, i).tag].way == Way::DirectPut;
  }
  for (auto& [tag, route] : routes) route.is_final = route.way == Way::DirectPut && !is_passed_on;
  return Routes(std::move(routes));
}

}  // namespace niccolite::lowering
