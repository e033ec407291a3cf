#include "lowering/routes.h"

#include <algorithm>
#include <functional>

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

  bool get() const { return get_by_sender && (get_by_receiver || !has_receiver); }
};

/// Returns the allowed routes, by connection. It skips connections that do not exist: the check of
/// the schedule names them.
std::vector<Allowed> look_at(const Schedule& schedule) {
  std::vector<Allowed> allowed(schedule.connections.size());
  const auto exists = [&](int connection) {
    return connection >= 0 && connection < length(allowed);
  };
  for (const std::vector<schedule::Channel>& channels : schedule.ranks) {
    for (const schedule::Channel& channel : channels) {
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
          }
          for (const int connection : instruction.send_to)
            if (exists(connection)) at(allowed, connection).get_by_sender &= sends_input;
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
  }
  return "unknown way";
}

bool Routes::are_all_slots() const {
  return std::ranges::all_of(of_tags_,
                             [](const auto& entry) { return entry.second.way == Way::Slot; });
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

Routes routes_of(const Schedule& schedule, std::span<const int> machines) {
  std::map<int, Route> routes;
  if (schedule.collective == Collective::PointToPoint) {
    for (const Connection& connection : schedule.connections)
      routes[connection.tag] = {.way = Way::DirectPut, .is_final = true};
    return Routes(std::move(routes));
  }
  const std::vector<Allowed> allowed = look_at(schedule);
  const auto leaves = [&](int connection) {
    return leaves_machine(at(schedule.connections, connection), machines);
  };
  const bool is_on_one =
      std::ranges::adjacent_find(machines, std::ranges::not_equal_to()) == machines.end();
  std::map<int, std::pair<bool, bool>> gets_and_puts;  // by tag: can all of them?
  for (int i = 0; i < length(allowed); ++i) {
    if (leaves(i)) continue;
    auto& [gets, puts] = gets_and_puts
                             .try_emplace(at(schedule.connections, i).tag,
                                          !schedule.partial_sums || !is_on_one, true)
                             .first->second;
    gets &= at(allowed, i).get();
    puts &= at(allowed, i).put;
  }
  for (const auto& [tag, can] : gets_and_puts)
    routes[tag].way = can.first ? Way::DirectGet : can.second ? Way::DirectPut : Way::Slot;
  bool is_passed_on = false;
  for (int i = 0; i < length(allowed); ++i) {
    is_passed_on |= !leaves(i) && at(allowed, i).is_passed_on &&
                    routes[at(schedule.connections, i).tag].way == Way::DirectPut;
  }
  for (auto& [tag, route] : routes) route.is_final = route.way == Way::DirectPut && !is_passed_on;
  return Routes(std::move(routes));
}

}  // namespace niccolite::lowering
